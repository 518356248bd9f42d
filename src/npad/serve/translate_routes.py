"""POST /translate and GET /languages, as LibreTranslate's clients use them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from npad.errors import InvalidInput
from npad.pipelines.outputs import Translation
from npad.serve.bodies import ensure_request_texts
from npad.serve.confidence import confidence_of
from npad.serve.decoding import Decoded, decode_job, finite
from npad.serve.models import ServedModel
from npad.serve.options import choose_for
from npad.serve.service import Service, as_json
from npad.signatures import signature
from npad.validation import brief, ensure_integer

MOST_ALTERNATIVES = 20
BEAM = 5  # width without alternatives
NAMES = {
    "cs": "Czech",
    "de": "German",
    "en": "English",
    "es": "Spanish",
    "fr": "French",
    "it": "Italian",
    "ru": "Russian",
}
AUTO = "auto"


async def translate(service: Service, request: Request) -> Response:
    """Translate as LibreTranslate does, with the score and the signature besides.

    Lines are translated one by one. A list of texts is answered by lists.
    """
    options = await service.body(request)
    given = options.pop("q", None)
    texts = ensure_request_texts("q", given, service.limits)
    if not any(text.strip() for text in texts):
        raise InvalidInput("q must not be empty")
    source, target = options.pop("source", AUTO), options.pop("target", None)
    model = find_model(service.models, options.pop("model", None), source, target)
    if options.pop("format", "text") != "text":
        raise InvalidInput("format must be text; html is not supported")
    count = _alternatives(options.pop("alternatives", None))
    lines = [line for text in texts for line in text.split("\n")]
    if len(lines) > service.limits.texts:
        raise InvalidInput(f"q must have at most {service.limits.texts} lines, not {len(lines)}")
    if options.get("decoder") in (None, "beam") and count and "nbest" not in options:
        options = {"width": max(BEAM, count + 1)} | options | {"nbest": count + 1}
    chosen = choose_for(model.model, options, service.limits, default="beam")
    decoded = iter(await service.outcome(request, model, decode_job(model, lines, chosen)))
    answers = []
    for text in texts:
        results = [next(decoded) for _ in text.split("\n")]
        for result in results:
            service.metrics.called(model.id, *result.calls)
        answers.append(_answer(model, results, count))
    detected = {"language": (model.languages or ("", ""))[0], "confidence": 0.0}
    if source == AUTO:
        for answer in answers:
            answer["detectedLanguage"] = detected
    together = (
        {name: [answer[name] for answer in answers] for name in answers[0]}
        if isinstance(given, list)
        else answers[0]
    )
    return as_json(together | {"signature": signature(chosen.decoder, model.model)})


def _answer(model: ServedModel, results: list[Decoded], alternatives: int) -> dict[str, Any]:
    """Return the answer for one text, whose lines were translated one by one."""
    lines: list[Translation] = [result.translation for result in results]
    answer: dict[str, Any] = {"translatedText": "\n".join(line.text for line in lines)}
    if alternatives:
        texts = [[other.text for other in line.alternatives] for line in lines]
        together = zip(*texts, strict=False)  # as many as every line has
        distinct = dict.fromkeys("\n".join(other) for other in together)
        distinct.pop(answer["translatedText"], None)
        answer["alternatives"] = list(distinct)[:alternatives]
    written = [line for line in lines if line.hypothesis.tokens]
    single = written[0].hypothesis if len(written) == 1 else None
    answer["log_prob"] = finite(sum(line.log_prob for line in lines))
    answer["confidence"] = None if single is None else confidence_of(model, single)
    return answer


def _alternatives(value: Any) -> int:
    """Return the number of alternatives, from JSON or from a form."""
    if value is None or value == "":
        return 0
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    ensure_integer("alternatives", number, 0, MOST_ALTERNATIVES)
    return int(number)


def find_model(
    models: Mapping[str, ServedModel], name: Any, source: Any, target: Any
) -> ServedModel:
    """Return the first model that translates between two languages.

    Args:
        models: by id.
        name: of a model, which then must have these languages; None: any.
        source: a language's code, or "auto": any.
        target: a language's code; None if the model is named.

    Raises:
        InvalidInput: there is none.
    """
    for code, parameter in ((source, "source"), (target, "target")):
        if code is not None and not isinstance(code, str):
            rule = f"{parameter} must be the code of a language"
            raise InvalidInput(f"{rule}, such as de, not {brief(code, 60)}")
    if target is None and name is None:
        raise InvalidInput("target is missing: the code of a language, such as de")
    for served in models.values():
        from_code, to_code = served.languages or (None, None)
        named = name is None or served.id == name
        if not named or served.translator is None:
            continue
        if name is not None and served.languages is None:
            return served
        if source in (AUTO, from_code) and target in (None, to_code):
            return served
    pairs = [f"{m.languages[0]}-{m.languages[1]}" for m in models.values() if m.languages]
    if name is not None and name not in models:
        raise InvalidInput(f"there is no model {brief(name, 60)}; there are {', '.join(models)}")
    asked = f"from {brief(source, 20)} to {brief(target, 20)}"
    raise InvalidInput(f"no model translates {asked}; there are {', '.join(pairs) or 'none'}")


async def languages(service: Service, request: Request) -> Response:
    """List the languages as LibreTranslate does."""
    service.query(request)
    targets: dict[str, list[str]] = {}
    for served in service.models.values():
        if served.languages is not None:
            source, target = served.languages
            targets.setdefault(source, [])
            targets.setdefault(target, [])
            if target not in targets[source]:
                targets[source].append(target)
    return as_json(
        [
            {"code": code, "name": NAMES.get(code, code), "targets": reached}
            for code, reached in targets.items()
        ]
    )
