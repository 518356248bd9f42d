"""A model whose scores are changed before a search reads them: tokens forbidden, lengths set, ….

The rules constrain the search; the scores of hypotheses are those of the model itself.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from npad.engine.pytree import tree_map
from npad.hypotheses import Hypotheses
from npad.model import Capabilities, Perturb, name_of
from npad.models.clean import Clean, Judged, WrappingState
from npad.rows import repeat


class Rule:
    """Changes the scores of each step. What it remembers of the rows is kept in their state."""

    capturable = True  # whether a step may be captured in a CUDA graph
    masks = False  # it only forbids tokens: all other scores stay the model's
    finishes = False  # an output cut at max_length breaks it
    judges = False  # `met` tells which outputs keep it
    decided = sys.maxsize  # outputs of so many allowed tokens keep it
    soft = False  # outputs that break it rank below the others; other rules allow none

    @property
    def label(self) -> str:
        """What messages and signatures call it; empty for rules of a model's own configuration."""
        return ""

    def key(self) -> Any:
        """Return a hashable value that is equal for rules that do the same, as far as is known."""
        return id(self)

    def start(self, model: Any, source: Any) -> Any:
        """Return what the rule remembers of each sentence of a source: a tree of tensors [rows]."""
        return None

    def read(self, memory: Any, tokens: Tensor) -> Any:
        """Return what it remembers once tokens [rows] have been written."""
        return memory

    def select(self, memory: Any, rows: Tensor) -> Any:
        """Return what it remembers of some of the rows."""
        return tree_map(lambda x: x[rows], memory)

    def apply(self, scores: Tensor, memory: Any, eos: int, first: bool) -> Tensor:
        """Return changed scores [rows, V].

        Args:
            scores: [rows, V], of the next token.
            memory: what the rule remembers of the rows.
            eos: the end token.
            first: whether the next token is the first one.
        """
        raise NotImplementedError

    def met(self, memory: Any) -> Tensor:
        """Return whether outputs [rows] keep a rule that `judges`, whatever they continue with."""
        raise NotImplementedError

    def progress(self, memory: Any) -> Any:
        """Return how far rows have come with phrases that a `soft` rule requires."""
        raise NotImplementedError


class Forbidden(Rule):
    """Gives forbidden tokens no probability; that of the others stays as it is.

    Args:
        tokens: never written.
        first: not written as the first token.
        device: where the scores are.
    """

    def __init__(
        self, tokens: Iterable[int], first: Iterable[int] = (), device: Any = "cpu"
    ) -> None:
        always = sorted({*tokens})
        self.tokens = torch.tensor(always, dtype=torch.long, device=device)
        self.first = torch.tensor(sorted({*always, *first}), dtype=torch.long, device=device)

    def apply(self, scores: Tensor, memory: Any, eos: int, first: bool) -> Tensor:
        return scores.index_fill(-1, self.first if first else self.tokens, -torch.inf)


@dataclass(frozen=True)
class ConstrainedState(WrappingState):
    """The state of the wrapped model, with what the rules remember."""

    started: bool  # whether the begin token has been read
    memories: tuple[Any, ...]  # of each rule, one row per hypothesis


class Constrained(Judged):
    """A model whose `step` returns changed scores. Hypotheses get those of the wrapped model.

    Args:
        model: the model to constrain.
        *rules: change the scores, one after the other: `Rule`s, or constraints of
            `npad.constraints` that are written in tokens.
        normalised: change log-probabilities, which are not normalised again, instead of logits.
        judged: gives hypotheses their scores instead of the model; reads the model's states.
    """

    def __init__(
        self, model: Any, *rules: Any, normalised: bool = True, judged: Any = None
    ) -> None:
        self.model: Any = model
        self.plain = model  # the model without what is wrapped around it
        eos = model.special.eos
        bound = ([rule] if isinstance(rule, Rule) else rule.rules(eos, None) for rule in rules)
        self.rules: tuple[Rule, ...] = tuple(chain.from_iterable(bound))
        self.normalised, self.name = normalised, name_of(model)
        self.judged = judged
        inner = Capabilities.of(model)
        self._log_probs, self._settle = inner.normalised, inner.settle
        self._soft = [i for i, rule in enumerate(self.rules) if rule.soft]
        self._key = model, normalised, tuple(rule.key() for rule in self.rules)

    def __eq__(self, other: object) -> bool:
        """Models constrained alike share their CUDA graphs."""
        return isinstance(other, Constrained) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def capabilities_over(self, inner: Capabilities) -> Capabilities:
        judged = super().capabilities_over(inner)
        labels = [inner.constraint, *(rule.label for rule in self.rules)]
        return replace(
            judged,
            judge=judged.judge if self.judged is None else Clean(self.judged),
            normalised=self.normalised,
            modified_scores=inner.modified_scores or not all(rule.masks for rule in self.rules),
            capturable=judged.capturable and all(rule.capturable for rule in self.rules),
            constraint="&".join(filter(None, labels)),
            settle=self.settle if any(labels) else None,
            progress=self.progress if inner.progress or self._soft else None,
        )

    def wrapped(self, inner: Any, source: Any) -> ConstrainedState:
        memories = tuple(rule.start(self.model, source) for rule in self.rules)
        return ConstrainedState(inner, False, memories)

    def step(
        self, state: ConstrainedState, tokens: Tensor, perturb: Perturb | None = None
    ) -> tuple[Tensor, ConstrainedState]:
        logits, inner = self.model.step(state.inner, tokens, perturb)
        precise = torch.float64 if logits.dtype == torch.float64 else torch.float32
        if self.normalised and not self._log_probs:
            scores = logits.log_softmax(-1, dtype=precise)
        else:
            scores = logits.to(precise)
        memories = []
        for rule, memory in zip(self.rules, state.memories, strict=True):
            if state.started:
                memory = rule.read(memory, tokens)
            scores = rule.apply(scores, memory, self.special.eos, not state.started)
            memories.append(memory)
        return scores, type(state)(inner, True, tuple(memories))

    def select(self, state: ConstrainedState, rows: Tensor) -> ConstrainedState:
        pairs = zip(self.rules, state.memories, strict=True)
        memories = tuple(rule.select(memory, rows) for rule, memory in pairs)
        return type(state)(self.model.select(state.inner, rows), state.started, memories)

    def settle(self, state: ConstrainedState, hypotheses: Hypotheses) -> Hypotheses:
        """Return hypotheses [groups, n] without those that break a rule; which met all of them.

        Args:
            state: before the first step, one row per group.
            hypotheses: what a search found, on the CPU, best first.
        """
        kept = hypotheses.exists & (hypotheses.log_prob > -torch.inf)
        cut = ~hypotheses.finished
        met = torch.ones_like(kept) if hypotheses.met is None else hypotheses.met
        for rule, memory in zip(self.rules, state.memories, strict=True):
            if rule.finishes:
                kept = kept & hypotheses.finished
            if rule.soft:
                met = met & judged_by(rule, memory, hypotheses)
            elif rule.judges and bool((cut & (hypotheses.lengths < rule.decided)).any()):
                kept = kept & judged_by(rule, memory, hypotheses)
        whole = bool((kept & met).all())
        lengths = hypotheses.lengths if whole else hypotheses.lengths.masked_fill(~kept, -1)
        hypotheses = replace(hypotheses, lengths=lengths, met=met)
        if self._settle is not None:
            hypotheses = self._settle(state.inner, hypotheses)
        return hypotheses if whole else hypotheses.best_first()

    def progress(self, state: ConstrainedState) -> Any:
        """Return how far each row has come with the phrases that all rules require."""
        parts = [self.rules[i].progress(state.memories[i]) for i in self._soft]
        inner = Capabilities.of(self.model).progress
        parts += [] if inner is None else [inner(state.inner)]
        return reduce(lambda some, others: some.joined(others), parts)

    def in_precision(self, precision: str) -> Constrained:
        """Return this model around a copy in another precision, for chains that are re-scored."""
        return self._around(self.model.in_precision(precision))

    def quantised(self, owned: bool) -> Constrained:
        """Return this model around the model in int8."""
        return self._around(self.model.quantised(owned))

    def _around(self, model: Any) -> Constrained:
        """Return the same constraints around another model."""
        constrained = copy.copy(self)
        Constrained.__init__(constrained, model, *self.rules, normalised=self.normalised)
        return constrained


def judged_by(rule: Rule, memory: Any, hypotheses: Hypotheses) -> Tensor:
    """Return whether hypotheses [groups, n] keep a rule, from its memory before the first step."""
    groups, n = hypotheses.lengths.shape
    rows = repeat(groups, n, hypotheses.lengths.device)
    memory = rule.select(tree_map(Tensor.cpu, memory), rows)
    met = rule.met(memory)
    tokens = hypotheses.tokens.flatten(0, 1)
    lengths = hypotheses.lengths.flatten()
    for t in range(tokens.shape[1]):
        if met.all():
            break
        memory = rule.read(memory, tokens[:, t])
        met = torch.where(lengths > t, rule.met(memory), met)
    return met.view(groups, n)
