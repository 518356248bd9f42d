"""What the routes share: models, limits, counters, and how a request becomes an answer."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from npad.engine.deadline import Stopped
from npad.errors import InvalidInput, NpadError, OutOfMemory
from npad.serve import security
from npad.serve.bodies import (
    JSON,
    MULTIPART,
    Budget,
    Schema,
    body_parameters,
    checked,
    form_parameters,
    query_parameters,
)
from npad.serve.events import EventStream, SlowReader, wait_for_disconnect
from npad.serve.limits import CLIENT_GONE, Limits, RequestRefused, busy
from npad.serve.metrics import Metrics
from npad.serve.model_thread import QueuedRequest
from npad.serve.models import START_SPEECH, ServedModel
from npad.serve.security import Guard
from npad.validation import brief

log = logging.getLogger("npad.serve")

PIECE = 65_536  # bytes of an answer that are handed to the connection at a time
Answer = Response | EventStream
Handler = Callable[["Service", "CheckedRequest"], Awaitable[Answer]]


class CheckedRequest(NamedTuple):
    """A request whose parameters keep the rules of its operation.

    Attributes:
        request: what Starlette received.
        values: the operation's own parameters by name; None if not set.
        options: the other parameters, which are options of decoders.
    """

    request: Request
    values: dict[str, Any]
    options: dict[str, Any]


@dataclass(frozen=True)
class Operation:
    """What a path and a method do; routes and their description are derived from it.

    Attributes:
        method: GET or POST.
        path: its path.
        handler: makes the answer; its docstring says what it does.
        needs: the JSON Schema of the parameters of the query or body that must be there, by name.
        takes: that of the other parameters.
        decodes: whether it takes the options of decoders as well.
        public: whether anybody may ask, without a token.
        accepts: the content type of a body.
        answers: the content type of an answer.
    """

    method: str
    path: str
    handler: Handler
    needs: Mapping[str, Schema] = field(default_factory=dict)
    takes: Mapping[str, Schema] = field(default_factory=dict)
    decodes: bool = False
    public: bool = False
    accepts: str = JSON
    answers: str = JSON


def operation(method: str, path: str, **attributes: Any) -> Callable[[Handler], Operation]:
    """Return a decorator that makes an operation of its handler."""
    return lambda handler: Operation(method, path, handler, **attributes)


class Service:
    """The models of a server, and what holds for all requests.

    Args:
        models: by id; the first is the default.
        limits: of requests.
        guard: who may ask.
    """

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        limits: Limits | None = None,
        guard: Guard | None = None,
    ) -> None:
        self.models = models
        self.limits = limits or Limits()
        self.guard = guard or Guard()
        self.uploads = Budget(self.limits.uploads)
        self.metrics = Metrics(models)

    def model(self, name: Any) -> ServedModel:
        """Return a model by its id; the first by default.

        Raises:
            InvalidInput: there is no such model.
        """
        if name is None:
            return next(iter(self.models.values()))
        if not isinstance(name, str) or name not in self.models:
            there_are = ", ".join(self.models)
            raise InvalidInput(f"there is no model {brief(name, 60)}; there are {there_are}")
        return self.models[name]

    def hearing(self, name: str | None) -> ServedModel:
        """Return a model by its id; by default, and by OpenAI's name, the first speech model.

        Raises:
            InvalidInput: there is no such model.
        """
        if name is not None and name in self.models:
            return self.models[name]
        for served in self.models.values():
            if served.hears:
                if name in (None, "whisper-1"):
                    return served
                raise InvalidInput(f"there is no model {brief(name, 60)}; there is {served.id}")
        raise InvalidInput(f"this server has no speech model; {START_SPEECH}")

    async def checked(
        self, request: Request, operation: Operation, held: AsyncExitStack
    ) -> CheckedRequest:
        """Read and check the parameters of a request; require the token, as header or `api_key`.

        An upload is read only after the token has been found in the header, and if there is a model
        for it; its file is open until `held` ends.
        """
        if operation.public:
            return CheckedRequest(request, {}, {})
        if operation.accepts == MULTIPART:
            self.guard.check_token(request)
            self.hearing(None)
            form = form_parameters(request, self.limits, self.uploads)
            given = await held.enter_async_context(form)
        else:
            given = dict(query_parameters(request))
            if operation.method == "POST":
                given = await body_parameters(request, self.limits)
            self.guard.check_token(request, given.pop("api_key", None))
        values = checked(given, operation.needs, operation.takes, self.limits)
        if given and (operation.needs or operation.takes) and not operation.decodes:
            name = brief(next(iter(given)), 60)
            raise InvalidInput(f"there is no option {name}; there are {', '.join(values)}")
        return CheckedRequest(request, values, given)

    async def outcome(
        self, asked: CheckedRequest, model: ServedModel, queued: QueuedRequest
    ) -> Any:
        """Run a request on a model's thread and return its result; cancel it if the client goes.

        Raises:
            RequestRefused: too many requests wait, the client has gone, or it took too long.
        """
        model.thread.submit(queued)
        result = asyncio.wrap_future(queued.result)
        gone = asyncio.create_task(wait_for_disconnect(asked.request.receive))
        first = asyncio.FIRST_COMPLETED
        try:
            await asyncio.wait({result, gone}, timeout=self.limits.seconds, return_when=first)
            if result.done():
                return result.result()
            if gone.done():
                raise RequestRefused(CLIENT_GONE, "the client closed the connection")
            raise busy(503, f"no answer within {self.limits.seconds:g} s; ask for less", 10)
        finally:
            gone.cancel()
            if not result.done():
                queued.cancel()
                result.add_done_callback(_consumed)


class Endpoint:
    """A route as an ASGI application: errors become one line of JSON, and answers are counted.

    A request is in progress until its answer has been sent, the last event of a stream included.

    Args:
        service: what the routes share.
        operation: makes the answer; answers are counted by its path.
    """

    def __init__(self, service: Service, operation: Operation) -> None:
        self.service, self.operation = service, operation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start, status = time.monotonic(), CLIENT_GONE
        request, metrics = Request(scope, receive, send), self.service.metrics
        metrics.in_progress += 1
        try:
            try:
                response = await self._answer(request)
            except Exception as error:
                response = failure(request, error)
            status = response.status_code
            await with_headers(response)(scope, receive, in_pieces(send))
        finally:
            metrics.in_progress -= 1
            metrics.answered(self.operation.path, status, time.monotonic() - start)

    async def _answer(self, request: Request) -> Answer:
        limit = self.service.limits.requests
        if self.service.metrics.in_progress > limit:
            raise busy(503, f"{limit} requests are in progress")
        self.service.guard.check_origin(request)
        async with AsyncExitStack() as held:
            asked = await self.service.checked(request, self.operation, held)
            return await self.operation.handler(self.service, asked)


def in_pieces(send: Send) -> Send:
    """Return a function that sends bodies in pieces, so that a slow reader's progress shows."""

    async def send_pieces(message: Message) -> None:
        body = message.get("body", b"")
        last = max(0, len(body) - 1) // PIECE * PIECE
        for start in range(0, last, PIECE):
            piece = body[start : start + PIECE]
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({**message, "body": body[last:]} if last else message)

    return send_pieces


def with_headers(response: Answer) -> Answer:
    """Add the headers that every answer has."""
    for name, value in security.HEADERS.items():
        response.headers[name] = value
    return response


def as_json(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer of JSON."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False)
    body = text.encode("utf-8", "backslashreplace")
    return Response(body, status, dict(headers or {}), "application/json")


def failure(request: Request, error: BaseException) -> Response:
    """Log an error in one line and return it as an answer."""
    status, message = explained(error)
    path = brief(request.scope["path"], 100).strip("'")
    shown = message if status < 500 or isinstance(error, RequestRefused) else _internal(error)
    log.log(
        logging.WARNING if status < 500 else logging.ERROR,
        "%d %s %s: %s",
        status,
        request.method,
        path,
        shown,
        exc_info=error if status == 500 and os.environ.get("NPAD_TRACEBACK") else None,
    )
    headers = error.headers if isinstance(error, RequestRefused) else {}
    return as_json({"error": message}, status, headers)


def explained(error: BaseException) -> tuple[int, str]:
    """Return the status and the line for an error; nothing of the inside of the server."""
    match error:
        case RequestRefused():
            status, message = error.status, error.message
        case InvalidInput():
            status, message = 400, str(error)
        case OutOfMemory():
            status, message = 503, "there is not enough memory for this; ask for less"
        case SlowReader():
            status, message = 408, "the events were read too slowly"
        case Stopped() | asyncio.CancelledError():
            status, message = CLIENT_GONE, "the client closed the connection"
        case _:
            status, message = 500, "the server failed; its log has the reason"
    return status, " ".join(message.split())


def _internal(error: BaseException) -> str:
    """Return an unexpected error as one line of the log."""
    kind = "" if isinstance(error, NpadError) else f"{type(error).__name__}: "
    return brief(f"{kind}{error}", 300)


def _consumed(result: asyncio.Future[Any]) -> None:
    """Look at a result that nobody waits for, so that asyncio does not complain."""
    if not result.cancelled():
        result.exception()
