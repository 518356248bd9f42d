"""Recurrent language models (Cho, 2016, section 2), with or without a summary of an input.

h_t = φ(h_{t−1}, E[x_t], f(Y)) and p = softmax g(h_t, f(Y)), where φ is a tanh RNN, a GRU or an
LSTM of any number of layers, and f(Y) is a fixed vector that summarises the input Y.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from npad.errors import InvalidInput
from npad.model import Special
from npad.models.network import MAX_SIZE, MAX_SIZES, Network
from npad.rows import repeat
from npad.validation import as_list, brief, ensure_choice, ensure_integer

CELLS: dict[str, Callable[[int, int], nn.Module]] = {
    "rnn": nn.RNNCell,
    "gru": nn.GRUCell,
    "lstm": nn.LSTMCell,
}
SPECIAL = Special(bos=0, eos=1, pad=0)
PLACES = ("initial", "input", "output")  # where f(Y) may enter


@dataclass(frozen=True)
class RecurrentState:
    """The state of a recurrent language model, one row per hypothesis."""

    hidden: Tensor  # [layers, rows, hidden]
    cell: Tensor | None  # [layers, rows, hidden], of an LSTM
    summary: Tensor  # [sentences, summary], once per sentence
    sentence: Tensor  # [rows], the row's sentence


class RecurrentLM(Network[RecurrentState]):
    """A recurrent language model, unconditional or conditioned on a summary vector.

    The source is a tensor [sentences, summary]; without a summary, anything that has a length.

    Sites: `hidden` (h_{t−1}, all layers; `hidden.0` for one), `cell` for the LSTM, `embedding`
    (E[x_t]), and `output` (the readout tanh(W h + U f), before the logits).

    Args:
        vocabulary: number of tokens.
        embedding: width of the embeddings and of the readout.
        hidden: units of a layer.
        cell: "rnn", "gru" or "lstm".
        layers: number of layers.
        summary: width of f(Y), or 0.
        condition: where f(Y) enters: any of "initial" (the state before the first token), "input"
            (of every step) and "output" (the readout).
        special: begin, end and padding tokens.

    Raises:
        InvalidInput: an argument is out of range.
    """

    def __init__(
        self,
        vocabulary: int,
        embedding: int = 512,
        hidden: int = 1024,
        cell: str = "gru",
        layers: int = 1,
        summary: int = 0,
        condition: Collection[str] = PLACES,
        special: Special = SPECIAL,
    ) -> None:
        super().__init__()
        for name, size in {
            "vocabulary": vocabulary,
            "embedding": embedding,
            "hidden": hidden,
            "layers": layers,
        }.items():
            ensure_integer(name, size, 1, MAX_SIZES.get(name, MAX_SIZE))
        ensure_integer("summary", summary, 0, MAX_SIZE)
        ensure_choice("cell", cell, tuple(CELLS))
        condition = (
            (condition,)
            if isinstance(condition, str)
            else as_list("condition", condition, "a list of places")
        )
        for place in condition:
            ensure_choice("condition", place, PLACES)
        if not isinstance(special, Special):
            raise InvalidInput(f"special must be npad.Special(bos, eos, pad), not {brief(special)}")
        for role, token in special._asdict().items():
            ensure_integer(role, token)
        if not 0 <= special.eos < vocabulary or not 0 <= special.bos < vocabulary:
            raise InvalidInput(
                f"bos and eos must be among the {vocabulary} tokens, "
                f"not {special.bos} and {special.eos}"
            )
        self.special = special
        self.summary, self.condition = summary, frozenset(condition if summary else ())
        self.layers, self.hidden, self.has_cell = layers, hidden, cell == "lstm"

        self.embedding = nn.Embedding(vocabulary, embedding)
        inputs = embedding + (summary if "input" in self.condition else 0)
        self.cells = nn.ModuleList(
            CELLS[cell](hidden if layer else inputs, hidden) for layer in range(layers)
        )
        if "initial" in self.condition:
            self.initial = nn.Linear(summary, layers * hidden)
        self.readout = nn.Linear(hidden + (summary if "output" in self.condition else 0), embedding)
        self.logits = nn.Linear(embedding, vocabulary)

        recurrent = ("hidden", "cell") if self.has_cell else ("hidden",)
        self.sites = dict.fromkeys(recurrent, layers * hidden)
        self.sites |= {f"{site}.{layer}": hidden for site in recurrent for layer in range(layers)}
        self.sites |= {"embedding": embedding, "output": embedding}

    def start(self, source: Any) -> RecurrentState:
        weight = self.embedding.weight
        sentences = len(source)
        if not self.summary:
            summary = weight.new_zeros(sentences, 0)
        elif isinstance(source, Tensor) and source.dim() == 2 and source.shape[1] == self.summary:
            summary = source.to(weight)
        else:
            kind = list(source.shape) if isinstance(source, Tensor) else type(source).__name__
            raise InvalidInput(
                f"the source must be a tensor [sentences, {self.summary}] of summaries, not {kind}"
            )
        hidden = weight.new_zeros(self.layers, sentences, self.hidden)
        if "initial" in self.condition:
            initial = torch.tanh(self.initial(summary))
            hidden = initial.view(sentences, self.layers, self.hidden).transpose(0, 1)
        cell = torch.zeros_like(hidden) if self.has_cell else None
        return RecurrentState(hidden, cell, summary, repeat(sentences, 1, weight.device))

    def select(self, state: RecurrentState, rows: Tensor) -> RecurrentState:
        return replace(
            state,
            hidden=state.hidden[:, rows],
            cell=None if state.cell is None else state.cell[:, rows],
            sentence=state.sentence[rows],
        )

    def transition(
        self, state: RecurrentState, tokens: Tensor, perturb: Any
    ) -> tuple[Tensor, RecurrentState]:
        """Read one token per row: return the readout [rows, embedding] and the next state."""
        summary = state.summary[state.sentence]
        x = perturb("embedding", self.embedding(tokens))
        if "input" in self.condition:
            x = torch.cat([x, summary], 1)
        hiddens, cells = [], []
        for layer, step in enumerate(self.cells):
            h = perturb(f"hidden.{layer}", state.hidden[layer])  # before the transition
            if state.cell is None:
                x = step(x, h)
            else:
                x, c = step(x, (h, perturb(f"cell.{layer}", state.cell[layer])))
                cells.append(c)
            hiddens.append(x)
        if "output" in self.condition:
            x = torch.cat([x, summary], 1)
        readout = perturb("output", torch.tanh(self.readout(x)))
        cell = torch.stack(cells) if cells else None
        return readout, replace(state, hidden=torch.stack(hiddens), cell=cell)
