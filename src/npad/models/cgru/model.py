"""The paper's translation model (Cho, 2016, section 5, after dl4mt-tutorial's session 2).

A bidirectional encoder computes an annotation h_i of each source token; the decoder is a
conditional GRU,

    s'_j = GRU₁(E[y_{j−1}], s_{j−1})
    e_ij = vᵀ tanh(W s'_j + U h_i + b)        c_j = Σ_i softmax_i(e_ij) h_i
    s_j  = GRU₂(c_j, s'_j)
    logits = W_o tanh(L₁ s_j + L₂ E[y_{j−1}] + L₃ c_j + b) + b_o

with s₀ = tanh(W · mean of the annotations + b). The embedding before the first token is zero, and a
source ends with the end token. Options: LSTM cells, several layers, the mean of the annotations as
a fixed c instead of attention, and W_o tied to E (Press & Wolf, 2017).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from npad.errors import InvalidInput
from npad.model import Layout, Special, untouched
from npad.models.encoders import encoder_of
from npad.models.encoders.encoder import EncoderSizes
from npad.models.network import MAX_SIZE, MAX_SIZES, Network
from npad.rows import repeat
from npad.validation import ensure_bool, ensure_choice, ensure_integer, ensure_number

CELLS: dict[str, tuple[Any, Any]] = {"gru": (nn.GRU, nn.GRUCell), "lstm": (nn.LSTM, nn.LSTMCell)}
PRESETS = {"paper": {"units": 1028, "embedding": 512}, "small": {"units": 512, "embedding": 256}}
# Widths are rounded up to a multiple of eight, as a GPU's matrix units need for full speed: without
# padding, 1028 units run at half the speed of 1032. The extra units are zero and have no weights,
# so that they and their gradients stay zero, and no output depends on them.
WIDTH_MULTIPLE = 8  # units; 16 bytes of bfloat16
MIN_PADDED_UNITS = 256  # units; narrower layers are not padded


@dataclass(frozen=True)
class AttentionState:
    """The state of an AttentionModel, one row per hypothesis."""

    hidden: Tensor  # [layers, rows, units], here and below padded to `padded_width(units)`
    cell: Tensor | None  # [layers, rows, units], of LSTMs
    memory: Tensor  # [sentences, length, 2 · units], the annotations, once per sentence
    keys: Tensor  # [sentences, length, 2 · units], U h_i + b, once per sentence
    mask: Tensor  # [sentences, length], true at padding
    layout: Layout
    weights: Tensor  # [rows, length], the attention of the last step


class AttentionModel(Network[AttentionState]):
    """An encoder–decoder with attention; the source is a list of token lists, without end tokens.

    With `source="picture"` or `"sound"` it is what `PictureEncoder` or `SoundEncoder` reads.

    Sites: `hidden` (s_{j−1}, before the first cell, so that noise reaches the attention; all
    layers, or `hidden.0` for one), `cell` for LSTMs, `embedding` (E[y_{j−1}]) and `output` (the
    readout, before the logits).

    Args:
        source_vocabulary: number of source tokens, the end token included; 1 for other sources.
        target_vocabulary: number of target tokens, the end token included.
        units: width of the recurrent state.
        embedding: width of the embeddings and of the readout.
        cell: "gru" or "lstm".
        layers: layers of the encoder and of the decoder.
        attention: attend to the annotations; False reads their mean.
        dropout: probability of dropping a unit of embeddings and readout in training.
        initialisation: "paper", "glorot", or "none" if weights are loaded next.
        tied: share the target embedding with the output matrix.
        eos: the end token of both vocabularies.
        source: "text", "picture" or "sound".
        source_options: further arguments of the source's encoder, such as {"size": 80}.

    Raises:
        InvalidInput: an argument is out of range.
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
        source: str = "text",
        source_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        sizes = {"source_vocabulary": source_vocabulary, "target_vocabulary": target_vocabulary}
        sizes |= {"units": units, "embedding": embedding, "layers": layers}
        for name, size in sizes.items():
            ensure_integer(name, size, 1, MAX_SIZES.get(name, MAX_SIZE))
        sizes = {name: int(size) for name, size in sizes.items()}  # JSON writes no NumPy integers
        source_vocabulary, target_vocabulary, units, embedding, layers = sizes.values()
        ensure_bool("attention", attention)
        ensure_bool("tied", tied)
        ensure_integer("eos", eos)
        ensure_choice("cell", cell, tuple(CELLS))
        ensure_choice("initialisation", initialisation, ("paper", "glorot", "none"))
        ensure_number("dropout", dropout, minimum=0, below=1)
        dropout, eos = float(dropout), int(eos)
        # what rebuilds the model: AttentionModel(**options)
        self.options = sizes | {
            "cell": cell,
            "attention": attention,
            "dropout": dropout,
            "tied": tied,
            "eos": eos,
        }
        if not 0 <= eos < min(source_vocabulary, target_vocabulary):
            raise InvalidInput(f"eos must be a token of both vocabularies, not {eos}")
        self.special = Special(bos=target_vocabulary, eos=eos, pad=target_vocabulary)
        self.units, self.layers, self.source = units, layers, source
        self.attends, self.has_cell = attention, cell == "lstm"
        self.width = padded_width(units)
        width, annotation = self.width, 2 * self.width

        network, step_cell = CELLS[cell]
        drop = nn.Dropout(dropout)
        parts = EncoderSizes(source_vocabulary, embedding, width, layers, network, eos, drop)
        self.source_encoder = encoder_of(source, parts, source_options)
        for name, part in self.source_encoder.parts.items():
            self.add_module(name, part)
        if source != "text":
            self.options |= {"source": source, "source_options": self.source_encoder.options}
        self.initial = nn.Linear(annotation, layers * width)
        self.target_embedding = nn.Embedding(target_vocabulary, embedding)
        self.first = step_cell(embedding, width)
        self.second = step_cell(annotation, width)
        self.above = nn.ModuleList(step_cell(width, width) for _ in range(layers - 1))
        if attention:
            self.query = nn.Linear(width, annotation, bias=False)
            self.key = nn.Linear(annotation, annotation)
            self.energy = nn.Linear(annotation, 1, bias=False)
        self.readout = nn.Linear(width + embedding + annotation, embedding)
        self.logits = nn.Linear(embedding, target_vocabulary)
        self.drop = drop
        if tied:
            self.logits.weight = self.target_embedding.weight
        if initialisation != "none":
            self.initialise(initialisation)

        recurrent = ("hidden", "cell") if self.has_cell else ("hidden",)
        self.sites = dict.fromkeys(recurrent, layers * units)
        self.sites |= {f"{site}.{layer}": units for site in recurrent for layer in range(layers)}
        self.sites |= {"embedding": embedding, "output": embedding}

    @torch.no_grad()
    def initialise(self, scheme: str = "paper") -> None:
        """Draw the weights: biases zero, square recurrent matrices and the attention's orthogonal.

        Each gate's recurrent matrix is drawn separately.

        Args:
            scheme: of the other matrices. "paper" draws 0.01·N(0, 1), which learns nothing for
                long on little data; "glorot" draws embeddings from N(0, 1) and matrices by
                Glorot's rule.
        """
        for name, parameter in self.named_parameters():
            kind, indices = name.rsplit(".", 1)[-1], self._unpadded_indices(name, parameter)
            new = parameter.new_zeros([len(index) for index in indices])
            if kind.startswith("bias"):
                pass
            elif kind.startswith("weight_hh"):
                for gate in new.chunk(len(new) // self.units):
                    nn.init.orthogonal_(gate)
            elif name == "key.weight":
                nn.init.orthogonal_(new)
            elif new.dim() == 1:  # of a normalisation
                new.fill_(1)
            elif new.dim() > 2:  # a convolution, by He's rule whatever the scheme
                nn.init.kaiming_normal_(new, nonlinearity="relu")
            elif scheme == "paper":
                nn.init.normal_(new, std=0.01)
            elif "embedding" in name:
                tied = parameter is self.logits.weight
                nn.init.normal_(new, std=new.shape[1] ** -0.5 if tied else 1.0)
            else:
                nn.init.xavier_uniform_(new)
            parameter.zero_()
            parameter[torch.meshgrid(*indices, indexing="ij")] = new

    def _unpadded_indices(self, name: str, parameter: Tensor) -> list[Tensor]:
        """Return the indices of each dimension of a parameter that are not padding."""
        gates, module = 4 if self.has_cell else 3, name.split(".")[0]
        inputs = {"first": 0, "second": 2, "above": 1}
        # padded blocks of units in (rows, columns) of each module's matrices
        blocks = {
            cell: (gates, 1 if "_hh" in name else columns) for cell, columns in inputs.items()
        }
        blocks |= {
            "initial": (self.layers, 2),
            "query": (2, 1),
            "key": (2, 2),
            "energy": (0, 2),
            "readout": (0, 3),
        }
        if module in self.source_encoder.parts:
            blocks[module] = self.source_encoder.blocks(name)
        rows, columns = blocks.get(module, (0, 0))
        counts = [rows, columns, *[0] * parameter.dim()]  # a bias has rows, a convolution four
        return [
            unpadded_indices(size, count, self.units, self.width).to(parameter.device)
            for size, count in zip(parameter.shape, counts, strict=False)
        ]

    def size(self) -> int:
        """Return the number of learnt parameters, without padding."""
        return sum(
            math.prod(len(index) for index in self._unpadded_indices(name, parameter))
            for name, parameter in self.named_parameters()
        )

    def start(self, source: Any) -> AttentionState:
        return self.begin(*self.padded(source), exact=True)

    def padded(self, source: Any) -> tuple[Tensor, Tensor | None]:
        """Return a source as one tensor and, where something is padded, lengths on the CPU.

        Args:
            source: token lists without end tokens, pictures, or sounds.

        Returns:
            Tokens [sentences, length] with end tokens, pixels [sentences, 3, height, width], or
            frames [sentences, length, bins]; and the lengths [sentences], or None.

        Raises:
            InvalidInput: the source is none that this model reads.
        """
        return self.source_encoder.padded(source)

    def begin(self, inputs: Tensor, lengths: Tensor | None, exact: bool = False) -> AttentionState:
        """Return the state before the first token, from what `padded` returned.

        Args:
            inputs: [sentences, …].
            lengths: [sentences], or None.
            exact: encode in full float32, without cuDNN, which uses TF32 on a GPU.
        """
        memory, lengths = self.source_encoder.annotate(inputs, lengths, exact)
        sentences, longest, _ = memory.shape
        if lengths is None:
            mask = torch.zeros(sentences, longest, dtype=torch.bool, device=memory.device)
            mean = memory.mean(1)
        else:
            lengths = lengths.to(memory.device, non_blocking=True)
            mask = torch.arange(longest, device=memory.device) >= lengths[:, None]
            mean = memory.sum(1) / lengths[:, None]  # memory is zero at padding
        hidden = torch.tanh(self.initial(mean)).view(sentences, self.layers, self.width)
        hidden = hidden.transpose(0, 1)
        cell = torch.zeros_like(hidden) if self.has_cell else None
        if self.attends:
            keys = self.key(memory)
        else:  # the mean stands for a source of one token
            memory, mask = mean[:, None], mask[:, :1]
            keys = memory
        weights = memory.new_zeros(sentences, memory.shape[1])
        return AttentionState(hidden, cell, memory, keys, mask, Layout(sentences, 1), weights)

    def select(self, state: AttentionState, rows: Tensor) -> AttentionState:
        layout, sentences = state.layout.after(rows)
        chosen = replace(
            state,
            hidden=state.hidden[:, rows],
            cell=None if state.cell is None else state.cell[:, rows],
            layout=layout,
            weights=state.weights[rows],
        )
        if sentences is None:
            return chosen
        return replace(
            chosen,
            memory=state.memory[sentences],
            keys=state.keys[sentences],
            mask=state.mask[sentences],
        )

    def attention(self, state: AttentionState) -> Tensor:
        """Return the weights of the last step, [rows, source length]; the end token comes last."""
        return state.weights

    def transition(
        self, state: AttentionState, tokens: Tensor, perturb: Any
    ) -> tuple[Tensor, AttentionState]:
        """Read one token per row: return the readout [rows, embedding] and the next state."""
        x = perturb("embedding", self._embedded(tokens))
        state, context = self._recur(state, x, perturb)
        return perturb("output", self._readout(state.hidden[-1], x, context)), state

    def features(
        self,
        state: AttentionState,
        tokens: Tensor,
        perturb: Callable[[int], Any] = lambda step: untouched,
    ) -> Tensor:
        """Return the readouts of all steps; embeddings and readouts are computed all at once."""
        perturbs = [perturb(t + 1) for t in range(tokens.shape[1])]
        embedded = self.drop(self._embedded(tokens)).unbind(1)
        inputs = [noise("embedding", x) for noise, x in zip(perturbs, embedded, strict=True)]
        hidden, contexts = [], []
        for noise, x in zip(perturbs, inputs, strict=True):
            state, context = self._recur(state, x, noise)
            hidden.append(state.hidden[-1])
            contexts.append(context)
        readout = self._readout(*(torch.stack(steps, 1) for steps in (hidden, inputs, contexts)))
        noisy = [noise("output", x) for noise, x in zip(perturbs, readout.unbind(1), strict=True)]
        return self.drop(torch.stack(noisy, 1))  # type: ignore[no-any-return]

    def _embedded(self, tokens: Tensor) -> Tensor:
        """Return E[y], zero for the begin token: [..., embedding]."""
        embedded = self.target_embedding(tokens.clamp(max=self.logits.out_features - 1))
        begins = tokens == self.special.bos
        return embedded.masked_fill(begins[..., None], 0)  # type: ignore[no-any-return]

    def _readout(self, hidden: Tensor, x: Tensor, context: Tensor) -> Tensor:
        return torch.tanh(self.readout(torch.cat([hidden, x, context], -1)))

    def _recur(
        self, state: AttentionState, x: Tensor, perturb: Any
    ) -> tuple[AttentionState, Tensor]:
        """Return s_j and the context c_j [rows, 2 · units], from s_{j−1} and E[y_{j−1}]."""
        hidden = [
            self._perturbed(perturb, f"hidden.{layer}", h) for layer, h in enumerate(state.hidden)
        ]
        state_cells = () if state.cell is None else state.cell
        cells = [
            self._perturbed(perturb, f"cell.{layer}", c) for layer, c in enumerate(state_cells)
        ]
        middle = self.first(x, (hidden[0], cells[0]) if cells else hidden[0])  # s'_j
        context, weights = self._attend(state, middle[0] if cells else middle)
        new = [self.second(context, middle)]
        for layer, above in enumerate(self.above, start=1):
            below = new[-1][0] if cells else new[-1]
            new.append(above(below, (hidden[layer], cells[layer]) if cells else hidden[layer]))
        new_hidden = torch.stack([layer[0] if cells else layer for layer in new])
        new_cell = torch.stack([layer[1] for layer in new]) if cells else None
        return replace(state, hidden=new_hidden, cell=new_cell, weights=weights), context

    def _perturbed(self, perturb: Any, site: str, x: Tensor) -> Tensor:
        """Perturb the units of x [rows, width], but not their padding."""
        if perturb is untouched or self.units == self.width:
            return perturb(site, x)  # type: ignore[no-any-return]
        return F.pad(perturb(site, x[:, : self.units]), (0, self.width - self.units))

    def _attend(self, state: AttentionState, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return context [rows, 2 · units] and weights [rows, length], in one batched product."""
        sentences, sentence_rows = state.layout
        if not self.attends:
            rows = repeat(sentences, sentence_rows, hidden.device)
            return state.memory[rows, 0], state.weights.new_ones(len(rows), 1)
        query = self.query(hidden).view(sentences, sentence_rows, 1, -1)
        # [sentences, rows of a sentence, length]
        energy = self.energy(torch.tanh(query + state.keys[:, None])).squeeze(-1)
        weights = F.softmax(energy.masked_fill(state.mask[:, None], -torch.inf), -1)
        return (weights @ state.memory).flatten(0, 1), weights.flatten(0, 1)


def padded_width(units: int) -> int:
    """Return the width at which a layer of `units` units is stored."""
    return units if units < MIN_PADDED_UNITS else -(-units // WIDTH_MULTIPLE) * WIDTH_MULTIPLE


def unpadded_indices(size: int, blocks: int, units: int, width: int) -> Tensor:
    """Return the indices of a parameter's dimension that are not padding.

    The dimension is a block of units, then entries that are never padded, then the other blocks.

    Args:
        size: the length of the dimension.
        blocks: how many padded blocks of units it has.
        units: units of a block.
        width: the length of a padded block.
    """
    unpadded = size - blocks * width
    sizes = [unpadded] if blocks == 0 else [width, unpadded, *[width] * (blocks - 1)]
    kept = [unpadded] if blocks == 0 else [units, unpadded, *[units] * (blocks - 1)]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return torch.cat(
        [torch.arange(start, start + count) for start, count in zip(starts, kept, strict=True)]
    )
