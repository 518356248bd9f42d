"""`npad serve` as a process: hostile clients, many connections, shutdown."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest
from processes import process

from npad.serve.limits import Limits
from serve_cases import events_of, serving, toy_model, wait_until

pytestmark = pytest.mark.web

ASKED = {"text": "danke", "model": "toy", "decoder": "greedy"}
SLOW = {"text": "I would rather stay at home. " * 8, "model": "en-de", "chains": 300}


@pytest.fixture(scope="module")
def server():
    with process() as (running, client, lines):
        yield running, client, lines


def test_the_default_models_are_served(server):
    _, client, lines = server
    assert [model["id"] for model in client.get("/v1/models").json["data"]] == ["en-de", "toy"]
    assert len(lines) == 1
    assert re.fullmatch(r"npad: serving en-de, toy at http://127.0.0.1:\d+/\n", lines[0])


def test_the_first_event_comes_at_once(server):
    _, client, _ = server
    client.stream(text="Hello.", chains=5)
    connection = client.connect()
    start = time.monotonic()
    connection.sendall(
        b"GET /v1/decode/stream?text=How+are+you HTTP/1.1\r\nHost: localhost\r\n\r\n"
    )
    received = b""
    while b"event: start" not in received:
        received += connection.recv(10_000)
    assert time.monotonic() - start < 0.5  # 0.1 on an idle machine: benchmarks/serving.py
    connection.close()


def test_a_public_address_needs_a_token():
    for arguments in (("--host", "0.0.0.0"), ("--host", "::")):
        with process(*arguments) as (running, _, lines):
            assert running.wait(60) == 2
        assert "can be reached by others: add --token" in lines[-1]
    toy = ("--host", "0.0.0.0", "--model", "toy")
    with process(*toy, NPAD_TOKEN="from the environment") as (_, client, _):
        assert client.post("/v1/decode", ASKED).status == 401
        answer = client.post("/v1/decode", ASKED, Authorization="Bearer from the environment")
        assert answer.status == 200


def test_a_port_in_use_is_one_line(server):
    _, client, _ = server
    command = [sys.executable, "-m", "npad", "serve", "--port", str(client.port), "-m", "toy"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == f"npad: port {client.port} is in use; choose another with --port\n"


def test_a_slow_loris_is_dropped_and_others_are_served():
    limits = Limits(receive_seconds=0.5, idle_seconds=1)
    with serving(toy_model(), limits=limits) as client:
        head = b"POST /v1/decode HTTP/1.1\r\nHost: localhost\r\n"
        slow_head = [client.connect() for _ in range(20)]
        slow_body = [client.connect() for _ in range(20)]
        idle = [client.connect() for _ in range(20)]
        start = time.monotonic()
        for connection in slow_head:
            connection.sendall(head)
        for connection in slow_body:
            length = b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
            connection.sendall(head + length)
        assert client.post("/v1/decode", ASKED).status == 200
        dripping = slow_head + slow_body
        while dripping and time.monotonic() - start < 5:
            time.sleep(0.1)
            for connection in list(dripping):
                try:
                    connection.sendall(b"x")
                except OSError:
                    dripping.remove(connection)
        assert not dripping
        for connection in slow_head + slow_body:
            connection.close()
        for connection in idle:
            assert connection.recv(1000) == b""
            connection.close()
        assert client.post("/v1/decode", ASKED).status == 200


def read_all(connection) -> bytes:
    received = b""
    while chunk := connection.recv(10_000):
        received += chunk
    return received


def test_a_body_or_headers_that_do_not_come_are_a_408():
    head = b"POST /v1/decode HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    limits = Limits(receive_seconds=0.5, idle_seconds=2)
    with serving(toy_model(), limits=limits) as client:
        with client.connect() as connection:
            connection.sendall(head + b"Content-Length: 100\r\n\r\n{")
            received = read_all(connection)
        assert received.startswith(b"HTTP/1.1 408")
        assert b"did not arrive within 0.5 s" in received
        connection = client.connect()
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in connection.recv(10_000)
        connection.sendall(b"GET /health HTTP/1.1\r\n")
        start = time.monotonic()
        received = read_all(connection)
    assert time.monotonic() - start < 2
    assert b"408" in received  # of the second request
    connection.close()


def test_a_thousand_connections_leave_the_server_alive(server):
    running, client, _ = server
    with ExitStack() as stack:
        connections = [stack.enter_context(client.connect()) for _ in range(1000)]
        answer = wait_for_answer(client)
        assert answer.status in (200, 503)
        if answer.status == 503:
            assert answer.headers["retry-after"] == "1"
            assert "too many connections" in answer.error
        assert any(b"503" in refused(connection) for connection in connections)
    wait_until(lambda: wait_for_answer(client).status == 200)
    assert running.poll() is None


def wait_for_answer(client):
    """The first answer that is not cut off by a reset."""
    for _ in range(100):
        try:
            return client.post("/v1/decode", ASKED)
        except (OSError, http.client.HTTPException):
            time.sleep(0.05)
    raise AssertionError("the server does not answer")


def refused(connection) -> bytes:
    """What a connection has received without a request."""
    connection.setblocking(False)
    try:
        return connection.recv(1000)
    except OSError:
        return b""


RUBBISH = [
    b"\x00\x01\x02\x03\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"POST /v1/decode HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/decode HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n",
    b"POST /v1/decode HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /health HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
]


@pytest.mark.parametrize("content", RUBBISH, ids=lambda content: str(content[:20]))
def test_rubbish_is_answered_or_dropped(server, content):
    running, client, _ = server
    with client.connect() as connection, suppress(ConnectionError):  # it may be reset
        connection.settimeout(15)
        connection.sendall(content)
        received = connection.recv(10_000)
        assert not received or re.match(rb"HTTP/1.1 4\d\d", received)
        assert not received or b"content-type: application/json" in received
    assert running.poll() is None
    assert client.get("/health").status == 200


def test_clients_that_vanish_leave_nothing_behind(server):
    _, client, lines = server
    before = len(lines)

    def vanish(number: int) -> None:
        connection = client.connect()
        body = json.dumps(SLOW).encode()
        head = "POST /v1/decode HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        time.sleep(0.02 * (number % 5))
        connection.close()

    with ThreadPoolExecutor(8) as clients:
        list(clients.map(vanish, range(24)))
    start = time.monotonic()
    assert client.post("/v1/decode", ASKED | {"model": "en-de", "text": "Hello."}).status == 200
    assert time.monotonic() - start < 10
    wait_until(
        lambda: 'npad_queue_length{model="en-de"} 0.0' in client.get("/metrics").body.decode()
    )
    assert [line for line in lines[before:] if not line.startswith("npad: 499 ")] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_shutdown_finishes_what_was_begun(number):
    with process("--model", "en-de") as (running, client, lines):
        asked = "/v1/decode/stream?text=I+would+rather+stay+at+home+than+go+out.&chains=200"
        with ThreadPoolExecutor(3) as clients:
            stream = clients.submit(client.get, asked)
            post = clients.submit(client.post, "/v1/decode", {"text": "Hello.", "chains": 300})
            wait_until(lambda: busy(client))
            running.send_signal(number)
            assert events_of(stream.result().body)[-1].name == "done"
            assert post.result().status == 200
        running.wait(60)
        assert running.returncode in (0, -number)
    assert "Traceback" not in "".join(lines)


def busy(client) -> bool:
    """Whether both requests have reached the model."""
    text = client.get("/metrics").body.decode()
    waiting = int(re.search(r'npad_queue_length\{model="en-de"\} (\d+)', text)[1])
    started = int(re.search(r'npad_batches_total\{model="en-de"\} (\d+)', text)[1])
    return waiting + started >= 2
