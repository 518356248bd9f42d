"""What operators and clients look up: health, metrics, models, and the description of the API."""

from __future__ import annotations

from types import NoneType
from typing import Any, get_args

from starlette.requests import Request
from starlette.responses import Response

from npad.search.registry import DECODERS
from npad.serve.limits import Limits
from npad.serve.models import ServedModel
from npad.serve.options import decoder_options, default_of, defaults_shown, parts_shown
from npad.serve.service import Service, as_json
from npad.version import __version__

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
TEXTS: Schema = {"oneOf": [TEXT, {"type": "array", "items": TEXT}]}
ERROR: Schema = {
    "description": "The request is not served; one line says why.",
    "content": {"application/json": {"schema": {"type": "object", "properties": {"error": TEXT}}}},
}


async def health(service: Service, request: Request) -> Response:
    """Say that the server is alive, without a token."""
    return as_json({"status": "ok", "version": __version__})


async def metrics(service: Service, request: Request) -> Response:
    """Return the counters."""
    service.query(request)
    text = service.metrics.render(service.models)
    return Response(text, headers={"content-type": METRICS_TYPE})


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
        "defaults": defaults_shown(served.defaults),
        "hears": served.transcriber is not None,
        "confidence": served.has_confidence,
    }


async def openapi(service: Service, request: Request) -> Response:
    """Return the description of the API."""
    return as_json(document(service.limits))


def document(limits: Limits) -> Schema:
    """Return the OpenAPI document of a server with these limits."""
    options = option_schemas(limits)
    model = {"model": TEXT | {"description": "a model's id; the first by default"}}
    text = TEXTS | {"description": f"at most {limits.texts} of {limits.characters:,} characters"}
    translate: dict[str, Schema] = {
        "q": text,
        "source": TEXT | {"description": "the code of a language, or auto"},
        "target": TEXT | {"description": "the code of a language"},
        "alternatives": {"type": "integer", "default": 0},
        "format": {"type": "string", "enum": ["text"]},
        "api_key": TEXT,
    }
    recording: dict[str, Schema] = {
        "file": {"type": "string", "format": "binary"},
        "response_format": {
            "type": "string",
            "enum": ["json", "text", "srt", "vtt", "verbose_json"],
        },
    }
    stream = {"text": TEXT, "deadline": NUMBER | {"description": "milliseconds"}}
    paths = {
        "/translate": _post("Translate as LibreTranslate does", translate | model | options, ["q"]),
        "/languages": _get("The languages, as LibreTranslate lists them"),
        "/v1/decode": _post("Decode", {"text": text} | model | options, ["text"]),
        "/v1/score": _post(
            "Score a translation", {"text": TEXT, "target": TEXT} | model, ["text", "target"]
        ),
        "/v1/decode/stream": _get(
            "Decode, as server-sent events: start, step, chain, best, done, error",
            stream | model | options,
            ["text"],
            "text/event-stream",
        ),
        "/v1/audio/transcriptions": _post(
            "Transcribe a WAV file, in OpenAI's shape",
            recording | model | options,
            ["file"],
            "multipart/form-data",
        ),
        "/v1/models": _get("The models and their options"),
        "/health": _get("Whether the server is alive"),
        "/metrics": _get("Counters for Prometheus", kind="text/plain"),
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "npad",
            "version": __version__,
            "description": "Decode from sequence models, and watch it.",
            "license": {"name": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"token": []}],
    }


def option_schemas(limits: Limits) -> dict[str, Schema]:
    """Return the schema of every option, from the fields of the decoders."""
    schemas: dict[str, Schema] = {
        "decoder": {"type": "string", "enum": list(DECODERS.kinds), "default": "npad"},
    }
    for name, option in decoder_options().items():
        description = option.field.metadata["help"]
        schema = {"type": _json_type(option.kind), "description": description}
        default = default_of(option)
        schemas[name] = schema if default is None else schema | {"default": default}
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


def _answers(kind: str) -> Schema:
    return {"200": {"description": "The answer", "content": {kind: {}}}, "4XX": ERROR}


def _get(
    summary: str,
    parameters: dict[str, Schema] | None = None,
    required: list[str] | None = None,
    kind: str = "application/json",
) -> Schema:
    listed = [
        {"name": name, "in": "query", "required": name in (required or []), "schema": schema}
        for name, schema in (parameters or {}).items()
    ]
    return {"get": {"summary": summary, "parameters": listed, "responses": _answers(kind)}}


def _post(
    summary: str,
    properties: dict[str, Schema],
    required: list[str],
    kind: str = "application/json",
) -> Schema:
    schema = {"type": "object", "properties": properties, "required": required}
    body = {"required": True, "content": {kind: {"schema": schema}}}
    responses = _answers("application/json")
    return {"post": {"summary": summary, "requestBody": body, "responses": responses}}
