"""The decoder of Marian, BART, Whisper and their kin on a CPU, without transformers between layers.

transformers takes as long for masks, caches and outputs as a small model's products in int8. Here,
projections of one input are one product, and keys and values are written in place. The first search
compares some logits with the model's own; a model that differs is decoded by transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from npad.model import Layout, untouched
from npad.models.huggingface.states import SharedKeyValues, capacity_for
from npad.models.linear import Products, is_unheard

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class DirectState:
    """The state of a `DirectDecoder`: keys and values that are written in place."""

    own: tuple[Tensor, ...]  # [capacity, 2, rows, width] per layer: keys and values of its tokens
    shared: SharedKeyValues  # of the encoder's outputs
    last: Tensor  # [rows], the prefix's last token, read in place of the begin token
    layout: Layout
    length: int  # tokens written
    prefix: int  # tokens written at the start
    padded: int = 0  # tokens before its own, of which there are none; as in a `FixedState`
    most_before: int = 0

    def select(self, rows: Tensor) -> DirectState:
        layout, sentences = self.layout.after(rows)
        own, shared = self._own(len(self.own[0]), rows), self.shared.select(sentences)
        return replace(self, own=own, shared=shared, last=self.last[rows], layout=layout)

    def _own(self, capacity: int, rows: Tensor) -> tuple[Tensor, ...]:
        """Return rows of what was written, with room for `capacity` tokens."""
        own, written = [], slice(self.length)
        for layer in self.own:
            own.append(layer.new_empty(capacity, 2, len(rows), layer.shape[3]))
            torch.index_select(layer[written], 2, rows, out=own[-1][written])
        return tuple(own)

    def clone(self) -> DirectState:
        return replace(self, own=tuple(layer.clone() for layer in self.own))

    def reserve(self, tokens: int) -> DirectState:
        """Return a state with room for `tokens` after the prefix."""
        capacity = capacity_for(self.prefix + tokens, self.last.device)
        if capacity <= len(self.own[0]):
            return self
        return replace(self, own=self._own(capacity, torch.arange(len(self.last))))


class DirectLayer:
    """A layer of transformers. Raises AttributeError if it has other parts."""

    def __init__(self, layer: Any, products: Products) -> None:
        own, source = layer.self_attn, layer.encoder_attn
        if not own.scaling == source.scaling == own.head_dim**-0.5 == source.head_dim**-0.5:
            raise AttributeError("its attention has another scale")
        self.own: Function = products.of(own.q_proj, own.k_proj, own.v_proj).forward
        self.source: Function = products.of(source.k_proj, source.v_proj).forward
        self.query: Function = products.of(source.q_proj).forward
        self.own_output: Function = products.of(own.out_proj).forward
        self.source_output: Function = products.of(source.out_proj).forward
        self.inner: Function = products.of(layer.fc1).forward
        self.outer: Function = products.of(layer.fc2).forward
        self.own_norm = norm_of(layer.self_attn_layer_norm)
        self.source_norm = norm_of(layer.encoder_attn_layer_norm)
        self.norm = norm_of(layer.final_layer_norm)
        self.activation: Function = layer.activation_fn
        self.heads: int = own.num_heads

    def memory(self, encoded: Tensor) -> Tensor:
        """Return keys and values [2, heads, sentences, length, width] of encoded [sentences, …]."""
        memory: Tensor = self.source(encoded).unflatten(-1, (2, self.heads, -1))  # type: ignore[no-untyped-call]
        return memory.permute(2, 3, 0, 1, 4).contiguous()

    def attend(self, x: Tensor, own: Tensor, steps: int, mask: Tensor | None) -> Tensor:
        """Write keys and values of x [rows · steps, width] to the end of `own`; attend to it."""
        length, rows, heads = len(own), own.shape[2], self.heads
        read = self.own(x).view(rows, steps, 3, -1)
        own[length - steps :].copy_(read[:, :, 1:].permute(1, 2, 0, 3))
        query = read[:, :, 0].view(rows, steps, heads, -1).transpose(1, 2)
        keys, values = own.view(length, 2, rows, heads, -1).permute(1, 2, 3, 0, 4).unbind()
        attended = scaled_dot_product_attention(query, keys, values, mask)
        return self.own_output(attended.transpose(1, 2).reshape(rows * steps, -1))

    def attend_to_source(self, x: Tensor, memory: Tensor, hidden: Tensor | None) -> Tensor:
        """Attend from x [rows · steps, width] to the source of each row's sentence."""
        keys, values = memory.transpose(1, 2).unbind()
        query = self.query(x).view(len(keys), -1, self.heads, keys.shape[-1]).transpose(1, 2)
        attended = scaled_dot_product_attention(query, keys, values, hidden)
        return self.source_output(attended.transpose(1, 2).reshape(len(x), -1))


class DirectDecoder:
    """The decoder and the head of an encoder–decoder of transformers.

    Args:
        model: of transformers.
        decoder: its decoder.
        head: its output layer.
        products: make its linear layers.

    Raises:
        AttributeError: it has other parts than Marian, BART and Whisper have, or something
            listens to one.
    """

    def __init__(self, model: Any, decoder: Any, head: Any, products: Products) -> None:
        if not all(map(is_unheard, [*decoder.modules(), head])):
            raise AttributeError("something listens to its layers")
        self.embed, self.scale = decoder.embed_tokens, 1.0
        if type(self.embed) is nn.Embedding:  # else it scales its embeddings itself
            self.scale = float(getattr(decoder, "embed_scale", 1.0))
        positions = decoder.embed_positions
        table = positions.weight if hasattr(positions, "weight") else positions.weights
        self.positions = table[getattr(positions, "offset", 0) :]
        first, last = (
            getattr(decoder, f"layer{name}", None) for name in ("norm_embedding", "_norm")
        )
        self.first_norm: Function | None = first and norm_of(first)
        self.last_norm: Function | None = last and norm_of(last)
        self.layers = [DirectLayer(layer, products) for layer in decoder.layers]
        self.project = products.of(head).forward
        bias = getattr(model, "final_logits_bias", None)
        self.bias = bias if bias is not None and bool(bias.any()) else None

    @torch.no_grad()
    def start(self, encoded: Tensor, mask: Tensor | None, prefix: Tensor) -> DirectState:
        """Return the state of encoded [sentences, length, width], after all but the last token.

        The mask [sentences, length] is 0 where the source is padding; the decoder first reads the
        prefix [sentences, tokens].
        """
        shared = SharedKeyValues.of(tuple(layer.memory(encoded) for layer in self.layers), mask)
        sentences, tokens = prefix.shape
        empty = encoded.new_empty(0, 2, sentences, encoded.shape[-1])
        layout, own = Layout(sentences, 1), (empty,) * len(self.layers)
        state = DirectState(own, shared, prefix[:, -1], layout, 0, 0).reserve(tokens - 1)
        if tokens > 1:
            _, state = self.read(state, prefix[:, :-1], untouched)
        return replace(state, prefix=tokens - 1)

    @torch.no_grad()
    def read(self, state: DirectState, tokens: Tensor, perturb: Any) -> tuple[Tensor, DirectState]:
        """Read tokens [rows, steps] into the state: logits of as many rows as `perturb` returns."""
        rows, steps = tokens.shape
        length = state.length + steps
        state = state.reserve(length - state.prefix)
        x = perturb("embedding", self.embed(tokens.flatten()))
        x = x * self.scale if self.scale != 1 else x
        positions = self.positions[state.length : length]
        x = (x.view(rows, steps, -1) + positions).view(rows * steps, -1)
        x = self.first_norm(x) if self.first_norm else x
        mask = None
        if steps > 1:  # of several tokens, none reads a later one
            mask = torch.full((steps, length), -torch.inf, dtype=x.dtype)
            mask.triu_(length - steps + 1)
        shared, before = state.shared, self.last_norm is not None
        for i, layer in enumerate(self.layers):
            own, memory = state.own[i][:length], shared.layers[i]
            x = perturb(f"hidden.{i}", x)
            if before:  # a norm comes before each part
                x = x + layer.attend(layer.own_norm(x), own, steps, mask)
                x = x + layer.attend_to_source(layer.source_norm(x), memory, shared.hidden)
                x = x + layer.outer(layer.activation(layer.inner(layer.norm(x))))
            else:
                x = layer.own_norm(x + layer.attend(x, own, steps, mask))
                x = layer.source_norm(x + layer.attend_to_source(x, memory, shared.hidden))
                x = layer.norm(x + layer.outer(layer.activation(layer.inner(x))))
        x = perturb("output", self.last_norm(x) if self.last_norm else x)
        logits = self.project(x)
        logits = logits if self.bias is None else logits.add_(self.bias)
        return logits.view(-1, steps, logits.shape[-1]), replace(state, length=length)


def norm_of(norm: nn.LayerNorm) -> Function:
    """Return a layer norm as a function, without a module's overhead."""
    if type(norm) is not nn.LayerNorm:
        raise AttributeError("it has another norm")
    shape, weight, bias, epsilon = norm.normalized_shape, norm.weight, norm.bias, norm.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, epsilon)
