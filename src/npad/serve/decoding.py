"""Decode the texts of several requests as one batch; each gets what it would get alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from npad.engine.cost import count_calls
from npad.engine.cuda_graphs import EAGER_CALLS
from npad.engine.devices import current_device
from npad.engine.memory import out_of_memory_errors
from npad.errors import InvalidInput
from npad.hypotheses import Hypotheses, Hypothesis
from npad.model import Capabilities, Model, device_of
from npad.noise.random import stable_hash
from npad.pipelines.outputs import Output, TooLong
from npad.pipelines.pipeline import Prefixed, text_of
from npad.pipelines.translation import Translator
from npad.rescoring.teacher_forcing import read_positions
from npad.search.observing import Progress, observed_by
from npad.search.request import Decoding
from npad.serve.limits import Limits
from npad.serve.model_thread import QueuedRequest
from npad.serve.models import ServedModel
from npad.serve.options import decoding_for

LOG_PROB_DIGITS, WEIGHT_DIGITS = 6, 4  # decimals that are sent


class Calls(NamedTuple):
    """The model calls of one text, as if it were alone."""

    search: int
    rescoring: int  # distinct prefixes that the clean model read


class ServedOutput(NamedTuple):
    """The output for one text, its cost, and the tokens of its best hypotheses."""

    output: Output
    calls: Calls
    pieces: tuple[list[str], ...] = ()


def decode_request(
    model: ServedModel, texts: Sequence[str | Prefixed], decoding: Decoding, listed: int = 0
) -> QueuedRequest:
    """Return a request that decodes texts, together with others that are decoded alike.

    Its result is a list of `ServedOutput`.

    Args:
        model: the model.
        texts: the texts of a request, which may have prefixes.
        decoding: how they are decoded.
        listed: hypotheses of each text whose tokens are shown.
    """
    translator = model.text

    def run(
        payloads: Sequence[tuple[Sequence[str | Prefixed], int]],
    ) -> list[list[ServedOutput] | InvalidInput]:
        distinct = list(dict.fromkeys(text for texts, _ in payloads for text in texts))
        parts = [[text] for text in distinct] if decoding.decoder.sequential else [distinct]
        outcomes = [outcome for part in parts for outcome in _decode(translator, part, decoding)]
        by_text = dict(zip(distinct, outcomes, strict=True))
        return [_result(model, [by_text[text] for text in texts], n) for texts, n in payloads]

    return QueuedRequest(run, (texts, listed), decoding, len(texts))


def _result(
    model: ServedModel, outcomes: list[ServedOutput | InvalidInput], listed: int
) -> list[ServedOutput] | InvalidInput:
    """Return a request's result; here, since a tokenizer may belong to the model's thread."""
    result = []
    for outcome in outcomes:
        if isinstance(outcome, InvalidInput):
            return outcome.about("a text") if isinstance(outcome, TooLong) else outcome
        hypotheses = hypotheses_of(outcome.output)[:listed]
        pieces = tuple(model.pieces(hypothesis.tokens) for hypothesis in hypotheses)
        result.append(outcome._replace(pieces=pieces))
    return result


def _decode(
    translator: Translator, texts: Sequence[str | Prefixed], decoding: Decoding
) -> Iterator[ServedOutput | InvalidInput]:
    """Yield the outcome of each of these distinct texts."""
    counter = CallCounter()
    with observed_by(counter), count_calls() as counted:
        outcomes = list(translator.run(texts, decoding, max(1, len(texts)), skip=True))
    decoder = decoding.decoder
    rescored = Capabilities.of(translator.model).modified_scores or any(
        part.chains or part.needs_coverage or (part.rescores and not hasattr(part, "selector"))
        for part in decoder.within()
    )
    for text, outcome in zip(texts, outcomes, strict=True):
        if isinstance(outcome, InvalidInput):
            yield outcome
        elif decoder.sequential:  # not all of its steps are observed, but the text is alone
            yield ServedOutput(outcome, Calls(counted.search, counted.rescoring))
        else:
            calls = counter.calls.get(stable_hash(text_of(text)), 0)
            prefixes = distinct_prefixes(hypotheses_of(outcome)) if rescored else 0
            yield ServedOutput(outcome, Calls(calls, prefixes))


def warm_up(model: ServedModel, texts: Sequence[str], limits: Limits) -> None:
    """Decode texts by the default decoders of requests, on a GPU until their steps are captured."""
    times = EAGER_CALLS + 1 if device_of(model.model).type == "cuda" else 1
    for name in ("npad", "beam"):
        decoding, _ = decoding_for(model.model, {"decoder": name}, limits)
        for text in texts:
            for _ in range(times):
                request = decode_request(model, [text], decoding)
                (outcome,) = request.run([request.payload])
                if isinstance(outcome, InvalidInput):
                    raise outcome


class CallCounter:
    """An observer that counts each sentence's model calls in a search until it is done.

    In a batch the machine may do more for a sentence: on a GPU its rows stay until enough others
    are done.
    """

    def __init__(self) -> None:
        self.calls: dict[int, int] = {}  # by sentence id
        self._live: set[int] = set()

    def __call__(self, progress: Progress) -> None:
        ids = progress.ids
        if progress.step == progress.window:  # another search begins, such as that of more chains
            self._live = set(ids)
        for sentence in ids:
            if sentence in self._live:
                self.calls[sentence] = self.calls.get(sentence, 0) + progress.calls
        self._live = {s for s, done in zip(ids, progress.done, strict=True) if not done}


def distinct_prefixes(hypotheses: Iterable[Hypothesis]) -> int:
    """Return the number of distinct prefixes that a clean model reads to score hypotheses."""
    prefixes = set()
    for hypothesis in hypotheses:
        tokens = hypothesis.tokens
        prefixes |= {tokens[:length] for length in range(len(tokens) + hypothesis.finished)}
    return len(prefixes)


def hypotheses_of(output: Output) -> list[Hypothesis]:
    """Return all hypotheses of an output, best first."""
    return [output.hypothesis, *(other.hypothesis for other in output.alternatives)]


class Reading(NamedTuple):
    """A hypothesis as the clean model reads it; the end token comes last if it is finished."""

    token_log_probs: list[float | None]  # None: impossible
    attention: list[list[float]] | None  # source weights of each token; None: not offered


def read_tokens(model: Model[Any], source: Any, hypotheses: Sequence[Hypothesis]) -> list[Reading]:
    """Read hypotheses of one sentence, step by step, with the clean model.

    Args:
        model: the model; its `judge` reads if it has one.
        source: the sentence, in the form that the model's `start` takes.
        hypotheses: of that sentence.
    """
    if not hypotheses:
        return []
    judge = Capabilities.of(model).judge or model
    batch = Hypotheses.from_list(hypotheses)
    with torch.inference_mode(), current_device(device_of(judge)), out_of_memory_errors():
        positions = [
            (log_prob.cpu(), None if weights is None else weights.cpu())
            for log_prob, weights, _ in read_positions(judge, model.start(source), batch)
        ]
    readings = []
    for row, hypothesis in enumerate(hypotheses):
        own = positions[: len(hypothesis.tokens) + hypothesis.finished]
        looked = [
            [round(weight, WEIGHT_DIGITS) for weight in weights[row].tolist()]
            for _, weights in own
            if weights is not None
        ]
        log_probs = [finite(log_prob[row].item()) for log_prob, _ in own]
        readings.append(Reading(log_probs, looked or None))
    return readings


def finite(value: float | None) -> float | None:
    """Return a log-probability as it is sent; None if there is none, or it is −inf."""
    return None if value is None or not math.isfinite(value) else round(value, LOG_PROB_DIGITS)
