"""Run the application: connections, time-outs and shutdown. The only place that imports uvicorn."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, ClassVar

import h11
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from npad.errors import InvalidInput
from npad.serve.limits import Limits

BACKLOG = 2048  # connections that the system accepts before the server does
LARGEST_HEAD = 32_768  # bytes of a request's line and headers; a stream's text is in its line
SEND_BUFFER = 65_536  # bytes that the system may keep per connection; it hides slow readers
WATCH_SECONDS = 0.1
DESCRIPTORS = 16_384  # open files that are asked for, a connection each


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address.

    Raises:
        InvalidInput: the address is not this machine's, or in use.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with ExitStack() as stack:
            listener = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
            listener.bind(address)
            stack.pop_all()  # keep it open
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise InvalidInput(f"port {port} is in use; choose another with --port") from error
        reason = error.strerror or error
        raise InvalidInput(f"cannot listen on {host}, port {port}: {reason}") from error
    except (OverflowError, UnicodeError) as error:
        raise InvalidInput(f"cannot listen on {host}, port {port}: {error}") from error
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the address of a listening socket as a URL."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def run(
    app: Starlette,
    listener: socket.socket,
    limits: Limits,
    started: Callable[[], None] = lambda: None,
) -> None:
    """Serve until an interrupt or a SIGTERM, then finish what was begun.

    Args:
        app: the application.
        listener: a bound socket.
        limits: time-outs and the number of connections.
        started: called once requests are accepted.
    """
    raise_descriptor_limit()
    make_server(app, limits, started).run(sockets=[listener])


def make_server(
    app: Starlette, limits: Limits, started: Callable[[], None] = lambda: None
) -> Server:
    """Return a server that is not running yet; it ends once its `should_exit` is true."""
    config = uvicorn.Config(
        app,
        http=protocol(limits),
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        backlog=BACKLOG,
        h11_max_incomplete_event_size=LARGEST_HEAD,
        timeout_keep_alive=int(limits.idle_seconds),
        timeout_graceful_shutdown=int(limits.seconds),
    )
    return Server(config, started)


class Server(uvicorn.Server):
    """A server that says when it has started, and does not wait indefinitely for its clients."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._when_started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._watching = asyncio.create_task(self._watch_clients())  # until the loop ends
        if self.started:
            self._when_started()

    async def _watch_clients(self) -> None:
        """Close the connections of clients that are late, in the middle of a shutdown as well."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            for connection in list(self.server_state.connections):
                if isinstance(connection, BoundedProtocol):
                    connection.close_if_late()


def raise_descriptor_limit() -> None:
    """Allow as many connections as the system lets this process have, up to DESCRIPTORS."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def protocol(limits: Limits) -> type[asyncio.Protocol]:
    """Return the protocol of connections within these limits."""
    return type("LimitedProtocol", (BoundedProtocol,), {"limits": limits})


class BoundedProtocol(H11Protocol):
    """uvicorn's HTTP protocol with bounds on connections, and on what a client may delay.

    uvicorn waits as long as it takes for a client to send its headers, and to read its answers.
    """

    limits: ClassVar[Limits] = Limits()
    _progress = 0  # how often the client has read what was waiting
    _awaited: tuple[str, object] | None = None  # what the client was waited for at the last look
    _looks = 0  # since then; a clock would count the time in which this process had no processor

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            transport.write(TOO_MANY)
            transport.close()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._progress += 1

    def send_400_response(self, msg: str) -> None:
        """Answer an invalid HTTP request as other errors, unless an answer has begun."""
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            self.transport.write(MALFORMED)
        self.transport.close()

    def close_if_late(self) -> None:
        """Close the connection if its client is late; called every WATCH_SECONDS."""
        awaited = self._client_task()
        self._looks = self._looks + 1 if awaited == self._awaited else 0
        self._awaited = awaited
        if awaited is None:
            return
        task, waited = awaited[0], self._looks * WATCH_SECONDS
        if task == "read" and waited > self.limits.send_seconds:
            log.warning("closed a connection: its client did not read an answer in time")
            self.transport.abort()
        elif task == "send" and waited > self.limits.receive_seconds:
            self._close_unasked()

    def _client_task(self) -> tuple[str, object] | None:
        """Return what the client has to do next, as a value that changes whenever it does it.

        None: it is the server's turn, or the connection is idle after an answer, which uvicorn
        limits. The time for a body is limited where it is read.
        """
        closing = self.transport.is_closing()
        if self.flow.write_paused or (closing and self.transport.get_write_buffer_size()):
            return "read", self._progress
        in_request = self.cycle is not None and not self.cycle.response_complete
        idle = self.timeout_keep_alive_task is not None
        return None if in_request or idle or closing else ("send", self.cycle)

    def _close_unasked(self) -> None:
        """Close a connection on which no request has arrived in time."""
        if self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:
            log.warning("408: a request's headers did not arrive in time")
            self.transport.write(TOO_SLOW)
        self.transport.close()


def _raw(status: str, message: str, extra: str = "") -> bytes:
    """Return an answer that is written without a request."""
    body = json.dumps({"error": message}).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{extra}"
    return f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body


log = logging.getLogger("npad.serve")
TOO_MANY = _raw(
    "503 Service Unavailable", "too many connections; try again in 1 s", "retry-after: 1\r\n"
)
MALFORMED = _raw("400 Bad Request", "the request is not valid HTTP")
TOO_SLOW = _raw("408 Request Timeout", "the request's headers did not arrive in time")
