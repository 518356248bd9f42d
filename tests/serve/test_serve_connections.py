"""Connections: sessions that last, and clients that do not send or do not read."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from npad.serve.limits import Limits
from npad.serve.model_thread import QueuedRequest
from npad.serve.server import BoundedProtocol
from serve_cases import (
    BOUNDARY,
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
HEAD = b"POST /v1/decode HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
UPLOAD = (
    b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: multipart/form-data; boundary=" + BOUNDARY.encode() + b"\r\n"
)


@pytest.fixture
def connections(monkeypatch):
    """The connections that servers have accepted."""
    accepted, connection_made = [], BoundedProtocol.connection_made

    def noted(self, transport):
        accepted.append(self)
        connection_made(self, transport)

    monkeypatch.setattr(BoundedProtocol, "connection_made", noted)
    return accepted


async def httpx_session(port: int, seconds: float) -> int:
    httpx, end, count = pytest.importorskip("httpx"), time.monotonic() + seconds, 0
    kept = httpx.Limits(keepalive_expiry=60)
    address = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=address, limits=kept, timeout=60) as session:
        while time.monotonic() < end:
            answer = await session.post("/v1/decode", json=ASKED)
            assert answer.json()["results"][0]["text"] == "thanks"
            count += 1
            await asyncio.sleep(0.03 * (count % 5))
    return count


async def aiohttp_session(port: int, seconds: float) -> int:
    aiohttp, end, count = pytest.importorskip("aiohttp"), time.monotonic() + seconds, 0
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        while time.monotonic() < end:
            async with session.post("/v1/decode", json=ASKED) as answer:
                assert (await answer.json())["results"][0]["text"] == "thanks"
            count += 1
            await asyncio.sleep(0.03 * (count % 5))
    return count


@pytest.mark.parametrize("session", [httpx_session, aiohttp_session])
def test_a_session_keeps_its_connection(session, connections, caplog):
    """Also after the time that a client has for the headers of one request."""
    with serving(limits=Limits(receive_seconds=0.5, idle_seconds=30)) as client:

        async def sessions():
            return await asyncio.gather(*(session(client.port, 2.0) for _ in range(3)))

        assert min(asyncio.run(sessions())) > 4
    assert len(connections) == 3
    assert caplog.records == []


def test_a_connection_that_sends_nothing_is_closed_without_a_word():
    limits = Limits(receive_seconds=0.3, idle_seconds=1)
    with serving(limits=limits) as client, client.connect() as idle, client.connect() as slow:
        slow.sendall(b"GET /health HT")
        assert idle.recv(1000) == b""
        assert slow.recv(1000).startswith(b"HTTP/1.1 408")


def unread(client, request: bytes, window: int = 4096) -> socket.socket:
    """A connection that sends and does not read."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    connection.connect(("127.0.0.1", client.port))
    connection.setblocking(False)
    sent = memoryview(request)
    with contextlib.suppress(BlockingIOError):
        while sent:
            sent = sent[connection.send(sent) :]
    return connection


def test_clients_that_do_not_read_are_cut_off():
    """Whether they ask again and again, or for a stream."""
    asked = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serving(limits=Limits(connections=6, send_seconds=0.5, idle_seconds=1)) as client:
        unwilling = [unread(client, asked * 5000) for _ in range(6)]
        held = client.service.metrics
        wait_until(lambda: held.in_progress == 6)
        start = time.monotonic()
        wait_until(lambda: held.in_progress == 0)
        assert time.monotonic() - start > 0.2
        assert client.get("/health").status == 200
        for connection in unwilling:
            connection.close()


def test_a_client_that_reads_slowly_gets_all():
    """In small reads, with a pause after each; some arrive in the time for one piece."""
    limits = Limits(send_seconds=1.0)
    with serving(limits=limits) as client:
        size = len(client.get("/openapi.json").body)
        count = 8_000_000 // size
        asked = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * count
        with unread(client, asked, 65_536) as connection:
            connection.settimeout(20)
            received, start = 0, time.monotonic()
            while received < count * size:
                piece = connection.recv(65_536)
                assert piece
                received += len(piece)
                time.sleep(0.01)
        assert time.monotonic() - start > 1.2 * limits.send_seconds


def test_a_slow_upload_has_no_more_time_than_another_body():
    limits = Limits(receive_seconds=0.5)
    with serving(hearing_model(), limits=limits) as client, client.connect() as connection:
        start = time.monotonic()
        connection.sendall(UPLOAD + b"Content-Length: 20000000\r\n\r\n")
        connection.sendall(recording_form(wav())[:200])
        dripping = threading.Thread(target=drip, args=(connection,))
        dripping.start()
        received = http_answer(connection)
        assert time.monotonic() - start < 5
        assert received.startswith(b"HTTP/1.1 408")
        assert b"did not arrive within 0.5" in received
    dripping.join()


def drip(connection) -> None:
    with contextlib.suppress(OSError):
        for _ in range(200):
            connection.sendall(b"x")
            time.sleep(0.05)


def resident() -> int:
    """The memory of this process in bytes."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_uploads_that_wait_are_on_disk():
    model, opened = hearing_model(), threading.Event()
    body = recording_form(wav(12_400, 1000))  # 24.8 MB
    with serving(model) as client:
        post_recording(client, wav())
        running = model.thread.submit(QueuedRequest.alone(lambda: opened.wait(60)))
        wait_until(running.result.running)
        before = resident()
        with ThreadPoolExecutor(6) as clients:
            asked = [clients.submit(upload, client, body) for _ in range(6)]
            wait_until(lambda: len(model.thread) == 6, 60)
            held = resident() - before
            opened.set()
            statuses = {answer.result() for answer in asked}
    assert statuses == {400}  # more than ten minutes long
    assert held < 75e6  # half of what they have


def upload(client, body: bytes) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=60)
    with contextlib.closing(connection):
        kind = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
        connection.request("POST", "/v1/audio/transcriptions", body, kind)
        return connection.getresponse().status


def test_uploads_share_a_budget():
    limits = Limits(uploads=100_000, receive_seconds=5)
    with serving(hearing_model(), limits=limits) as client:
        with client.connect() as first:
            first.sendall(UPLOAD + b"Content-Length: 90000\r\n\r\n")
            wait_until(lambda: client.service.uploads.used == 90_000)
            answer = post_recording(client, wav(10))
            assert answer.status == 503
            assert answer.headers["retry-after"] == "1"
            assert "uploads of 90,000 bytes are in progress; try again" in answer.error
            assert post_recording(client, wav(1)).status == 200
        wait_until(lambda: client.service.uploads.used == 0)  # the client has gone
        assert post_recording(client, wav(10)).status == 200
        assert post_recording(client, None).status == 400
        assert client.service.uploads.used == 0


def test_an_upload_that_no_model_can_hear_is_refused_unread():
    with serving(toy_model()) as client, client.connect() as connection:
        connection.settimeout(5)
        connection.sendall(UPLOAD + b"Content-Length: 20000000\r\n\r\n")
        received = http_answer(connection)
    assert received.startswith(b"HTTP/1.1 400")
    assert b"this server has no speech model" in received
