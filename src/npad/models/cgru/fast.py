"""The paper's model prepared for decoding: the same numbers from less arithmetic.

The context c_j is a weighted sum of annotations that GRU₂ and the readout multiply with a matrix
first; GRU₁ and the readout multiply E[y], which has one row per token. Hence, with W₁ and W₂ the
input matrices of the GRUs:

    W₂ c_j = Σ_i weight_ij (W₂ h_i)   L₃ c_j = Σ_i weight_ij (L₃ h_i)   once per sentence
    W₁ E[y]      L₂ E[y]                                                from a table of all tokens
    W s'_j       U₂ s'_j                                                in one product
    vᵀ tanh x = 2 vᵀ σ(2x) − Σ v                                        Σ v cancels in the softmax

At 1,024 units, embeddings of 512 and 8,000 tokens the products of a step take 26 million operations
a row instead of 44 million.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from npad.engine.cost import add_calls
from npad.engine.cuda_graphs import bucket, graphs_of
from npad.engine.devices import to_device
from npad.engine.pytree import tree_map
from npad.kernels import fused
from npad.model import Capabilities, Layout, reached, untouched
from npad.models.cgru.model import AttentionModel
from npad.models.encoders.recurrent import gru
from npad.models.linear import Product
from npad.models.network import Network
from npad.rows import with_copies

# Numbers in the table of W E[y], by device; a larger vocabulary is not tabulated.
MAX_TABLE_NUMBERS = {"cpu": 1 << 26, "cuda": 1 << 28}
# Source tokens of a batch; encoding more is bound by arithmetic, not by launches, and not captured.
MAX_CAPTURED_SOURCE_TOKENS = 1024
# Tokens; sources are padded to a multiple of it on a GPU, so that few shapes are captured.
SOURCE_LENGTH_MULTIPLE = 8
# Numbers of the attention computed at a time on a CPU, so that they stay in its cache.
ATTENTION_BLOCK_NUMBERS = 1 << 18


@dataclass(frozen=True)
class PreparedState:
    """The state of a Prepared model, one row per hypothesis."""

    hidden: Tensor  # [layers, rows, units]
    keys: Tensor  # [sentences, length, 2 · units], 2 (U h_i + b), once per sentence
    values: Tensor  # [sentences, length, 3 · units + embedding], the same for W₂ h_i and L₃ h_i
    mask: Tensor  # [sentences, length], true at padding
    layout: Layout
    weights: Tensor  # [rows, length], the attention of the last step
    owner: Tensor | None = None  # [groups], the sentence of each group of rows; None: the i-th


class Prepared(Network[PreparedState]):
    """An `AttentionModel` of GRUs, prepared for decoding.

    Some weights are copies: prepare the model again after training it further.
    """

    def __init__(self, model: AttentionModel) -> None:
        super().__init__()
        self.plain, self.special, self.sites = model, model.special, model.sites
        self.name, self.width, self.above = model.name, model.width, model.above
        self.actor = model.actor
        self.logits = Product(model.logits.weight.detach(), model.logits.bias.detach())
        gru1: Any = model.first
        gru2: Any = model.second
        sizes = [model.width, model.target_embedding.embedding_dim, 2 * model.width]
        from_hidden, from_embedding, from_context = torch.split(model.readout.weight, sizes, 1)
        query = model.query.weight
        no_bias = torch.zeros_like(model.readout.bias)
        no_query_bias = torch.zeros_like(query[:, 0])
        self.token_input = Product.stacked(
            [gru1.weight_ih, from_embedding], [gru1.bias_ih, model.readout.bias]
        )
        self.recurrence = Product.stacked([gru1.weight_hh], [gru1.bias_hh])
        self.query_and_recurrence = Product.stacked(
            [2 * query, gru2.weight_hh], [no_query_bias, gru2.bias_hh]
        )
        self.energy = Product.stacked([2 * model.energy.weight], [])
        self.value = Product.stacked([gru2.weight_ih, from_context], [gru2.bias_ih, no_bias])
        self.hidden_readout = Product.stacked([from_hidden], [])
        self.table: Tensor | None  # [vocabulary + 1, 3 · units + embedding], the begin token last
        self.register_buffer("table", None, persistent=False)

    @property
    def capturable(self) -> bool:
        """Whether a step may be captured as a CUDA graph."""
        return fused(self.logits.weight)

    @property
    def capabilities(self) -> Capabilities:
        """Kept between calls: decoding a sentence asks several times, and reading is slow."""
        key = (self.device, self.capturable, self.name, self.actor)
        kept = self.__dict__.get("_capabilities")
        if kept is None or kept[0] != key:
            kept = self.__dict__["_capabilities"] = (key, Capabilities.read(self))
        return cast(Capabilities, kept[1])

    def start(self, source: Any) -> PreparedState:
        state = self.start_search(source)
        return tree_map(torch.clone, state) if self.capturable else state

    def start_search(self, source: Any) -> PreparedState:
        """Return a state that is valid until the next search starts."""
        inputs, lengths = self.plain.padded(source)
        if self.capturable:
            self._tabulate()  # which a captured step must not do
        with graphs_of(self) as graphs:
            if graphs is None or inputs.dim() > 2:  # pictures and sounds, in few shapes anyway
                return self._begin(inputs, lengths)[0]
            sentences, wide = len(inputs), bucket(len(inputs))
            arguments: tuple[Tensor, ...] = (inputs,)
            if wide > 1:
                arguments = self._in_buckets(inputs, lengths, wide)
            if arguments[0].numel() > MAX_CAPTURED_SOURCE_TOKENS:
                return self._begin(inputs, lengths)[0]
            state: PreparedState = graphs.call(
                self._begin, self, "begin", *arguments, private=True
            )[0]
            if wide > sentences:
                return self.select(state, torch.arange(sentences, device=inputs.device))
            return state

    def _in_buckets(
        self, inputs: Tensor, lengths: Tensor | None, wide: int
    ) -> tuple[Tensor, Tensor]:
        """Pad tokens to a length of few, and sentences to `wide` by copies of the first one."""
        sentences, longest = inputs.shape
        if lengths is None:
            lengths = torch.full((sentences,), longest)
        copies = with_copies(sentences, wide, lengths.device)
        padding = -longest % SOURCE_LENGTH_MULTIPLE
        inputs = F.pad(inputs, (0, padding), value=self.special.eos)
        return inputs[to_device(copies, inputs.device)], to_device(lengths[copies], inputs.device)

    def _begin(self, inputs: Tensor, lengths: Tensor | None = None) -> tuple[PreparedState]:
        plain = self.plain.begin(inputs, lengths, exact=True)
        mask, memory, keys = plain.mask, plain.memory, plain.keys
        if self.capturable:
            padding = -mask.shape[1] % SOURCE_LENGTH_MULTIPLE
            mask = F.pad(mask, (0, padding), value=True)
            memory, keys = (F.pad(x, (0, 0, 0, padding)) for x in (memory, keys))
        weights = memory.new_zeros(mask.shape)
        values = self.value(memory)
        return (PreparedState(plain.hidden, 2 * keys, values, mask, plain.layout, weights),)

    def select(self, state: PreparedState, rows: Tensor) -> PreparedState:
        return self._at(state, rows, *state.layout.after(rows))

    def widen(self, state: PreparedState, rows: Tensor) -> PreparedState:
        """Return a state that ends in copies of its first sentence, whose rows are `rows`."""
        each = state.layout.each
        return self._at(state, rows, Layout(len(rows) // each, each), rows[::each] // each)

    def _at(
        self, state: PreparedState, rows: Tensor, layout: Layout, sentences: Tensor | None
    ) -> PreparedState:
        chosen = replace(
            state, hidden=state.hidden[:, rows], layout=layout, weights=state.weights[rows]
        )
        if sentences is None:
            return chosen
        return replace(
            chosen,
            keys=state.keys[sentences],
            values=state.values[sentences],
            mask=state.mask[sentences],
        )

    def attention(self, state: PreparedState) -> Tensor:
        """Return the weights of the last step, [rows, source length]."""
        if not self.capturable:
            return state.weights
        longest = int((~state.mask).sum(1).max())  # without SOURCE_LENGTH_MULTIPLE's padding
        return state.weights[:, :longest]

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self.__dict__.pop("_graphs", None)  # captured graphs hold the weights' addresses
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def transition(
        self, state: PreparedState, tokens: Tensor, perturb: Any
    ) -> tuple[Tensor, PreparedState]:
        if reached(perturb, "embedding"):
            x = self.plain._embedded(tokens)
            noisy = perturb("embedding", x)
            token_input = self._token_input(tokens) if noisy is x else self.token_input(noisy)
        else:
            token_input = self._token_input(tokens)
        state, context = self._recur(state, token_input, perturb)
        return perturb("output", self._readout(state.hidden[-1], token_input, context)), state

    @property
    def vocabulary(self) -> int:
        return int(self.logits.out_features)

    def advance(
        self, state: PreparedState, parents: Tensor, owners: Tensor, tokens: Tensor
    ) -> tuple[Tensor, PreparedState]:
        """Continue rows of the state, in groups of one sentence: readouts, and the state."""
        layout = Layout(len(owners), len(parents) // len(owners))
        state = replace(state, hidden=state.hidden[:, parents], layout=layout, owner=owners)
        token_input = self._token_input(tokens)
        state, context = self._recur(state, token_input, untouched)
        return self._readout(state.hidden[-1], token_input, context), state

    def project(self, readouts: Tensor) -> Tensor:
        """Return the logits [n, V] of readouts [n, embedding]."""
        return self.logits(readouts)  # type: ignore[no-any-return]

    def step_shared(
        self,
        state: PreparedState,
        parents: Tensor,
        owners: Tensor,
        tokens: Tensor,
        rows: Tensor,
        perturb: Any,
    ) -> tuple[Tensor, PreparedState]:
        """Take one transition per prefix, and a readout per row."""
        add_calls(search=len(tokens))
        readouts, state = self.advance(state, parents, owners, tokens)
        return self.project(perturb("output", readouts[rows])), state

    def _token_input(self, tokens: Tensor) -> Tensor:
        """Return W₁ E[y] and L₂ E[y], biases included: [..., 3 · units + embedding].

        From the table at the first token already: a row of it and a product with few rows differ in
        the last bits, and the same request gets the same answer however many came before.
        """
        self._tabulate()
        if self.table is None:
            return self.token_input(self.plain._embedded(tokens))  # type: ignore[no-any-return]
        return F.embedding(tokens.clamp(max=self.vocabulary), self.table)

    def _tabulate(self) -> None:
        """Compute the inputs of all tokens, if the table is small enough."""
        size = self.vocabulary * self.token_input.out_features
        limit = MAX_TABLE_NUMBERS.get(self.token_input.weight.device.type, 0)
        if self.table is None and size <= limit:
            inputs = self.token_input(self.plain.target_embedding.weight)
            begin: Any = self.token_input.bias  # the begin token's embedding is zero
            self.table = torch.cat([inputs, begin[None]])

    def _readout(self, hidden: Tensor, token_input: Tensor, context: Tensor) -> Tensor:
        gates = 3 * self.width
        return torch.tanh(
            self.hidden_readout(hidden) + token_input[..., gates:] + context[..., gates:]
        )

    def _recur(
        self, state: PreparedState, token_input: Tensor, perturb: Any
    ) -> tuple[PreparedState, Tensor]:
        """Return s_j, and W₂ c_j with L₃ c_j, biases included: [rows, 3 · units + embedding]."""
        gates = 3 * self.width
        hidden = [
            self.plain._perturbed(perturb, f"hidden.{layer}", h)
            for layer, h in enumerate(state.hidden)
        ]
        middle = gru(token_input[:, :gates], self.recurrence(hidden[0]), hidden[0])  # s'_j
        query, recurrent = self.query_and_recurrence(middle).split([2 * self.width, gates], 1)
        context, weights = self._attend(state, query)
        new = [gru(context[:, :gates], recurrent, middle)]
        for layer, above in enumerate(self.above, start=1):
            new.append(above(new[-1], hidden[layer]))
        stacked = torch.stack(new) if len(new) > 1 else new[0][None]
        return replace(state, hidden=stacked, weights=weights), context

    def _attend(self, state: PreparedState, query: Tensor) -> tuple[Tensor, Tensor]:
        """Return context [rows, 3 · units + embedding] and weights [rows, length]."""
        groups, group_rows = state.layout
        query = query.view(groups, group_rows, -1)
        if fused(query):
            from npad.kernels.attention import contexts, energies

            energy = energies(query, state.keys, self.energy.weight[0], state.mask, state.owner)
            weights = F.softmax(energy, -1).to(query.dtype)
            owner = state.owner
            context = (
                weights @ state.values if owner is None else contexts(weights, state.values, owner)
            )
        else:
            weights, context = self._attend_in_blocks(state, query)
        return context.flatten(0, 1), weights.flatten(0, 1)

    def _attend_in_blocks(self, state: PreparedState, query: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights [groups, rows, length] and context, in blocks that fit a cache."""
        groups, group_rows = state.layout
        owner, size = state.owner, state.keys[0].numel()
        block_groups = max(1, ATTENTION_BLOCK_NUMBERS // max(1, group_rows * size))
        block_rows = group_rows
        if block_groups == 1:
            block_rows = max(1, ATTENTION_BLOCK_NUMBERS // max(1, size))
        weights, context = query.new_empty(groups, group_rows, state.keys.shape[1]), []
        for start in range(0, groups, block_groups):
            block = slice(start, start + block_groups)
            sentences = block if owner is None else owner[block]
            keys, block_weights = state.keys[sentences, None], weights[block]
            for row in range(0, group_rows, block_rows):
                rows = slice(row, row + block_rows)
                energy = self.energy((query[block, rows, None] + keys).sigmoid_())
                block_weights[:, rows] = energy.squeeze(-1)
            block_weights.masked_fill_(state.mask[sentences, None], -torch.inf)
            block_weights.copy_(F.softmax(block_weights, -1))
            if owner is not None:
                context.append(block_weights @ state.values[sentences])
        return weights, weights @ state.values if owner is None else torch.cat(context)


def prepared(model: Any) -> Any:
    """Return the model prepared for decoding, or the model itself if it is of another kind."""
    can = isinstance(model, AttentionModel) and model.attends and not model.has_cell
    return Prepared(model).eval() if can else model
