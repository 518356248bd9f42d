"""Transformer encoders with a recurrent decoder, the SSRU cell (Kim et al., 2019), as in Firefox.

Each decoder layer keeps one vector per row, the cell c, which is the noise site:

    f_t = σ(W_f x_t + b_f)        c_t = f_t · c_{t−1} + (1 − f_t) · W x_t        o_t = relu(c_t)

then attends to the source and passes a feed-forward block. A layer norm follows each residual sum.
The first input of the decoder is zero, and its position is added to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from npad.errors import InvalidInput
from npad.model import Capabilities, Layout, Special, Wrapper, untouched
from npad.models.int8 import ALL_INT8, IntegerProduct
from npad.models.linear import Product
from npad.models.low_precision import lowered
from npad.models.network import Network

EPSILON = 1e-9  # of layer norms, as in Marian
# NPAD's σ₀ by default, as a share of the RMS of the cells: on English to Portuguese, 0.5 to 2 find
# equally probable outputs. The first cells are zero, so that noise begins with the second token.
RELATIVE_NOISE = 0.5
TABLED_POSITIONS = 1024  # whose sinusoids are kept
GROUP_TOKENS = 256  # that are encoded at a time on a CPU: more take no less time each
UNSUPPORTED = "npad reads transformers with an SSRU decoder, as Firefox has them"
# Options of Marian that change the computation, and the values they may have here.
REQUIRED = {
    "type": "transformer",
    "transformer-decoder-autoreg": "rnn",
    "dec-cell": "ssru",
    "dec-cell-base-depth": "2",
    "dec-cell-high-depth": "1",
    "transformer-ffn-activation": "relu",
    "transformer-ffn-depth": "2",
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-postprocess-top": "",
    "transformer-preprocess": "",
    "transformer-no-projection": "false",
    "transformer-train-position-embeddings": "false",
}


@dataclass(frozen=True)
class SSRUState:
    """The state of an SSRUTransformer, one row per hypothesis."""

    cells: tuple[Tensor, ...]  # [rows, width] per layer
    positions: Tensor  # [rows], tokens read
    # keys and values per layer, [sentences, heads, length, head width], once per sentence
    memories: tuple[tuple[Tensor, Tensor], ...]
    real: Tensor | None  # [sentences, 1, 1, length], false at padding; None: there is none
    layout: Layout
    query: Tensor  # [rows, width], of the last layer's attention to the source, in the last step
    owner: Tensor | None = None  # [groups], the sentence of each group of rows; None: the i-th


class Norm(nn.Module):
    """A layer norm."""

    def __init__(self, weights: Mapping[str, Tensor], name: str) -> None:
        super().__init__()
        self.scale = nn.Parameter(weights[f"{name}_ln_scale"], requires_grad=False)
        self.shift = nn.Parameter(weights[f"{name}_ln_bias"], requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        scale, shift = self._parameters["scale"], self._parameters["shift"]
        return torch.layer_norm(x, x.shape[-1:], scale, shift, EPSILON)


class FeedForward(nn.Module):
    """norm(x + W₂ relu(W₁ x + b₁) + b₂)."""

    def __init__(self, weights: Mapping[str, Tensor], name: str) -> None:
        super().__init__()
        self.first = IntegerProduct(weights[f"{name}_W1"], weights[f"{name}_b1"])
        self.second = IntegerProduct(weights[f"{name}_W2"], weights[f"{name}_b2"])
        self.norm = Norm(weights, f"{name}_ffn")

    def forward(self, x: Tensor) -> Tensor:
        return self.norm.forward(self.second.added(self.first.forward(x).relu_(), x))


class Attention(nn.Module):
    """norm(x + attention of x), with several heads."""

    def __init__(self, weights: Mapping[str, Tensor], name: str, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.output = IntegerProduct(weights[f"{name}_Wo"], weights[f"{name}_bo"])
        self.norm = Norm(weights, f"{name}_Wo")

    def split(self, projected: Tensor, sentences: int, parts: int) -> tuple[Tensor, ...]:
        """Return the parts of projections [n · length, parts · width]: [n, heads, length, -1]."""
        shape = (sentences, -1, parts, self.heads, projected.shape[-1] // (parts * self.heads))
        return projected.view(shape).permute(2, 0, 3, 1, 4).unbind()

    def attend(
        self, x: Tensor, queries: Tensor, keys: Tensor, values: Tensor, real: Tensor | None
    ) -> Tensor:
        """Attend to the memories of n sentences.

        Args:
            x: [rows, width], the same number of rows per sentence.
            queries: [n, heads, rows / n, head width].
            keys: [n, heads, length, head width].
            values: as keys.
            real: [n, 1, 1, length], false at padding; None if there is none.
        """
        if len(queries) == 1 and real is None:  # torch is slower with its own attention
            scores = torch.bmm(queries[0], keys[0].transpose(1, 2)).mul_(keys.shape[-1] ** -0.5)
            context = torch.bmm(scores.softmax(-1), values[0]).transpose(0, 1).reshape(x.shape)
        else:
            context = F.scaled_dot_product_attention(queries, keys, values, attn_mask=real)
            context = context.transpose(1, 2).reshape(x.shape)
        return self.norm.forward(self.output.added(context, x))


class EncoderLayer(Attention):
    """A layer of the encoder: self-attention, feed-forward."""

    def __init__(self, weights: Mapping[str, Tensor], name: str, heads: int) -> None:
        super().__init__(weights, f"{name}_self", heads)
        self.inputs = _stacked(weights, f"{name}_self", "qkv")
        self.feed_forward = FeedForward(weights, f"{name}_ffn")

    def forward(self, x: Tensor, sentences: int, real: Tensor | None) -> Tensor:
        """Return the layer's output for x [sentences · length, width], of the same shape."""
        queries, keys, values = self.split(self.inputs.forward(x), sentences, 3)
        return self.feed_forward.forward(self.attend(x, queries, keys, values, real))


class SSRULayer(Attention):
    """A layer of the decoder: the cell, attention to the source, feed-forward."""

    def __init__(self, weights: Mapping[str, Tensor], name: str, heads: int) -> None:
        super().__init__(weights, f"{name}_context", heads)
        forget, bias = weights[f"{name}_rnn_Wf"], weights[f"{name}_rnn_bf"]
        self.gates = IntegerProduct.stacked(
            [forget, weights[f"{name}_rnn_W"]], [bias, torch.zeros_like(bias)]
        )
        self.cell_norm = Norm(weights, f"{name}_rnn_ffn")
        self.query = _stacked(weights, f"{name}_context", "q")
        self.memory = _stacked(weights, f"{name}_context", "kv")
        self.feed_forward = FeedForward(weights, f"{name}_ffn")

    def project(self, memory: Tensor, sentences: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of a memory [n · length, width]: [n, heads, length, -1] each."""
        keys, values = self.split(self.memory.forward(memory), sentences, 2)
        return keys, values


def _stacked(weights: Mapping[str, Tensor], name: str, parts: str) -> IntegerProduct:
    """Return the projections of an attention to queries, keys or values as one layer."""
    matrices = ([weights[f"{name}_{kind}{part}"] for part in parts] for kind in "Wb")
    return IntegerProduct.stacked(*matrices)


class SSRUTransformer(Network[SSRUState]):
    """A Transformer encoder with an SSRU decoder; the source is a list of token lists.

    Sites: `hidden` (the cells c_{t−1} of all layers, or `hidden.0` for one), `embedding` (the
    scaled embedding of y_{t−1}, before its position is added) and `output` (before the logits).

    Args:
        weights: as `npad.storage.marian.read_marian` returns them.
        options: Marian's options of the model.

    Raises:
        InvalidInput: the model is of another architecture, or a weight is missing or misshapen.
    """

    relative_noise = RELATIVE_NOISE

    def __init__(self, weights: Mapping[str, Tensor], options: Mapping[str, str]) -> None:
        super().__init__()
        for option, needed in REQUIRED.items():
            if options.get(option, needed) != needed:
                has = f"this model has {option}: {options[option]}"
                raise InvalidInput(f"{UNSUPPORTED}; {has}, not {needed or 'none'}")
        if options.get("type") is None:
            raise InvalidInput(f"{UNSUPPORTED}; this file does not say what it holds")
        try:
            encoder, decoder, self.heads = (
                int(options[key]) for key in ("enc-depth", "dec-depth", "transformer-heads")
            )
            source, target = (
                weights[name] if name in weights else weights["Wemb"]
                for name in ("encoder_Wemb", "decoder_Wemb")
            )
            self.source_vocabulary = len(source)
            self.vocabulary, self.width = target.shape
            _ensure_shapes(weights, self.vocabulary, self.width)
            # the last embedding is that of the begin token, which is zero
            embedding = torch.cat([target, target.new_zeros(1, self.width)])
            output = weights.get("decoder_ff_logit_out_W", embedding[:-1])
            if self.heads < 1 or self.width % self.heads:
                raise ValueError("the heads do not divide the width")
            self.encoder = nn.ModuleList(
                EncoderLayer(weights, f"encoder_l{i}", self.heads) for i in range(1, encoder + 1)
            )
            self.decoder = nn.ModuleList(
                SSRULayer(weights, f"decoder_l{i}", self.heads) for i in range(1, decoder + 1)
            )
            self.logits = IntegerProduct(output, weights["decoder_ff_logit_out_b"])
        except (KeyError, ValueError, RuntimeError) as error:
            raise InvalidInput(f"{UNSUPPORTED}; this one is incomplete: {error}") from error
        self.target_embedding = nn.Parameter(embedding, requires_grad=False)
        self.source_embedding = self.target_embedding
        if source is not target:
            self.source_embedding = nn.Parameter(source, requires_grad=False)
        self.special = Special(bos=self.vocabulary, eos=0, pad=0)
        layers = len(self.decoder)
        self.sites = {"hidden": layers * self.width}
        self.sites |= {f"hidden.{layer}": self.width for layer in range(layers)}
        self.sites |= {"embedding": self.width, "output": self.width}
        self.frequencies: Tensor
        self.sinusoids: Tensor
        half = self.width // 2
        frequencies = 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / max(1, half - 1))
        self.register_buffer("frequencies", frequencies.float(), persistent=False)
        table = _sinusoids(torch.arange(TABLED_POSITIONS), self.frequencies)
        self.register_buffer("sinusoids", table, persistent=False)

    def start(self, source: Any) -> SSRUState:
        lengths = [len(tokens) for tokens in source]
        sentences, longest, device = len(lengths), max(lengths), self.device
        groups = by_length(lengths) if device.type == "cpu" else [[*range(sentences)]]
        if len(groups) == 1:
            memories = self._encode(source, lengths)
        else:
            shape = (sentences, self.heads, longest, self.width // self.heads)
            memories = [
                (self.sinusoids.new_zeros(shape), self.sinusoids.new_zeros(shape))
                for _ in self.decoder
            ]
            for group in groups:
                own = self._encode([source[i] for i in group], [lengths[i] for i in group])
                for pair, parts in zip(memories, own, strict=True):
                    for whole, part in zip(pair, parts, strict=True):
                        whole[group, :, : part.shape[2]] = part
        return SSRUState(
            cells=(self.sinusoids.new_zeros(sentences, self.width),) * len(self.decoder),
            positions=torch.zeros(sentences, dtype=torch.long, device=device),
            memories=tuple(memories),
            real=_real(lengths, device),
            layout=Layout(sentences, 1),
            query=self.sinusoids.new_zeros(sentences, self.width),
        )

    def _encode(self, source: Any, lengths: list[int]) -> list[tuple[Tensor, Tensor]]:
        """Return keys and values per layer of the decoder, [n, heads, length, head width]."""
        padded = pad_sequence(
            [torch.as_tensor(tokens, dtype=torch.long) for tokens in source],
            batch_first=True,
            padding_value=self.special.eos,
        ).to(self.device)
        sentences, longest = padded.shape
        embedded = F.embedding(padded, self.source_embedding) * math.sqrt(self.width)
        positions = self._positions(torch.arange(longest, device=self.device))
        x, real = (embedded + positions).flatten(0, 1), _real(lengths, self.device)
        for layer in self.encoder:
            x = layer.forward(x, sentences, real)
        return [layer.project(x, sentences) for layer in self.decoder]  # type: ignore[operator]

    def select(self, state: SSRUState, rows: Tensor) -> SSRUState:
        layout, sentences = state.layout.after(rows)
        chosen = replace(
            state,
            cells=tuple(cell[rows] for cell in state.cells),
            positions=state.positions[rows],
            layout=layout,
            query=state.query[rows],
        )
        if sentences is None:
            return chosen
        return replace(
            chosen,
            memories=tuple((keys[sentences], values[sentences]) for keys, values in state.memories),
            real=None if state.real is None else state.real[sentences],
        )

    def attention(self, state: SSRUState) -> Tensor:
        """Return the weights of the last layer's first head in the last step, [rows, length]."""
        memories, real = _memories(state)
        key = memories[-1][0][:, 0]  # [sentences, length, head width]
        query = state.query[:, : key.shape[-1]].view(len(key), -1, key.shape[-1])
        energy = query @ key.transpose(1, 2) * key.shape[-1] ** -0.5
        if real is not None:
            energy = energy.masked_fill(~real[:, 0], -torch.inf)
        return torch.softmax(energy, -1).flatten(0, 1)

    def transition(
        self, state: SSRUState, tokens: Tensor, perturb: Any
    ) -> tuple[Tensor, SSRUState]:
        readouts, state = self._read(state, tokens[:, None], [perturb])
        return readouts[:, 0], state

    def features(
        self,
        state: SSRUState,
        tokens: Tensor,
        perturb: Callable[[int], Any] = lambda step: untouched,
    ) -> Tensor:
        """Return the readouts of all steps [rows, T, width], computed layer by layer."""
        return self._read(state, tokens, [perturb(t + 1) for t in range(tokens.shape[1])])[0]

    def advance(
        self, state: SSRUState, parents: Tensor, owners: Tensor, tokens: Tensor
    ) -> tuple[Tensor, SSRUState]:
        """Continue rows of the state, in groups of one sentence: readouts, and the state."""
        layout = Layout(len(owners), len(parents) // len(owners))
        state = replace(
            state,
            cells=tuple(cell[parents] for cell in state.cells),
            positions=state.positions[parents],
            layout=layout,
            owner=owners,
        )
        readouts, state = self._read(state, tokens[:, None], [untouched])
        return readouts[:, 0], state

    def project(self, readouts: Tensor) -> Tensor:
        """Return the logits [n, V] of readouts [n, width]."""
        return self.logits(readouts)  # type: ignore[no-any-return]

    def _read(
        self, state: SSRUState, tokens: Tensor, perturbs: list[Any]
    ) -> tuple[Tensor, SSRUState]:
        """Read tokens [rows, T]: return the readouts [rows, T, width] and the state after them."""
        rows, steps = tokens.shape
        embedded = F.embedding(tokens, self.target_embedding) * math.sqrt(self.width)
        x = _perturbed(perturbs, "embedding", embedded)
        positions = state.positions[:, None]
        if steps > 1:
            positions = positions + torch.arange(steps, device=tokens.device)
        x = (x + self._positions(positions)).view(rows * steps, -1)
        memories, real = _memories(state)
        cells, query = [], state.query
        layer: Any
        for i, layer in enumerate(self.decoder):
            gates = layer.gates.forward(x).view(rows, steps, -1).unbind(1)
            cell, passed = state.cells[i], []
            for gate, perturb in zip(gates, perturbs, strict=True):
                forget, candidate = gate.chunk(2, -1)
                cell = torch.lerp(candidate, perturb(f"hidden.{i}", cell), forget.sigmoid())
                passed.append(cell)
            cells.append(cell)
            passed_on = torch.stack(passed, 1).view_as(x) if steps > 1 else cell
            x = layer.cell_norm.forward(x + passed_on.relu())
            # the rows of a sentence are consecutive, and so are the steps of a row
            keys, values = memories[i]
            query = layer.query.forward(x)
            (heads,) = layer.split(query, len(keys), 1)
            x = layer.feed_forward.forward(layer.attend(x, heads, keys, values, real))
        state = SSRUState(
            tuple(cells),
            state.positions + steps,
            state.memories,
            state.real,
            state.layout,
            query.view(rows, steps, -1)[:, -1],
            state.owner,
        )
        return _perturbed(perturbs, "output", x.view(rows, steps, -1)), state

    def _positions(self, positions: Tensor) -> Tensor:
        """Return the sinusoids of positions, [..., width]."""
        if positions.is_cpu:
            try:
                return F.embedding(positions, self.sinusoids)
            except IndexError:
                pass  # beyond the table
        return _sinusoids(positions, self.frequencies).to(self.sinusoids)


def by_length(lengths: Sequence[int]) -> list[list[int]]:
    """Return groups of sentences of similar length, to be encoded with little padding."""
    groups: list[list[int]] = [[]]
    for sentence in sorted(range(len(lengths)), key=lengths.__getitem__):
        if len(groups[-1]) * lengths[sentence] > GROUP_TOKENS:
            groups.append([])
        groups[-1].append(sentence)
    return groups if len(groups) > 1 else [[*range(len(lengths))]]


def _real(lengths: list[int], device: torch.device) -> Tensor | None:
    """Return [n, 1, 1, length], false at padding; None if there is none."""
    if min(lengths) == max(lengths):
        return None
    real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return real[:, None, None].to(device)


def _sinusoids(positions: Tensor, frequencies: Tensor) -> Tensor:
    """Return sinusoids, all sines before all cosines, [..., 2 · frequencies]."""
    angles = positions[..., None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], -1)


@dataclass(frozen=True)
class ShortlistState:
    """The state of a Shortlisted model."""

    inner: SSRUState
    tokens: Tensor  # [n], all that any of the sentences allows
    weight: Tensor  # [n, width], of the output layer
    bias: Tensor  # [n]
    banned: Tensor | None  # [sentences, n]; None if all sentences allow all of them
    output: Product | None  # of several sentences on a CPU, for float32


class Shortlisted(Wrapper[Any]):
    """A model that predicts only tokens of a shortlist, as the browser's engine does.

    All others have the probability 0, and the scores are those of this model. The output layer
    reads a few hundred tokens and not all.

    Args:
        model: the model.
        allowed: returns which tokens each sentence of a source allows, [sentences, vocabulary].
    """

    def __init__(self, model: SSRUTransformer, allowed: Callable[[Any], Tensor]) -> None:
        self.model: SSRUTransformer = model
        self.allowed = allowed
        self.vocabulary = model.vocabulary
        self.weight, self.bias = model.logits.weight, model.logits.bias
        self.name = f"{model.name}+shortlist"

    @property
    def capabilities(self) -> Capabilities:
        return replace(
            super().capabilities,
            forced=self.forced,
            attention=self.attention,
            step_listed=self.step_listed,
        )

    def in_precision(self, precision: str) -> Shortlisted:
        """Return a copy that computes in lower precision."""
        low = copy(self)
        low.model = deepcopy(self.model)
        lowered(low.model, precision)
        return low

    def quantised(self, owned: bool) -> Shortlisted:
        """Return a copy in int8, except for the output layer, of which few tokens are read."""
        low = self.in_precision("int8")
        low.name = self.name + ALL_INT8
        return low

    def start(self, source: Any) -> ShortlistState:
        allowed = self.allowed(source)
        tokens = allowed.any(0).nonzero().squeeze(1)
        banned = ~allowed[:, tokens]
        tokens, banned = tokens.to(self.device), banned.to(self.device)
        weight, bias, alone = self.weight[tokens], self.bias[tokens], len(banned) == 1
        output = None if alone or not weight.is_cpu else Product(weight, bias)
        listed = tokens, weight, bias, None if alone else banned, output
        return ShortlistState(self.model.start(source), *listed)

    def step(
        self, state: ShortlistState, tokens: Tensor, perturb: Any = None
    ) -> tuple[Tensor, ShortlistState]:
        readouts, inner = self.model.transition(state.inner, tokens, perturb or untouched)
        return self._spread(state, self._logits(state, readouts)), replace(state, inner=inner)

    def step_listed(
        self, state: ShortlistState, tokens: Tensor
    ) -> tuple[Tensor, ShortlistState, Tensor]:
        """Return the logits of the tokens that any sentence allows, the state, and the tokens."""
        readouts, inner = self.model.transition(state.inner, tokens, untouched)
        listed = state.tokens, state.weight, state.bias, state.banned, state.output
        return self._logits(state, readouts), ShortlistState(inner, *listed), state.tokens

    def forced(self, state: ShortlistState, tokens: Tensor) -> Tensor:
        """Return the logits [rows, T, V] of all steps that read tokens [rows, T]."""
        readouts = self.model.features(state.inner, tokens)
        return self._spread(state, self._logits(state, readouts))

    def attention(self, state: ShortlistState) -> Tensor:
        """Return the weights of the last step, [rows, source length]."""
        return self.model.attention(state.inner)

    def select(self, state: ShortlistState, rows: Tensor) -> ShortlistState:
        _, sentences = state.inner.layout.after(rows)
        banned = state.banned
        if banned is not None and sentences is not None:
            banned = banned[sentences]
        return replace(state, inner=self.model.select(state.inner, rows), banned=banned)

    def _logits(self, state: ShortlistState, readouts: Tensor) -> Tensor:
        """Return the logits [..., n] of the tokens that any sentence allows.

        readouts: [..., width], those of a sentence one after the other.
        """
        if state.output is not None and readouts.dtype == torch.float32:
            listed = state.output.forward(readouts)  # packs the weight
        else:
            listed = F.linear(readouts, state.weight, state.bias)
        if state.banned is not None:
            by_sentence = listed.view(len(state.banned), -1, listed.shape[-1])
            by_sentence.masked_fill_(state.banned[:, None], -torch.inf)
        return listed

    def _spread(self, state: ShortlistState, listed: Tensor) -> Tensor:
        """Return the logits of all tokens, [..., V], from those that are allowed."""
        logits = listed.new_full((*listed.shape[:-1], self.vocabulary), -torch.inf)
        return logits.index_copy_(-1, state.tokens, listed)


def _memories(state: SSRUState) -> tuple[tuple[tuple[Tensor, Tensor], ...], Tensor | None]:
    """Return keys and values per layer, and the mask: for each group of rows its sentence's."""
    owner, real = state.owner, state.real
    if owner is None:
        return state.memories, real
    memories = tuple((keys[owner], values[owner]) for keys, values in state.memories)
    return memories, None if real is None else real[owner]


def _ensure_shapes(weights: Mapping[str, Tensor], vocabulary: int, width: int) -> None:
    """Raise ValueError for weights that do not fit each other; sizes are the file's own."""
    for name, weight in weights.items():
        outputs = inputs = width
        if name.endswith("_ffn_W1"):
            outputs = weight.shape[0]
        elif name.endswith(("_ffn_b1", "_ffn_W2")):
            inner = len(weights[f"{name[:-2]}W1"])
            outputs, inputs = (inner, width) if name.endswith("b1") else (width, inner)
        elif name.endswith("Wemb"):
            outputs = len(weight)
        elif name.startswith("decoder_ff_logit_out"):
            outputs = vocabulary
        shape = (outputs, inputs) if "_W" in name[-4:] or name.endswith("Wemb") else (outputs,)
        if tuple(weight.shape) != shape:
            raise ValueError(f"{name} has the shape {list(weight.shape)}, not {list(shape)}")


def _perturbed(perturbs: list[Any], site: str, x: Tensor) -> Tensor:
    """Perturb each step of x [rows, T, width]."""
    if all(perturb is untouched for perturb in perturbs):
        return x
    steps = zip(perturbs, x.unbind(1), strict=True)
    return torch.stack([perturb(site, step) for perturb, step in steps], 1)
