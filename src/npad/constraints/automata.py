"""Finite automata over tokens as tensors: which tokens may follow, and where each one leads.

`Automaton` lists the tokens that each state allows, for prefixes and closed sets. `Table` lists
for each state where every token leads, for forbidden phrases. A step looks up rows of tensors.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from npad.constraints.constrained import Rule
from npad.engine.cuda_graphs import bucket
from npad.engine.pytree import tree_map
from npad.errors import InvalidInput
from npad.model import device_of
from npad.rows import IntArray, argsort_rows, run_starts

FREE, DEAD, ROOT = 0, 1, 2  # states: everything may follow; nothing may; where a list begins
STRIDE = 1 << 31  # between the keys of two states: more than any vocabulary has tokens
MAX_DENSE = 1 << 23  # entries of masks otherwise
FEW_DENSE = 1 << 21  # entries up to which all states have a mask
NARROW = 16  # otherwise a state with at most so many tokens lists them; doubled until others fit
MAX_TOKENS = 1 << 28  # tokens of a list, each padded to the longest


class Edges(NamedTuple):
    """The edges of an automaton, sorted by (state, token): [edges] each."""

    states: IntArray
    tokens: IntArray
    targets: IntArray


class Tables(NamedTuple):
    """An automaton as tensors: where tokens lead from each state, and which ones it forbids."""

    keys: Tensor  # [n > edges + narrow], state × STRIDE + token, rising; larger after the edges
    targets: Tensor  # [n], the state that each edge leads to
    first: Tensor  # [states], the first edge of each state with few tokens
    number: Tensor  # [states], their number; 0 for other states
    places: Tensor  # [narrow], 0, 1, …
    row: Tensor  # [states], the row of `gains` that a state starts from
    gains: Tensor  # [k, tokens + 1], 0 or −inf for each token, and for all beyond

    @classmethod
    def of(cls, edges: Edges, size: Callable[[int], int]) -> Tables:
        """Keep states with many tokens as rows of a mask, and list the tokens of the others.

        Args:
            edges: of the automaton.
            size: how long a table of so many entries is made.
        """
        states = 1 + max(ROOT, *(int(x.max(initial=0)) for x in (edges.states, edges.targets)))
        vocabulary, states = size(1 + int(edges.tokens.max(initial=0))), size(states)
        counts = np.bincount(edges.states, minlength=states)
        narrow = 0 if states * vocabulary <= FEW_DENSE else NARROW
        while narrow and (counts > narrow).sum() * vocabulary > MAX_DENSE:
            narrow *= 2
        wide = np.flatnonzero(counts > narrow)
        row = np.zeros(states, dtype=np.int64)
        row[FREE], row[wide] = 1, 2 + np.arange(len(wide))
        gains = np.full((size(2 + len(wide)), vocabulary + 1), -np.inf, dtype=np.float32)
        gains[1] = 0
        dense = row[edges.states] >= 2
        gains[row[edges.states[dense]], edges.tokens[dense]] = 0
        keys = np.full(size(len(edges.tokens) + narrow + 1), STRIDE * STRIDE)
        targets = np.full(len(keys), DEAD)
        keys[: len(edges.tokens)] = edges.states * STRIDE + edges.tokens
        targets[: len(edges.tokens)] = edges.targets
        first, number = np.cumsum(counts) - counts, np.where(counts > narrow, 0, counts)
        arrays = keys, targets, first, number, np.arange(narrow), row, gains
        return cls(*map(torch.from_numpy, arrays))

    def masked(self, scores: Tensor, states: Tensor) -> Tensor:
        """Return scores [rows, V] with −inf for the tokens that states [rows] forbid."""
        size, vocabulary = self.gains.shape[1] - 1, scores.shape[1]
        gains = self.gains.index_select(0, self.row.index_select(0, states))
        if size < vocabulary:
            gains = torch.cat([gains, gains[:, -1:].expand(-1, vocabulary - size - 1)], 1)
        masked = scores + gains[:, :vocabulary]  # several times as fast as masked_fill on a CPU
        if not len(self.places):
            return masked
        number = self.number[states, None]
        places = self.first[states, None] + torch.minimum(self.places, (number - 1).clamp(min=0))
        tokens = self.keys[places] % STRIDE
        listed = torch.where(number > 0, scores.gather(1, tokens), masked.gather(1, tokens))
        return masked.scatter_(1, tokens, listed)


class Followed(NamedTuple):
    """What an automaton remembers of rows."""

    states: Tensor  # [rows]
    tables: Tables | None  # of all rows; None where the automaton keeps them
    free: bool = False  # whether all rows are known to be `FREE`, which only a CPU tells


class Automaton(Rule):
    """Lets only those tokens follow that an automaton allows, from a start state per sentence.

    A small one is a part of the state of a search, so that a captured step is of any; a large one
    is kept in place.

    Args:
        edges: its edges; `FREE` and `DEAD` have none.
        starts: the state of each sentence before its first token, or of all sentences.
        label: for messages and signatures.
        finishes: whether an output must end to be allowed; one cut at max_length is then refused.
        large: whether it is kept in place.
        decided: allowed tokens after which an output satisfies it.
    """

    masks = True

    def __init__(
        self,
        edges: Edges,
        starts: Sequence[int] | int,
        label: str,
        finishes: bool = False,
        large: bool = False,
        decided: int = sys.maxsize,
    ) -> None:
        self.tables = Tables.of(edges, int if large else bucket)
        self.largest, self.starts, self.large = int(edges.tokens.max(initial=0)), starts, large
        self.finishes, self.judges = finishes, not finishes
        self._label, self.decided = label, decided
        self._on: dict[torch.device, Tables] = {}

    @property
    def label(self) -> str:
        return self._label

    def key(self) -> Any:
        return id(self) if self.large else (Automaton, self.finishes)

    def start(self, model: Any, source: Any) -> Followed:
        starts = [self.starts] * len(source) if isinstance(self.starts, int) else self.starts
        if len(starts) != len(source):
            raise InvalidInput(
                f"there are {len(starts)} prefixes for {len(source)} sentences; give one for each"
            )
        self._ensure_within(getattr(model, "vocabulary", None))
        device = device_of(model)
        tables = None if self.large else self._tables_on(device)
        return Followed(torch.tensor(starts, device=device), tables)

    def read(self, memory: Followed, tokens: Tensor) -> Followed:
        states = memory.states
        if memory.free:
            return memory
        tables = memory.tables or self._tables_on(states.device)
        read = torch.add(tokens, states, alpha=STRIDE)
        places = torch.searchsorted(tables.keys, read)
        otherwise = states.clamp(max=DEAD)  # FREE stays FREE
        found, targets = (x.index_select(0, places) for x in (tables.keys, tables.targets))
        after = torch.where(found == read, targets, otherwise)
        return memory._replace(states=after, free=after.is_cpu and not after.any())

    def select(self, memory: Followed, rows: Tensor) -> Followed:
        return memory._replace(states=memory.states.index_select(0, rows))

    def apply(self, scores: Tensor, memory: Followed, eos: int, first: bool) -> Tensor:
        if memory.free:
            return scores
        self._ensure_within(scores.shape[-1])
        tables = memory.tables or self._tables_on(scores.device)
        return tables.masked(scores, memory.states)

    def met(self, memory: Followed) -> Tensor:
        return memory.states == FREE

    def _tables_on(self, device: torch.device) -> Tables:
        if device not in self._on:
            self._on[device] = tree_map(lambda x: x.to(device), self.tables)
        return self._on[device]

    def _ensure_within(self, vocabulary: int | None) -> None:
        if vocabulary is not None and self.largest >= vocabulary:
            rule = f"outside the vocabulary, which has {vocabulary} tokens"
            raise InvalidInput(f"{self.label} has the token {self.largest}, {rule}")


def edges_of(triples: Sequence[Sequence[IntArray]]) -> Edges:
    """Return edges from parts (states, tokens, targets), in any order."""
    empty = (np.zeros(0, dtype=np.int64),) * 3
    states, tokens, targets = (
        np.concatenate(column) for column in zip(empty, *triples, strict=True)
    )
    order = np.lexsort((tokens, states))
    return Edges(states[order], tokens[order], targets[order])


def trie_of(parts: Iterable[Sequence[Sequence[int]]], eos: int) -> Edges:
    """Return the automaton of a closed set: each sequence of tokens, and then the end token.

    Its states are the distinct prefixes, from `ROOT`, shorter ones first.

    Args:
        parts: the sequences, some at a time, so that few are lists at once.
        eos: the end token.

    Raises:
        InvalidInput: they have too many tokens, or the end token.
    """
    flat, counts = [np.zeros(0, dtype=np.int32)], [np.zeros(0, dtype=np.int64)]
    for part in parts:
        counts.append(np.fromiter(map(len, part), dtype=np.int64, count=len(part)))
        flat.append(np.fromiter(chain.from_iterable(part), np.int32, counts[-1].sum()))
    tokens, lengths = np.concatenate(flat), np.concatenate(counts)
    if (tokens == eos).any():
        raise InvalidInput(f"leave the end token {eos} out of choices; it is added")
    number, longest = len(lengths), int(lengths.max(initial=0)) + 1
    if number * longest > MAX_TOKENS:
        rule = f"have at most {MAX_TOKENS:,} tokens, each padded to the longest"
        raise InvalidInput(f"choices must {rule}; there are {number:,} of up to {longest}")
    table = np.full((number, longest), -1, dtype=np.int32)
    table[np.arange(longest) < lengths[:, None]] = tokens
    table[np.arange(number), lengths] = eos
    table = table[argsort_rows(table + 1)]
    states, begins, edges = ROOT, np.zeros(number, dtype=bool), []
    begins[:1] = True
    node = np.full(number, ROOT)
    for column in table.T:
        begins = begins | run_starts(column)
        starts = begins & (column >= 0)
        after = states + np.cumsum(starts)
        edges.append((node[starts], column[starts].astype(np.int64), after[starts]))
        node, states = np.where(column >= 0, after, DEAD), states + int(starts.sum())
    return edges_of(edges)
