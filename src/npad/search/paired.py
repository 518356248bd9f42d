"""Clean rows beside the rows of a noisy or a steered model, which read the same tokens.

Re-scoring afterwards takes all steps again. Where a step takes as long for two rows as for one (few
rows on a GPU), a clean row beside each other row is faster: the loop writes the clean
log-probability of each token beside the token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from npad.model import Capabilities, Layout, Model, Perturb, State, Wrapper, name_of

# Rows up to which pairs are faster on an H200 than re-scoring afterwards: 64 sentences of 25 chains
# took 47 ms with pairs and 61 without, 8 sentences of 50 chains 16 and 31.
MAX_PAIRED_ROWS = 2048


def pairs_pay(capabilities: Capabilities, rows: int) -> bool:
    """Return whether a clean row beside each of `rows` is faster than re-scoring.

    Args:
        capabilities: of the clean model.
        rows: of the noisy or steered search.
    """
    alone = capabilities.judge is None and capabilities.low_precision is None
    few = 0 < rows <= MAX_PAIRED_ROWS
    return capabilities.capturable and alone and few and not in_one_pass(capabilities)


def in_one_pass(capabilities: Capabilities) -> bool:
    """Return whether a model re-scores in one pass, which is faster than pairs.

    A Transformer does, whose state grows.
    """
    return capabilities.reserve is not None and capabilities.forced is not None


@dataclass(frozen=True)
class PairedState:
    """A state that holds, for each sentence, the rows of the search and then their clean pairs."""

    inner: Any
    layout: Layout  # of the rows of the search alone


@dataclass(frozen=True)
class PairedClean(Wrapper[State]):
    """A noisy or steered model whose `step_pair` also returns the clean logits of its prefixes."""

    model: Model[State]

    @property
    def name(self) -> str:
        return name_of(self.model)

    @cached_property
    def capabilities(self) -> Capabilities:
        inner = Capabilities.of(self.model)
        return replace(
            super().capabilities,
            step_pair=self.step_pair,
            reserve=None if inner.reserve is None else self.reserve,
            widen=None if inner.widen is None else self.widen,
            steer=None if inner.steer is None else self.steer,
            capturable=inner.capturable,
        )

    def reserve(self, state: PairedState, steps: int) -> PairedState:
        """Return a state with room for `steps` steps since the start."""
        make_room = Capabilities.of(self.model).reserve
        assert make_room is not None
        return replace(state, inner=make_room(state.inner, steps))

    def widen(self, state: PairedState, rows: Tensor) -> PairedState:
        """Return a state that ends in copies of its first sentence, whose rows are `rows`."""
        widen_inner = Capabilities.of(self.model).widen
        assert widen_inner is not None
        layout = Layout(len(rows) // state.layout.each, state.layout.each)
        inner = widen_inner(state.inner, with_pairs(rows, state.layout, layout))
        return PairedState(inner, layout)

    def steer(
        self, state: PairedState, rows: int, pushed: Tensor | None = None
    ) -> tuple[PairedClean[Any], PairedState]:
        """Return the pairs with their noisy rows steered; the clean ones are not pushed."""
        steer_inner = Capabilities.of(self.model).steer
        assert steer_inner is not None
        pushed = searching(state.layout, self.device)
        model, inner = steer_inner(state.inner, len(pushed), pushed)
        return PairedClean(model), replace(state, inner=inner)

    def step_pair(self, state: PairedState, tokens: Tensor) -> tuple[Tensor, PairedState]:
        """Return the logits of all rows: per sentence, the search's rows, then their pairs."""
        paired_tokens = tokens.view(state.layout.sentences, 1, -1).expand(-1, 2, -1).flatten()
        logits, inner = self.model.step(state.inner, paired_tokens)
        return logits, replace(state, inner=inner)

    def step(
        self, state: PairedState, tokens: Tensor, perturb: Perturb | None = None
    ) -> tuple[Tensor, PairedState]:
        logits, next_state = self.step_pair(state, tokens)
        sentences, rows = state.layout
        return logits.view(sentences, 2, rows, -1)[:, 0].flatten(0, 1), next_state

    def select(self, state: PairedState, rows: Tensor) -> PairedState:
        layout, _ = state.layout.after(rows)
        return PairedState(
            self.model.select(state.inner, with_pairs(rows, state.layout, layout)), layout
        )


def noisy_pairs(
    noisy: Any, state: Any, ids: Tensor, chains: Tensor, sigma: Tensor, rows_each: int
) -> PairedState:
    """Make a state noisy and pair its rows.

    Args:
        noisy: a `Noisy` model.
        state: of the clean model.
        ids: [rows], each row's sentence id.
        chains: [rows], its chain.
        sigma: [rows], its σ₀.
        rows_each: rows per sentence.
    """
    layout = Layout(len(ids) // rows_each, rows_each)
    rows = doubled(layout, sigma.device)
    paired_sigma = sigma[rows].masked_fill(~searching(layout, sigma.device), 0)
    inner = noisy.model.select(state, rows)
    return PairedState(noisy.attach(inner, ids[rows], chains[rows], paired_sigma), layout)


def steered_pairs(clean: Any, layout: Layout, state: Any) -> tuple[PairedClean[Any], PairedState]:
    """Return a model steered by its actor whose rows have clean pairs, and its state.

    Args:
        clean: the model with its actor.
        layout: of the rows of the search.
        state: of the clean model, before any step.
    """
    capabilities = Capabilities.of(clean)
    assert capabilities.steer is not None
    device = capabilities.device
    pushed = searching(layout, device)
    rows = clean.select(state, doubled(layout, device))
    model, inner = capabilities.steer(rows, len(pushed), pushed)
    return PairedClean(model), PairedState(inner, layout)


def doubled(layout: Layout, device: torch.device) -> Tensor:
    """Return the index of all rows and their pairs: 0 1 0 1 2 3 2 3 for two sentences of two."""
    rows = torch.arange(layout.sentences * layout.each, device=device).view(layout)
    return torch.cat([rows, rows], 1).flatten()


def searching(layout: Layout, device: torch.device) -> Tensor:
    """Return which rows of pairs are those of the search, and not clean: [2 · rows]."""
    row = torch.arange(2 * layout.sentences * layout.each, device=device)
    return row % (2 * layout.each) < layout.each


def with_pairs(rows: Tensor, old: Layout, new: Layout) -> Tensor:
    """Map indices of the search's rows to indices of both: per sentence, rows, then pairs."""
    chosen = (rows // old.each * 2 * old.each + rows % old.each).view(new.sentences, new.each)
    return torch.cat([chosen, chosen + old.each], 1).flatten()
