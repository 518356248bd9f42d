"""Protocols of models that read each distinct prefix once: in re-scoring, and for many rows."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol, TypeVar

from torch import Tensor

State = TypeVar("State")


class PrefixReader(Protocol[State]):
    """A model that re-scoring drives row by row, so that each distinct prefix is read once."""

    @property
    def vocabulary(self) -> int:
        """The number of tokens that the model predicts."""

    def advance(
        self, state: State, parents: Tensor, owners: Tensor, tokens: Tensor
    ) -> tuple[Tensor, State]:
        """Continue row `parents[i]` of the state by `tokens[i]`.

        Args:
            state: the state.
            parents: [rows], the row that each row continues.
            owners: [groups], the sentence of each group, as a row of the state that `start`
                returned. A group is len(parents) / len(owners) consecutive rows of a sentence.
            tokens: [rows], the token that each row reads.

        Returns:
            Readouts [rows, width], and the state.
        """

    def project(self, readouts: Tensor) -> Tensor:
        """Return the logits [n, V] of readouts [n, width]."""


class PrefixSharer(Protocol[State]):
    """A model whose rows with equal prefixes may share a transition, whatever their noise.

    If it is a `PrefixReader`, too, `owners` may repeat and leave out sentences. Otherwise every
    sentence is one group, as `select` needs it.
    """

    @property
    def transient_sites(self) -> Collection[str]:
        """The noise sites that change the logits of a step and not its state."""

    def step_shared(
        self,
        state: State,
        parents: Tensor,
        owners: Tensor,
        tokens: Tensor,
        rows: Tensor,
        perturb: Any,
    ) -> tuple[Tensor, State]:
        """Continue rows of the state, as `PrefixReader.advance`, without consuming it.

        Reports its model calls by `npad.engine.cost.add_calls`.

        Args:
            state: the state, one row per prefix.
            parents: [prefixes], the row that each prefix continues.
            owners: [groups], the sentence of each group of prefixes.
            tokens: [prefixes], the token that each prefix reads.
            rows: [n], the prefix of each row that predicts a token.
            perturb: perturbs n rows, at transient sites alone; `untouched` if there is no noise.

        Returns:
            Logits [n, V], and the state, one row per prefix.
        """
