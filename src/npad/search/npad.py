"""Noisy parallel approximate decoding (Cho, 2016, section 4).

Chains of any inner decoder, with noise in the model's state.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch

from npad.errors import InvalidInput
from npad.model import Model
from npad.noise.noisy import Noise, Noisy
from npad.rescoring.strategies import rescore
from npad.search.chains import ChainRunner, Chains
from npad.search.decoder import Decoder, ensure_decoder
from npad.search.defaults import CHAINS, SIGMA, TRANSFORMER_CHAINS
from npad.search.exact import Exact
from npad.search.greedy import Greedy
from npad.search.hypotheses import Hypotheses
from npad.search.rows import Problems
from npad.selectors import (
    GNMTLength,
    LengthNormalised,
    MostProbable,
    Selector,
    cut_competes,
    innermost_selector,
    needs_attention,
    rank,
)
from npad.validation import MAX_SEED, brief, ensure_bool, ensure_choice, ensure_integer, ensure_part


@dataclass(frozen=True)
class NPAD(Decoder):
    """Run chains of the inner decoder with noise, re-score with the clean model, keep the best.

    Returns the distinct candidates, best first. Noisy chains are numbered from 1, with or without a
    clean chain 0. Cost: O(chains · inner), and one teacher-forced pass over the distinct
    candidates.

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
            beam. With `WithCut`, hypotheses cut at max_length count, too.
        share_noise: give all hypotheses of a chain's beam the same noise.
    """

    inner: Decoder = field(
        default_factory=Greedy, metadata={"help": "what each chain runs, any decoder but npad"}
    )
    chains: int = field(
        default=CHAINS,
        metadata={
            "help": "chains per sentence, the clean one included",
            "flags": ("-M",),
            "shown": f"{CHAINS}; {TRANSFORMER_CHAINS} for hf: models",
        },
    )
    noise: Noise = field(default_factory=lambda: Noise(SIGMA))
    clean_chain: bool = field(default=True, metadata={"help": "chain 0 runs without noise"})
    seed: int = field(default=0, metadata={"help": "another seed draws other randomness"})
    selector: Selector = field(
        default_factory=MostProbable, metadata={"help": "which candidate is returned"}
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
        ensure_integer("chains", self.chains, 1)
        ensure_integer("seed", self.seed, maximum=MAX_SEED)
        ensure_choice("candidates", self.candidates, ("best", "all"))
        ensure_decoder(self.inner, "inner")
        if not isinstance(self.noise, Noise):
            raise InvalidInput(
                f"noise must be a Noise, such as Noise(0.3), not {brief(self.noise)}"
            )
        ensure_bool("clean_chain", self.clean_chain)
        ensure_bool("share_noise", self.share_noise)
        ensure_part(
            "selector", self.selector, "a function of the candidates, such as MostProbable()"
        )
        if isinstance(self.inner, NPAD):
            raise InvalidInput("NPAD cannot be its own inner decoder; use more chains")
        if getattr(self.inner, "needs_coverage", False):
            raise InvalidInput(
                "a selector that reads attention ranks clean hypotheses: give it to NPAD, "
                "not to its inner decoder"
            )
        selector = innermost_selector(self.selector)
        by_length = isinstance(selector, LengthNormalised | GNMTLength)
        if isinstance(self.inner, Exact) and by_length:
            kind = type(selector).__name__
            raise InvalidInput(
                f"Exact proves the most probable hypothesis, not the best by {kind}; "
                "use MostProbable()"
            )
        if isinstance(self.noise.sigma, tuple) and len(self.noise.sigma) != self.chains:
            raise InvalidInput(
                f"sigma must be one number, or one for each of {self.chains} chains, "
                f"not {brief(self.noise.sigma)}"
            )

    @property
    def rows(self) -> int:
        return self.chains * self.inner.rows

    @property
    def title(self) -> str:
        return f"NPAD-{self.chains} + {self.inner.title.replace(',', '')}"

    def search(self, model: Model[Any], state: Any, problems: Problems) -> Hypotheses:
        candidates = self.search_chains(model, state, problems, self._chains())
        return rank(candidates, self.selector)

    def search_chains(
        self, model: Model[Any], state: Any, problems: Problems, chains: Chains
    ) -> Hypotheses:
        """Return the distinct candidates of some chains, re-scored, in the order of the chains."""
        distinct = self.run_chains(model, state, problems, chains).distinct().hypotheses
        return rescore(model, state, distinct, coverage=self.needs_coverage)

    def run_chains(
        self, model: Model[Any], state: Any, problems: Problems, chains: Chains
    ) -> Hypotheses:
        """Return all candidates of some chains, duplicates kept, with their noisy scores."""
        return self._runner().run(model, state, problems, chains)

    def _chains(self) -> Chains:
        """Return the chains' numbers, 0 for the clean chain, and their σ₀."""
        numbers = torch.arange(self.chains) + (0 if self.clean_chain else 1)
        sigma = torch.tensor(self.noise.sigma, dtype=torch.float32).expand(self.chains)
        return Chains(numbers, sigma.masked_fill(numbers == 0, 0))

    def _runner(self) -> ChainRunner:
        inner, competes = self.inner, cut_competes(self.selector)
        if self.candidates == "all":
            inner = inner.all_candidates()
            inner = inner if competes else AllFinished(inner)
        elif competes:
            inner = CutCompeting(inner)
        return ChainRunner(inner, self._perturbed, pairs=not self.needs_coverage)

    def _perturbed(self, model: Model[Any]) -> Noisy[Any]:
        return Noisy(model, self.noise, self.seed, self.share_noise)

    @property
    def needs_coverage(self) -> bool:
        """Whether the selector reads the attention of the candidates."""
        return needs_attention(self.selector)


@dataclass(frozen=True)
class AllFinished(Decoder):
    """Drop the hypotheses cut at max_length from each group that has finished ones."""

    inner: Decoder

    @property
    def rows(self) -> int:
        return self.inner.rows

    def search(self, model: Model[Any], state: Any, problems: Problems) -> Hypotheses:
        hypotheses = self.inner.search(model, state, problems)
        ended = hypotheses.finished & hypotheses.exists
        cut = ~ended & ended.any(1, keepdim=True)
        return replace(hypotheses, lengths=hypotheses.lengths.masked_fill(cut, -1))


@dataclass(frozen=True)
class CutCompeting(Decoder):
    """Return as many hypotheses as the inner decoder, by log-probability alone, cut ones too."""

    inner: Decoder

    @property
    def rows(self) -> int:
        return self.inner.rows

    def search(self, model: Model[Any], state: Any, problems: Problems) -> Hypotheses:
        every = self.inner.all_candidates().search(model, state, problems)
        groups, n = every.lengths.shape
        kept = torch.arange(min(n, getattr(self.inner, "nbest", n)), device=every.lengths.device)
        return every.best_first(cut_competes=True).at(kept.expand(groups, -1))
