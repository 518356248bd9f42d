"""A model whose whole distribution is written down: for proofs, for teaching, for trying a decoder by hand."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import NamedTuple

import torch
from torch import Tensor

from npad.errors import InvalidInput
from npad.model import Perturb, Special
from npad.validation import MAX_SEED, brief, ensure_integer

History = tuple[int, ...]
Table = Mapping[History, Sequence[float]]
LARGEST_TABLE = 10**8  # probabilities of random tables, some gigabytes of Python numbers


class Output(NamedTuple):
    """One possible output and its exact log-probability, the end symbol included if finished."""

    tokens: History
    log_prob: float
    finished: bool


@dataclass(frozen=True)
class TableState:
    """The state of a TableModel, one row per hypothesis."""

    node: Tensor  # [rows], the history read so far, as a row of the tables
    drift: (
        Tensor | None
    )  # [rows, nodes], how far noise has moved h from the one-hot of that history


class TableModel:
    """p(next symbol | everything before), given by tables: for each source, history → probabilities of all symbols.

    A history that no table lists ends at once. Symbol `eos` ends; the begin symbol is the first number past the
    vocabulary. The source is a sequence of the keys of `tables`.

    The model is also a linear recurrent network, so that noise has a hidden state to enter: h is the one-hot of the
    history, a transition moves every unit to the history that reads one symbol more, and the logits are the
    log-probabilities weighed by h. Without noise that is the table, exactly; with it, other histories mix in.
    """

    def __init__(
        self,
        tables: Mapping[Hashable, Table],
        eos: int = 0,
        dtype: torch.dtype = torch.float32,
        name: str = "TableModel",
    ) -> None:
        _check_tables(tables)
        ensure_integer("eos", eos)
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise InvalidInput(
                f"dtype must be a floating-point type, such as torch.float64, not {brief(dtype)}"
            )
        self.tables, self.name = tables, name
        rows = [(key, history) for key, table in tables.items() for history in table]
        self.vocabulary = len(tables[rows[0][0]][rows[0][1]])
        for key, history in rows:
            _check(tables[key][history], self.vocabulary, f"tables[{brief(key)}][{brief(history)}]")
        if not 0 <= eos < self.vocabulary:
            raise InvalidInput(f"eos must be one of the {self.vocabulary} symbols, not {eos}")
        self.special = Special(bos=self.vocabulary, eos=eos, pad=self.vocabulary)

        # One row of the arrays per listed history of each source, and a last one for those that end at once.
        self._place = {where: place for place, where in enumerate(rows)}
        over = len(rows)
        p = [list(tables[key][history]) for key, history in rows] + [_one_hot(eos, self.vocabulary)]
        self._log_p = torch.tensor(p, dtype=torch.float64).log().to(dtype)
        centred = self._log_p.clamp(min=-10)
        self._weights = centred - centred.mean(1, keepdim=True)
        self._weights[over] = 0  # what noise makes of histories that are over is lost
        self._next = torch.full((over + 1, self.vocabulary + 1), over)
        self._next[:, self.special.bos] = torch.arange(over + 1)
        for (key, history), place in self._place.items():
            if history and (key, history[:-1]) in self._place:
                self._next[self._place[key, history[:-1]], history[-1]] = place
        self.sites = {"hidden": over + 1, "output": self.vocabulary}

    @classmethod
    def random(
        cls,
        vocabulary: int,
        depth: int,
        seed: int = 0,
        sentences: int = 1,
        dtype: torch.dtype = torch.float32,
    ) -> TableModel:
        """Tables of random probabilities for every history of fewer than `depth` symbols; sources are 0, 1, …"""
        ensure_integer("vocabulary", vocabulary, 1)
        ensure_integer("depth", depth, 1)
        ensure_integer("sentences", sentences, 1)
        ensure_integer("seed", seed, maximum=MAX_SEED)
        _check_size(vocabulary, depth, sentences)
        source = random.Random(int(seed))
        tables: dict[Hashable, Table] = {}
        for sentence in range(sentences):
            table: dict[History, Sequence[float]] = {}
            level: list[History] = [()]
            for _ in range(depth):
                for history in level:
                    weights = [source.expovariate(1) for _ in range(vocabulary)]
                    table[history] = [weight / sum(weights) for weight in weights]
                level = [(*history, symbol) for history in level for symbol in range(1, vocabulary)]
            tables[sentence] = table
        return cls(tables, eos=0, dtype=dtype)

    def start(self, source: Sequence[Hashable]) -> TableState:
        for key in source:
            if not isinstance(key, Hashable) or key not in self.tables:
                known = ", ".join(map(brief, self.tables))
                raise InvalidInput(f"{self.name} has no table for {brief(key)}; it has {known}")
        return TableState(
            torch.tensor([self._place[key, ()] for key in source], dtype=torch.long), None
        )

    def step(
        self, state: TableState, tokens: Tensor, perturb: Perturb | None = None
    ) -> tuple[Tensor, TableState]:
        node, drift = self._next[state.node, tokens], state.drift
        if perturb is not None:
            drift = self._perturbed(state, perturb)
        if drift is not None:
            drift = torch.zeros_like(drift).scatter_add(1, self._next[:, tokens].T, drift)
        logits = self._log_p[node]
        if drift is not None:
            logits = logits + drift @ self._weights
        if perturb is not None:
            logits = perturb("output", logits)
        return logits, TableState(node, drift)

    def _perturbed(self, state: TableState, perturb: Perturb) -> Tensor:
        """The noise on h, kept apart from its one-hot so that what is clean stays exact."""
        one_hot = torch.zeros(len(state.node), len(self._log_p), dtype=self._log_p.dtype)
        one_hot = one_hot.scatter(1, state.node[:, None], 1)
        h = one_hot if state.drift is None else one_hot + state.drift
        return perturb("hidden", h) - one_hot

    def select(self, state: TableState, rows: Tensor) -> TableState:
        return TableState(state.node[rows], None if state.drift is None else state.drift[rows])

    def outputs(self, key: Hashable, max_length: int) -> Iterator[Output]:
        """Every output of positive probability with at most max_length symbols, the end symbol counted."""
        table, eos = self.tables[key], self.special.eos
        stack: list[tuple[History, float]] = [((), 0.0)]
        while stack:
            history, so_far = stack.pop()
            p = torch.tensor(
                table.get(history, _one_hot(eos, self.vocabulary)), dtype=torch.float64
            )
            for symbol in p.nonzero().flatten().tolist():
                log_prob = so_far + p[symbol].log().item()
                if symbol == eos:
                    yield Output(history, log_prob, True)
                elif len(history) + 1 == max_length:
                    yield Output((*history, symbol), log_prob, False)
                else:
                    stack.append(((*history, symbol), log_prob))

    def best(self, key: Hashable, max_length: int) -> Output:
        """The best output in the order (finished, log_prob)."""
        return max(
            self.outputs(key, max_length), key=lambda output: (output.finished, output.log_prob)
        )


def _one_hot(symbol: int, vocabulary: int) -> list[float]:
    return [float(i == symbol) for i in range(vocabulary)]


def _at_least_zero(x: object) -> bool:
    return isinstance(x, Real) and float(x) >= 0


def _check_tables(tables: object) -> None:
    """Require tables by source, histories as tuples, and probabilities as sequences."""
    if not isinstance(tables, Mapping) or not tables or not all(tables.values()):
        raise InvalidInput(
            "tables must hold at least one source, and each source at least the empty history ()"
        )
    for key, table in tables.items():
        if not isinstance(table, Mapping):
            raise InvalidInput(
                f"tables[{brief(key)}] must map histories to probabilities, not be {brief(table)}"
            )
        if () not in table:
            raise InvalidInput(
                f"tables[{brief(key)}] has no probabilities for the empty history ()"
            )
        for history, p in table.items():
            if not isinstance(history, tuple) or not isinstance(p, Sequence):
                rule = (
                    "histories must be tuples of symbols, and their probabilities lists of numbers"
                )
                raise InvalidInput(f"{rule}, not {brief(history)} and {brief(p)}")


def _check_size(vocabulary: int, depth: int, sentences: int) -> None:
    """Refuse random tables that no memory holds."""
    histories = depth if vocabulary <= 2 else (vocabulary - 1) ** min(depth - 1, 64)
    if histories * vocabulary * sentences > LARGEST_TABLE:
        raise InvalidInput(
            f"{vocabulary} symbols and a depth of {depth} make more than {LARGEST_TABLE:,} probabilities; lower them"
        )


def _check(p: Sequence[float], vocabulary: int, where: str) -> None:
    if len(p) != vocabulary:
        raise InvalidInput(f"{where} has {len(p)} probabilities; all must have {vocabulary}")
    if not all(map(_at_least_zero, p)) or not abs(sum(p) - 1) <= 1e-6:
        raise InvalidInput(f"{where} must be probabilities that add up to 1, not {brief(list(p))}")
