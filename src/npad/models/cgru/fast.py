"""The paper's model prepared for decoding: the same numbers from less arithmetic.

The context c_j is a weighted sum of annotations, and GRU₂ and the readout begin by multiplying it with a matrix; GRU₁
and the readout multiply E[y], of which there are as many as symbols. Hence, with W₁, W₂ the input matrices of the GRUs:

    W₂ c_j = Σ_i weight_ij (W₂ h_i)      L₃ c_j = Σ_i weight_ij (L₃ h_i)      once per sentence, not once a step
    W₁ E[y]      L₂ E[y]                                                      once per symbol, after as many were read
    W s'_j       U₂ s'_j                                                      in one product
    vᵀ tanh x = 2 vᵀ σ(2x) − Σ v                                              the last term cancels in the softmax

At 1,024 units, embeddings of 512 and 8,000 symbols the products of a step take 26 million operations a row, not 44.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from npad.engine.cuda_graphs import graphs_of
from npad.engine.pytree import tree_map
from npad.kernels import fused
from npad.model import Layout, reached, untouched
from npad.models.cgru.encoder import gru
from npad.models.cgru.linear import Product
from npad.models.cgru.model import AttentionModel
from npad.models.network import Network

LARGEST = {"cpu": 1 << 26, "cuda": 1 << 28}  # numbers in a table of W E[y]
FEW = 1024  # source symbols up to which a GPU waits for the launches of their encoding
GRID = 8  # symbols to which sources are padded on a GPU: few shapes, each of which may be captured as a graph
BLOCK = 1 << 18  # numbers of the attention at a time on a CPU, so that they stay in its cache


@dataclass(frozen=True)
class PreparedState:
    """The state of a Prepared model, one row per hypothesis."""

    hidden: Tensor  # [layers, rows, units]
    keys: Tensor  # [sentences, length, 2 · units], 2 (U h_i + b), once per sentence
    values: (
        Tensor  # [sentences, length, 3 · units + embedding], W₂ h_i and L₃ h_i, once per sentence
    )
    mask: Tensor  # [sentences, length], true at padding
    layout: Layout
    weights: Tensor  # [rows, length], the attention of the last step
    owner: Tensor | None = (
        None  # [groups], where the layout is of groups of rows, the sentence of each
    )


class Prepared(Network[PreparedState]):
    """An `AttentionModel` of GRUs as it is decoded. Some weights are copies: prepare anew what was trained further."""

    def __init__(self, model: AttentionModel) -> None:
        super().__init__()
        self.plain, self.special, self.sites, self.name = (
            model,
            model.special,
            model.sites,
            model.name,
        )
        self.width, self.above = model.width, model.above
        self.logits = Product(model.logits.weight.detach(), model.logits.bias.detach())
        first: Any = model.first
        second: Any = model.second
        parts = [model.width, model.target_embedding.embedding_dim, 2 * model.width]
        hidden, embedded, context = torch.split(model.readout.weight, parts, 1)
        none = torch.zeros_like(model.readout.bias)
        self.read = Product.stacked(
            [first.weight_ih, embedded], [first.bias_ih, model.readout.bias]
        )
        self.recur = Product.stacked([first.weight_hh], [first.bias_hh])
        query = model.query.weight
        self.between = Product.stacked(
            [2 * query, second.weight_hh], [torch.zeros_like(query[:, 0]), second.bias_hh]
        )
        self.energy = Product.stacked([2 * model.energy.weight], [])
        self.value = Product.stacked([second.weight_ih, context], [second.bias_ih, none])
        self.out = Product.stacked([hidden], [])
        self.seen = 0  # symbols read: as many as there are in all have cost what a table costs
        self.table: Tensor | None
        self.register_buffer("table", None, persistent=False)

    @property
    def capturable(self) -> bool:
        """Whether a step may be captured as a CUDA graph."""
        return fused(self.logits.weight)

    def start(self, source: Any) -> PreparedState:
        symbols, lengths = self.plain.padded(source)
        if self.capturable:
            self._tabulate()  # a captured step must not
        with graphs_of(self) as graphs:
            if graphs is None or lengths is not None or symbols.numel() > FEW:
                return self._begin(symbols, lengths)[0]
            begun: PreparedState = graphs.call(self._begin, self, "begin", symbols)[0]
            return tree_map(torch.clone, begun)

    def _begin(self, symbols: Tensor, lengths: Tensor | None = None) -> tuple[PreparedState]:
        begun = self.plain.begin_exactly(symbols, lengths)
        mask, memory, keys = begun.mask, begun.memory, begun.keys
        if self.capturable:
            more = -mask.shape[1] % GRID
            mask = F.pad(mask, (0, more), value=True)
            memory, keys = (F.pad(each, (0, 0, 0, more)) for each in (memory, keys))
        weights = memory.new_zeros(mask.shape)
        return (
            PreparedState(begun.hidden, 2 * keys, self.value(memory), mask, begun.layout, weights),
        )

    def select(self, state: PreparedState, rows: Tensor) -> PreparedState:
        layout, left = state.layout.after(rows)
        chosen = replace(
            state, hidden=state.hidden[:, rows], layout=layout, weights=state.weights[rows]
        )
        if left is None:
            return chosen
        return replace(
            chosen, keys=state.keys[left], values=state.values[left], mask=state.mask[left]
        )

    def attention(self, state: PreparedState) -> Tensor:
        longest = (
            int((~state.mask).sum(1).max()) if self.capturable else state.mask.shape[1]
        )  # without the grid's
        return state.weights[:, :longest]

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self.__dict__.pop("_graphs", None)  # which know the weights by where they lie
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def transition(
        self, state: PreparedState, tokens: Tensor, perturb: Any
    ) -> tuple[Tensor, PreparedState]:
        if reached(perturb, "embedding"):
            x = self.plain._embedded(tokens)
            noisy = perturb("embedding", x)
            read = self._read(tokens) if noisy is x else self.read(noisy)
        else:
            read = self._read(tokens)
        state, context = self._recur(state, read, perturb)
        return perturb("output", self._readout(state.hidden[-1], read, context)), state

    @property
    def vocabulary(self) -> int:
        return int(self.logits.out_features)

    def advance(
        self, state: PreparedState, parents: Tensor, owners: Tensor, tokens: Tensor
    ) -> tuple[Tensor, PreparedState]:
        """Continue rows of the state, in groups of one sentence each: readouts, and the state."""
        layout = Layout(len(owners), len(parents) // len(owners))
        state = replace(state, hidden=state.hidden[:, parents], layout=layout, owner=owners)
        read = self._read(tokens)
        state, context = self._recur(state, read, untouched)
        return self._readout(state.hidden[-1], read, context), state

    def project(self, readouts: Tensor) -> Tensor:
        """Return the logits [n, V] of readouts [n, embedding]."""
        return self.logits(readouts)  # type: ignore[no-any-return]

    def _read(self, tokens: Tensor) -> Tensor:
        """What a symbol means to GRU₁ and to the readout, biases included: [..., 3 · units + embedding]."""
        symbols = self.logits.out_features
        self.seen += tokens.numel()
        if self.seen >= symbols:
            self._tabulate()
        if self.table is None:
            return self.read(self.plain._embedded(tokens))  # type: ignore[no-any-return]
        return F.embedding(tokens.clamp(max=symbols), self.table)

    def _tabulate(self) -> None:
        size = self.logits.out_features * self.read.out_features
        if self.table is None and size <= LARGEST.get(self.read.weight.device.type, 0):
            known = self.read(self.plain.target_embedding.weight)
            self.table = torch.cat([known, self.read.bias[None]])  # type: ignore[index]  # the begin symbol's embedding is zero

    def _readout(self, hidden: Tensor, read: Tensor, context: Tensor) -> Tensor:
        gates = 3 * self.width
        return torch.tanh(self.out(hidden) + read[..., gates:] + context[..., gates:])

    def _recur(
        self, state: PreparedState, read: Tensor, perturb: Any
    ) -> tuple[PreparedState, Tensor]:
        """From s_{j−1} to s_j, and what the context means to GRU₂ and to the readout."""
        gates = 3 * self.width
        old = [
            self.plain._perturbed(perturb, f"hidden.{layer}", h)
            for layer, h in enumerate(state.hidden)
        ]
        between = gru(read[:, :gates], self.recur(old[0]), old[0])
        query, again = self.between(between).split([2 * self.width, gates], 1)
        context, weights = self._attend(state, query)
        new = [gru(context[:, :gates], again, between)]
        for layer, above in enumerate(self.above, start=1):
            new.append(above(new[-1], old[layer]))
        hidden = torch.stack(new) if len(new) > 1 else new[0][None]
        return replace(state, hidden=hidden, weights=weights), context

    def _attend(self, state: PreparedState, query: Tensor) -> tuple[Tensor, Tensor]:
        groups, each = state.layout
        query = query.view(groups, each, -1)
        if fused(query):
            from npad.kernels.attention import contexts, energies

            energy = energies(query, state.keys, self.energy.weight[0], state.mask, state.owner)
            weights = F.softmax(energy, -1).to(query.dtype)
            owner = state.owner
            context = (
                weights @ state.values if owner is None else contexts(weights, state.values, owner)
            )
        else:
            weights, context = self._attended(state, query)
        return context.flatten(0, 1), weights.flatten(0, 1)

    def _attended(self, state: PreparedState, query: Tensor) -> tuple[Tensor, Tensor]:
        """Weights [groups, each, length] and context, so much at a time as a cache holds."""
        groups, each = state.layout
        owner, size = state.owner, state.keys[0].numel()
        down = max(1, BLOCK // max(1, each * size))
        right = max(1, BLOCK // max(1, size)) if down == 1 else each
        weights, context = query.new_empty(groups, each, state.keys.shape[1]), []
        for top in range(0, groups, down):
            some = slice(top, top + down) if owner is None else owner[top : top + down]
            keys, here = state.keys[some, None], weights[top : top + down]
            for left in range(0, each, right):
                part = slice(left, left + right)
                here[:, part] = self.energy(
                    (query[top : top + down, part, None] + keys).sigmoid_()
                ).squeeze(-1)
            here.copy_(F.softmax(here.masked_fill_(state.mask[some, None], -torch.inf), -1))
            if owner is not None:
                context.append(here @ state.values[some])
        return weights, weights @ state.values if owner is None else torch.cat(context)


def prepared(model: Any) -> Any:
    """A model as it is best decoded: prepared, where that is known how."""
    can = isinstance(model, AttentionModel) and model.attends and not model.has_cell
    return Prepared(model).eval() if can else model
