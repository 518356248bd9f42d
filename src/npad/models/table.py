"""A model given by explicit probability tables: for proofs, teaching and tests of decoders."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor

from npad.engine.cost import add_calls
from npad.errors import InvalidInput
from npad.hypotheses import Hypothesis
from npad.model import Perturb, Special
from npad.validation import MAX_SEED, brief, ensure_integer

History = tuple[int, ...]
Table = Mapping[History, Sequence[float]]
MAX_RANDOM_PROBABILITIES = 10**8  # of `TableModel.random`: a few gigabytes of Python floats


@dataclass(frozen=True)
class TableState:
    """The state of a TableModel, one row per hypothesis."""

    node: Tensor  # [rows], the history read so far, as a row of the tables
    drift: Tensor | None  # [rows, nodes], h less the one-hot of that history; None without noise


class TableModel:
    """A model that looks up p(next token | source, history) in tables.

    The source is a sequence of keys of `tables`. The begin token is the first number past the
    vocabulary.

    The model is also a linear recurrent network, so that noise has a hidden state to enter: h is
    the one-hot of the history, a transition moves every unit to the history one token longer, and
    the logits are the log-probabilities weighted by h. Without noise they are the table's, exactly;
    noise mixes in other histories.

    Args:
        tables: source key → history → probabilities of all tokens. A history that is not listed
            ends at once.
        eos: the end token.
        dtype: of the logits.
        name: for messages and signatures.

    Raises:
        InvalidInput: a table lacks the empty history, or a row is not a distribution of its size.
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
            name_of_row = f"tables[{brief(key)}][{brief(history)}]"
            _check_row(name_of_row, tables[key][history], self.vocabulary)
        if not 0 <= eos < self.vocabulary:
            raise InvalidInput(f"eos must be one of the {self.vocabulary} tokens, not {eos}")
        self.special = Special(bos=self.vocabulary, eos=eos, pad=self.vocabulary)

        # One node per listed history of each source, and a last one for all that end at once.
        self._node = {row: node for node, row in enumerate(rows)}
        ended = len(rows)
        p = [list(tables[key][history]) for key, history in rows] + [_one_hot(eos, self.vocabulary)]
        self._log_p = torch.tensor(p, dtype=torch.float64).log().to(dtype)
        centred = self._log_p.clamp(min=-10)
        self._weights = centred - centred.mean(1, keepdim=True)
        self._weights[ended] = 0  # noise that reaches an ended history has no effect
        self._next = torch.full((ended + 1, self.vocabulary + 1), ended)
        self._next[:, self.special.bos] = torch.arange(ended + 1)
        for (key, history), node in self._node.items():
            if history and (key, history[:-1]) in self._node:
                self._next[self._node[key, history[:-1]], history[-1]] = node
        self.sites = {"hidden": ended + 1, "output": self.vocabulary}

    @classmethod
    def random(
        cls,
        vocabulary: int,
        depth: int,
        seed: int = 0,
        sentences: int = 1,
        dtype: torch.dtype = torch.float32,
    ) -> TableModel:
        """Build a model of random tables, one row for every history of fewer than `depth` tokens.

        Args:
            vocabulary: number of tokens; token 0 ends.
            depth: longest output, the end token not counted.
            seed: of the probabilities.
            sentences: number of tables; the sources are 0, 1, …
            dtype: of the logits.

        Raises:
            InvalidInput: an argument is out of range, or the tables would be too large.
        """
        ensure_integer("vocabulary", vocabulary, 1)
        ensure_integer("depth", depth, 1)
        ensure_integer("sentences", sentences, 1)
        ensure_integer("seed", seed, maximum=MAX_SEED)
        _check_size(vocabulary, depth, sentences)
        generator = random.Random(int(seed))
        tables: dict[Hashable, Table] = {}
        for sentence in range(sentences):
            table: dict[History, Sequence[float]] = {}
            level: list[History] = [()]
            for _ in range(depth):
                for history in level:
                    weights = [generator.expovariate(1) for _ in range(vocabulary)]
                    table[history] = [weight / sum(weights) for weight in weights]
                level = [(*history, token) for history in level for token in range(1, vocabulary)]
            tables[sentence] = table
        return cls(tables, eos=0, dtype=dtype)

    def start(self, source: Sequence[Hashable]) -> TableState:
        for key in source:
            if not isinstance(key, Hashable) or key not in self.tables:
                keys = ", ".join(map(brief, self.tables))
                raise InvalidInput(f"{self.name} has no table for {brief(key)}; it has {keys}")
        nodes = torch.tensor([self._node[key, ()] for key in source], dtype=torch.long)
        return TableState(nodes, None)

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

    transient_sites = frozenset({"output"})

    def step_shared(
        self,
        state: TableState,
        parents: Tensor,
        owners: Tensor,
        tokens: Tensor,
        rows: Tensor,
        perturb: Perturb,
    ) -> tuple[Tensor, TableState]:
        """Look up one row per prefix, and perturb the logits of each row."""
        add_calls(search=len(tokens))
        logits, state = self.step(self.select(state, parents), tokens)
        return perturb("output", logits[rows]), state

    def _perturbed(self, state: TableState, perturb: Perturb) -> Tensor:
        """Return h with noise, less its one-hot: kept apart so that clean logits are exact."""
        one_hot = torch.zeros(len(state.node), len(self._log_p), dtype=self._log_p.dtype)
        one_hot = one_hot.scatter(1, state.node[:, None], 1)
        h = one_hot if state.drift is None else one_hot + state.drift
        return perturb("hidden", h) - one_hot

    def select(self, state: TableState, rows: Tensor) -> TableState:
        return TableState(state.node[rows], None if state.drift is None else state.drift[rows])

    def outputs(self, key: Hashable, max_length: int) -> Iterator[Hypothesis]:
        """Yield every possible output of at most `max_length` tokens, the end token counted."""
        table, eos = self.tables[key], self.special.eos
        stack: list[tuple[History, float]] = [((), 0.0)]
        while stack:
            history, history_log_prob = stack.pop()
            row = table.get(history, _one_hot(eos, self.vocabulary))
            p = torch.tensor(row, dtype=torch.float64)
            for token in p.nonzero().flatten().tolist():
                log_prob = history_log_prob + p[token].log().item()
                if token == eos:
                    yield Hypothesis(history, log_prob, True)
                elif len(history) + 1 == max_length:
                    yield Hypothesis((*history, token), log_prob, False)
                else:
                    stack.append(((*history, token), log_prob))

    def best(self, key: Hashable, max_length: int) -> Hypothesis:
        """Return the best output in the order (finished, log_prob)."""
        return max(
            self.outputs(key, max_length), key=lambda output: (output.finished, output.log_prob)
        )


def _one_hot(token: int, vocabulary: int) -> list[float]:
    return [float(i == token) for i in range(vocabulary)]


def _check_tables(tables: object) -> None:
    """Require tables by source, histories as tuples, and probabilities as sequences."""
    if not isinstance(tables, Mapping) or not tables or not all(tables.values()):
        raise InvalidInput(
            "tables must hold at least one source, and each source at least the empty history ()"
        )
    for key, table in tables.items():
        name = f"tables[{brief(key)}]"
        if not isinstance(table, Mapping):
            raise InvalidInput(f"{name} must map histories to probabilities, not be {brief(table)}")
        if () not in table:
            raise InvalidInput(f"{name} has no probabilities for the empty history ()")
        for history, p in table.items():
            if not isinstance(history, tuple) or not isinstance(p, Sequence):
                rule = "histories must be tuples of tokens, and probabilities lists of numbers"
                raise InvalidInput(f"{rule}, not {brief(history)} and {brief(p)}")


def _check_size(vocabulary: int, depth: int, sentences: int) -> None:
    """Refuse random tables that are too large for memory."""
    histories = depth if vocabulary <= 2 else (vocabulary - 1) ** min(depth - 1, 64)
    if histories * vocabulary * sentences > MAX_RANDOM_PROBABILITIES:
        raise InvalidInput(
            f"{vocabulary} tokens and a depth of {depth} make more than "
            f"{MAX_RANDOM_PROBABILITIES:,} probabilities; lower them"
        )


def _check_row(name: str, p: Sequence[float], vocabulary: int) -> None:
    """Require a distribution over the vocabulary."""
    if len(p) != vocabulary:
        raise InvalidInput(f"{name} has {len(p)} probabilities; all must have {vocabulary}")
    values: Sequence[object] = p
    if (
        not all(isinstance(x, Real) and float(x) >= 0 for x in values)
        or not abs(sum(p) - 1) <= 1e-6
    ):
        raise InvalidInput(f"{name} must be probabilities that add up to 1, not {brief(list(p))}")
