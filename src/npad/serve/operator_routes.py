"""What operators and clients look up: health, metrics, models, and the description of the API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from types import NoneType
from typing import Any, get_args

from starlette.requests import Request
from starlette.responses import Response

from npad.noise.noisy import Noise
from npad.search.defaults import Defaults
from npad.search.npad import NPAD
from npad.search.registry import DECODERS
from npad.serve.limits import Limits
from npad.serve.models import ServedModel
from npad.serve.options import (
    INNER,
    OFFERED,
    default_of,
    defaults_shown,
    parts_shown,
    plain_fields,
)
from npad.serve.service import TEXT, Operation, Schema, Service, as_json, operation
from npad.version import __version__

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

ERROR: Schema = {
    "description": "The request is not served; one line says why.",
    "content": {"application/json": {"schema": {"type": "object", "properties": {"error": TEXT}}}},
}


@operation("GET", "/health", "Whether the server is alive")
async def health(service: Service, request: Request) -> Response:
    """Say that the server is alive, without a token."""
    return as_json({"status": "ok", "version": __version__})


@operation("GET", "/metrics", "Counters for Prometheus", answers="text/plain")
async def metrics(service: Service, request: Request) -> Response:
    """Return the counters."""
    service.query(request)
    text = service.metrics.render(service.models)
    return Response(text, headers={"content-type": METRICS_TYPE})


@operation("GET", "/v1/models", "The models and their options")
async def models(service: Service, request: Request) -> Response:
    """List the models, and what options they take."""
    service.query(request)
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
        **parts_shown(),
        "defaults": defaults_shown(Defaults.of(served.model)),
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
    parameters, required = {**operation.parameters, **options}, list(operation.required)
    answer = {"description": "The answer", "content": {operation.answers: {}}}
    described: Schema = {
        "summary": operation.summary,
        "responses": {"200": answer, "4XX": ERROR},
    }
    if operation.method == "POST":
        schema = {"type": "object", "properties": parameters, "required": required}
        content = {operation.accepts: {"schema": schema}}
        return described | {"requestBody": {"required": True, "content": content}}
    return described | {
        "parameters": [
            {"name": name, "in": "query", "required": name in required, "schema": schema}
            for name, schema in parameters.items()
        ]
    }


def option_schemas(limits: Limits) -> dict[str, Schema]:
    """Return the schema of every option, from the fields of the decoders."""
    schemas: dict[str, Schema] = {
        "decoder": {"type": "string", "enum": list(OFFERED), "default": "npad"},
        "inner": {"type": "string", "enum": list(INNER), "default": "greedy"},
    }
    for kind in (NPAD, Noise, *(DECODERS.kinds[name] for name in OFFERED)):
        for name, (field, annotation) in plain_fields(kind).items():
            schema = {"type": _json_type(annotation), "description": field.metadata["help"]}
            default = default_of(field)
            schemas.setdefault(name, schema if default is None else schema | {"default": default})
    whole: Schema = {"type": "integer", "minimum": 1}
    schemas["nbest"] = whole | {"maximum": limits.rows, "description": "hypotheses to return"}
    schemas["max_length"] = whole | {
        "maximum": limits.max_length,
        "default": 200,
        "description": "tokens of an output, its end token included",
    }
    return schemas


def _json_type(annotation: Any) -> str:
    """Return the JSON type of a field."""
    kinds = [kind for kind in get_args(annotation) or (annotation,) if kind is not NoneType]
    names = {bool: "boolean", int: "integer", float: "number"}
    return names.get(kinds[0], "string")
