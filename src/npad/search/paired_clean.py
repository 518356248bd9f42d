"""Pair each noisy row with a clean row that reads the same tokens, to score during the search.

Re-scoring afterwards takes all steps again. Where a step takes as long for two rows as for one (few
rows on a GPU), paired clean rows are faster.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic

import torch
from torch import Tensor

from npad.model import Capabilities, Layout, Perturb, State, Wrapper, name_of
from npad.noise.noisy import Noisy, NoisyState

MAX_PAIRED_ROWS = 256  # rows that an H200 steps in little more time than a single row


@dataclass(frozen=True)
class PairedState(Generic[State]):
    """A noisy state that holds, for each sentence, the noisy rows and then their clean pairs."""

    inner: NoisyState[State]
    layout: Layout  # of the noisy rows alone


@dataclass(frozen=True)
class PairedClean(Wrapper[State]):
    """A noisy model whose `step_pair` also returns the clean logits of the same prefixes."""

    model: Noisy[State]  # type: ignore[assignment]

    @property
    def name(self) -> str:
        return name_of(self.model)

    @cached_property
    def capabilities(self) -> Capabilities:
        noisy = self.model.capabilities
        return replace(
            super().capabilities,
            step_pair=self.step_pair,
            reserve=None if noisy.reserve is None else self.reserve,
            capturable=noisy.capturable,
        )

    def attach(
        self, state: State, ids: Tensor, chains: Tensor, sigma: Tensor, rows_each: int
    ) -> PairedState[State]:
        """Make a state noisy and pair its rows.

        Args:
            state: the model's state.
            ids: [rows], each row's sentence id.
            chains: [rows], its chain.
            sigma: [rows], its σ₀.
            rows_each: rows per sentence.
        """
        layout = Layout(len(ids) // rows_each, rows_each)
        rows = torch.arange(len(ids), device=sigma.device).view(layout)
        rows = torch.cat([rows, rows], 1).flatten()
        noisy = sigma[rows].view(layout.sentences, 2, -1)
        paired_sigma = torch.cat([noisy[:, :1], torch.zeros_like(noisy[:, 1:])], 1).flatten()
        inner = self.model.model.select(state, rows)
        attached = self.model.attach(inner, ids[rows], chains[rows], paired_sigma)
        return PairedState(attached, layout)

    def reserve(self, state: PairedState[State], steps: int) -> PairedState[State]:
        """Return a state with room for `steps` steps since the start."""
        return replace(state, inner=self.model.reserve(state.inner, steps))

    def step_pair(
        self, state: PairedState[State], tokens: Tensor
    ) -> tuple[Tensor, PairedState[State]]:
        """Return the logits of all rows: per sentence, those of noisy rows, then of clean rows."""
        paired_tokens = tokens.view(state.layout.sentences, 1, -1).expand(-1, 2, -1).flatten()
        logits, inner = self.model.step(state.inner, paired_tokens)
        return logits, replace(state, inner=inner)

    def step(
        self, state: PairedState[State], tokens: Tensor, perturb: Perturb | None = None
    ) -> tuple[Tensor, PairedState[State]]:
        logits, next_state = self.step_pair(state, tokens)
        sentences, rows = state.layout
        return logits.view(sentences, 2, rows, -1)[:, 0].flatten(0, 1), next_state

    def select(self, state: PairedState[State], rows: Tensor) -> PairedState[State]:
        layout, _ = state.layout.after(rows)
        return PairedState(
            self.model.select(state.inner, with_pairs(rows, state.layout, layout)), layout
        )


def with_pairs(rows: Tensor, old: Layout, new: Layout) -> Tensor:
    """Map indices of noisy rows to indices of both: per sentence, noisy rows, then their pairs."""
    noisy = (rows // old.each * 2 * old.each + rows % old.each).view(new.sentences, new.each)
    return torch.cat([noisy, noisy + old.each], 1).flatten()
