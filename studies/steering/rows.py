"""The rows of the experiment on steering: decoders, what each runs over, and decoding a set."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from npad.decoding import decode
from npad.engine.cost import count_calls
from npad.engine.cuda_graphs import EAGER_CALLS
from npad.hypotheses import Hypothesis
from npad.model import Capabilities
from npad.models.steered import Steered
from npad.noise.noisy import Noise
from npad.scoring import score
from npad.search.arithmetic import Arithmetic
from npad.search.beam import Beam
from npad.search.decoder import Decoder
from npad.search.greedy import Greedy
from npad.search.npad import NPAD
from npad.search.sampling import SharedSampling
from npad.search.selected import Selected
from npad.search.stochastic_beam import StochasticBeam
from npad.selectors import LengthNormalised
from npad.signatures import signature
from studies.hypotheses import candidates, choose
from studies.steering.variant import WEIGHTS

CLEAN, STEERED = "clean", "steered"  # what a decoder runs over, or WEIGHTS
SIZES = (5, 10)
SIGMAS = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
SAMPLES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 60, 80)  # numbers to choose from
TEMPERATURE = 0.5
MAX_ROWS = {"cuda": 8192, "cpu": 512}  # of a batch
REPEATS = {"cuda": 7, "cpu": 3}  # passes of a measurement of seconds
# Passes before them: on a GPU every shape runs a few times before its graph is captured.
WARM_UP = {"cuda": EAGER_CALLS + 2, "cpu": 1}

Tokens = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Row:
    """A decoder over the clean model, the steered one, or the fine-tuned one."""

    system: str
    over: str
    decoder: Decoder
    seeded: bool = True  # whether its figures depend on a seed
    normalised: bool = False  # whether its candidates are also selected by length-normalised score


@dataclass(frozen=True)
class Chosen:
    """What validation has chosen: σ₀ of the noise, and samples for the calls of a beam."""

    sigma: float  # over the clean model
    steered_sigma: float
    samples: tuple[int, int]  # that share prefixes, for the calls of a beam of 5 and of 10


def rows(chosen: Chosen, seed: int) -> Iterator[Row]:
    """Yield all rows; of those without chance, the ones of seed 0 only."""
    plain: dict[str, Decoder] = {"greedy": Greedy()}
    plain |= {f"beam {width}": Beam(width) for width in SIZES}
    plain |= {
        f"beam {width}, length-normalised": Selected(Beam(width), LengthNormalised())
        for width in SIZES
    }
    if seed == 0:
        yield from (Row(name, CLEAN, decoder, False) for name, decoder in plain.items())
    yield Row("steered greedy", STEERED, Greedy())
    yield Row("steered beam 5", STEERED, Beam(5))
    for over, prefix, sigma in (
        (STEERED, "steered ", chosen.steered_sigma),
        (CLEAN, "", chosen.sigma),
    ):
        for chains in SIZES:
            npad = NPAD(Greedy(), chains, Noise(sigma), seed=seed)
            yield Row(f"{prefix}NPAD-{chains}", over, npad, normalised=True)
    for width, samples in zip(SIZES, chosen.samples, strict=True):
        shared = SharedSampling(samples, TEMPERATURE, seed=seed)
        yield Row(f"shared samples for beam {width}", CLEAN, shared)
        arithmetic = Arithmetic(width, TEMPERATURE, seed=seed)
        yield Row(f"arithmetic samples for beam {width}", CLEAN, arithmetic)
        yield Row(f"stochastic beam {width}", CLEAN, StochasticBeam(width, seed=seed))


def weights_rows() -> Iterator[Row]:
    """Yield the rows of weights that were trained on the actor's pairs."""
    yield Row("greedy, fine-tuned", WEIGHTS, Greedy())
    yield Row("beam 5, fine-tuned", WEIGHTS, Beam(5))


class Unjudged(Steered):
    """A steered model whose outputs are not re-scored, to time the search alone."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, modified_scores=False, judge=None)


def timed_rows(chosen: Chosen, weights: bool) -> Iterator[tuple[Row, bool]]:
    """Yield the rows to time, and whether to leave re-scoring out."""
    for row in rows(chosen, 0):
        yield row, False
        if row.system == "steered greedy":
            yield replace(row, system="steered greedy, search alone"), True
    if weights:
        yield from ((row, False) for row in weights_rows())


@dataclass(frozen=True)
class Decoded:
    """The outputs of a decoder, in the order of the sources, and their cost."""

    found: list[list[Hypothesis]]  # best first
    calls: int
    rescored: int
    seconds: float

    @property
    def best(self) -> list[Hypothesis]:
        return [hypotheses[0] for hypotheses in self.found]


def decode_all(model: Any, sources: Tokens, decoder: Decoder, max_length: int) -> Decoded:
    """Decode all sources in batches of like length."""
    device = torch.device(model.device).type
    batch = max(1, MAX_ROWS[device] // decoder.rows)
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    found: list[list[Hypothesis]] = [[] for _ in order]
    began = time.perf_counter()
    with count_calls() as calls:
        for start in range(0, len(order), batch):
            places = order[start : start + batch]
            part = [sources[i] for i in places]
            decoded = decode(model, part, decoder, max_length, ids=places)
            for place, hypotheses in zip(places, decoded, strict=True):
                found[place] = hypotheses
    seconds = time.perf_counter() - began
    return Decoded(found, calls.search, calls.rescoring, seconds)


def best_per_token(hypotheses: Sequence[Hypothesis]) -> int:
    """Return place of what `LengthNormalised` selects among distinct hypotheses."""
    return choose(candidates(hypotheses, str), LengthNormalised())


def judged(model: Any, sources: Tokens, best: Sequence[Hypothesis]) -> list[float]:
    """Return the clean log-probability of each output, its end included."""
    batch = MAX_ROWS[torch.device(model.device).type]
    targets = [[list(hypothesis.tokens)] for hypothesis in best]
    log_probs: list[float] = []
    for start in range(0, len(sources), batch):
        part = slice(start, start + batch)
        log_probs += [s for (s,) in score(model, sources[part], targets[part])]
    return [round(log_prob, 4) for log_prob in log_probs]


def mean(values: Sequence[float]) -> float:
    """Return the mean, to five digits after the point."""
    return round(statistics.fmean(values), 5)


def seconds_of(model: Any, sources: Tokens, decoder: Decoder, max_length: int) -> list[float]:
    """Return the seconds of several passes over the sources, after some that are not counted."""
    device = torch.device(model.device).type
    warm_up, repeats = WARM_UP[device], REPEATS[device]
    passes = [decode_all(model, sources, decoder, max_length) for _ in range(warm_up + repeats)]
    return [round(decoded.seconds, 5) for decoded in passes[warm_up:]]


def described(row: Row, model: Any) -> str:
    """Return the signature of a row, with what it runs over."""
    return f"{row.over}: {signature(row.decoder, model)}"
