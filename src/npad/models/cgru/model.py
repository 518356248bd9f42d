"""The translation model of the paper's experiments (Cho, 2016, section 5, after dl4mt-tutorial's session 2).

A bidirectional encoder gives each source symbol an annotation h_i; the decoder is a conditional GRU,

    s'_j = GRU₁(E[y_{j−1}], s_{j−1})        e_ij = vᵀ tanh(W s'_j + U h_i + b)        c_j = Σ_i softmax_i(e_ij) h_i
    s_j  = GRU₂(c_j, s'_j)                  logits = W_o tanh(L₁ s_j + L₂ E[y_{j−1}] + L₃ c_j + b) + b_o

with s₀ = tanh(W · mean of the annotations + b), the embedding before the first symbol zero, and a source that ends with
the end symbol. Options: LSTM cells, more layers (each above the last), the mean as a fixed c instead of attention, and
W_o tied to E (Press & Wolf, 2017).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from npad.errors import InvalidInput
from npad.model import Layout, Special, untouched
from npad.models.cgru.encoder import bidirectional
from npad.models.cgru.padding import aligned, real
from npad.models.network import LARGEST_SIZE, LARGEST_SIZES, Network
from npad.search.rows import repeat
from npad.validation import ensure_bool, ensure_choice, ensure_integer, ensure_number

CELLS: dict[str, tuple[Any, Any]] = {"gru": (nn.GRU, nn.GRUCell), "lstm": (nn.LSTM, nn.LSTMCell)}
PRESETS = {"paper": {"units": 1028, "embedding": 512}, "small": {"units": 512, "embedding": 256}}


@dataclass(frozen=True)
class AttentionState:
    """The state of an AttentionModel, one row per hypothesis."""

    hidden: Tensor  # [layers, rows, units], here and below with the padding of `aligned`
    cell: Tensor | None  # [layers, rows, units], of LSTMs
    memory: Tensor  # [sentences, length, 2 · units], the annotations, once per sentence
    keys: Tensor  # [sentences, length, 2 · units], U h_i + b, once per sentence
    mask: Tensor  # [sentences, length], true at padding
    layout: Layout
    weights: Tensor  # [rows, length], the attention of the last step


class AttentionModel(Network[AttentionState]):
    """An encoder–decoder for sequences of symbols; the source is a list of lists of symbols, without the end symbol.

    Sites: `hidden` (s_{j−1}, before the first cell, so that noise reaches the attention; all layers, or `hidden.0`),
    `cell` for LSTMs, `embedding` (E[y_{j−1}]) and `output` (the readout, before the logits).
    """

    def __init__(
        self,
        source_vocabulary: int,
        target_vocabulary: int,
        units: int = 1028,
        embedding: int = 512,
        cell: str = "gru",
        layers: int = 1,
        attention: bool = True,
        dropout: float = 0.0,
        initialisation: str = "paper",
        tied: bool = False,
        eos: int = 0,
    ) -> None:
        super().__init__()
        sizes = {"source_vocabulary": source_vocabulary, "target_vocabulary": target_vocabulary}
        sizes |= {"units": units, "embedding": embedding, "layers": layers}
        for name, size in sizes.items():
            ensure_integer(name, size, 1, LARGEST_SIZES.get(name, LARGEST_SIZE))
        sizes = {
            name: int(size) for name, size in sizes.items()
        }  # numpy's are spelt by neither torch nor JSON
        source_vocabulary, target_vocabulary, units, embedding, layers = sizes.values()
        ensure_bool("attention", attention)
        ensure_bool("tied", tied)
        ensure_integer("eos", eos)
        ensure_choice("cell", cell, tuple(CELLS))
        ensure_choice("initialisation", initialisation, ("paper", "glorot", "none"))
        ensure_number("dropout", dropout, minimum=0, below=1)
        dropout, eos = float(dropout), int(eos)
        # what it takes to build another of its kind
        self.options = sizes | {
            "cell": cell,
            "attention": attention,
            "dropout": dropout,
            "tied": tied,
            "eos": eos,
        }
        if not 0 <= eos < min(source_vocabulary, target_vocabulary):
            raise InvalidInput(f"eos must be a symbol of both vocabularies, not {eos}")
        self.special = Special(bos=target_vocabulary, eos=eos, pad=target_vocabulary)
        self.units, self.layers, self.attends, self.has_cell = (
            units,
            layers,
            attention,
            cell == "lstm",
        )
        self.width = aligned(units)
        width, both = self.width, 2 * self.width

        network, one_step = CELLS[cell]
        self.source_embedding = nn.Embedding(source_vocabulary, embedding)
        self.encoder = network(embedding, width, layers, batch_first=True, bidirectional=True)
        self.initial = nn.Linear(both, layers * width)
        self.target_embedding = nn.Embedding(target_vocabulary, embedding)
        self.first = one_step(embedding, width)
        self.second = one_step(both, width)
        self.above = nn.ModuleList(one_step(width, width) for _ in range(layers - 1))
        if attention:
            self.query = nn.Linear(width, both, bias=False)
            self.key = nn.Linear(both, both)
            self.energy = nn.Linear(both, 1, bias=False)
        self.readout = nn.Linear(width + embedding + both, embedding)
        self.logits = nn.Linear(embedding, target_vocabulary)
        self.drop = nn.Dropout(dropout)
        if tied:
            self.logits.weight = self.target_embedding.weight
        if initialisation != "none":  # as where weights are about to be loaded
            self.initialise(initialisation)

        recurrent = ("hidden", "cell") if self.has_cell else ("hidden",)
        self.sites = dict.fromkeys(recurrent, layers * units)
        self.sites |= {f"{site}.{layer}": units for site in recurrent for layer in range(layers)}
        self.sites |= {"embedding": embedding, "output": embedding}

    @classmethod
    def preset(
        cls, name: str, source_vocabulary: int, target_vocabulary: int, **changes: Any
    ) -> Self:
        """`paper` (1028 units, 512-dimensional embeddings) or `small` (512 and 256)."""
        ensure_choice("preset", name, tuple(PRESETS))
        return cls(source_vocabulary, target_vocabulary, **(PRESETS[name] | changes))

    @torch.no_grad()
    def initialise(self, how: str = "paper") -> None:
        """Square recurrent matrices orthogonal, each gate's on its own, and the attention's; biases zero.

        The others are 0.01·N(0, 1) with `paper`, which learns nothing for long on little data; with `glorot` embeddings
        are N(0, 1) and matrices Glorot's.
        """
        for name, parameter in self.named_parameters():
            kind, places = name.rsplit(".", 1)[-1], self._places(name, parameter)
            new = parameter.new_zeros([len(each) for each in places])
            if kind.startswith("bias"):
                pass
            elif kind.startswith("weight_hh"):
                for gate in new.chunk(len(new) // self.units):
                    nn.init.orthogonal_(gate)
            elif name == "key.weight":
                nn.init.orthogonal_(new)
            elif how == "paper":
                nn.init.normal_(new, std=0.01)
            elif "embedding" in name:
                nn.init.normal_(
                    new, std=new.shape[1] ** -0.5 if parameter is self.logits.weight else 1.0
                )
            else:
                nn.init.xavier_uniform_(new)
            parameter.zero_()
            parameter[torch.meshgrid(*places, indexing="ij")] = new

    def _places(self, name: str, parameter: Tensor) -> list[Tensor]:
        """Of each dimension of a parameter, the places that are not padding."""
        gates = 4 if self.has_cell else 3
        inputs = {"encoder": 0 if "_l0" in name else 2, "first": 0, "second": 2, "above": 1}
        blocks = {
            cell: (gates, 1 if "_hh" in name else columns) for cell, columns in inputs.items()
        }  # of units
        blocks |= {
            "initial": (self.layers, 2),
            "query": (2, 1),
            "key": (2, 2),
            "energy": (0, 2),
            "readout": (0, 3),
        }
        sizes = zip(
            parameter.shape, blocks.get(name.split(".")[0], (0, 0)), strict=False
        )  # a bias has the first alone
        return [
            real(size, each, self.units, self.width).to(parameter.device) for size, each in sizes
        ]

    def size(self) -> int:
        """How many numbers were learnt."""
        names = self.named_parameters()
        return sum(
            math.prod(len(each) for each in self._places(name, parameter))
            for name, parameter in names
        )

    def start(self, source: Sequence[Sequence[int]]) -> AttentionState:
        return self.begin_exactly(*self.padded(source))

    def padded(self, source: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor | None]:
        """A source as `begin` takes it."""
        most, eos = self.source_embedding.num_embeddings, self.special.eos
        for i, sentence in enumerate(source):
            given: Sequence[Any] = sentence
            if not all(
                isinstance(symbol, Integral) and 0 <= int(symbol) < most for symbol in given
            ):
                raise InvalidInput(
                    f"sentence {i} must be a list of symbols from 0 to {most - 1}, not {sentence!r}"
                )
        longest = max(map(len, source), default=0) + 1
        rows = [[*map(int, sentence), *[eos] * (longest - len(sentence))] for sentence in source]
        symbols = (
            torch.tensor(rows, dtype=torch.long)
            .view(-1, longest)
            .to(self.source_embedding.weight.device)
        )
        lengths = torch.tensor([len(sentence) + 1 for sentence in source])
        return symbols, None if bool((lengths == longest).all()) else lengths

    def begin(self, symbols: Tensor, lengths: Tensor | None) -> AttentionState:
        """The state before the first symbol, of sources [sentences, length] with their end symbols, padded.

        lengths [sentences], end symbols included, are on the CPU; None: all are as long.
        """
        return self._begun(self._annotated(self._source(symbols), lengths), lengths)

    def begin_exactly(self, symbols: Tensor, lengths: Tensor | None) -> AttentionState:
        """As `begin`, with all digits of float32: on a GPU without cuDNN, which computes in TF32."""
        embedded = self._source(symbols)
        encode = partial(bidirectional, self.encoder) if embedded.is_cuda else self._annotated
        return self._begun(encode(embedded, lengths), lengths)

    def _source(self, symbols: Tensor) -> Tensor:
        return self.drop(self.source_embedding(symbols))  # type: ignore[no-any-return]

    def _annotated(self, embedded: Tensor, lengths: Tensor | None) -> Tensor:
        """The annotations [sentences, length, 2 · units], zero at padding."""
        if lengths is None:
            memory: Tensor = self.encoder(embedded)[0]
            return memory.contiguous()  # else products with it are one a sentence
        packed = pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
        longest = embedded.shape[1]
        return pad_packed_sequence(self.encoder(packed)[0], batch_first=True, total_length=longest)[
            0
        ]

    def _begun(self, memory: Tensor, lengths: Tensor | None) -> AttentionState:
        """The state before the first symbol, of annotations."""
        sentences, longest, _ = memory.shape
        if lengths is None:
            mask = torch.zeros(sentences, longest, dtype=torch.bool, device=memory.device)
            mean = memory.mean(1)
        else:
            lengths = lengths.to(memory.device, non_blocking=True)
            mask = torch.arange(longest, device=memory.device) >= lengths[:, None]
            mean = memory.sum(1) / lengths[:, None]  # memory is zero at padding
        hidden = (
            torch.tanh(self.initial(mean)).view(sentences, self.layers, self.width).transpose(0, 1)
        )
        cell = torch.zeros_like(hidden) if self.has_cell else None
        if self.attends:
            keys = self.key(memory)
        else:  # a source of one symbol, its mean
            memory, mask = mean[:, None], mask[:, :1]
            keys = memory
        weights = memory.new_zeros(sentences, memory.shape[1])
        return AttentionState(hidden, cell, memory, keys, mask, Layout(sentences, 1), weights)

    def select(self, state: AttentionState, rows: Tensor) -> AttentionState:
        layout, left = state.layout.after(rows)
        chosen = replace(
            state,
            hidden=state.hidden[:, rows],
            cell=None if state.cell is None else state.cell[:, rows],
            layout=layout,
            weights=state.weights[rows],
        )
        if left is None:
            return chosen
        return replace(
            chosen, memory=state.memory[left], keys=state.keys[left], mask=state.mask[left]
        )

    def attention(self, state: AttentionState) -> Tensor:
        """[rows, source length], of the last step; the end symbol of the source is its last position."""
        return state.weights

    def transition(
        self, state: AttentionState, tokens: Tensor, perturb: Any
    ) -> tuple[Tensor, AttentionState]:
        """One symbol read: the readout [rows, embedding], and the state after."""
        x = perturb("embedding", self._embedded(tokens))
        state, context = self._recur(state, x, perturb)
        return perturb("output", self._readout(state.hidden[-1], x, context)), state

    def features(
        self,
        state: AttentionState,
        tokens: Tensor,
        perturb: Callable[[int], Any] = lambda step: untouched,
    ) -> Tensor:
        """As step by step, with what no step waits for done for all at once: embeddings and readout."""
        steps = [perturb(t + 1) for t in range(tokens.shape[1])]
        embedded = self.drop(self._embedded(tokens)).unbind(1)
        inputs = [one("embedding", x) for one, x in zip(steps, embedded, strict=True)]
        hidden, contexts = [], []
        for one, x in zip(steps, inputs, strict=True):
            state, context = self._recur(state, x, one)
            hidden.append(state.hidden[-1])
            contexts.append(context)
        readout = self._readout(*(torch.stack(each, 1) for each in (hidden, inputs, contexts)))
        readout = torch.stack(
            [one("output", x) for one, x in zip(steps, readout.unbind(1), strict=True)], 1
        )
        return self.drop(readout)  # type: ignore[no-any-return]

    def _embedded(self, tokens: Tensor) -> Tensor:
        """E[y], zero for the begin symbol: [..., embedding]."""
        known = tokens.clamp(max=self.logits.out_features - 1)
        return self.target_embedding(known).masked_fill((tokens == self.special.bos)[..., None], 0)  # type: ignore[no-any-return]

    def _readout(self, hidden: Tensor, x: Tensor, context: Tensor) -> Tensor:
        return torch.tanh(self.readout(torch.cat([hidden, x, context], -1)))

    def _recur(
        self, state: AttentionState, x: Tensor, perturb: Any
    ) -> tuple[AttentionState, Tensor]:
        """The recurrence: from E[y_{j−1}] and s_{j−1} to s_j, by way of the context c_j [rows, 2 · units]."""
        old = [
            self._perturbed(perturb, f"hidden.{layer}", h) for layer, h in enumerate(state.hidden)
        ]
        within = () if state.cell is None else state.cell
        cells = [self._perturbed(perturb, f"cell.{layer}", c) for layer, c in enumerate(within)]
        between = self.first(x, (old[0], cells[0]) if cells else old[0])
        context, weights = self._attend(state, between[0] if cells else between)
        new = [self.second(context, between)]
        for layer, above in enumerate(self.above, start=1):
            below = new[-1][0] if cells else new[-1]
            new.append(above(below, (old[layer], cells[layer]) if cells else old[layer]))
        hidden = torch.stack([one[0] if cells else one for one in new])
        cell = torch.stack([one[1] for one in new]) if cells else None
        return replace(state, hidden=hidden, cell=cell, weights=weights), context

    def _perturbed(self, perturb: Any, site: str, x: Tensor) -> Tensor:
        """Noise for the units, none for their padding: [rows, width]."""
        if perturb is untouched or self.units == self.width:
            return perturb(site, x)  # type: ignore[no-any-return]
        return F.pad(perturb(site, x[:, : self.units]), (0, self.width - self.units))

    def _attend(self, state: AttentionState, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The context [rows, 2 · units] and its weights [rows, length], for all rows of a sentence in one product."""
        sentences, each = state.layout
        if not self.attends:
            rows = repeat(sentences, each, hidden.device)
            return state.memory[rows, 0], state.weights.new_ones(len(rows), 1)
        query = self.query(hidden).view(sentences, each, 1, -1)
        energy = self.energy(torch.tanh(query + state.keys[:, None])).squeeze(
            -1
        )  # [sentences, each, length]
        weights = F.softmax(energy.masked_fill(state.mask[:, None], -torch.inf), -1)
        return (weights @ state.memory).flatten(0, 1), weights.flatten(0, 1)
