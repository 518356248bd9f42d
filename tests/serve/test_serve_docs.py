"""docs/serving.md shows true answers; running this file as a script writes them into it."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

from npad.pipelines.translation import Translator
from npad.search.registry import SELECTORS
from serve_cases import events_of, serving, toy_model

PAGE = Path(__file__).parent.parent.parent / "docs/serving.md"
REQUEST = re.compile(
    r"```http\n(?P<method>GET|POST) (?P<path>\S+)\n(?P<body>.*?)```\n\n"
    r"```(?P<kind>json|text)\n(?P<shown>.*?)```",
    re.DOTALL,
)
TIME = re.compile(r'"seconds": [\d.]+')


def answers():
    """Each request of the page, with the answer that it gets."""
    with serving(toy_model()) as client:
        for request in REQUEST.finditer(PAGE.read_text()):
            path, body = request["path"], request["body"].strip()
            answer = client.post(path, body.encode()) if body else client.get(path)
            assert answer.status == 200, answer.body
            yield request, answer.body


def as_shown(kind: str, body: bytes) -> str:
    """An answer as the page shows it."""
    if kind == "json":
        return laid_out(json.loads(body)) + "\n"
    lines = [
        f"event: {event.name}\ndata: {json.dumps(event.data, ensure_ascii=False)}\n"
        for event in events_of(body)
    ]
    return "\n".join(lines)


def laid_out(value, indent: str = "") -> str:
    """JSON with what fits on a line on one line."""
    flat = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(flat) <= 100 or not isinstance(value, dict | list):
        return flat
    inside, deeper = [], indent + "  "
    if isinstance(value, dict):
        inside = [f"{deeper}{json.dumps(k)}: {laid_out(v, deeper)}" for k, v in value.items()]
        return "{\n" + ",\n".join(inside) + f"\n{indent}}}"
    return "[\n" + ",\n".join(deeper + laid_out(v, deeper) for v in value) + f"\n{indent}]"


def test_responses_on_the_page_are_those_of_the_server():
    shown = [(request["shown"], as_shown(request["kind"], body)) for request, body in answers()]
    assert len(shown) == 5
    for on_page, true in shown:
        assert TIME.sub("", on_page) == TIME.sub("", true)


def test_the_limits_of_the_page_are_those_of_the_server():
    from npad.serve.limits import Limits

    limits = Limits()
    table = PAGE.read_text().split("## Limits")[1]
    body, audio, uploads = (
        f"{size:,}".replace(",000,000,000", " GB").replace(",000,000", " MB")
        for size in (limits.body, limits.audio, limits.uploads)
    )
    assert f"| body | {body}; a recording {audio} and {limits.audio_seconds / 60:g} min" in table
    assert f"phrases of {limits.phrase_characters} characters, choices" in table
    assert f"| {limits.phrases} and {limits.choices:,} |" in table
    assert f"{limits.texts} of {limits.characters:,} characters" in table
    assert f"{limits.rows:,}; {limits.mbr_rows} with" in table
    assert f"{limits.budget:,} and {limits.max_length} " in table
    assert f"{limits.receive_seconds:g} s each" in table
    assert f"of an answer | {limits.send_seconds:g} s |" in table
    assert f"{uploads} together" in table
    assert f"{limits.seconds:g} s |" in table
    assert f"wait for a model | {limits.queue} |" in table
    assert f"{limits.requests} and {limits.connections} |" in table


def test_the_page_names_every_route_and_option():
    from npad.serve.app import OPERATIONS
    from npad.serve.options import option_names

    text = PAGE.read_text()
    assert all(f"{known.path}`" in text or f"{known.path}?" in text for known in OPERATIONS)
    assert all(f"`{name}`" in text for name in option_names())
    assert all(f"`{name}" in text for name in SELECTORS.kinds)
    longest = next(field.default for field in fields(Translator) if field.name == "longest")
    assert f"of {longest:,} tokens" in text


def rewrite() -> None:
    text = PAGE.read_text()
    for request, body in reversed(list(answers())):
        text = (
            text[: request.start("shown")]
            + as_shown(request["kind"], body)
            + text[request.end("shown") :]
        )
    PAGE.write_text(text)


if __name__ == "__main__":
    rewrite()
