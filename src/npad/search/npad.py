"""Noisy parallel approximate decoding (Cho, 2016, section 4).

Chains of any inner decoder, with noise in the model's state.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch

from npad.errors import InvalidInput
from npad.hypotheses import Hypotheses, Hypothesis
from npad.model import Model
from npad.noise.noisy import Noise, Noisy
from npad.rescoring.strategies import rescore
from npad.rows import Problems
from npad.search.chains import ChainRunner, Chains
from npad.search.decoder import Cost, Decoder
from npad.search.greedy import Greedy
from npad.search.selected import AllFinished, comparisons
from npad.selectors import MostProbable, Selector, cut_competes, innermost_selector, rank
from npad.specs import changed_fields, label
from npad.validation import MAX_SEED, brief, ensure_integer

CHAINS = 50  # the most that the paper runs
TRANSFORMER_CHAINS = 10  # a row of a transformer costs more, in time and in memory
SIGMA = 0.3  # σ₀


@dataclass(frozen=True)
class NPAD(Decoder):
    """Run noisy chains of a decoder; keep the best by clean score.

    Each chain runs the inner decoder with noise in the model's state; the clean model re-scores
    what they find. Returns the distinct candidates, best first. Noisy chains are numbered from 1,
    with or without a clean chain 0. Cost: O(chains · inner), and one teacher-forced pass over the
    distinct candidates.

    Attributes:
        inner: the decoder that each chain runs.
        chains: chains per sentence, the clean chain included.
        noise: the noise of chains 1, 2, …
        clean_chain: run chain 0 without noise. With the selector `MostProbable`, the result is then
            never below the inner decoder's in the order (finished, clean log-probability), up to
            near-ties in float32; with `WithCut()`, in the order of log-probability alone.
        seed: the seed of the noise.
        selector: scores the candidates.
        candidates: "best" takes what each chain returns, "all" every finished hypothesis of its
            beam. With `WithCut`, hypotheses cut at max_length also count.
        share_noise: give all hypotheses of a chain's beam the same noise.
    """

    everyday: ClassVar[bool] = True
    example: ClassVar[str] = "--chains 50 --sigma 0.5"
    page: ClassVar[str] = "decoding.md#npad"

    inner: Decoder = field(
        default_factory=Greedy,
        metadata={"help": "what each chain runs, any decoder but npad", "everyday": True},
    )
    chains: int = field(
        default=CHAINS,
        metadata={
            "help": "chains per sentence, the clean one included",
            "flags": ("-M",),
            "everyday": True,
            "shown": f"{CHAINS}; {TRANSFORMER_CHAINS} for hf: models",
            "minimum": 1,
        },
    )
    noise: Noise = field(
        default_factory=lambda: Noise(SIGMA), metadata={"rule": "a Noise, such as Noise(0.3)"}
    )
    clean_chain: bool = field(default=True, metadata={"help": "chain 0 runs without noise"})
    seed: int = field(
        default=0, metadata={"help": "another seed draws other randomness", "maximum": MAX_SEED}
    )
    selector: Selector = field(
        default_factory=MostProbable,
        metadata={
            "help": "which candidate is returned",
            "everyday": True,
            "rule": "a function of the candidates, such as MostProbable()",
        },
    )
    candidates: Literal["best", "all"] = field(
        default="best",
        metadata={"help": "what a chain hands to re-scoring: its best, or all that finished"},
    )
    share_noise: bool = field(
        default=False, metadata={"help": "all hypotheses of a chain's beam get the same noise"}
    )

    rescores: ClassVar[bool] = True
    returns_several: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.noise.sigma, tuple) and len(self.noise.sigma) != self.chains:
            raise InvalidInput(
                f"sigma must be one number, or one for each of {self.chains} chains, "
                f"not {brief(self.noise.sigma)}"
            )

    def ensure_allows(self, part: Decoder) -> None:
        if any(inner.chains for inner in part.within()):
            raise InvalidInput("NPAD cannot be its own inner decoder; use more chains")
        if any(inner.needs_coverage for inner in part.within()):
            raise InvalidInput(
                "a selector that reads attention ranks clean hypotheses: give it to NPAD, "
                "not to its inner decoder"
            )
        selector = innermost_selector(self.selector)
        if part.proves and getattr(selector, "by_length", False):
            raise InvalidInput(
                f"{type(part).__name__} proves the most probable hypothesis, not the best by "
                f"{type(selector).__name__}; use MostProbable()"
            )

    @property
    def rows(self) -> int:
        return self.chains * self.inner.rows

    @property
    def observed_rows(self) -> int:
        return self.chains

    @property
    def cost(self) -> Cost:
        return self.inner.cost * self.chains + comparisons(self.selector, self.rows)

    @property
    def title(self) -> str:
        return f"NPAD-{self.chains} + {self.inner.title.replace(',', '')}"

    @property
    def signature(self) -> list[str]:
        """The main hyper-parameters, and those others that differ from their defaults."""
        noise = self.noise
        main = {
            "inner": self.inner,
            "chains": self.chains,
            "sigma": noise.sigma,
            "schedule": noise.schedule,
            "noise": noise.distribution,
            "site": noise.site,
            "seed": self.seed,
        }
        shown = main | {
            name: value for name, value in changed_fields(self).items() if name not in main
        }
        if noise.relative:
            shown["relative"] = True
        return ["npad", *(f"{name}:{label(value)}" for name, value in shown.items())]

    @property
    def from_one_beam(self) -> bool:
        return self.chains == 1 and self.candidates == "all" and self.inner.from_one_beam

    @property
    def divisible(self) -> bool:
        return not self.needs_coverage

    def chain_range(self, start: int, stop: int, distinct: bool = True) -> ChainRange:
        return ChainRange(self, start, stop, distinct)

    def check(self, model: Model[Any]) -> None:
        self.noise.check(model)
        super().check(model)

    def with_seed(self, seed: int) -> NPAD:
        noisy = self.chains > 1 and self.noise.sigma != 0
        return replace(self, inner=self.inner.with_seed(seed), seed=seed if noisy else self.seed)

    @classmethod
    def defaults_on(cls, defaults: Any) -> dict[str, Any]:
        return {"chains": defaults.chains, "noise": defaults.noise, "selector": defaults.selector}

    def search(self, model: Model[Any], state: Any, problems: Problems) -> Hypotheses:
        candidates = self.runner.run(model, state, problems, self.numbered())
        distinct = candidates.distinct().hypotheses
        return rank(rescore(model, state, distinct, self.needs_coverage), self.selector)

    def numbered(self) -> Chains:
        """Return the chains' numbers, 0 for the clean chain, and their σ₀."""
        return Chains.of(self.chains, self.clean_chain, self.noise.sigma)

    @property
    def runner(self) -> ChainRunner:
        """What runs the chains."""
        inner, competes = self.inner, cut_competes(self.selector)
        if self.candidates == "all":
            inner = inner.all_candidates()
            inner = inner if competes else AllFinished(inner)
        elif competes:
            inner = CutCompeting(inner)
        return ChainRunner(inner, self._perturbed, pairs=not self.needs_coverage)

    def _perturbed(self, model: Model[Any]) -> Noisy[Any]:
        return Noisy(model, self.noise, self.seed, self.share_noise)

    def merge(self, candidates: Iterable[Hypothesis]) -> list[Hypothesis]:
        distinct: dict[tuple[tuple[int, ...], bool], Hypothesis] = {}
        for candidate in candidates:
            key = candidate.tokens, candidate.finished
            first = distinct.get(key)
            distinct[key] = (
                candidate if first is None else replace(first, count=first.count + candidate.count)
            )
        ranked = rank(Hypotheses.from_list(list(distinct.values())), self.selector)
        return ranked.to_lists()[0]


@dataclass(frozen=True)
class ChainRange(Decoder):
    """Run some consecutive chains of NPAD, as for one sentence on different workers.

    A chain's noise is keyed by its number, so a range finds what the same chains find in a whole
    search. Returns the candidates with clean scores, in the order of the chains, for `NPAD.merge`.

    Attributes:
        npad: the whole decoder; its selector is not called.
        start: the first chain, counted from 0.
        stop: the chain after the last one, at most `npad.chains`.
        distinct: merge equal candidates; otherwise return the candidates of each chain.
    """

    rescores: ClassVar[bool] = True
    returns_several: ClassVar[bool] = True
    compared: ClassVar[bool] = False

    npad: NPAD
    start: int
    stop: int
    distinct: bool = True

    def __post_init__(self) -> None:
        if self.npad.needs_coverage:
            raise InvalidInput(
                "a selector that reads attention needs all chains in one place; "
                "set beta=0, or divide the sentences and not the chains"
            )
        ensure_integer("start", self.start, 0, self.npad.chains - 1)
        ensure_integer("stop", self.stop, self.start + 1, self.npad.chains)

    @property
    def rows(self) -> int:
        return (self.stop - self.start) * self.npad.inner.rows

    def search(self, model: Model[Any], state: Any, problems: Problems) -> Hypotheses:
        chains = self.npad.numbered().part(range(self.start, self.stop))
        candidates = self.npad.runner.run(model, state, problems, chains)
        distinct, places = candidates.distinct()
        scored = rescore(model, state, distinct)
        if self.distinct:
            return scored
        return replace(candidates, log_prob=scored.log_prob.gather(1, places))


@dataclass(frozen=True)
class CutCompeting(Decoder):
    """Return as many hypotheses as the inner decoder, by log-probability alone, cut ones too."""

    inner: Decoder

    def search(self, model: Model[Any], state: Any, problems: Problems) -> Hypotheses:
        every = self.inner.all_candidates().search(model, state, problems)
        groups, n = every.lengths.shape
        kept = torch.arange(min(n, getattr(self.inner, "nbest", n)), device=every.lengths.device)
        return every.best_first(cut_competes=True).at(kept.expand(groups, -1))
