"""What operators and clients look up: health, metrics, models, and the description of the API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict

from starlette.responses import Response

from npad.serve.bodies import ANY_TEXT, Schema
from npad.serve.limits import Limits
from npad.serve.models import ServedModel
from npad.serve.options import offered, option_schemas
from npad.serve.service import CheckedRequest, Operation, Service, as_json, operation
from npad.version import __version__

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

ERROR: Schema = {
    "description": "The request is not served; one line says why.",
    "content": {
        "application/json": {"schema": {"type": "object", "properties": {"error": ANY_TEXT}}}
    },
}


@operation("GET", "/health", public=True)
async def health(service: Service, asked: CheckedRequest) -> Response:
    """Say that the server is alive, without a token."""
    return as_json({"status": "ok", "version": __version__})


@operation("GET", "/metrics", answers="text/plain")
async def metrics(service: Service, asked: CheckedRequest) -> Response:
    """Return the counters."""
    text = service.metrics.render(service.models)
    return Response(text, headers={"content-type": METRICS_TYPE})


@operation("GET", "/v1/models")
async def models(service: Service, asked: CheckedRequest) -> Response:
    """List the models, and what options they take."""
    shown = [_model(served) for served in service.models.values()]
    return as_json({"object": "list", "data": shown})


def _model(served: ServedModel) -> dict[str, object]:
    source, target = served.languages or (None, None)
    return {
        "id": served.id,
        "object": "model",
        "sites": dict(served.model.sites),
        "source": source,
        "target": target,
        **offered(served.model),
        "hears": served.hears,
        "confidence": served.pipeline.confidence is not None,
    }


def document(operations: Iterable[Operation], limits: Limits) -> Schema:
    """Return the OpenAPI document of a server with these limits."""
    options = option_schemas(limits)
    paths: dict[str, Schema] = {}
    for known in operations:
        described = _described(known, options if known.decodes else {})
        paths.setdefault(known.path, {})[known.method.lower()] = described
    bounds = ", ".join(f"{name} {bound:,}" for name, bound in asdict(limits).items())
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "npad",
            "version": __version__,
            "description": "Decode from sequence models, and watch it. Limits of requests, as "
            f"docs/serving.md explains them: {bounds}.",
            "license": {"name": "Apache-2.0"},
        },
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
