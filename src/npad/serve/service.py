"""What the routes share: models, limits, counters, and how a request becomes an answer."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from npad.engine.deadline import Stopped
from npad.errors import InvalidInput, NpadError, OutOfMemory
from npad.serve import security
from npad.serve.bodies import body_parameters, query_parameters
from npad.serve.events import EventStream, SlowReader, wait_for_disconnect
from npad.serve.limits import Limits
from npad.serve.metrics import Metrics
from npad.serve.models import ServedModel
from npad.serve.refusals import Refused, busy
from npad.serve.security import Guard
from npad.serve.worker import Job
from npad.validation import brief

log = logging.getLogger("npad.serve")

CLIENT_GONE = 499  # nginx's status for a client that closed the connection

Answer = Response | EventStream
Handler = Callable[["Service", Request], Awaitable[Answer]]


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
        self.metrics = Metrics()

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

    async def body(self, request: Request) -> dict[str, Any]:
        """Return the parameters of a body, after a look at its api_key."""
        parameters = await body_parameters(request, self.limits)
        self._check_key(request, parameters)
        return parameters

    def query(self, request: Request) -> dict[str, Any]:
        """Return the parameters of a query, after a look at its api_key."""
        parameters: dict[str, Any] = dict(query_parameters(request))
        self._check_key(request, parameters)
        return parameters

    def _check_key(self, request: Request, parameters: dict[str, Any]) -> None:
        key = parameters.pop("api_key", None)
        if not self.guard.has_token(request):
            self.guard.check_key(key)

    def authorise(self, request: Request) -> None:
        """Require the token in the header, if the server has one."""
        if not self.guard.has_token(request):
            self.guard.check_key(None)

    async def outcome(self, request: Request, model: ServedModel, job: Job) -> Any:
        """Run a job on a model's thread and return its result; cancel it if the client goes.

        Raises:
            Refused: too many requests wait, the client has gone, or it took too long.
        """
        model.worker.submit(job)
        result = asyncio.wrap_future(job.result)
        gone = asyncio.create_task(wait_for_disconnect(request.receive))
        first = asyncio.FIRST_COMPLETED
        try:
            await asyncio.wait({result, gone}, timeout=self.limits.seconds, return_when=first)
            if result.done():
                return result.result()
            if gone.done():
                raise Refused(CLIENT_GONE, "the client closed the connection")
            raise busy(503, f"no answer within {self.limits.seconds:g} s; ask for less", 10)
        finally:
            gone.cancel()
            if not result.done():
                job.cancel()
                result.add_done_callback(_consumed)

    def endpoint(self, route: str, handler: Handler) -> Callable[[Request], Awaitable[Any]]:
        """Return a Starlette endpoint: errors become one line of JSON, and answers are counted."""

        async def answer(request: Request) -> Answer:
            start = time.monotonic()
            metrics = self.metrics
            metrics.in_progress += 1
            try:
                if metrics.in_progress > self.limits.requests:
                    raise busy(503, f"{self.limits.requests} requests are in progress")
                self.guard.check_origin(request)
                response = await handler(self, request)
            except Exception as error:
                response = failure(request, error)
            finally:
                metrics.in_progress -= 1
            metrics.answered(route, response.status_code, time.monotonic() - start)
            return with_headers(response)

        return answer


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
    shown = message if status < 500 or isinstance(error, Refused) else _internal(error)
    log.log(
        logging.WARNING if status < 500 else logging.ERROR,
        "%d %s %s: %s",
        status,
        request.method,
        path,
        shown,
        exc_info=error if status == 500 and os.environ.get("NPAD_TRACEBACK") else None,
    )
    headers = error.headers if isinstance(error, Refused) else {}
    return as_json({"error": message}, status, headers)


def explained(error: BaseException) -> tuple[int, str]:
    """Return the status and the line for an error; nothing of the inside of the server."""
    match error:
        case Refused():
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
