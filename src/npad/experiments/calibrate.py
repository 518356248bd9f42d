"""Calibration of σ₀ for a model by successive halving (Jamieson & Talwalkar, 2016).

Every σ₀ is tried on a few sentences; each round keeps the better half and tries it on more. All
σ₀ decode the same sentences with the same random numbers, so that small differences show early.
Differences come with intervals by paired bootstrap over the sentences. A σ₀ whose interval to the
best one includes 0 ties with it, and of those that tie the smallest is chosen.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from npad.engine.cost import ModelCalls, count_calls
from npad.errors import InvalidInput
from npad.evaluate.bootstrap import LEVEL, TIE, Difference
from npad.pipelines.translation import Translator
from npad.search.npad import NPAD
from npad.search.selected import default_npad
from npad.validation import MAX_SEED, as_list, brief, ensure_callable, ensure_integer, ensure_number

FloatArray = NDArray[np.float64]

GRID = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.4)  # σ₀ tried by default
CALLS = 500_000  # model calls spent by default
RESAMPLES = 1000  # of the sentences, for an interval
PILOT_SENTENCES = 16  # from which the model calls per sentence are estimated


@dataclass(frozen=True)
class Trial:
    """One σ₀ on the first sentences: mean NLL of NPAD's outputs and of its inner decoder's.

    Attributes:
        sigma: σ₀.
        sentences: how many sentences were decoded.
        nll: mean NLL of NPAD's outputs.
        inner: mean NLL of the inner decoder's outputs.
        gain: inner minus nll, with the bootstrap interval of its mean.
        behind: nll minus that of the round's best σ₀, with its interval; 0 for the best.
    """

    sigma: float
    sentences: int
    nll: float
    inner: float
    gain: Difference
    behind: Difference

    @property
    def ties(self) -> bool:
        """Whether the round's sentences do not tell this σ₀ from the best one."""
        return self.behind.low <= 0


@dataclass(frozen=True)
class Calibration:
    """The smallest σ₀ that ties with the best, and how it was found.

    Attributes:
        sigma: the σ₀; None if no σ₀ of the last round gained anything.
        trials: all trials, in order.
        calls: the model calls spent, re-scoring included.
    """

    sigma: float | None
    trials: list[Trial]
    calls: int


def calibrate(
    translator: Translator,
    sources: Sequence[str],
    decoder: NPAD | None = None,
    budget: int = CALLS,
    sigmas: Sequence[float] = GRID,
    max_length: int = 200,
    max_rows: int = 1024,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Calibration:
    """Find the smallest σ₀ whose outputs have, as far as is known, the highest log-probability.

    Rounds get equal shares of the budget; the last one compares at least two σ₀. References are
    not needed, since NPAD maximises probability.

    Args:
        translator: the model.
        sources: sentences to calibrate on; blank ones are skipped.
        decoder: its inner decoder, chains, schedule and distribution are kept; by default NPAD over
            greedy search with the model's default chains and noise.
        budget: model calls to spend, approximately.
        sigmas: the σ₀ to choose from.
        max_length: longest output in tokens, end token included.
        max_rows: most rows in a batch.
        seed: of the order of the sentences.
        progress: called with the model calls spent so far and the budget.

    Raises:
        InvalidInput: an argument is wrong, a source is too long, or the budget is too small.
    """
    if not isinstance(translator, Translator):
        raise InvalidInput(
            f"translator must be a Translator, such as npad.load('en-de'), not {brief(translator)}"
        )
    decoder = default_npad(translator.model) if decoder is None else decoder
    if not isinstance(decoder, NPAD):
        raise InvalidInput(f"decoder must be NPAD, such as NPAD(chains=10), not {brief(decoder)}")
    ensure_integer("budget", budget, 1)
    ensure_integer("seed", seed, maximum=MAX_SEED)
    ensure_callable("progress", progress, "a function of the model calls done and of all")
    sources = as_list("sources", sources, "a list of texts")
    sigmas = as_list("sigmas", sigmas, "a list of numbers")
    for sigma in sigmas:
        ensure_number("sigma", sigma, above=0)
    translator = translator.caching()
    for i, size in translator.too_long(sources).items():
        raise InvalidInput(
            f"sentence {i + 1} has {size}; at most {translator.longest:,} tokens are allowed: "
            "leave it out"
        )
    texts = [text for text in sources if text.strip()]
    if not texts or not sigmas:
        raise InvalidInput("there is nothing to calibrate with: give sentences and at least one σ₀")
    random.Random(int(seed)).shuffle(texts)
    meter = _Meter(translator, decoder, budget, max_length, max_rows, progress)
    return _halve(meter, texts, sigmas)


class _Meter:
    """Measures the NLL of a decoder at any σ₀, and the model calls spent."""

    def __init__(
        self,
        translator: Translator,
        decoder: NPAD,
        budget: int,
        max_length: int,
        max_rows: int,
        progress: Callable[[int, int], None],
    ) -> None:
        self.translator, self.decoder, self.budget = translator, decoder, budget
        self.max_length, self.max_rows, self.progress = max_length, max_rows, progress
        self.calls = ModelCalls()

    @property
    def spent(self) -> int:
        return self.calls.search + self.calls.rescoring

    def nll(self, texts: Sequence[str], sigma: float) -> FloatArray:
        """Return the NLL of the outputs at `sigma` [sentences]; 0 is the inner decoder alone."""
        decoder = replace(
            self.decoder,
            noise=replace(self.decoder.noise, sigma=sigma),
            chains=self.decoder.chains if sigma else 1,
        )
        with count_calls(self.calls):
            translations = self.translator.translate(texts, decoder, self.max_length, self.max_rows)
        self.progress(min(self.spent, self.budget), self.budget)
        return np.array([-translation.log_prob for translation in translations])


def _halve(meter: _Meter, texts: Sequence[str], sigmas: Sequence[float]) -> Calibration:
    """Run the rounds of successive halving within the meter's budget."""
    budget, pilot = meter.budget, texts[:PILOT_SENTENCES]
    meter.nll(pilot, max(sigmas))  # the most expensive σ₀: strong noise makes outputs long
    cost = meter.spent / len(pilot)  # model calls per sentence and σ₀
    minimum = round(meter.spent + len(sigmas) * cost)
    if minimum > budget:
        raise InvalidInput(
            f"a budget of {budget:,} model calls is too small for {len(sigmas)} σ₀: "
            f"give {minimum:,} or more"
        )
    rounds = max(1, len(sigmas).bit_length() - 1)
    survivors, last_round, previous_size = list(sigmas), list[Trial](), 0
    trials: list[Trial] = []
    for number in range(rounds):
        share = (budget - meter.spent) / (rounds - number)
        sample = texts[: max(1, int(share / (len(survivors) * cost)))]
        if len(sample) <= previous_size:  # fewer sentences than in the round before
            break
        start, inner = meter.spent, meter.nll(sample, 0.0)
        nll = {sigma: meter.nll(sample, sigma) for sigma in survivors}
        cost = (meter.spent - start) / len(survivors) / len(sample)
        previous_size = len(sample)
        last_round = _trials(nll, inner)
        trials += last_round
        ranked = sorted(last_round, key=lambda trial: (trial.nll, trial.sigma))
        survivors = [trial.sigma for trial in ranked[: max(1, len(ranked) // 2)]]
        if len(sample) == len(texts):  # another round would repeat this one
            break
    return Calibration(_smallest_tie(last_round), trials, meter.spent)


def _trials(nll: dict[float, FloatArray], inner: FloatArray) -> list[Trial]:
    """Return the trials of a round from the NLL of each σ₀, and of no noise, [sentences]."""
    best = min(nll, key=lambda sigma: (nll[sigma].mean(), sigma))
    return [
        Trial(
            sigma,
            len(values),
            float(values.mean()),
            float(inner.mean()),
            gain=mean_difference(inner - values),
            behind=mean_difference(values - nll[best]),
        )
        for sigma, values in nll.items()
    ]


def _smallest_tie(trials: Sequence[Trial]) -> float | None:
    """Return the smallest σ₀ that gains and ties with the best; None if none gains."""
    return min((t.sigma for t in trials if t.ties and t.gain.value > 0), default=None)


def mean_difference(differences: FloatArray) -> Difference:
    """Return the mean of paired differences [sentences], with its bootstrap interval.

    A difference below TIE counts as none. All calls draw the same sentences.
    """
    values = np.where(np.abs(differences) < TIE, 0.0, differences)
    random, n = np.random.default_rng(0), len(values)
    means = [values[random.integers(n, size=n)].mean() for _ in range(RESAMPLES)]
    low, high = np.percentile(means, [(100 - LEVEL) / 2, (100 + LEVEL) / 2])
    return Difference(float(values.mean()), float(low), float(high))
