"""Each limit of the server at its edge: what is just allowed, and what is just refused."""

from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace
from urllib.parse import urlencode

import pytest
from starlette.requests import ClientDisconnect

import npad
from npad import InvalidInput
from npad.models import toy
from npad.serve import bodies
from npad.serve.bodies import MAX_FIELDS
from npad.serve.limits import Limits, RequestRefused
from npad.serve.models import serve
from npad.serve.options import LONGEST_VALUE, decoding_for
from npad.serve.service import PIECE, in_pieces
from npad.serve.text_routes import SECONDS
from serve_cases import (
    BOUNDARY,
    Client,
    hearing_model,
    http_answer,
    post_recording,
    recording_form,
    serving,
    toy_model,
    wait_until,
    wav,
)

ASKED = {"text": "danke", "decoder": "greedy"}
FORM = "application/x-www-form-urlencoded"
LIMITS = Limits(body=600, texts=4, characters=24)


@pytest.fixture(scope="module")
def client():
    with serving(toy_model(), limits=LIMITS) as client:
        yield client


def chunked(client: Client, path: str, kind: str, body: bytes, size: int = 100) -> bytes:
    """The status line for a body that is sent in chunks."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    with client.connect() as connection:
        connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        for piece in [*pieces, b""]:
            connection.sendall(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        return connection.recv(1000).split(b"\r\n")[0]


@pytest.mark.parametrize(("size", "status"), [(LIMITS.body, 200), (LIMITS.body + 1, 413)])
def test_a_body_has_at_most_so_many_bytes(client, size, status):
    body = json.dumps(ASKED).encode().ljust(size)
    assert client.post("/v1/decode", body).status == status
    line = chunked(client, "/v1/decode", "application/json", body)
    assert line.startswith(f"HTTP/1.1 {status}".encode())


def test_a_body_that_is_declared_to_be_large_is_refused_unread(client):
    head = b"POST /v1/decode HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with client.connect() as connection:
        connection.settimeout(5)
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % (LIMITS.body + 1))
        assert http_answer(connection).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(("more", "status"), [(0, 200), (1, 413)])
def test_an_upload_has_at_most_so_many_bytes(more, status):
    body = recording_form(wav())
    with serving(hearing_model(), limits=Limits(audio=len(body) - more)) as client:
        assert post_recording(client, wav()).status == status
        kind = f"multipart/form-data; boundary={BOUNDARY}"
        line = chunked(client, "/v1/audio/transcriptions", kind, body)
        assert line.startswith(f"HTTP/1.1 {status}".encode())


def test_an_upload_of_unknown_size_takes_the_most_from_the_budget():
    head = "POST /v1/audio/transcriptions HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\n"
    with serving(hearing_model()) as client, client.connect() as connection:
        connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        wait_until(lambda: client.service.uploads.used == Limits().audio)


@pytest.mark.parametrize("waits", [1.2, 3.0])
def test_a_body_that_arrives_fast_enough_has_more_time(waits):
    """A second more per half megabyte that has arrived."""
    body = json.dumps(ASKED).encode().ljust(600_000)
    head = b"POST /v1/decode HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with serving(limits=Limits(receive_seconds=1.0)) as client, client.connect() as connection:
        connection.sendall(head + b"Content-Length: 600000\r\n\r\n" + body[:500_000])
        time.sleep(waits)
        connection.sendall(body[500_000:])
        answer = http_answer(connection)
        if waits < 2:
            assert answer.startswith(b"HTTP/1.1 200")
        else:
            assert answer.startswith(b"HTTP/1.1 408")
            assert b"the body did not arrive within 2 s" in answer


@pytest.mark.parametrize(
    ("content", "status"),
    [
        ({"text": ["danke"] * 4}, 200),
        ({"text": ["danke"] * 5}, 400),
        ({"text": ["danke", " "]}, 200),
        ({"text": ["", " "]}, 400),
        ({"text": "ich verstehe nur bahnhof"}, 200),
        ({"text": "ich verstehe nur bahnhofs"}, 400),
    ],
    ids=str,
)
def test_texts_are_bounded(client, content, status):
    assert client.post("/v1/decode", content | {"decoder": "greedy"}).status == status


WHOLE = {"type": "integer", "minimum": 1, "maximum": 20, "default": 3}
ONE_OR_MANY = bodies.TEXTS | {"default": "d"}
OBJECT = {"type": "object"}


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        *[(WHOLE, None, 3), (WHOLE, "", 3), (WHOLE, 20, 20), (WHOLE, "020", 20)],
        *[(WHOLE, "0", "at least 1"), (WHOLE, 21, "at most 20"), (WHOLE, "1.0", "whole number")],
        *[(WHOLE, "0" * 8 + "9", 9), (WHOLE, "0" * 9 + "9", "whole number")],
        *[(OBJECT, {"a": 1}, {"a": 1}), (OBJECT, "a", "a JSON object")],
        *[(SECONDS, "0.5", 0.5), (SECONDS, 0, 0), (SECONDS, -1e-9, "at least 0")],
        *[({"enum": ["x"]}, "x", "x"), ({"enum": ["x"]}, "y", "must be x; 'y' is not supp")],
        *[({"enum": ["x", "y"]}, "y", "y"), ({"enum": ["x", "y"]}, "z", "one of 'x', 'y'")],
        *[(ONE_OR_MANY, "a", "a"), (ONE_OR_MANY, ["a", ""], ["a", ""]), (ONE_OR_MANY, "", "d")],
        *[(ONE_OR_MANY, [], "it is empty"), (ONE_OR_MANY, ["", " "], "must not be empty")],
        *[(ONE_OR_MANY, ["a"] * 5, "at most 4 texts, not 5"), (ONE_OR_MANY, [3], "a text, not 3")],
        *[(bodies.ANY_TEXT, " ", " "), (bodies.TEXT, " ", "not be empty")],
        *[(bodies.TEXT, ["a"], "one text, not a list"), (bodies.TEXT, "a\0", "a null character")],
        *[(bodies.TEXT, "a" * 24, "a" * 24), (bodies.TEXT, "a" * 25, "most 24 characters, not 25")],
        *[({"format": "binary"}, b"x", b"x"), (bodies.TEXT, "\ud83d", "half a surrogate")],
    ],
    ids=lambda part: str(part)[:30],
)
def test_a_parameter_keeps_the_rules_of_its_schema(schema, value, expected):
    given = {"it": value, "other": 1}
    if isinstance(expected, str) and " " in expected.strip():
        with pytest.raises(InvalidInput, match=f"^it .*{expected}"):
            bodies.checked(given, {}, {"it": schema}, LIMITS)
    else:
        assert bodies.checked(given, {}, {"it": schema}, LIMITS) == {"it": expected}
        assert given == {"other": 1}


def test_a_budget_is_shared_to_its_last_byte():
    budget = bodies.Budget(10)
    with budget.share(6), budget.share(4):
        with pytest.raises(RequestRefused, match="uploads of 10 bytes are in progress"):
            budget.share(1).__enter__()
        assert budget.used == 10
    assert budget.used == 0


def test_a_client_that_goes_while_it_sends_is_noted_as_gone():
    async def read():
        async def stream():
            yield b"half"
            raise ClientDisconnect

        request = SimpleNamespace(headers={}, stream=stream)
        return [chunk async for chunk in bodies.read_body(request, LIMITS, 4)]

    with pytest.raises(RequestRefused, match="the client closed the connection") as refused:
        asyncio.run(read())
    assert refused.value.status == 499


def test_lines_are_bounded(client):
    asked = {"target": "en", "decoder": "greedy"}
    assert client.post("/translate", asked | {"q": "danke\n\n\n"}).status == 200
    assert client.post("/translate", asked | {"q": "danke\n\n\n\n"}).status == 400


@pytest.mark.parametrize(("count", "message"), [(MAX_FIELDS, "no option"), (101, "at most 100")])
def test_a_form_and_a_query_have_at_most_so_many_parameters(client, count, message):
    pairs = urlencode({f"a{i}": "" for i in range(count - 1)} | {"text": "danke"})
    assert message in client.get(f"/v1/decode/stream?{pairs}").error
    with serving() as unbounded:
        assert message in unbounded.post("/v1/decode", pairs.encode(), Content_Type=FORM).error


@pytest.mark.parametrize(("count", "accepted"), [("20", True), ("21", False), ("9" * 10, False)])
def test_alternatives_are_bounded(client, count, accepted):
    form = urlencode({"q": "danke", "target": "en", "alternatives": count}).encode()
    answer = client.post("/translate", form, Content_Type=FORM)
    assert answer.status == (200 if accepted else 400)
    if accepted:
        assert answer.json["signature"].startswith("beam|width:21|finish:shrink|nbest:21")


OPTIONS = [
    ({"chains": 1024}, {"chains": 1025}),
    ({"chains": 256, "selector": "mbr"}, {"chains": 257, "selector": "mbr"}),
    ({"decoder": "exact", "budget": 100_000}, {"decoder": "exact", "budget": 100_001}),
    ({"max_length": 500}, {"max_length": 501}),
    ({"nbest": 1024}, {"nbest": 1025}),
    ({"nbest": "1"}, {"nbest": "0"}),
    ({"schedule": "1/t".ljust(LONGEST_VALUE)}, {"schedule": "1/t".ljust(LONGEST_VALUE + 1)}),
    ({"relative": "YES"}, {"relative": "y"}),
    ({"decoder": "best-of", "decoders": ["greedy"]}, {"decoder": "best-of", "decoders": []}),
]


@pytest.mark.parametrize(("allowed", "refused"), OPTIONS, ids=str)
def test_options_are_bounded(allowed, refused):
    decoding_for(toy.model(), allowed, Limits())
    with pytest.raises(InvalidInput):
        decoding_for(toy.model(), refused, Limits())


def test_so_many_connections_are_served_and_one_more_is_not():
    with serving(limits=Limits(connections=3)) as client:
        first, second = client.connect(), client.connect()
        assert client.post("/v1/decode", ASKED).status == 200
        third = client.connect()
        refused = client.connect()
        assert refused.recv(1000).startswith(b"HTTP/1.1 503")
        for connection in (first, second, third):
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        for connection in (first, second, third, refused):
            connection.close()


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 2 * PIECE + 1])
def test_a_body_is_sent_in_pieces(size):
    body, sent = bytes(range(256)) * (size // 256 + 1), []

    async def send(message):
        sent.append(message)

    message = {"type": "http.response.body", "body": body[:size], "more_body": False}
    asyncio.run(in_pieces(send)(message))
    assert b"".join(piece["body"] for piece in sent) == body[:size]
    assert len(sent) == max(1, -(-size // PIECE))
    assert [piece["more_body"] for piece in sent] == [True] * (len(sent) - 1) + [False]


def test_a_chain_of_beams_counts_the_calls_of_all_its_rows():
    with serving(serve("en-de", npad.load("en-de"), Limits())) as client:
        options = {"chains": 3, "inner": "beam", "width": 2}
        for event in client.stream(text="It is raining.", **options):
            if event.name == "chain":
                steps = len(event.data["tokens"]) + event.data["finished"]
                assert event.data["calls"] == 1 + (steps - 1) * 2
                assert steps > 2
