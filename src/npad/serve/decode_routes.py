"""POST /v1/decode, POST /v1/score and GET /v1/decode/stream."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from npad.engine.deadline import stopped_by
from npad.errors import InvalidInput
from npad.search.hypotheses import Hypothesis
from npad.serve.bodies import ensure_request_texts, one_text
from npad.serve.confidence import confidence_of
from npad.serve.decoding import Decoded, decode_job, finite, hypothesis_shown
from npad.serve.events import EventQueue, EventStream
from npad.serve.models import ServedModel
from npad.serve.options import choose_for
from npad.serve.reading import read_tokens
from npad.serve.service import Service, as_json, explained
from npad.serve.streaming import StreamRequest, run_stream
from npad.serve.worker import Job, alone
from npad.signatures import signature
from npad.validation import ensure_number


async def decode(service: Service, request: Request) -> Response:
    """Decode texts with any decoder; n-best with clean scores."""
    start = time.monotonic()
    options = await service.body(request)
    model = service.model(options.pop("model", None))
    texts = ensure_request_texts("text", options.pop("text", None), service.limits)
    if not any(text.strip() for text in texts):
        raise InvalidInput("text must not be empty")
    chosen = choose_for(model.model, options, service.limits)
    job = decode_job(model, texts, chosen, shown=chosen.nbest)
    decoded = await service.outcome(request, model, job)
    for result in decoded:
        service.metrics.called(model.id, *result.calls)
    return as_json(
        {
            "model": model.id,
            "signature": signature(chosen.decoder, model.model),
            "results": [_result(model, result) for result in decoded],
            "seconds": round(time.monotonic() - start, 4),
        }
    )


def _result(model: ServedModel, decoded: Decoded) -> dict[str, Any]:
    """Return the answer for one text."""
    translation = decoded.translation
    best = translation.hypothesis
    every = [translation, *translation.alternatives]
    return {
        "text": translation.text,
        "log_prob": finite(translation.log_prob),
        "confidence": confidence_of(model, best),
        "finished": best.finished,
        "proven": best.proven,
        "hypotheses": [
            hypothesis_shown(other, pieces)
            for other, pieces in zip(every, decoded.pieces, strict=False)
        ],
        "calls": decoded.calls._asdict(),
    }


async def score(service: Service, request: Request) -> Response:
    """Return the clean log-probability of a given pair, token by token."""
    options = await service.body(request)
    model = service.model(options.pop("model", None))
    text = one_text("text", options.pop("text", None), service.limits)
    (target,) = ensure_request_texts(
        "target", _as_list(options.pop("target", None)), service.limits
    )
    if options:
        raise InvalidInput(f"there is no option {next(iter(options))!r}: text, target and model")
    translator = model.text
    if translator.tokenise is None:
        raise InvalidInput(f"{model.id} cannot score texts: it has no function from text to tokens")

    def work(job: Job) -> dict[str, Any]:
        assert translator.tokenise is not None
        with stopped_by(lambda: job.cancelled):
            (log_prob,) = translator.score([text], [target])
            (tokens,) = translator.tokenise([target])
            hypothesis = Hypothesis(tuple(tokens), log_prob, finished=True)
            (reading,) = read_tokens(model.model, translator.encode([text]), [hypothesis])
        return {
            "log_prob": finite(log_prob),
            "tokens": model.pieces(tokens),
            "token_log_probs": reading.token_log_probs,
            "confidence": confidence_of(model, hypothesis),
        }

    return as_json(await service.outcome(request, model, alone(work)))


def _as_list(target: Any) -> Any:
    """Return a target as a list of one; an empty text is a target, too."""
    if isinstance(target, list):
        raise InvalidInput("target must be one text, not a list")
    return target if target is None else [target]


async def stream(service: Service, request: Request) -> EventStream:
    """Decode one text as a stream of events."""
    options = service.query(request)
    model = service.model(options.pop("model", None))
    text = one_text("text", options.pop("text", None), service.limits)
    deadline = _deadline(options.pop("deadline", None))
    chosen = choose_for(model.model, options, service.limits)
    asked = StreamRequest(model, text, chosen, deadline)
    events = EventQueue(service.limits.unsent)
    at_once = model.encodes_anywhere
    if at_once:
        events.emit("start", asked.start_event())

    def work(job: Job) -> None:
        if not at_once:
            events.emit("start", asked.start_event())
        run_stream(asked, events.emit, lambda: job.cancelled)

    job = model.worker.submit(alone(work))
    return EventStream(job, events, service.limits.seconds, lambda error: explained(error)[1])


def _deadline(value: str | None) -> float | None:
    """Return the milliseconds of a deadline."""
    if value is None or value == "":
        return None
    try:
        deadline = float(value)
    except ValueError:
        raise InvalidInput(f"deadline must be milliseconds, not {value[:60]!r}") from None
    ensure_number("deadline", deadline, minimum=0)
    return deadline
