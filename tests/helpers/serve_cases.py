"""A server in a thread, and a client of it, for the tests of `npad serve`."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import torch

import media_models
from npad.models import toy
from npad.pipelines.loading import load
from npad.pipelines.transcription import Transcriber
from npad.serve import app, server
from npad.serve.limits import Limits
from npad.serve.models import ServedModel, serve
from npad.serve.security import Guard
from npad.serve.service import Service


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The line of an error, which is all that its answer holds."""
        assert self.headers["content-type"] == "application/json"
        assert list(self.json) == ["error"]
        line = self.json["error"]
        assert "\n" not in line
        assert "Traceback" not in line
        assert "/src/" not in line
        return line


@dataclass(frozen=True)
class Event:
    name: str
    data: dict[str, Any]


class Client:
    """A client of a server on this machine."""

    def __init__(self, port: int, service: Service | None = None, token: str | None = None):
        self.port, self.service = port, service
        self.headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def request(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, self.headers | named)
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, names, response.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.request("GET", path, **headers)

    def post(self, path: str, content: Any, **headers: str) -> Answer:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        return self.request("POST", path, body, **{"Content_Type": "application/json"} | headers)

    def stream(self, **parameters: Any) -> list[Event]:
        """All events of a stream."""
        answer = self.get(f"/v1/decode/stream?{urlencode(parameters)}")
        assert answer.status == 200, answer.body
        assert answer.headers["content-type"].startswith("text/event-stream")
        return events_of(answer.body)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)


def events_of(body: bytes) -> list[Event]:
    events = []
    for block in body.decode().split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if lines:
            name, data = lines
            event = Event(name.removeprefix("event: "), json.loads(data.removeprefix("data: ")))
            events.append(event)
    return events


def toy_model(limits: Limits | None = None) -> ServedModel:
    return serve("toy", load("toy"), limits or Limits())


def hear(recordings) -> list[str]:
    """A loud piece is thanks."""
    return ["danke" if float(piece.abs().max()) > 0.3 else "na ja" for piece in recordings]


def hearing_model(limits: Limits | None = None) -> ServedModel:
    transcriber = Transcriber(toy.model(), hear, toy.detokenise, rate=1000, longest=1.0)
    return serve("ear", transcriber, limits or Limits())


@contextmanager
def serving(
    *models: ServedModel, limits: Limits | None = None, token: str | None = None
) -> Iterator[Client]:
    """Serve models, the toy by default, while the block runs."""
    limits = limits or Limits()
    served = {model.id: model for model in models or [toy_model(limits)]}
    service = Service(served, limits, Guard("127.0.0.1", token))
    listener = server.bind("127.0.0.1", 0)
    started = threading.Event()
    running = server.make_server(app.build(service), limits, started.set)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        assert started.wait(20)
        yield Client(listener.getsockname()[1], service, token)
    finally:
        running.should_exit = True
        thread.join()
        listener.close()


def wait_until(condition, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.005)


BOUNDARY = "a-boundary"


def wav(seconds: float = 0.5, rate: int = 1000, level: float = 0.5) -> bytes:
    return media_models.wav(torch.full((int(seconds * rate),), level), rate)


def recording_form(content: bytes | None, **fields: str) -> bytes:
    parts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
    ]
    if content is not None:
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n'
        parts.append(f"{head}Content-Type: audio/wav\r\n\r\n".encode() + content + b"\r\n")
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


def post_recording(client: Client, content: bytes | None, **fields: str) -> Answer:
    kind = f"multipart/form-data; boundary={BOUNDARY}"
    return client.post(
        "/v1/audio/transcriptions", recording_form(content, **fields), Content_Type=kind
    )


def http_answer(connection: socket.socket) -> bytes:
    """An answer of a line of JSON."""
    received = b""
    while not received.endswith(b"}"):
        received += connection.recv(10_000)
    return received
