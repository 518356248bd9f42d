"""Each noisy row with a clean twin that reads the same symbols: what a search finds is judged by the time it is found.

Re-scoring afterwards takes all the steps again, one after the other. Where a step takes as long for two rows as for one
(few rows on a GPU), a twin is the faster judge.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Generic

import torch
from torch import Tensor

from npad.model import Perturb, State, Wrapper, name_of
from npad.noise.noisy import Noisy, NoisyState
from npad.rows import Layout, Problems


@dataclass(frozen=True)
class TwinState(Generic[State]):
    """The state of noisy rows and their clean twins."""

    inner: NoisyState[State]  # of each sentence first the noisy rows, then as many clean ones
    layout: Layout  # of the noisy rows


@dataclass(frozen=True)
class Twins(Wrapper[State]):
    """A noisy model whose `both` also returns what the clean model makes of the same prefixes."""

    model: Noisy[State]  # type: ignore[assignment]

    @property
    def name(self) -> str:
        return name_of(self.model)

    @property
    def capturable(self) -> bool:
        return self.model.capturable

    def attach(self, state: State, problems: Problems, sigma: Tensor) -> TwinState[State]:
        """As `Noisy.attach`."""
        layout = Layout(len(problems) // problems.per_sentence, problems.per_sentence)
        rows = torch.arange(len(problems), device=sigma.device).view(layout)
        rows = torch.cat([rows, rows], 1).flatten()
        each = replace(problems, ids=problems.ids[rows], chains=problems.chains[rows], per_sentence=2 * layout.each)
        noisy = sigma[rows].view(layout.sentences, 2, -1)
        clean = torch.cat([noisy[:, :1], torch.zeros_like(noisy[:, 1:])], 1).flatten()
        return TwinState(self.model.attach(self.model.model.select(state, rows), each, clean), layout)

    def both(self, state: TwinState[State], tokens: Tensor) -> tuple[Tensor, TwinState[State]]:
        """The logits of all rows, of each sentence first the noisy ones and then the clean, and the state after."""
        twice = tokens.view(state.layout.sentences, 1, -1).expand(-1, 2, -1).flatten()
        logits, inner = self.model.step(state.inner, twice)
        return logits, replace(state, inner=inner)

    def step(
        self, state: TwinState[State], tokens: Tensor, perturb: Perturb | None = None
    ) -> tuple[Tensor, TwinState[State]]:
        logits, after = self.both(state, tokens)
        return logits.view(state.layout.sentences, 2, state.layout.each, -1)[:, 0].flatten(0, 1), after

    def select(self, state: TwinState[State], rows: Tensor) -> TwinState[State]:
        layout, _ = state.layout.after(rows)
        return TwinState(self.model.select(state.inner, beside(rows, state.layout, layout)), layout)


def beside(rows: Tensor, old: Layout, new: Layout) -> Tensor:
    """Noisy rows, numbered without their twins, with them: each sentence's and then its twins, in the new layout."""
    noisy = (rows // old.each * 2 * old.each + rows % old.each).view(new.sentences, new.each)
    return torch.cat([noisy, noisy + old.each], 1).flatten()
