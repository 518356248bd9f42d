"""GET /health, /metrics, /v1/models and /openapi.json: what operators and clients look up."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from npad.serve.confidence import has_confidence
from npad.serve.metrics import CONTENT_TYPE
from npad.serve.models import ServedModel
from npad.serve.openapi import document
from npad.serve.options import defaults_shown, parts_shown
from npad.serve.service import Service, as_json
from npad.version import __version__


async def health(service: Service, request: Request) -> Response:
    """Say that the server is alive, without a token."""
    return as_json({"status": "ok", "version": __version__})


async def metrics(service: Service, request: Request) -> Response:
    """Return the counters."""
    service.query(request)
    text = service.metrics.render(service.models.values())
    return Response(text, headers={"content-type": CONTENT_TYPE})


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
        "confidence": has_confidence(served),
    }


async def openapi(service: Service, request: Request) -> Response:
    """Return the description of the API."""
    return as_json(document(service.limits))
