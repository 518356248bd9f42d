"""Texts: npad's own routes to decode and score, and LibreTranslate's to translate."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from starlette.responses import Response

from npad.errors import InvalidInput
from npad.hypotheses import Hypothesis
from npad.pipelines.outputs import Output
from npad.pipelines.pipeline import Prefixed, with_prefixes
from npad.pipelines.writers import lacking
from npad.serve.bodies import ANY_TEXT, MODEL, TEXT, TEXTS, texts_of
from npad.serve.decoding import ServedOutput, decode_request, finite, read_tokens
from npad.serve.events import EventStream
from npad.serve.model_thread import QueuedRequest
from npad.serve.models import ServedModel, trust_in
from npad.serve.options import constraint_for, decoding_for
from npad.serve.service import CheckedRequest, Service, as_json, explained, operation
from npad.serve.streaming import stream_of
from npad.signatures import signature
from npad.validation import brief

BEAM = 5  # width without alternatives
AUTO = "auto"
PREFIXES = {
    "oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    "description": "what the output begins with; one per text",
}
CONSTRAINT = {
    "type": "object",
    "description": "what every output must satisfy: names with a text or a list of texts",
    "examples": [{"without": ["Handy"]}],
}
NAMES = {
    "cs": "Czech",
    "de": "German",
    "en": "English",
    "es": "Spanish",
    "fr": "French",
    "it": "Italian",
    "ru": "Russian",
}
SECONDS = {"type": "number", "minimum": 0}


@operation(
    "POST",
    "/v1/decode",
    needs={"text": TEXTS},
    takes={"model": MODEL, "prefix": PREFIXES, "constraint": CONSTRAINT},
    decodes=True,
)
async def decode(service: Service, asked: CheckedRequest) -> Response:
    """Decode texts with any decoder; n-best with clean scores."""
    start = time.monotonic()
    model = service.model(asked.values["model"])
    decoding, listed = decoding_for(model.model, asked.options, service.limits)
    constraint = constraint_for(asked.values["constraint"], service.limits)
    decoding = replace(decoding, constraint=constraint)
    texts: list[Any] = texts_of(asked.values["text"])
    if asked.values["prefix"] is not None:
        texts = with_prefixes(texts, texts_of(asked.values["prefix"]), "text")
    queued = decode_request(model, texts, decoding, listed)
    outputs = await service.outcome(asked, model, queued)
    return as_json(
        {
            "model": model.id,
            "signature": signature(decoding.decoder, model.model, constraint),
            "results": [_decoded(output) for output in outputs],
            "seconds": round(time.monotonic() - start, 4),
        }
    )


def _decoded(served: ServedOutput) -> dict[str, Any]:
    """Return the answer for one text."""
    best = served.output.hypothesis
    listed = [served.output, *served.output.alternatives]
    return {
        "text": served.output.text,
        "log_prob": finite(best.log_prob),
        **trust_in(served.output),
        "finished": best.finished,
        **lacking(best),
        "proven": best.proven,
        "hypotheses": [
            {
                "text": output.text,
                "tokens": pieces,
                "log_prob": finite(output.hypothesis.log_prob),
                "finished": output.hypothesis.finished,
                "chain": output.hypothesis.chain,
                "noisy_log_prob": finite(output.hypothesis.noisy_log_prob),
                **lacking(output.hypothesis),
            }
            for output, pieces in zip(listed, served.pieces, strict=False)
        ],
        "calls": served.calls._asdict(),
    }


@operation("POST", "/v1/score", needs={"text": TEXT, "target": ANY_TEXT}, takes={"model": MODEL})
async def score(service: Service, asked: CheckedRequest) -> Response:
    """Return the clean log-probability of a given pair, token by token."""
    text, target = asked.values["text"], asked.values["target"]
    model = service.model(asked.values["model"])
    translator = model.text
    tokenise = translator.tokenise
    if tokenise is None:
        raise InvalidInput(f"{model.id} cannot score texts: it has no function from text to tokens")

    def work() -> dict[str, Any]:
        (log_prob,) = translator.score([text], [target])
        (tokens,) = tokenise([target])
        hypothesis = Hypothesis(tuple(tokens), log_prob, finished=True)
        (reading,) = read_tokens(model.model, translator.encode([text]), [hypothesis])
        return {
            "log_prob": finite(log_prob),
            "tokens": model.pieces(tokens),
            "token_log_probs": reading.token_log_probs,
            **trust_in(translator.estimator().output([hypothesis], [target], signed="")),
        }

    return as_json(await service.outcome(asked, model, QueuedRequest.alone(work)))


@operation(
    "GET",
    "/v1/decode/stream",
    needs={"text": TEXT},
    takes={
        "model": MODEL,
        "prefix": ANY_TEXT | {"description": "what the output begins with"},
        "constraint": CONSTRAINT,
        "seconds": SECONDS | {"description": "for the search; unlimited by default"},
        "deadline": SECONDS | {"description": "seconds, in milliseconds", "deprecated": True},
    },
    decodes=True,
    answers="text/event-stream",
)
async def stream(service: Service, asked: CheckedRequest) -> EventStream:
    """Decode one text as a stream of events."""
    model = service.model(asked.values["model"])
    seconds, milliseconds = asked.values["seconds"], asked.values["deadline"]
    if seconds is None and milliseconds is not None:
        seconds = milliseconds / 1e3
    decoding, listed = decoding_for(model.model, asked.options, service.limits)
    if decoding.fallback_decoder is not None:
        raise InvalidInput("a stream shows one search, without fallback_decoder; use /v1/decode")
    limits = service.limits
    constraint = constraint_for(asked.values["constraint"], limits)
    decoding = replace(decoding, constraint=constraint)
    events = EventStream(limits.unsent, limits.seconds, lambda error: explained(error)[1])
    source = Prefixed(asked.values["text"], asked.values["prefix"] or "")
    search = stream_of(model, source, decoding, listed, seconds, events.emit)
    at_once = model.encodes_anywhere
    if at_once:
        search.emit_start()

    def work() -> None:
        if not at_once:
            search.emit_start()
        search.run()

    events.queued = model.thread.submit(QueuedRequest.alone(work))
    return events


@operation(
    "POST",
    "/translate",
    needs={"q": TEXTS},
    takes={
        "source": TEXT | {"description": "the code of a language, or auto", "default": AUTO},
        "target": TEXT | {"description": "the code of a language", "examples": ["en"]},
        "alternatives": {"type": "integer", "minimum": 0, "maximum": 20, "default": 0},
        "format": {"type": "string", "enum": ["text"]},
        "api_key": ANY_TEXT,
        "model": MODEL,
    },
    decodes=True,
)
async def translate(service: Service, asked: CheckedRequest) -> Response:
    """Translate as LibreTranslate does, with the score and the signature besides.

    Lines are translated one by one. A list of texts is answered by lists.
    """
    given, source, count = (asked.values[name] for name in ("q", "source", "alternatives"))
    model = find_model(service.models, asked.values["model"], source, asked.values["target"])
    texts, options = texts_of(given), asked.options
    lines = [line for text in texts for line in text.split("\n")]
    if len(lines) > service.limits.texts:
        raise InvalidInput(f"q must have at most {service.limits.texts} lines, not {len(lines)}")
    if options.get("decoder") in (None, "beam") and count and "nbest" not in options:
        options = {"width": max(BEAM, count + 1)} | options | {"nbest": count + 1}
    decoding, _ = decoding_for(model.model, options, service.limits, default="beam")
    served = iter(await service.outcome(asked, model, decode_request(model, lines, decoding)))
    answers = []
    for text in texts:
        outputs = [next(served).output for _ in text.split("\n")]
        answers.append(_translated(outputs, count))
    if source == AUTO:
        detected = {"language": (model.languages or ("", ""))[0], "confidence": 0.0}
        answers = [answer | {"detectedLanguage": detected} for answer in answers]
    together = (
        {name: [answer[name] for answer in answers] for name in answers[0]}
        if isinstance(given, list)
        else answers[0]
    )
    return as_json(together | {"signature": signature(decoding.decoder, model.model)})


def _translated(lines: list[Output], alternatives: int) -> dict[str, Any]:
    """Return the answer for one text, whose lines were translated one by one."""
    answer: dict[str, Any] = {"translatedText": "\n".join(line.text for line in lines)}
    if alternatives:
        texts = [[other.text for other in line.alternatives] for line in lines]
        together = zip(*texts, strict=False)  # as many as every line has
        distinct = dict.fromkeys("\n".join(other) for other in together)
        distinct.pop(answer["translatedText"], None)
        answer["alternatives"] = list(distinct)[:alternatives]
    written = [line for line in lines if line.hypothesis.tokens]
    answer["log_prob"] = finite(sum(line.log_prob for line in lines))
    one = written[0] if len(written) == 1 else Output.empty("")  # a confidence is of one line
    return answer | trust_in(one) | {"doubtful": any(line.doubtful for line in lines)}


def find_model(
    models: Mapping[str, ServedModel], name: str | None, source: str, target: str | None
) -> ServedModel:
    """Return the first model that translates between two languages.

    Args:
        models: by id.
        name: of a model, which then must have these languages; None: any.
        source: a language's code, or "auto": any.
        target: a language's code; None if the model is named.

    Raises:
        InvalidInput: there is none.
    """
    if target is None and name is None:
        raise InvalidInput("target is missing: the code of a language, such as de")
    for served in models.values():
        from_code, to_code = served.languages or (None, None)
        named = name is None or served.id == name
        if not named or served.hears:
            continue
        if name is not None and served.languages is None:
            return served
        if source in (AUTO, from_code) and target in (None, to_code):
            return served
    if name is not None and name not in models:
        raise InvalidInput(f"there is no model {brief(name, 60)}; there are {', '.join(models)}")
    pairs = [f"{m.languages[0]}-{m.languages[1]}" for m in models.values() if m.languages]
    asked = f"from {brief(source, 20)} to {brief(target, 20)}"
    raise InvalidInput(f"no model translates {asked}; there are {', '.join(pairs) or 'none'}")


@operation("GET", "/languages")
async def languages(service: Service, asked: CheckedRequest) -> Response:
    """List the languages as LibreTranslate does."""
    targets: dict[str, list[str]] = {}
    for served in service.models.values():
        if served.languages is not None:
            source, target = served.languages
            targets.setdefault(source, [])
            targets.setdefault(target, [])
            if target not in targets[source]:
                targets[source].append(target)
    return as_json(
        [
            {"code": code, "name": NAMES.get(code, code), "targets": reached}
            for code, reached in targets.items()
        ]
    )
