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

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from npad.errors import InvalidInput
from npad.serve.limits import Limits

BACKLOG = 2048  # connections that the system accepts before the server does
LARGEST_HEAD = 32_768  # bytes of a request's line and headers; a stream's text is in its line
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
    """A server that says when it has started."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._when_started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._when_started()


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
    """uvicorn's HTTP protocol with bounds on connections and on the time for headers.

    uvicorn waits for a client's headers as long as it takes: a client that sends a byte now and
    then would hold its connection for ever.
    """

    limits: ClassVar[Limits] = Limits()
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            transport.write(TOO_MANY)
            transport.close()
        else:
            self._watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._head_timer is None and not self._in_request():
            self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP in the form of all errors, unless an answer has begun."""
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            self.transport.write(MALFORMED)
        self.transport.close()

    def _in_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _watch_head(self) -> None:
        self._head_timer = self.loop.call_later(self.limits.receive_seconds, self._check_head)

    def _check_head(self) -> None:
        """Close a connection on which no request has begun in time."""
        self._head_timer = None
        if not self._in_request() and not self.transport.is_closing():
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
MALFORMED = _raw("400 Bad Request", "the request is no valid HTTP")
TOO_SLOW = _raw("408 Request Timeout", "the request's headers did not arrive in time")
