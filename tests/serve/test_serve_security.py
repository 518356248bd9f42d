"""Who may ask: tokens, addresses, other sites' pages; and clients that go away."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlencode

import pytest

import npad
from npad import InvalidInput
from npad.serve.events import KEEP_ALIVE, EventStream, SlowReader, encode_event
from npad.serve.limits import Limits
from npad.serve.model_thread import QueuedRequest
from npad.serve.models import public_name, serve
from npad.serve.security import ensure_reachable
from npad.serve.service import explained
from serve_cases import Client, serving, toy_model, wait_until

TOKEN = "correct horse"
ASKED = {"text": "danke", "decoder": "greedy"}


LOCAL = ["127.0.0.1", "127.9.9.9", "::1", "localhost"]
REMOTE = ["0.0.0.0", "::", "192.168.0.7", "example.org", "127.0.0.1.example.org"]


@pytest.mark.parametrize("host", LOCAL + REMOTE)
def test_an_address_that_others_reach_needs_a_token(host):
    ensure_reachable(host, TOKEN)
    if host in LOCAL:
        ensure_reachable(host, None)
    else:
        with pytest.raises(InvalidInput, match="add --token"):
            ensure_reachable(host, None)


@pytest.mark.parametrize("token", ["", "x" * 7, "pässword123", "line\nbreak123"])
def test_a_weak_token_is_refused(token):
    ensure_reachable("0.0.0.0", "x" * 8)
    with pytest.raises(InvalidInput, match="at least 8"):
        ensure_reachable("127.0.0.1", token)


@pytest.fixture(scope="module")
def guarded():
    with serving(token=TOKEN) as client:
        yield client


GETS = ["/v1/models", "/metrics", "/languages", "/v1/decode/stream?text=danke"]
POSTS = {
    "/v1/decode": ASKED,
    "/v1/score": {"text": "danke", "target": "thanks"},
    "/translate": {"q": "danke", "target": "en"},
}


@pytest.mark.parametrize("path", [*GETS, *POSTS])
def test_a_route_needs_the_token(guarded, path):
    """In a header, in the query of a GET, or in the body of a POST; refused before it is read."""
    stranger, asked = Client(guarded.port), POSTS.get(path)

    def ask(client, **key):
        if asked is not None:
            return client.post(path, asked | key)
        return client.get(path + "&?"["?" not in path] + urlencode(key) if key else path)

    answer = ask(stranger)
    assert answer.status == 401
    assert "token is needed" in answer.error
    assert answer.headers["www-authenticate"] == "Bearer"
    for key in ("wrong", "", TOKEN + "x", *([None, ["x"]] if asked else [])):
        assert ask(stranger, api_key=key).status == 401
    assert ask(stranger, api_key=TOKEN).status == ask(guarded).status == 200
    for header in ("Bearer wrong", "Basic " + TOKEN, TOKEN, "Bearer", "Bearer caf\xe9 au lait"):
        content = None if asked is None else json.dumps(asked).encode()
        method = "GET" if asked is None else "POST"
        named = {"Authorization": header, "Content_Type": "application/json"}
        assert stranger.request(method, path, content, **named).status == 401


def test_a_recording_needs_the_token_and_health_and_the_description_do_not(guarded):
    stranger, kind = Client(guarded.port), "multipart/form-data"
    path = "/v1/audio/transcriptions"
    assert stranger.post(path, b"x" * 1000, Content_Type=kind).status == 401
    assert {stranger.get(path).status for path in ("/health", "/openapi.json")} == {200}


def test_a_host_name_of_another_site_is_refused_without_a_token(guarded):
    """With one, a proxy may name the server."""
    assert guarded.get("/v1/models", Host="translate.example").status == 200
    with serving() as client:
        for host in ("evil.example", "evil.example:8080", "127.0.0.1.evil.example", "", "[", "a b"):
            assert [client.get(path, Host=host).status for path in ("/health", "/")] == [400, 400]
        for host in ("localhost", "LOCALHOST:9", "127.0.0.1", "[::1]:1"):
            assert client.get("/health", Host=host).status == 200


def test_requests_of_another_sites_page_are_refused():
    with serving() as client:
        own = f"http://127.0.0.1:{client.port}"
        assert client.post("/v1/decode", ASKED, Origin=own).status == 200
        for origin in ("https://evil.example", "null", "http://127.0.0.1:1", "http://["):
            answer = client.post("/v1/decode", ASKED, Origin=origin)
            assert answer.status == 403
            assert "no CORS" in answer.error
        sites = {"cross-site": 403, "same-site": 403, "same-origin": 200, "none": 200}
        for site, status in sites.items():
            assert client.get("/v1/models", Sec_Fetch_Site=site).status == status
        answer = client.request("OPTIONS", "/v1/decode", Origin="https://evil.example")
        assert (answer.status, "does not have that method" in answer.error) == (405, True)


def test_a_full_queue_is_a_429():
    model, opened = toy_model(Limits(queue=1)), threading.Event()
    with serving(model) as client:
        running = model.thread.submit(QueuedRequest.alone(lambda: opened.wait(20)))
        wait_until(running.result.running)
        model.thread.submit(QueuedRequest.alone(lambda: None))
        answer = client.post("/v1/decode", ASKED)
        assert answer.status == 429
        assert answer.headers["retry-after"] == "1"
        assert "1 requests are waiting; try again" in answer.error
        assert client.get("/v1/decode/stream?text=danke").status == 429
        opened.set()
        wait_until(lambda: len(model.thread) == 0)
        assert client.post("/v1/decode", ASKED).status == 200


def test_an_answer_that_takes_too_long_is_a_503():
    model = serve("en-de", npad.load("en-de"), Limits())
    with serving(model, limits=Limits(seconds=0.3)) as client:
        slow = {"text": "word " * 60, "chains": 300, "max_length": 500}
        answer = client.post("/v1/decode", slow)
        assert answer.status == 503
        assert "no answer within 0.3 s" in answer.error
        events = client.stream(**slow)
        assert events[-1].name == "error"
        assert "no answer within 0.3 s" in events[-1].data["error"]
        wait_until(lambda: len(model.thread) == 0)
        assert client.post("/v1/decode", {"text": "Hello.", "decoder": "greedy"}).status == 200


@pytest.mark.parametrize("streamed", [True, False])
def test_a_disconnect_ends_the_search(streamed):
    model = serve("en-de", npad.load("en-de"), Limits())
    with serving(model) as client:
        connection = client.connect()
        slow = {"text": "word " * 60, "chains": 400, "max_length": 500}
        if streamed:
            head = f"GET /v1/decode/stream?{urlencode(slow)} HTTP/1.1\r\nHost: localhost\r\n\r\n"
            connection.sendall(head.encode())
            assert b"200 OK" in connection.recv(1000)
        else:
            body = json.dumps(slow).encode()
            head = "POST /v1/decode HTTP/1.1\r\nHost: localhost\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
        wait_until(lambda: model.thread.batches == 1)
        time.sleep(0.1)
        connection.close()
        start = time.monotonic()
        assert client.post("/v1/decode", {"text": "Hello.", "decoder": "greedy"}).status == 200
        assert time.monotonic() - start < 3


def test_a_stream_is_in_progress_until_its_last_event():
    """A stream that waits for its model counts for /metrics and for the limit on requests."""
    model = toy_model()
    with serving(model, limits=Limits(requests=2)) as client:
        opened = threading.Event()
        model.thread.submit(QueuedRequest.alone(lambda: opened.wait(20)))
        with ThreadPoolExecutor() as clients:
            streams = [clients.submit(client.stream, text="danke", chains=2) for _ in range(2)]
            wait_until(lambda: len(model.thread) == 2)
            refused = client.get("/health")
            assert refused.status == 503
            assert refused.error.startswith("2 requests are in progress;")
            opened.set()
            assert all(stream.result()[-1].name == "done" for stream in streams)
        lines = client.get("/metrics").body.decode().splitlines()
    assert "npad_requests_in_progress 1.0" in lines
    assert 'npad_requests_total{route="/v1/decode/stream",status="200"} 2.0' in lines


def test_a_quiet_stream_is_kept_alive(monkeypatch):
    monkeypatch.setattr("npad.serve.events.KEEP_ALIVE_SECONDS", 0.02)
    model, opened, received = toy_model(), threading.Event(), b""
    with serving(model) as client, client.connect() as connection:
        model.thread.submit(QueuedRequest.alone(lambda: opened.wait(20)))
        connection.sendall(b"GET /v1/decode/stream?text=danke HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while received.count(b": keep-alive\n\n") < 3:
            received += connection.recv(1000)
        assert b"event: start" in received
        opened.set()
        while b"event: done" not in received:
            received += connection.recv(10_000)


def test_events_that_nobody_reads_end_the_search():
    async def emit_unread():
        step = encode_event("step", {"t": 1})
        events = EventStream(len(step), 60.0, str)
        for _ in range(2):  # what waits may just have the limit
            events.emit("step", {"t": 1})
            await asyncio.sleep(0)
        with pytest.raises(SlowReader):
            events.emit("step", {"t": 1})
        assert await events._get(1.0) == 2 * step
        events.emit("step", {"t": 1})
        assert await events._get(1.0) == step
        assert await events._get(0.01) == KEEP_ALIVE

    asyncio.run(emit_unread())
    assert explained(SlowReader()) == (408, "the events were read too slowly")


def test_limits_change_by_name():
    changed = Limits.changed(["body=5", "seconds=0.5"])
    assert (changed.body, changed.seconds, changed.texts) == (5, 0.5, 64)
    for change in ("bodies=3", "body", "body=x", "body=0", "seconds=nan", "body=1.5", "=3"):
        with pytest.raises(InvalidInput, match="limit"):
            Limits.changed([change])


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("en-de", "en-de"),
        ("hf:a/b", "hf:a/b"),
        ("/home/me/runs/en-cs", "en-cs"),
        ("runs/en-cs/", "en-cs"),
        ("hf:Helsinki-NLP/opus-mt-en-de", "hf:Helsinki-NLP/opus-mt-en-de"),
        ("hf:/models/opus", "hf:opus"),
        ("hf:./opus/x", "hf:x"),
        ("src/my.py:make", "my.py:make"),
    ],
)
def test_the_public_name_of_a_model_shows_no_path(name, shown):
    assert public_name(name) == shown
