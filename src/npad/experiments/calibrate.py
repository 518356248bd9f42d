"""Which σ₀ for this model? Try many on a few sentences, and the better half on twice as many, until one is left.

Successive halving (Jamieson & Talwalkar, 2016). Every σ₀ meets the same sentences and the same random numbers, so that
small differences show early.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from npad.engine.cost import ModelCalls, count_calls
from npad.errors import InvalidInput
from npad.pipelines.translation import Translator
from npad.search.greedy import Greedy
from npad.search.npad import NPAD
from npad.validation import MAX_SEED, as_list, brief, ensure_callable, ensure_integer, ensure_number

GRID = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.4)


@dataclass(frozen=True)
class Trial:
    """One σ₀ on some sentences: the mean −log p of what NPAD returned, and of what its inner decoder did."""

    sigma: float
    sentences: int
    nll: float
    inner: float


@dataclass(frozen=True)
class Calibration:
    """The σ₀ that was best to the end, all trials in order, and the model calls spent, re-scoring included."""

    sigma: float
    trials: list[Trial]
    calls: int


def calibrate(
    translator: Translator,
    sources: Sequence[str],
    decoder: NPAD | None = None,
    budget: int = 200_000,
    sigmas: Sequence[float] = GRID,
    max_length: int = 200,
    max_rows: int = 1024,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Calibration:
    """The σ₀ with the highest clean log-probability on some sentences, for about `budget` model calls.

    decoder: its inner decoder, chains, schedule and distribution are taken as they are. The rounds get equal shares of
    the budget; the last one compares at least two σ₀. References are not needed: NPAD is after probability.
    """
    decoder = NPAD(Greedy(), 10) if decoder is None else decoder
    if not isinstance(translator, Translator):
        raise InvalidInput(
            f"translator must be a Translator, such as npad.load('en-de'), not {brief(translator)}"
        )
    if not isinstance(decoder, NPAD):
        raise InvalidInput(f"decoder must be NPAD, such as NPAD(chains=10), not {brief(decoder)}")
    ensure_integer("budget", budget, 1)
    ensure_integer("seed", seed, maximum=MAX_SEED)
    ensure_callable("progress", progress, "a function of the model calls done and of all")
    sources = as_list("sources", sources, "a list of texts")
    sigmas = as_list("sigmas", sigmas, "a list of numbers")
    for sigma in sigmas:
        ensure_number("sigma", sigma, above=0)
    for i, size in translator.too_long(sources).items():
        raise InvalidInput(
            f"sentence {i + 1} has {size} and {translator.longest:,} symbols are allowed; leave it out"
        )
    texts = [text for text in sources if text.strip()]
    if not texts or not sigmas:
        raise InvalidInput(
            "there is nothing to calibrate with: give sentences, and at least one σ₀"
        )
    random.Random(int(seed)).shuffle(texts)
    calls = ModelCalls()

    def spent() -> int:
        return calls.search + calls.rescoring

    def nll(texts: Sequence[str], sigma: float) -> float:
        how = replace(
            decoder,
            noise=replace(decoder.noise, sigma=sigma),
            chains=decoder.chains if sigma else 1,
        )
        with count_calls(calls):
            found = translator.translate(texts, how, max_length, max_rows)
        progress(min(spent(), budget), budget)
        return -sum(one.log_prob for one in found) / len(texts)

    few = texts[:16]
    nll(few, max(sigmas))  # the dearest, since much noise makes outputs long
    each = spent() / len(few)  # of one σ₀, a sentence
    least = round(spent() + len(sigmas) * each)
    if least > budget:
        raise InvalidInput(
            f"a budget of {budget:,} model calls is too small for {len(sigmas)} σ₀: give {least:,} or more"
        )
    rounds = max(1, len(sigmas).bit_length() - 1)
    left, trials, before = list(sigmas), [], 0
    for turn in range(rounds):
        some = texts[: int((budget - spent()) / (rounds - turn) / (len(left) * each))]
        if len(some) <= before:  # it would decide on less than is known
            break
        start, inner = spent(), nll(some, 0.0)
        scores = {sigma: nll(some, sigma) for sigma in left}
        each, before = (spent() - start) / len(left) / len(some), len(some)
        trials += [Trial(sigma, len(some), score, inner) for sigma, score in scores.items()]
        left = sorted(left, key=scores.__getitem__)[: max(1, len(left) // 2)]
        if len(some) == len(texts):  # more rounds would say the same
            break
    return Calibration(left[0], trials, spent())
