"""The decoder of Marian, BART, Whisper and their kin on a CPU, without transformers between layers.

transformers takes milliseconds per step to build masks, caches and outputs, as long as the
products of a small model in int8. Here a layer is a dozen calls of torch: the projections of one
input are one product, keys and values are written in place, and those of the source are computed
once per sentence. The first search compares two steps with the model's own; a model that differs
is decoded by transformers.
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
        return replace(
            self,
            own=tuple(self._select(layer, rows) for layer in self.own),
            shared=self.shared.select(sentences),
            last=self.last[rows],
            layout=layout,
        )

    def _select(self, layer: Tensor, rows: Tensor) -> Tensor:
        """Return rows of a layer; of the capacity only what was written is copied."""
        capacity, pair, _, width = layer.shape
        selected = layer.new_empty(capacity, pair, len(rows), width)
        written = slice(self.length)
        torch.index_select(layer[written], 2, rows, out=selected[written])
        return selected

    def clone(self) -> DirectState:
        return replace(self, own=tuple(layer.clone() for layer in self.own))

    def reserve(self, tokens: int) -> DirectState:
        """Return a state with room for `tokens` after the prefix."""
        capacity = capacity_for(self.prefix + tokens, self.last.device)
        if capacity <= len(self.own[0]):
            return self
        own = []
        for layer in self.own:
            larger = layer.new_empty(capacity, *layer.shape[1:])
            larger[: self.length] = layer[: self.length]
            own.append(larger)
        return replace(self, own=tuple(own))


@dataclass(frozen=True)
class DirectLayer:
    """A layer of the decoder."""

    own: Function  # queries, keys and values of its own tokens, in one product
    own_output: Function
    own_norm: Function
    query: Function  # of attention to the source
    source: Function  # keys and values of the encoder's outputs, in one product
    source_output: Function
    source_norm: Function
    inner: Function
    outer: Function
    norm: Function
    activation: Function
    heads: int

    @classmethod
    def of(cls, layer: Any, products: Products) -> DirectLayer:
        """Read a layer of transformers. Raises AttributeError if it has other parts."""
        own, source = layer.self_attn, layer.encoder_attn
        if not own.scaling == source.scaling == own.head_dim**-0.5 == source.head_dim**-0.5:
            raise AttributeError("its attention has another scale")
        return cls(
            own=products.of(own.q_proj, own.k_proj, own.v_proj).forward,
            own_output=products.of(own.out_proj).forward,
            own_norm=norm_of(layer.self_attn_layer_norm),
            query=products.of(source.q_proj).forward,
            source=products.of(source.k_proj, source.v_proj).forward,
            source_output=products.of(source.out_proj).forward,
            source_norm=norm_of(layer.encoder_attn_layer_norm),
            inner=products.of(layer.fc1).forward,
            outer=products.of(layer.fc2).forward,
            norm=norm_of(layer.final_layer_norm),
            activation=layer.activation_fn,
            heads=own.num_heads,
        )

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
        self.layers = [DirectLayer.of(layer, products) for layer in decoder.layers]
        self.project = products.of(head).forward
        bias = getattr(model, "final_logits_bias", None)
        self.bias = bias if bias is not None and bool(bias.any()) else None

    @torch.no_grad()
    def start(self, encoded: Tensor, mask: Tensor | None, prefix: Tensor) -> DirectState:
        """Return the state of encoded [sentences, length, width], after all but the last token.

        Args:
            encoded: the encoder's outputs.
            mask: [sentences, length], 0 where the source is padding; None: nowhere.
            prefix: [sentences, tokens], what the decoder reads first.
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
        """Read tokens [rows, steps] into the state, which is written to.

        Returns:
            Logits [rows, steps, V], or as many rows as `perturb` returns at the head; the state.
        """
        rows, steps = tokens.shape
        length = state.length + steps
        state = state.reserve(length - state.prefix)
        x = perturb("embedding", self.embed(tokens.flatten()))
        x = x * self.scale if self.scale != 1 else x
        positions = self.positions[state.length : length]
        x = (x.view(rows, steps, -1) + positions).view(rows * steps, -1)
        x = self.first_norm(x) if self.first_norm else x
        mask = causal(steps, length, x) if steps > 1 else None
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


def causal(steps: int, length: int, x: Tensor) -> Tensor:
    """Return what hides later tokens from the last `steps` of `length`, [steps, length]."""
    hidden = torch.full((steps, length), -torch.inf, dtype=x.dtype)
    return hidden.triu_(length - steps + 1)
