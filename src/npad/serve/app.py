"""The application: every operation, what operators look up, and the page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from npad.serve.bodies import ANY_TEXT, JSON, Schema
from npad.serve.limits import Limits, RequestRefused
from npad.serve.options import offered, option_schemas
from npad.serve.service import (
    Answer,
    CheckedRequest,
    Endpoint,
    Operation,
    Service,
    as_json,
    failure,
    operation,
    with_headers,
)
from npad.serve.speech_routes import transcriptions
from npad.serve.text_routes import decode, languages, score, stream, translate
from npad.version import __version__

STATIC = Path(__file__).parent / "static"
# by suffix, so that no file of the machine decides them
CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

ERROR: Schema = {
    "description": "The request is not served; one line says why.",
    "content": {JSON: {"schema": {"type": "object", "properties": {"error": ANY_TEXT}}}},
}


@operation("GET", "/health", public=True)
async def health(service: Service, asked: CheckedRequest) -> Response:
    """Say that the server is alive, without a token."""
    return as_json({"status": "ok", "version": __version__})


@operation("GET", "/metrics", answers="text/plain")
async def metrics(service: Service, asked: CheckedRequest) -> Response:
    """Return the counters."""
    return Response(service.metrics.render(), headers={"content-type": METRICS_TYPE})


@operation("GET", "/v1/models")
async def models(service: Service, asked: CheckedRequest) -> Response:
    """List the models, and what options they take."""
    described = []
    for served in service.models.values():
        source, target = served.languages or (None, None)
        model: dict[str, object] = {"id": served.id, "object": "model"}
        model |= {"source": source, "target": target, "sites": dict(served.model.sites)}
        model |= {"hears": served.hears, "confidence": served.pipeline.confidence is not None}
        model |= {"constrains": served.pipeline.vocabulary is not None}
        described.append(model | offered(served.model))
    return as_json({"object": "list", "data": described})


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
    """Return the files of the pages by their paths; `/` is index.html, `/docs` is docs.html."""
    files = {
        f"/static/{file.relative_to(static).as_posix()}": file
        for file in sorted(static.rglob("*"))
        if file.is_file() and file.suffix in CONTENT_TYPES
    }
    pages = {"/": static / "index.html", "/docs": static / "docs.html"}
    return {path: file for path, file in pages.items() if file.is_file()} | files


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
    message = {405: "this route does not have that method", 404: "there is no such route"}
    line = f"{message.get(status, 'the request is invalid')}; there are {there_are}"
    headers = dict(getattr(error, "headers", None) or {})
    response = failure(request, RequestRefused(status, line, headers))
    with_headers(response)
    return response


def document(operations: Iterable[Operation], limits: Limits) -> Schema:
    """Return the OpenAPI document of a server with these limits."""
    options = option_schemas(limits)
    paths: dict[str, Schema] = {}
    for known in operations:
        described = _described(known, options if known.decodes else {})
        paths.setdefault(known.path, {})[known.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "npad",
            "version": __version__,
            "description": "Decode from sequence models, and watch the search.",
            "license": {"name": "Apache-2.0"},
        },
        "x-limits": asdict(limits),
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"token": []}],
    }


def _described(operation: Operation, options: Mapping[str, Schema]) -> Schema:
    """Return an operation as OpenAPI describes it."""
    parameters = {**operation.needs, **operation.takes, **options}
    answer = {"description": "The answer", "content": {operation.answers: {}}}
    summary = (operation.handler.__doc__ or "").partition("\n")[0]
    described: Schema = {"summary": summary, "responses": {"200": answer, "4XX": ERROR}}
    if operation.method == "POST":
        schema = {"type": "object", "properties": parameters, "required": list(operation.needs)}
        content = {operation.accepts: {"schema": schema}}
        return described | {"requestBody": {"required": True, "content": content}}
    return described | {
        "parameters": [
            {"name": name, "in": "query", "required": name in operation.needs, "schema": schema}
            for name, schema in parameters.items()
        ]
    }
