"""Decode the texts of several requests as one batch; each gets what it would get alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from npad.engine.cost import count_calls
from npad.engine.deadline import Stopped, stopped_by
from npad.errors import InvalidInput
from npad.model import Capabilities
from npad.noise.random import stable_hash
from npad.pipelines.outputs import TooLong, Translation
from npad.pipelines.translation import Translator
from npad.search.decoder import Decoder
from npad.search.exact import Exact
from npad.search.hypotheses import Hypothesis
from npad.search.npad import NPAD
from npad.search.observing import Progress, observed_by
from npad.serve.models import ServedModel
from npad.serve.options import Chosen
from npad.serve.reading import LOG_PROB_DIGITS, rounded
from npad.serve.worker import Job


class Calls(NamedTuple):
    """The model calls of one text, as if it were alone."""

    search: int
    rescoring: int  # distinct prefixes that the clean model read


class Decoded(NamedTuple):
    """The translation of one text, its cost, and the tokens of its best hypotheses."""

    translation: Translation
    calls: Calls
    pieces: tuple[list[str], ...] = ()


Found = Decoded | InvalidInput


class Texts(NamedTuple):
    """The texts of one request."""

    texts: list[str]
    shown: int  # hypotheses of each text whose tokens are shown


def decode_job(model: ServedModel, texts: list[str], chosen: Chosen, shown: int = 0) -> Job:
    """Return a job that decodes texts, together with other jobs of the same choice.

    Its result is a list of `Decoded`.

    Args:
        model: the model.
        texts: the texts of a request.
        chosen: the decoder.
        shown: hypotheses of each text whose tokens are shown.
    """
    model.text  # noqa: B018 (refuses a model that hears)

    def run(jobs: Sequence[Job]) -> None:
        decode_together(model, chosen, jobs)

    key = (chosen.decoder, chosen.max_length)
    return Job(run, key, Texts(texts, shown), len(texts))


def decode_together(model: ServedModel, chosen: Chosen, jobs: Sequence[Job]) -> None:
    """Decode the distinct texts of all jobs, and set the jobs' results.

    If that fails, each job runs alone, so that only those fail that would fail alone.
    """
    texts = list(dict.fromkeys(text for job in jobs for text in job.payload.texts))
    try:
        with stopped_by(lambda: all(job.cancelled for job in jobs)):
            decoded = dict(zip(texts, _decode(model.text, texts, chosen), strict=True))
        for job in jobs:
            _finish(model, job, [decoded[text] for text in job.payload.texts])
    except Stopped as error:
        for job in jobs:
            job.fail(error)
    except Exception as error:
        if len(jobs) == 1:
            jobs[0].fail(error)
            return
        for job in jobs:
            if not job.result.done():
                decode_together(model, chosen, [job])


def _finish(model: ServedModel, job: Job, outcomes: list[Found]) -> None:
    """Set the result of a job; here, since a tokenizer may belong to the model's thread."""
    decoded = []
    for outcome in outcomes:
        if isinstance(outcome, InvalidInput):
            job.fail(outcome.about("a text") if isinstance(outcome, TooLong) else outcome)
            return
        hypotheses = hypotheses_of(outcome.translation)[: job.payload.shown]
        pieces = tuple(model.pieces(hypothesis.tokens) for hypothesis in hypotheses)
        decoded.append(outcome._replace(pieces=pieces))
    job.result.set_result(decoded)


def _decode(translator: Translator, texts: list[str], chosen: Chosen) -> list[Found]:
    """Return the outcome of each of these distinct texts."""
    decoder, max_length = chosen.decoder, chosen.max_length
    if isinstance(decoder, Exact):  # searches its sentences one after another
        return [_decode_exactly(translator, text, decoder, max_length) for text in texts]
    counter = CallCounter()
    window = max(1, len(texts))
    with observed_by(counter):
        outcomes = list(translator.stream_or_skip(texts, decoder, max_length, window=window))
    rescored = Capabilities.of(translator.model).modified_scores
    return [
        outcome
        if isinstance(outcome, InvalidInput)
        else Decoded(
            outcome,
            Calls(
                counter.calls.get(stable_hash(text), 0),
                distinct_prefixes(hypotheses_of(outcome))
                if rescored or isinstance(decoder, NPAD)
                else 0,
            ),
        )
        for text, outcome in zip(texts, outcomes, strict=True)
    ]


def _decode_exactly(translator: Translator, text: str, decoder: Decoder, max_length: int) -> Found:
    with count_calls() as counted:
        (outcome,) = translator.stream_or_skip([text], decoder, max_length, window=1)
    if isinstance(outcome, InvalidInput):
        return outcome
    return Decoded(outcome, Calls(counted.search, counted.rescoring))


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


def hypotheses_of(translation: Translation) -> list[Hypothesis]:
    """Return all hypotheses of a translation, best first."""
    return [translation.hypothesis, *(other.hypothesis for other in translation.alternatives)]


def finite(value: float | None) -> float | None:
    """Return a log-probability as it is sent; None if there is none, or it is −inf."""
    return None if value is None else rounded(value, LOG_PROB_DIGITS)


def hypothesis_shown(translation: Translation, pieces: list[str]) -> dict[str, Any]:
    """Return a hypothesis as JSON."""
    hypothesis = translation.hypothesis
    return {
        "text": translation.text,
        "tokens": pieces,
        "log_prob": finite(hypothesis.log_prob),
        "finished": hypothesis.finished,
        "chain": hypothesis.chain,
        "noisy_log_prob": finite(hypothesis.noisy_log_prob),
    }
