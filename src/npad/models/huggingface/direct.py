"""Decoders of Marian, BART, Whisper, T5, Llama and their kin, without transformers between layers.

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
from npad.models.huggingface.states import FixedState, KeyValues, SharedKeyValues, capacity_for
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
        if hasattr(layer, "layer"):  # T5's
            own, source = layer.layer[0].SelfAttention, layer.layer[1].EncDecAttention
            names, norms = ("q", "k", "v", "o"), [part.layer_norm for part in layer.layer]
            dense = layer.layer[2].DenseReluDense
            inner = [dense.wi_0, dense.wi_1] if hasattr(dense, "wi_0") else [dense.wi]
            outer, self.activation, self.heads = dense.wo, dense.act, own.n_heads
        else:
            own, source = layer.self_attn, layer.encoder_attn
            names = ("q_proj", "k_proj", "v_proj", "out_proj")
            norms = [layer.self_attn_layer_norm, layer.encoder_attn_layer_norm]
            norms, inner = [*norms, layer.final_layer_norm], [layer.fc1]
            outer, self.activation, self.heads = layer.fc2, layer.activation_fn, own.num_heads
        if own.scaling != source.scaling:
            raise AttributeError("its attentions have different scales")
        *read, own_output = (getattr(own, name) for name in names)
        query, keys, values, source_output = (getattr(source, name) for name in names)
        self.own: Function = products.of(*read).forward
        self.source: Function = products.of(keys, values).forward
        self.query: Function = products.of(query).forward
        self.own_output: Function = products.of(own_output).forward
        self.source_output: Function = products.of(source_output).forward
        self.inner: Function = products.of(*inner).forward
        self.outer: Function = products.of(outer).forward
        self.own_norm, self.source_norm, self.norm = map(norm_of, norms)
        self.gated, self.scale, self.width = len(inner) > 1, own.scaling, own_output.in_features

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
        attended = scaled_dot_product_attention(query, keys, values, mask, scale=self.scale)
        return self.own_output(attended.transpose(1, 2).reshape(rows * steps, -1))

    def attend_to_source(self, x: Tensor, memory: Tensor, hidden: Tensor | None) -> Tensor:
        """Attend from x [rows · steps, width] to the source of each row's sentence."""
        keys, values = memory.transpose(1, 2).unbind()
        query = self.query(x).view(len(keys), -1, self.heads, keys.shape[-1]).transpose(1, 2)
        attended = scaled_dot_product_attention(query, keys, values, hidden, scale=self.scale)
        return self.source_output(attended.transpose(1, 2).reshape(len(x), -1))

    def feed_forward(self, x: Tensor) -> Tensor:
        """Return the output of the feed-forward part, [rows, width]."""
        if not self.gated:
            return self.outer(self.activation(self.inner(x)))
        gate, inner = self.inner(x).chunk(2, -1)
        return self.outer(self.activation(gate) * inner)


class DirectDecoder:
    """The decoder and the head of an encoder–decoder of transformers.

    Args:
        model: of transformers.
        decoder: its decoder.
        head: its output layer.
        products: make its linear layers.

    Raises:
        AttributeError: it has other parts than Marian, BART, Whisper and T5 have, or something
            listens to one.
    """

    def __init__(self, model: Any, decoder: Any, head: Any, products: Products) -> None:
        if not all(map(is_unheard, [*decoder.modules(), head])):
            raise AttributeError("something listens to its layers")
        self.embed, self.scale = decoder.embed_tokens, 1.0
        if type(self.embed) is nn.Embedding:  # else it scales its embeddings itself
            self.scale = float(getattr(decoder, "embed_scale", 1.0))
        self.positions: Tensor | None = None
        self.relative: Any = None  # returns the bias of scores by distance, where T5 has one
        if hasattr(decoder, "block"):
            layers, first, last = decoder.block, None, decoder.final_layer_norm
            self.relative = layers[0].layer[0].SelfAttention.compute_bias
        else:
            layers, positions = decoder.layers, decoder.embed_positions
            table = positions.weight if hasattr(positions, "weight") else positions.weights
            self.positions = table[getattr(positions, "offset", 0) :]
            first = getattr(decoder, "layernorm_embedding", None)
            last = getattr(decoder, "layer_norm", None)
        self.distances: Tensor | None = None  # [1, heads, 1, length], the bias of the last query
        self.first_norm: Function | None = first and norm_of(first)
        self.last_norm: Function | None = last and norm_of(last)
        self.layers = [DirectLayer(layer, products) for layer in layers]
        scaled = getattr(model.config, "scale_decoder_outputs", False)
        self.output_scale: float = model.model_dim**-0.5 if scaled else 1.0
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
        empty = encoded.new_empty(0, 2, sentences, self.layers[0].width)
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
        if self.positions is not None:
            positions = self.positions[state.length : length]
            x = (x.view(rows, steps, -1) + positions).view(rows * steps, -1)
        x = self.first_norm(x) if self.first_norm else x
        mask = self._mask(steps, length, x.dtype)
        shared, before = state.shared, self.last_norm is not None
        for i, layer in enumerate(self.layers):
            own, memory = state.own[i][:length], shared.layers[i]
            x = perturb(f"hidden.{i}", x)
            if before:  # a norm comes before each part
                x = x + layer.attend(layer.own_norm(x), own, steps, mask)
                x = x + layer.attend_to_source(layer.source_norm(x), memory, shared.hidden)
                x = x + layer.feed_forward(layer.norm(x))
            else:
                x = layer.own_norm(x + layer.attend(x, own, steps, mask))
                x = layer.source_norm(x + layer.attend_to_source(x, memory, shared.hidden))
                x = layer.norm(x + layer.feed_forward(x))
        x = self.last_norm(x) if self.last_norm else x
        x = perturb("output", x * self.output_scale if self.output_scale != 1 else x)
        logits = self.project(x)
        logits = logits if self.bias is None else logits.add_(self.bias)
        return logits.view(-1, steps, logits.shape[-1]), replace(state, length=length)

    def _mask(self, steps: int, length: int, dtype: torch.dtype) -> Tensor | None:
        """Return what is added to the scores of the last `steps` of `length` tokens, if anything.

        The bias of T5 depends on the distance alone, so that one row has those of any last token.
        """
        if steps == 1 and self.relative is not None:
            if self.distances is None or self.distances.shape[-1] < length:
                self.distances = self.relative(1, 2 * length, past_seen_tokens=2 * length - 1)
            return self.distances[..., -length:]
        if steps == 1:
            return None
        mask = torch.full((steps, length), -torch.inf, dtype=dtype)
        mask.triu_(length - steps + 1)  # none reads a later one
        if self.relative is not None:
            mask = mask + self.relative(steps, length, past_seen_tokens=length - steps)
        return mask


class PromptedLayer:
    """A layer of a decoder-only model as Llama. Raises AttributeError if it has other parts."""

    def __init__(self, layer: Any, products: Products) -> None:
        own, dense = layer.self_attn, layer.mlp
        projection = products.of(own.q_proj, own.k_proj, own.v_proj)
        self.own: Function = projection.forward
        self.own_output: Function = products.of(own.o_proj).forward
        self.inner: Function = products.of(dense.gate_proj, dense.up_proj).forward
        self.outer: Function = products.of(dense.down_proj).forward
        self.own_norm = norm_of(layer.input_layernorm)
        self.norm = norm_of(layer.post_attention_layernorm)
        self.activation: Function = dense.act_fn.forward
        self.width, self.scale = own.head_dim, own.scaling
        self.heads = projection.out_features // own.head_dim  # of queries, keys and values
        self.kept = own.v_proj.out_features // own.head_dim  # of values, as many as of keys


class PromptedDecoder:
    """A decoder-only model as Llama, which reads tokens into a `FixedState`.

    Args:
        decoder: of transformers.
        head: its output layer.
        products: make its linear layers.

    Raises:
        AttributeError: it has other parts than Llama has, or something listens to one.
    """

    def __init__(self, decoder: Any, head: Any, products: Products) -> None:
        if not all(map(is_unheard, [*decoder.modules(), head])):
            raise AttributeError("something listens to its layers")
        self.embed, self.rotary = decoder.embed_tokens, decoder.rotary_emb
        self.layers = [PromptedLayer(layer, products) for layer in decoder.layers]
        self.norm = norm_of(decoder.norm)
        self.project: Function = products.of(head).forward
        if len({layer.scale for layer in self.layers}) > 1:
            raise AttributeError("its layers have different scales")

    @torch.no_grad()
    def start(self, tokens: Tensor, mask: Tensor) -> FixedState:
        """Return the state after all but the last of tokens [sentences, length].

        The mask [sentences, length] is 0 where they are padding, on the left.
        """
        read, mask = tokens[:, :-1], mask[:, :-1]
        sentences, length = read.shape
        empty = tuple(
            self.embed.weight.new_empty(2, layer.kept, sentences, 0, layer.width)
            for layer in self.layers
        )
        own = KeyValues(empty, torch.zeros((), dtype=torch.long))
        shared, before = SharedKeyValues.of(empty, mask[:, :0]), mask.sum(1)
        layout = Layout(sentences, 1)
        state = FixedState(own, shared, tokens[:, -1], before - length, layout, 0, length)
        if length:
            state = state.reserve(length)
            hidden = SharedKeyValues.of(empty, mask).hidden
            self._output(state, read, untouched, hidden)
            prompts = tuple(layer[:, :, :, :length].contiguous() for layer in state.own.layers)
            shared = SharedKeyValues(prompts, hidden)
        return replace(state, own=own, shared=shared, before=before)

    def _rotation(self, x: Tensor, positions: Tensor, kept: int) -> tuple[Tensor, Tensor]:
        """Return factors of queries, keys and values, and of those rolled by half their width.

        Queries are scaled; the `kept` heads of values stay as they are.
        """
        cos, sin = self.rotary(x, positions)
        sin[..., : sin.shape[-1] // 2].neg_()
        heads, scale = self.layers[0].heads, self.layers[0].scale
        shape = *positions.shape, heads, cos.shape[-1]
        factors, rolled = cos.new_ones(shape), sin.new_zeros(shape)
        for part, of_turned in ((factors, cos), (rolled, sin)):
            part[:, :, :-kept] = of_turned[:, :, None]
            part[:, :, : -2 * kept] *= scale
        return factors, rolled

    @torch.no_grad()
    def read(
        self, state: FixedState, tokens: Tensor, perturb: Any = untouched
    ) -> tuple[Tensor, FixedState]:
        """Read tokens [rows, steps] into the state: logits of as many rows as `perturb` returns."""
        steps = tokens.shape[1]
        x = self._output(state, tokens, perturb)
        logits = self.project(perturb("output", self.norm(x)))
        return logits.view(-1, steps, logits.shape[-1]), state.after(steps)

    def _output(
        self, state: FixedState, tokens: Tensor, perturb: Any, padding: Tensor | None = None
    ) -> Tensor:
        """Read tokens [rows, steps] into the state, and return the output of the last layer.

        The padding [rows, 1, 1, steps] is added to the scores of these tokens.
        """
        rows, steps = tokens.shape
        x: Tensor = perturb("embedding", self.embed(tokens.flatten()))
        start = int(state.own.length)
        stop, kept = start + steps, self.layers[0].kept
        cos, sin = self._rotation(x, state.positions(steps), kept)
        prompts, mask = state.shared, None
        if steps > 1 or bool(prompts.hidden.any()):  # type: ignore[union-attr]
            mask = state.hidden_after_prompt(steps)[..., : prompts.length + stop]
            mask = mask if padding is None else mask + padding
        for i, layer in enumerate(self.layers):
            x = perturb(f"hidden.{i}", x)
            own = state.own.layers[i].narrow(3, 0, stop)
            read = layer.own(layer.own_norm(x)).view(rows, steps, -1, layer.width)
            read = torch.addcmul(read * cos, read.roll(layer.width // 2, -1), sin)
            written = read[:, :, -2 * kept :].view(rows, steps, 2, kept, -1)
            own.narrow(3, start, steps).copy_(written.permute(2, 3, 0, 1, 4))
            query = read[:, :, : -2 * kept].view(rows, steps, kept, -1, layer.width)
            x = x + layer.own_output(_attended(query, own, prompts.layers[i], mask))
            gate, inner = layer.inner(layer.norm(x)).chunk(2, -1)
            x = x + layer.outer(layer.activation(gate) * inner)
        return x


def _attended(query: Tensor, own: Tensor, prompt: Tensor, mask: Tensor | None) -> Tensor:
    """Attend to the prompt of a row's sentence and to its own tokens: [rows · T, heads · width].

    Args:
        query: [rows, T, heads, group, width], scaled.
        own: [2, heads, rows, length, width], keys and values of the row's own tokens.
        prompt: [2, heads, sentences, length, width], those of the prompt.
        mask: [sentences, 1, T, both lengths], added to scores; None: nothing is hidden.
    """
    rows, steps, heads, group, width = query.shape
    sentences, length = prompt.shape[2:4]
    # Heads first: then a head's queries of all rows of a sentence are one matrix.
    by_row = query.permute(2, 0, 3, 1, 4).reshape(heads * rows, group * steps, width)
    by_sentence = by_row.reshape(heads * sentences, -1, width)
    keys, values = prompt.flatten(1, 2).unbind()
    own_keys, own_values = own.flatten(1, 2).unbind()
    of_prompt = torch.bmm(by_sentence, keys.mT).view(heads * rows, group * steps, length)
    scores = torch.cat([of_prompt, torch.bmm(by_row, own_keys.mT)], -1)
    if mask is not None:
        scores.view(heads, sentences, -1, group, steps, scores.shape[-1]).add_(mask[:, None])
    weights = scores.softmax(-1)
    attended = torch.bmm(weights.view(len(values), -1, scores.shape[-1])[..., :length], values)
    attended = torch.baddbmm(attended.view_as(by_row), weights[..., length:], own_values)
    attended = attended.view(heads, rows, group, steps, width).permute(1, 3, 0, 2, 4)
    return attended.reshape(rows * steps, -1)


def norm_of(norm: Any) -> Function:
    """Return a layer norm, or T5's without means, as a function without a module's overhead."""
    if type(norm) is not nn.LayerNorm:
        shape, weight, epsilon = norm.weight.shape, norm.weight, norm.variance_epsilon
        if weight.dtype != torch.float32:  # T5 computes the variance in float32
            return norm.forward  # type: ignore[no-any-return]
        # Half the time of torch.rms_norm: the root of the sum of squares and of count · epsilon.
        weight, least = weight * shape[0] ** 0.5, weight.new_tensor((epsilon * shape[0]) ** 0.5)

        def rms_norm(x: Tensor) -> Tensor:
            size = torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), least)
            normed: Tensor = x.div(size).mul_(weight)
            return normed

        return rms_norm
    shape, weight, bias, epsilon = norm.normalized_shape, norm.weight, norm.bias, norm.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, epsilon)
