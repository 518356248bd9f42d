"""Bad input: a 4xx with one line, one line in the log, and the server goes on."""

from __future__ import annotations

import logging
from urllib.parse import quote

import pytest

from npad.serve.limits import Limits
from serve_cases import serving


@pytest.fixture(scope="module")
def client():
    with serving(limits=Limits(characters=2000)) as client:
        yield client


def decoding(**changes):
    return {"text": "danke", **changes}


BODIES = {
    "no body": (b"", 400, "must be JSON"),
    "no text": ({}, 400, "text is missing: a text, or a list of texts"),
    "blanks": (decoding(text=" \n "), 400, "text must not be empty"),
    "a number among texts": (decoding(text=["a", 3]), 400, "text must be a text"),
    "a megabyte of text": (decoding(text="a" * 10**6), 413, "at most 1,000,000 bytes"),
    "many texts": (decoding(text=["a"] * 65), 400, "at most 64 texts"),
    "binary": (bytes(range(256)), 400, "must be UTF-8"),
    "half a surrogate": (b'{"text": "\\ud83d"}', 400, "half a surrogate"),
    "a null character": (decoding(text="a\0b"), 400, "null character"),
    "a list": (b"[1]", 400, "the body must be a JSON object, not [1]"),
    "deep JSON": (b"[" * 100_000, 400, "must be JSON"),
    "a long number": (b'{"text": "a", "chains": ' + b"9" * 5000 + b"}", 400, "must be JSON"),
    "an unknown decoder": (decoding(decoder="magic"), 400, "decoder must be one of"),
    "a model that is no name": (decoding(model=[1]), 400, "model must be one text"),
    "a path as a model": (decoding(model="/etc/passwd"), 400, "no model '/etc/passwd'; there are"),
    "NaN": (b'{"text": "danke", "sigma": NaN}', 400, "sigma must be a finite number"),
    "noise beyond float32": (decoding(sigma=1e308, chains=2), 400, "is the noise too strong?"),
    "a billion chains": (decoding(chains=10**9), 400, "at most 1,024"),
    "an unknown site": (decoding(site="nose"), 400, "no noise site 'nose'"),
    "an unknown phrase": (decoding(text="wie bitte"), 400, "wie bitte"),
}


PAIRS = [
    ("/translate", {}, "q is missing"),
    ("/translate", {"q": ""}, "q must not be empty"),
    ("/translate", {"q": "danke"}, "target is missing"),
    ("/translate", {"q": "danke", "target": "fr"}, "translates from 'auto' to 'fr'"),
    ("/translate", {"q": "danke", "source": "en", "target": "en"}, "there are de-en"),
    ("/translate", {"q": "danke", "target": 3}, "target must be a text"),
    ("/translate", {"q": "danke", "target": "en", "format": "html"}, "format must be text"),
    ("/translate", {"q": "danke", "target": "en", "alternatives": "9" * 5000}, "alternatives"),
    ("/translate", {"q": "a\n" * 100, "target": "en"}, "at most 64 lines"),
    ("/translate", {"q": "danke", "target": "en", "model": "x"}, "no model 'x'"),
    ("/v1/score", {"text": "danke"}, "target is missing"),
    ("/v1/score", {"text": "danke", "target": ["thanks"]}, "target must be one text"),
    ("/v1/score", {"text": "danke", "target": "bitte"}, "does not know the word 'bitte'"),
    ("/v1/score", {"text": "danke", "target": "thanks", "chains": 3}, "no option 'chains'"),
]
POSTS = [pytest.param("/v1/decode", *body, id=name) for name, body in BODIES.items()]
POSTS += [(path, content, 400, message) for path, content, message in PAIRS]


@pytest.mark.parametrize(("path", "content", "status", "message"), POSTS)
def test_a_bad_body_is_refused_in_one_line(client, caplog, path, content, status, message):
    with caplog.at_level(logging.WARNING):
        answer = client.post(path, content)
    assert answer.status == status, answer.body
    assert message in answer.error
    assert len(answer.error) < 900
    assert len(caplog.records) == 1
    assert "\n" not in caplog.records[0].getMessage()
    assert client.post("/v1/decode", decoding(decoder="greedy")).status == 200


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("text/plain", "send Content-Type: application/json with JSON, or application/x-www-form"),
        ("", "it is missing"),
        ("multipart/form-data", "it is 'multipart/form-data'"),
        ("application/x-www-form-urlencoded", "the body is JSON: send Content-Type: application/"),
    ],
)
def test_json_without_its_content_type_is_told_what_to_send(client, kind, message):
    answer = client.post("/v1/decode", decoding(), Content_Type=kind)
    assert answer.status == 415
    assert message in answer.error


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("text=", "text must not be empty"),
        ("text=danke&deadline=soon", "deadline must be"),
        ("text=danke&chains=abc", "chains must be a"),
        ("text=danke&chains=abc&nbest=NaN", "chains must be a"),
        ("text=danke&seconds=-1", "seconds must be"),
        ("text=%ff%fe", "half a surrogate"),
        ("&".join(f"a{i}=1" for i in range(200)), "at most 100 parameters"),
        (f"text={quote('wie bitte')}", "wie bitte"),
    ],
    ids=lambda value: value[:30],
)
def test_a_bad_stream_is_refused(client, query, message):
    answer = client.get(f"/v1/decode/stream?{query}")
    if answer.status == 200:  # refused by the model, in its thread
        assert b"event: error" in answer.body
        assert message.encode() in answer.body
    else:
        assert answer.status == 400
        assert message in answer.error


def test_unknown_routes_and_methods_are_refused(client, caplog):
    assert "there is no such route" in client.get("/v2/decode").error
    assert "this route does not have that method" in client.get("/v1/decode").error
    assert client.get("/static/../app.py").status == 404
    assert client.get("/static/%2e%2e/app.py").status == 404
    client.get("/nowhere%0aERROR%20forged")
    assert all("\n" not in record.getMessage() for record in caplog.records)


def test_an_unexpected_error_is_logged_and_not_shown(client, caplog, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("secret in /home/someone")

    monkeypatch.setattr("npad.serve.text_routes.decode_request", fail)
    answer = client.post("/v1/decode", decoding())
    assert answer.status == 500
    assert answer.error == "the server failed; its log has the reason"
    assert "secret" in caplog.text
    assert "Traceback" not in caplog.text
