"""The application: every route, and the page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from npad.serve.limits import RequestRefused
from npad.serve.operator_routes import document, health, metrics, models
from npad.serve.service import (
    Answer,
    CheckedRequest,
    Endpoint,
    Service,
    as_json,
    failure,
    operation,
    with_headers,
)
from npad.serve.speech_routes import transcriptions
from npad.serve.text_routes import decode, languages, score, stream, translate

STATIC = Path(__file__).parent / "static"
# by suffix, so that no file of the machine decides them
CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".json": "application/json",
    ".woff2": "font/woff2",
}


@operation("GET", "/openapi.json", public=True)
async def openapi(service: Service, asked: CheckedRequest) -> Response:
    """Describe the API without a token."""
    return as_json(document(OPERATIONS, service.limits))


OPERATIONS = (
    translate,
    languages,
    decode,
    score,
    stream,
    transcriptions,
    models,
    health,
    metrics,
    openapi,
)


def build(service: Service, static: Path = STATIC) -> Starlette:
    """Return the application of a service.

    Args:
        service: its models, limits and guard. Their threads end with the application.
        static: the folder of the page.
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        closing = (asyncio.to_thread(served.thread.close) for served in service.models.values())
        await asyncio.gather(*closing)

    async def no_route(request: Request, error: Exception) -> Response:
        response = refuse_route(request, error)
        service.metrics.answered("other", response.status_code, 0.0)
        return response

    routes = [
        Route(operation.path, Endpoint(service, operation), methods=[operation.method])
        for operation in OPERATIONS
    ]
    for path, file in page_files(static).items():
        routes.append(Route(path, _file_endpoint(service, file), methods=["GET"]))
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: no_route})


def page_files(static: Path) -> dict[str, Path]:
    """Return the files of the page by their paths; `/` is index.html."""
    files = {
        f"/static/{file.relative_to(static).as_posix()}": file
        for file in sorted(static.rglob("*"))
        if file.is_file() and file.suffix in CONTENT_TYPES
    }
    index = static / "index.html"
    return ({"/": index} if index.is_file() else {}) | files


def _file_endpoint(service: Service, file: Path) -> Callable[[Request], Awaitable[Answer]]:
    async def answer(request: Request) -> Answer:
        """Send a file of the page, which holds no secret and needs no token."""
        try:
            service.guard.check_host(request)
        except RequestRefused as error:
            return with_headers(failure(request, error))
        headers = {"content-type": CONTENT_TYPES[file.suffix], "cache-control": "no-cache"}
        return with_headers(FileResponse(file, headers=headers))

    return answer


def refuse_route(request: Request, error: Exception) -> Response:
    """Answer a request for which there is no route."""
    status = error.status_code if isinstance(error, HTTPException) else 404
    there_are = ", ".join(f"{known.method} {known.path}" for known in OPERATIONS)
    message = {405: "that method is not for this route", 404: "there is no such route"}
    line = f"{message.get(status, 'the request is invalid')}; there are {there_are}"
    headers = dict(getattr(error, "headers", None) or {})
    response = failure(request, RequestRefused(status, line, headers))
    with_headers(response)
    return response
