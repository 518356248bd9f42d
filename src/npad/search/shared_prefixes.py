"""Rows that share their prefixes: one transition per distinct prefix of a sentence.

A row's state depends on its prefix alone if there is no noise, or if its noise does not outlive the
step. Then rows that have read the same tokens need one transition, and a readout each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from npad.engine.devices import to_device
from npad.model import Capabilities, Layout, Model, Perturb, Wrapper, name_of, untouched
from npad.rescoring.plan import group_size
from npad.rows import IntArray, rank_in_run, rows_of


def can_share(model: Model[Any], site: str) -> bool:
    """Return whether rows of a model with noise at a site may share their prefixes.

    Not where steps are captured as CUDA graphs: there the host would have to plan every step.
    """
    capabilities = Capabilities.of(model)
    sharer = capabilities.prefix_sharer
    return sharer is not None and site in sharer.transient_sites and not capabilities.capturable


@dataclass(frozen=True)
class SharedState:
    """A state with one row per distinct prefix, and the prefix of each row that a search sees."""

    inner: Any  # one row per prefix, some of them idle
    layout: Layout  # of the rows that a search sees
    prefix_of: IntArray  # [rows], the prefix of each, as a row of `inner`
    sentences: IntArray  # [sentences], the number of each in `inner`
    width: int  # prefixes per sentence in `inner`, if its sentences are groups of one size
    started: bool = False  # whether a token has been read


class Plan(NamedTuple):
    """The prefixes of the next step, idle ones included."""

    parents: IntArray  # [prefixes], the row that each continues
    owners: IntArray  # [groups], the sentence of each group
    tokens: IntArray  # [prefixes]
    prefix_of: IntArray  # [rows], the prefix of each row
    width: int  # prefixes per group


class SharedPrefixes(Wrapper[Any]):
    """A model whose `step` takes one transition per distinct prefix, whatever the rows.

    The host plans every step. A model that reads prefixes in groups (`PrefixReader`) gets groups of
    a few, with few idle rows; of any other, each sentence has as many rows as the one with most.

    Args:
        model: a model that is a `PrefixSharer`.
    """

    def __init__(self, model: Model[Any]) -> None:
        self.model = model
        inner = Capabilities.of(model)
        assert inner.prefix_sharer is not None
        self.sharer, self.in_groups = inner.prefix_sharer, inner.prefix_reader is not None
        self.name = name_of(model)

    @property
    def capabilities(self) -> Capabilities:
        inner = Capabilities.of(self.model)
        return replace(
            super().capabilities,
            capturable=False,
            counts_calls=True,
            steer=None if inner.steer is None else self.steer,
            reserve=None if inner.reserve is None else self.reserve,
        )

    def start(self, source: Any) -> SharedState:
        return self.attach(self.model.start(source), len(source))

    def attach(self, state: Any, sentences: int) -> SharedState:
        """Return a state of the model, one row per sentence, as one whose rows share prefixes."""
        rows = np.arange(sentences)
        return SharedState(state, Layout(sentences, 1), rows, rows, width=1)

    def reserve(self, state: SharedState, steps: int) -> SharedState:
        """Return a state with room for `steps` steps since the start."""
        make_room = Capabilities.of(self.model).reserve
        assert make_room is not None
        return replace(state, inner=make_room(state.inner, steps))

    def steer(
        self, state: SharedState, rows: int, pushed: Tensor | None = None
    ) -> tuple[Model[Any], Any]:
        """Return the steered model, whose rows do not share prefixes, and its state."""
        steer_inner = Capabilities.of(self.model).steer
        assert steer_inner is not None
        prefixes = to_device(torch.from_numpy(state.prefix_of), self.device)
        return steer_inner(self.model.select(state.inner, prefixes), rows, pushed)

    def step(
        self, state: SharedState, tokens: Tensor, perturb: Perturb | None = None
    ) -> tuple[Tensor, SharedState]:
        plan = self._plan(state, tokens.cpu().numpy())
        parents, owners, read, rows = (
            to_device(torch.from_numpy(array), self.device)
            for array in (plan.parents, plan.owners, plan.tokens, plan.prefix_of)
        )
        logits, inner = self.sharer.step_shared(
            state.inner, parents, owners, read, rows, perturb or untouched
        )
        return logits, replace(
            state, inner=inner, prefix_of=plan.prefix_of, width=plan.width, started=True
        )

    def _plan(self, state: SharedState, tokens: IntArray) -> Plan:
        """Find the distinct prefixes after tokens [rows], and give each a place."""
        sentences, rows_each = state.layout
        sentence_of = np.repeat(np.arange(sentences), rows_each)
        # Rows that have ended read the end token, and what is predicted for them does not count.
        live = (
            np.flatnonzero(tokens != self.special.eos) if state.started else np.arange(len(tokens))
        )
        live = live if len(live) else np.zeros(1, dtype=np.int64)
        base = int(tokens.max()) + 1
        content = state.prefix_of[live] * base + tokens[live]
        distinct, first, index = np.unique(content, return_index=True, return_inverse=True)
        owner = sentence_of[live[first]]
        counts = np.bincount(owner, minlength=sentences)
        if self.in_groups:
            width = group_size(len(distinct) / np.count_nonzero(counts))
            groups = -(-counts // width)
        else:
            # `select` keeps all sentences only if none loses rows; a single one may.
            width = int(counts.max()) if sentences == 1 else max(state.width, int(counts.max()))
            groups = np.ones_like(counts)
        start = width * (groups.cumsum() - groups)  # the first place of each sentence
        place = start[owner] + rank_in_run(owner)
        owners = np.repeat(np.arange(sentences), groups)
        # An idle place continues its sentence's first row, or any row if rows are in groups.
        parents = np.repeat(0 * owners if self.in_groups else state.width * owners, width)
        read = np.full(len(parents), distinct[0] % base)
        parents[place], read[place] = distinct // base, distinct % base
        prefix_of = np.minimum(start, len(parents) - 1)[sentence_of]
        prefix_of[live] = place[index]
        return Plan(parents, state.sentences[owners], read, prefix_of, width)

    def select(self, state: SharedState, rows: Tensor) -> SharedState:
        layout, kept = state.layout.after(rows)
        prefix_of = state.prefix_of[rows.cpu().numpy()]
        if kept is None:
            return replace(state, layout=layout, prefix_of=prefix_of)
        numbers = kept.cpu().numpy()
        sentences = state.sentences[numbers]
        if self.in_groups:  # which leave out dropped sentences
            return replace(state, layout=layout, prefix_of=prefix_of, sentences=sentences)
        moved = np.zeros(state.layout.sentences, dtype=np.int64)
        moved[numbers] = np.arange(len(numbers))
        prefix_of = moved[prefix_of // state.width] * state.width + prefix_of % state.width
        inner = self.model.select(state.inner, rows_of(kept, state.width))
        return SharedState(
            inner, layout, prefix_of, np.arange(len(numbers)), state.width, state.started
        )
