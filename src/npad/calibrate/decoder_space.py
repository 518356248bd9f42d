"""The decoders that `npad calibrate` chooses from: kinds, sizes, noise, temperatures, selectors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from npad.metrics.registry import metric_named
from npad.model import Capabilities
from npad.noise.noisy import Noise
from npad.schedules import Annealed, Constant, Schedule
from npad.search.arithmetic import Arithmetic
from npad.search.beam import Beam
from npad.search.decoder import Decoder
from npad.search.defaults import Defaults
from npad.search.diverse import Diverse
from npad.search.greedy import Greedy
from npad.search.npad import NPAD
from npad.search.sampling import Epsilon, Sampling, SharedSampling
from npad.search.selected import Selected
from npad.search.steered import SteeredSearch
from npad.search.stochastic_beam import StochasticBeam
from npad.selectors import (
    MBR,
    LengthNormalised,
    ModelMBR,
    MostProbable,
    Selector,
    WithCut,
    cut_competes,
)

WIDTHS = (2, 3, 5, 8, 12, 20)
SAMPLES = (5, 10, 20, 50)
CHAINS = (3, 5, 10, 20, 50)
CHAINS_OVER_BEAM = (2, 3, 5, 10)
INNER_WIDTHS = (2, 3, 5)
TEMPERATURES = (0.3, 0.5, 0.8)
ETAS = (0.03, 0.3)
# σ₀ in units of the model's default: 0.2, 0.3, 0.5 and 0.8 for recurrent models
SIGMA_FACTORS = (2 / 3, 1.0, 5 / 3, 8 / 3)
CONSTANT_FACTORS = (1 / 3, 2 / 3)  # noise that does not fade must be weaker

TEACHER = Beam(2 * max(WIDTHS))  # its outputs stand in for references: wider than all in the space


@dataclass(frozen=True)
class Candidate:
    """A decoder to try.

    Attributes:
        name: in tables; unique in a space.
        family: whose best member is shown even if it is not among the last.
        decoder: the decoder.
        ladder: decoders of one ladder differ in size and selector alone, and come in order of
            size, so that none above one that is too expensive need be tried.
    """

    name: str
    family: str
    decoder: Decoder = field(compare=False)
    ladder: str


@dataclass(frozen=True)
class Selection:
    """A selector with its name in tables."""

    name: str
    selector: Selector


class DecoderSpace:
    """Candidates for a model and a metric.

    Args:
        model: the model; its capabilities decide which decoders there are.
        metric: the name of the quality metric. For `logprob`, only the most probable candidate is
            selected, since no other selector can be better.
        unit: of the cost, "calls" or "milliseconds".
        sigmas: the σ₀ of NPAD; by default multiples of the model's default.
    """

    def __init__(
        self, model: Any, metric: str, unit: str = "calls", sigmas: Sequence[float] | None = None
    ) -> None:
        self.capabilities, self.defaults = Capabilities.of(model), Defaults.of(model)
        self.metric, self.unit, self.sigmas = metric, unit, sigmas

    def candidates(self) -> list[Candidate]:
        """Return all candidates; those of a ladder in order of size."""
        greedy = Candidate("greedy", "greedy", Greedy(), "greedy")
        steered = self._steered() if self.capabilities.steer is not None else ()
        return [greedy, *self._beams(), *self._samples(), *steered, *self._npads()]

    def sigma_candidates(self, decoder: NPAD) -> list[Candidate]:
        """Return a given NPAD at every σ₀, each a family, and its inner decoder alone."""
        alone = Candidate("without noise", "greedy", decoder.inner, "without noise")
        names = {f"σ₀ = {sigma:g}": sigma for sigma in self._sigmas(SIGMA_FACTORS)}
        return [alone] + [
            Candidate(name, name, replace(decoder, noise=replace(decoder.noise, sigma=sigma)), name)
            for name, sigma in names.items()
        ]

    def _beams(self) -> Iterator[Candidate]:
        beams = [(f"beam {w}", Beam(w)) for w in WIDTHS]
        yield from self._ladder("beam", beams, self._by_length())
        for eta in ETAS:
            diverse = [(f"diverse {w}, η {eta:g}", Diverse(w, eta)) for w in WIDTHS[1:]]
            yield from self._ladder("diverse", diverse, self._by_length()[:1])
        stochastic = [(f"stochastic beam {w}", StochasticBeam(w)) for w in WIDTHS[1:]]
        yield from self._ladder("stochastic beam", stochastic, self._by_samples()[-1:])

    def _samples(self) -> Iterator[Candidate]:
        kinds: dict[str, type[Sampling]] = {"sampling": Sampling, "arithmetic": Arithmetic}
        if self.capabilities.prefix_reader is not None:  # elsewhere it is Sampling
            kinds["shared sampling"] = SharedSampling
            if self.unit == "calls":  # the same outputs for more calls
                del kinds["sampling"]
        for name, kind in kinds.items():
            for temperature in TEMPERATURES:
                samples = [
                    (f"{name} {n}, T {temperature:g}", kind(n, temperature)) for n in SAMPLES
                ]
                yield from self._ladder(name, samples, self._by_samples())
        epsilon = [(f"epsilon {n}", Epsilon(n)) for n in SAMPLES]
        yield from self._ladder("epsilon", epsilon, self._by_samples()[-2:])

    def _steered(self) -> Iterator[Candidate]:
        yield Candidate("steered greedy", "steered", SteeredSearch(), "steered greedy")
        beams = [(f"steered beam {w}", SteeredSearch(Beam(w))) for w in WIDTHS]
        yield from self._ladder("steered", beams, _ends(self._by_length()))
        for noise_name, noise in self._noises((Annealed(), SIGMA_FACTORS)):
            inner = "steered greedy", SteeredSearch()
            yield from self._npad("NPAD over steered", *inner, CHAINS, noise_name, noise)

    def _npads(self) -> Iterator[Candidate]:
        schedules = (Annealed(), SIGMA_FACTORS), (Constant(), CONSTANT_FACTORS)
        for noise_name, noise in self._noises(*schedules):
            yield from self._npad("NPAD", "greedy", Greedy(), CHAINS, noise_name, noise)
        for width in INNER_WIDTHS:
            for noise_name, noise in self._noises((Annealed(), SIGMA_FACTORS[1:3])):
                inner = f"beam {width}", Beam(width)
                yield from self._npad("NPAD over beam", *inner, CHAINS_OVER_BEAM, noise_name, noise)

    def _npad(
        self,
        family: str,
        inner_name: str,
        inner: Decoder,
        sizes: Iterable[int],
        noise_name: str,
        noise: Noise,
    ) -> Iterator[Candidate]:
        """Yield NPAD over an inner decoder, for every number of chains and selector."""
        for chains in sizes:
            for selection in _ends(self._by_length()):
                decoder = NPAD(inner, chains, noise, selector=selection.selector)
                name = f"NPAD-{chains} + {inner_name}, {noise_name}{selection.name}"
                yield Candidate(name, family, decoder, f"NPAD + {inner_name}, {noise_name}")

    def _ladder(
        self, family: str, sizes: Sequence[tuple[str, Decoder]], selections: Sequence[Selection]
    ) -> Iterator[Candidate]:
        """Yield decoders of rising size, each with all selectors."""
        for name, decoder in sizes:
            for selection in selections:
                plain = isinstance(selection.selector, MostProbable)
                chosen = decoder if plain else Selected(decoder, selection.selector)
                yield Candidate(f"{name}{selection.name}", family, chosen, ladder=sizes[0][0])

    def _noises(self, *schedules: tuple[Schedule, Sequence[float]]) -> Iterator[tuple[str, Noise]]:
        for schedule, factors in schedules:
            fading = "" if isinstance(schedule, Annealed) else " constant"
            for sigma in self._sigmas(factors):
                noise = replace(self.defaults.noise, sigma=sigma, schedule=schedule)
                yield f"σ₀ {sigma:g}{fading}", noise

    def _sigmas(self, factors: Sequence[float]) -> list[float]:
        if self.sigmas is not None:
            return list(dict.fromkeys(self.sigmas))
        default = self.defaults.noise.sigma
        assert isinstance(default, float)
        return [float(f"{factor * default:.2g}") for factor in factors]

    def _by_length(self) -> list[Selection]:
        """Return the selectors for beams and chains."""
        if self.metric == "logprob":
            return [self._selection("", MostProbable())]
        normalised = [
            self._selection(f", length-normalised {alpha:g}", LengthNormalised(alpha))
            for alpha in (0.5, 1.0)
        ]
        return [self._selection("", MostProbable()), *normalised]

    def _by_samples(self) -> list[Selection]:
        """Return the selectors for samples; MBR by the metric's utility."""
        if self.metric == "logprob":
            return [self._selection("", MostProbable())]
        utility = metric_named(self.metric).utility
        return [
            self._selection("", MostProbable()),
            self._selection(", MBR", MBR(utility)),
            self._selection(", model MBR", ModelMBR(utility)),
        ]

    def _selection(self, name: str, selector: Selector) -> Selection:
        competes = cut_competes(self.defaults.selector)
        return Selection(name, WithCut(selector) if competes else selector)


def _ends(selections: Sequence[Selection]) -> list[Selection]:
    """Return the first and the last selection, or the only one."""
    return [*selections[:1], *selections[1:][-1:]]
