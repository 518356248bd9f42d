"""Noisy parallel approximate decoding: any decoder, many times over, with noise in the model (Cho, 2016, section 4)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from npad.engine.cuda_graphs import captured
from npad.engine.devices import sent
from npad.engine.memory import halved, plain_memory_errors
from npad.engine.paired_clean import Twins
from npad.errors import SEEDS, InvalidInput, OutOfMemory, an_object, brief, one_of, whole, yes_or_no
from npad.model import Model, optional
from npad.noise.noisy import Noise, Noisy
from npad.scoring import judge
from npad.search.decoder import LAUNCHED, Decoder, ensure_decoder
from npad.search.exact import Exact
from npad.search.greedy import Greedy
from npad.search.hypotheses import Found, join
from npad.search.rows import Problems, repeat
from npad.search.selectors import GNMTLength, LengthNormalised, MostProbable, Selector

TWINS = 256  # rows that a GPU steps in little more time than one


@dataclass(frozen=True)
class NPAD(Decoder):
    """Run `chains` copies of the inner decoder with noise in the model, re-score with the clean one, keep the best.

    clean_chain: chain 0 runs without noise, so that the result is never below the inner decoder's in the order
        (finished, clean log-probability) — with the selector MostProbable, and up to float32's near-ties.
    candidates: "best" takes what each chain returns, "all" every finished hypothesis of its beam.
    share_noise: the hypotheses of one chain's beam meet the same noise.

    Returns the distinct candidates, best first. Noisy chains are numbered from 1, with or without a clean one.
    Cost: O(chains · inner), and one teacher-forced pass over the distinct candidates.
    """

    inner: Decoder = field(default_factory=Greedy)
    chains: int = 50
    noise: Noise = field(default_factory=lambda: Noise(0.3))
    clean_chain: bool = True
    seed: int = 0
    selector: Selector = field(default_factory=MostProbable)
    candidates: Literal["best", "all"] = "best"
    share_noise: bool = False

    def __post_init__(self) -> None:
        whole("chains", self.chains, 1)
        whole("seed", self.seed, most=SEEDS)
        one_of("candidates", self.candidates, ("best", "all"))
        ensure_decoder(self.inner, "inner")
        if not isinstance(self.noise, Noise):
            raise InvalidInput(f"noise must be a Noise, such as Noise(0.3), not {brief(self.noise)}")
        yes_or_no("clean_chain", self.clean_chain)
        yes_or_no("share_noise", self.share_noise)
        an_object("selector", self.selector, "a function of the candidates, such as MostProbable()")
        if isinstance(self.inner, NPAD):
            raise InvalidInput("NPAD cannot be its own inner decoder; use more chains")
        if isinstance(self.inner, Exact) and isinstance(self.selector, LengthNormalised | GNMTLength):
            kind = type(self.selector).__name__
            raise InvalidInput(f"Exact proves the most probable hypothesis, not the best by {kind}; use MostProbable()")
        if isinstance(self.noise.sigma, tuple) and len(self.noise.sigma) != self.chains:
            raise InvalidInput(
                f"sigma must be one number, or one for each of {self.chains} chains, not {brief(self.noise.sigma)}"
            )

    @property
    def rows(self) -> int:
        return self.chains * self.inner.rows

    def search(self, model: Model[Any], state: Any, problems: Problems) -> Found:
        chains = torch.arange(self.chains) + (0 if self.clean_chain else 1)
        return select(model, state, self._found(model, state, problems, chains), self.selector)

    def _found(self, model: Model[Any], state: Any, problems: Problems, chains: Tensor) -> Found:
        """What all chains find; the noisy ones on a model in lower precision, where there is one."""
        hasty = optional(model, "hasty")
        if hasty is None:
            return self._run(model, state, problems, chains, twins=not hasattr(model, "judge"))
        first = 1 if self.clean_chain else 0
        parts = [(model, state, chains[:first]), (*hasty(state), chains[first:])]
        found = [self._run(which, its, problems, some) for which, its, some in parts if len(some)]
        return join(found, model.special.pad)

    def _run(self, model: Model[Any], state: Any, problems: Problems, chains: Tensor, twins: bool = False) -> Found:
        """What some chains find, [sentences, n]; half of them at a time where all are too many, or do not fit.

        twins: whether the model is the clean one, so that rows may have clean twins.
        """
        rows, alone = len(problems) * len(chains) * self.inner.rows, len(chains) == 1
        if alone or problems.max_rows is None or rows <= problems.max_rows:
            try:
                with plain_memory_errors():
                    return self._run_together(model, state, problems, chains, twins)
            except OutOfMemory:
                if alone:
                    raise
                halved()
        halves = [self._run(model, state, problems, half, twins) for half in chains.chunk(2)]
        return join(halves, model.special.pad)

    def _run_together(self, model: Model[Any], state: Any, problems: Problems, chains: Tensor, twins: bool) -> Found:
        noisy: Any = Noisy(model, self.noise, self.seed, self.share_noise)
        if twins and twins_pay(model, len(problems) * len(chains) * self.inner.rows):
            noisy = Twins(noisy)
        inner = self.inner if self.candidates == "best" else self.inner.all_candidates()
        device, begin = problems.ids.device, partial(begun, model, noisy, problems)
        given = state, problems.ids, sent(chains, device), sent(self._sigma(chains), device)
        with captured(noisy) as graphs:
            if graphs is None or len(problems) * len(chains) > LAUNCHED:
                rows, ids, own = begin(*given)
            else:
                what = "begun", problems.per_sentence
                rows, ids, own = graphs.call(begin, noisy, what, *given, own=True)
            each = replace(problems, ids=ids, chains=own, per_sentence=problems.per_sentence * len(chains))
            found = inner.search(noisy, rows, each).cpu()
        if self.candidates == "all":
            found = finished_only(found)
        of_each = chains.repeat(len(problems))[:, None].expand_as(found.lengths)
        return replace(found, chain=of_each, noisy_log_prob=found.log_prob, proven=None).regroup(len(chains))

    def _sigma(self, chains: Tensor) -> Tensor:
        """σ₀ of each; the clean chain's is 0."""
        sigma = torch.tensor(self.noise.sigma, dtype=torch.float32).expand(self.chains)
        return sigma[chains - (0 if self.clean_chain else 1)].masked_fill(chains == 0, 0)


def begun(
    model: Model[Any], noisy: Any, problems: Problems, state: Any, ids: Tensor, chains: Tensor, sigma: Tensor
) -> tuple[Any, Tensor, Tensor]:
    """The state of every chain, with noise of its sigma, and whose and which each one is."""
    each = replace(problems, ids=ids).expand(chains)
    rows = model.select(state, repeat(len(problems), len(chains), chains.device))
    return noisy.attach(rows, each, sigma.repeat(len(problems))), each.ids, each.chains


def finished_only(found: Found) -> Found:
    """Without those cut at max_length, where a group has any that ended."""
    ended = found.finished & found.exists
    return replace(found, lengths=found.lengths.masked_fill(~ended & ended.any(1, keepdim=True), -1))


def twins_pay(model: Model[Any], rows: int) -> bool:
    """Whether clean twins cost less than re-scoring afterwards, which takes all the steps again."""
    return 0 < rows <= TWINS and bool(getattr(model, "capturable", False))


def select(model: Model[Any], state: Any, found: Found, selector: Selector) -> Found:
    """The distinct ones of [sentences, n] candidates, scored by the clean model, the selector's best first."""
    needs_attention = getattr(selector, "needs_attention", False)
    distinct, _ = found.distinct()
    if distinct.clean is not None and not needs_attention:
        clean = replace(distinct, log_prob=distinct.clean).best_first()
    else:
        log_prob, coverage = judge(model, state, distinct, coverage=needs_attention)
        clean = replace(distinct, log_prob=log_prob, coverage=coverage).best_first()
    return clean if isinstance(selector, MostProbable) else clean.best_first(ranking(selector, clean))


def ranking(selector: Selector, found: Found) -> Tensor:
    """What the selector says of each candidate: a number, for every one there is."""
    score: object = selector(found)
    name = getattr(selector, "__name__", type(selector).__name__)
    if not isinstance(score, Tensor) or score.shape != found.lengths.shape:
        got = list(score.shape) if isinstance(score, Tensor) else repr(score)
        raise InvalidInput(f"the selector {name} must return a tensor {list(found.lengths.shape)}, not {got}")
    if bool((score.isnan() & found.exists).any()):
        raise InvalidInput(f"the selector {name} returned NaN; it must return a number for every hypothesis")
    return score.masked_fill(~found.exists, 0)
