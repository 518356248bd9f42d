"""Finite automata over tokens as tensors: which tokens may follow, and where each one leads.

`Automaton` lists the tokens that each state allows, for prefixes and closed sets. `Table` lists
for each state where every token leads, for forbidden phrases. A step looks up rows of tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from npad.constraints.constrained import Rule
from npad.errors import InvalidInput
from npad.model import Capabilities
from npad.rows import IntArray, argsort_rows, run_starts

FREE, DEAD, ROOT = 0, 1, 2  # states: everything may follow; nothing may; where a list begins
STRIDE = 1 << 31  # between the keys of two states: more than any vocabulary has tokens
MAX_DENSE = 1 << 26  # entries of dense masks
NARROW = 16  # a state with at most so many tokens lists them; doubled until the others fit
MAX_TOKENS = 1 << 28  # tokens of a list, each padded to the longest


class Edges(NamedTuple):
    """The edges of an automaton, sorted by (state, token): [edges] each."""

    states: IntArray
    tokens: IntArray
    targets: IntArray


class Masks(NamedTuple):
    """Which tokens the states of an automaton forbid, as tensors for one vocabulary and device."""

    vocabulary: int
    tokens: Tensor  # [edges + narrow], the tokens of the edges
    first: Tensor  # [states], the first edge of each state with few tokens
    number: Tensor  # [states], their number; 0 for other states
    offsets: Tensor  # [narrow], 0, 1, …
    row: Tensor  # [states], the row of `forbidden` that a state starts from
    forbidden: Tensor  # [k, vocabulary + 1]; the last column is not used

    @classmethod
    def of(cls, edges: Edges, states: int, vocabulary: int, device: torch.device) -> Masks:
        """Keep states with many tokens as rows of a mask, and list the tokens of the others."""
        counts = np.bincount(edges.states, minlength=states)
        narrow = NARROW
        while (counts > narrow).sum() * vocabulary > MAX_DENSE:
            narrow *= 2
        wide = np.flatnonzero(counts > narrow)
        row = np.zeros(states, dtype=np.int64)
        row[FREE], row[wide] = 1, 2 + np.arange(len(wide))
        forbidden = np.ones((2 + len(wide), vocabulary + 1), dtype=bool)
        forbidden[1] = False
        dense = row[edges.states] >= 2
        forbidden[row[edges.states[dense]], edges.tokens[dense]] = False
        arrays = (
            np.concatenate([edges.tokens, np.zeros(narrow, dtype=np.int64)]),
            np.cumsum(counts) - counts,
            np.where(counts > narrow, 0, counts),
            np.arange(narrow),
            row,
            forbidden,
        )
        return cls(vocabulary, *(torch.from_numpy(array).to(device) for array in arrays))

    def of_states(self, states: Tensor) -> Tensor:
        """Return which tokens are forbidden after states [rows]: [rows, vocabulary]."""
        listed = self.offsets < self.number[states, None]
        tokens = self.tokens[self.first[states, None] + self.offsets]
        tokens = torch.where(listed, tokens, self.vocabulary)
        forbidden = self.forbidden[self.row[states]].scatter_(1, tokens, False)
        return forbidden[:, : self.vocabulary]


class Automaton(Rule):
    """Lets only those tokens follow that an automaton allows, from a start state per sentence.

    Args:
        edges: its edges; `FREE` and `DEAD` have none.
        starts: the state of each sentence before its first token, or of all sentences.
        label: for messages and signatures.
        finishes: whether an output must end to be allowed; one cut at max_length is then refused.
    """

    masks = True

    def __init__(
        self, edges: Edges, starts: Sequence[int] | int, label: str, finishes: bool
    ) -> None:
        self.edges, self.starts = edges, starts
        self.finishes, self.judges = finishes, not finishes
        self.capturable = isinstance(starts, int)  # other sentences have another automaton
        self.states = 1 + max(
            ROOT, int(edges.states.max(initial=0)), int(edges.targets.max(initial=0))
        )
        self._label = label
        self._keys: dict[torch.device, tuple[Tensor, Tensor]] = {}
        self._masks: dict[tuple[int, torch.device], Masks] = {}

    @property
    def label(self) -> str:
        return self._label

    def start(self, model: Any, source: Any) -> Tensor:
        starts = [self.starts] * len(source) if isinstance(self.starts, int) else self.starts
        if len(starts) != len(source):
            raise InvalidInput(
                f"there are {len(starts)} prefixes for {len(source)} sentences; give one for each"
            )
        return torch.tensor(starts, device=Capabilities.of(model).device)

    def read(self, memory: Tensor, tokens: Tensor) -> Tensor:
        keys, targets = self._keys_on(memory.device)
        read = memory * STRIDE + tokens
        places = torch.searchsorted(keys, read).clamp(max=len(keys) - 1)
        free = (memory != FREE).long()  # FREE stays FREE, and others become DEAD
        return torch.where(keys[places] == read, targets[places], free)

    def apply(self, scores: Tensor, memory: Tensor, eos: int, first: bool) -> Tensor:
        if scores.is_cpu and not memory.any():
            return scores
        masks = self._masks_for(scores.shape[-1], scores.device)
        return scores.masked_fill(masks.of_states(memory), -torch.inf)

    def met(self, memory: Tensor) -> Tensor:
        return memory == FREE

    def _keys_on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        if device not in self._keys:
            states, tokens, targets = self.edges
            keys = np.append(states * STRIDE + tokens, STRIDE * STRIDE)  # never empty
            arrays = keys, np.append(targets, DEAD)
            first, second = (torch.from_numpy(array).to(device) for array in arrays)
            self._keys[device] = first, second
        return self._keys[device]

    def _masks_for(self, vocabulary: int, device: torch.device) -> Masks:
        key = vocabulary, device
        if key not in self._masks:
            largest = int(self.edges.tokens.max(initial=0))
            if largest >= vocabulary:
                rule = f"outside the vocabulary, which has {vocabulary} tokens"
                raise InvalidInput(f"{self.label} has the token {largest}, {rule}")
            self._masks[key] = Masks.of(self.edges, self.states, vocabulary, device)
        return self._masks[key]


def edges_of(triples: Sequence[Sequence[IntArray]]) -> Edges:
    """Return edges from parts (states, tokens, targets), in any order."""
    empty = (np.zeros(0, dtype=np.int64),) * 3
    states, tokens, targets = (
        np.concatenate(column) for column in zip(empty, *triples, strict=True)
    )
    order = np.lexsort((tokens, states))
    return Edges(states[order], tokens[order], targets[order])


def trie_of(sequences: Sequence[Sequence[int]], eos: int) -> Edges:
    """Return the automaton of a closed set: each sequence of tokens, and then the end token.

    Its states are the distinct prefixes, from `ROOT`, shorter ones first.
    """
    lengths = np.fromiter(map(len, sequences), dtype=np.int64, count=len(sequences))
    longest = int(lengths.max(initial=0)) + 1
    if len(sequences) * longest > MAX_TOKENS:
        rule = f"have at most {MAX_TOKENS:,} tokens, each padded to the longest"
        raise InvalidInput(f"choices must {rule}; there are {len(sequences):,} of up to {longest}")
    table = np.full((len(sequences), longest), -1, dtype=np.int64)
    flat = np.fromiter(
        (token for s in sequences for token in s), dtype=np.int64, count=lengths.sum()
    )
    table[np.arange(longest) < lengths[:, None]] = flat
    table[np.arange(len(sequences)), lengths] = eos
    table = table[argsort_rows(table + 1)]
    states, begins, parts = ROOT, np.zeros(len(table), dtype=bool), []
    begins[:1] = True
    node = np.full(len(table), ROOT)
    for column in table.T:
        begins = begins | run_starts(column)
        starts = begins & (column >= 0)
        after = states + np.cumsum(starts)
        parts.append((node[starts], column[starts], after[starts]))
        node, states = np.where(column >= 0, after, DEAD), states + int(starts.sum())
    return edges_of(parts)
