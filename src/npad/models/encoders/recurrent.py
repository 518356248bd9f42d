"""Bidirectional GRU and LSTM encoders: of texts, and what the encoder of sounds shares.

On a GPU `nn.GRU` runs in cuDNN, which multiplies float32 in TF32 and keeps three digits. Its only
switches are flags of the whole process, which threads would change under each other; decoding
computes the recurrence here instead, with as few launches per time step, and sets no flag.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from npad.errors import InvalidInput
from npad.kernels import fused
from npad.models.encoders.encoder import Encoder, EncoderSizes


class RecurrentEncoder(Encoder):
    """An encoder that ends in a bidirectional GRU or LSTM, `network`."""

    network: nn.RNNBase

    @abstractmethod
    def embedded(self, inputs: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return what the network reads, [sentences, length, inputs], and the lengths."""

    def annotate(
        self, inputs: Tensor, lengths: Tensor | None, exact: bool
    ) -> tuple[Tensor, Tensor | None]:
        x, lengths = self.embedded(inputs, lengths)
        encode = bidirectional if exact and x.is_cuda else annotated
        return encode(self.network, x, lengths), lengths

    def blocks(self, name: str) -> tuple[int, int]:
        if not name.startswith("encoder."):
            return 0, 0
        gates = 4 if isinstance(self.network, nn.LSTM) else 3
        return gates, 1 if "_hh" in name else 0 if "_l0" in name else 2


class TextEncoder(RecurrentEncoder):
    """Encodes token lists, without end tokens; an end token is appended to each."""

    def __init__(self, sizes: EncoderSizes) -> None:
        self.options = {}
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.embedding)
        self.network = sizes.network(
            sizes.embedding, sizes.width, sizes.layers, batch_first=True, bidirectional=True
        )
        self.parts = {"source_embedding": self.embedding, "encoder": self.network}
        self.drop, self.eos = sizes.drop, sizes.eos

    def padded(self, source: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor | None]:
        vocabulary = self.embedding.num_embeddings
        for i, sentence in enumerate(source):
            tokens: Sequence[Any] = sentence
            if not all(isinstance(x, Integral) and 0 <= int(x) < vocabulary for x in tokens):
                raise InvalidInput(
                    f"sentence {i} must be a list of tokens from 0 to {vocabulary - 1}, "
                    f"not {sentence!r}"
                )
        longest = max(map(len, source), default=0) + 1
        rows = [
            [*map(int, sentence), *[self.eos] * (longest - len(sentence))] for sentence in source
        ]
        padded = torch.tensor(rows, dtype=torch.long).view(-1, longest)
        lengths = torch.tensor([len(sentence) + 1 for sentence in source])
        return (
            padded.to(self.embedding.weight.device),
            None if bool((lengths == longest).all()) else lengths,
        )

    def embedded(self, inputs: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return self.drop(self.embedding(inputs)), lengths


def annotated(encoder: nn.RNNBase, embedded: Tensor, lengths: Tensor | None) -> Tensor:
    """Return the annotations [sentences, length, 2 · units], zero at padding."""
    if lengths is None:
        memory: Tensor = encoder(embedded)[0]
        return memory.contiguous()  # else a product with it is computed sentence by sentence
    packed = pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
    output, length = encoder(packed)[0], embedded.shape[1]
    return pad_packed_sequence(output, batch_first=True, total_length=length)[0]


def bidirectional(encoder: nn.RNNBase, embedded: Tensor, lengths: Tensor | None) -> Tensor:
    """Return what a bidirectional `encoder` returns for packed sequences; zero at padding.

    Args:
        encoder: `nn.GRU` or `nn.LSTM`, bidirectional, with biases and `batch_first`.
        embedded: [sentences, length, inputs].
        lengths: [sentences] on any device; None where no sentence is padded.

    Returns:
        [sentences, length, 2 · units], forward and backward states side by side.
    """
    valid = None if lengths is None else _valid(lengths, embedded)
    for layer in range(encoder.num_layers):
        embedded = _layer(encoder, layer, embedded, valid)
    return embedded


def _valid(lengths: Tensor, embedded: Tensor) -> Tensor:
    """Return [length, 2, sentences, 1]: one where a direction reads a token, zero at padding."""
    position = torch.arange(embedded.shape[1], device=embedded.device)
    reads = torch.stack([position, position.flip(0)], 1)  # [length, 2]
    inside = reads[..., None] < lengths.to(embedded.device, non_blocking=True)
    return inside[..., None].to(embedded.dtype)


def _layer(encoder: nn.RNNBase, layer: int, x: Tensor, valid: Tensor | None) -> Tensor:
    """Run one layer: [sentences, length, inputs] to [sentences, length, 2 · units]."""
    forward, backward = encoder.all_weights[2 * layer : 2 * layer + 2]
    # [length, 2, sentences, gates]
    inputs = torch.stack([_input_gates(x, forward), _input_gates(x, backward).flip(0)], 1)
    weight = torch.stack([forward[1], backward[1]]).mT  # [2, units, gates]
    bias = torch.stack([forward[3], backward[3]])[:, None]
    hidden = x.new_zeros(2, len(x), encoder.hidden_size)
    cell = hidden if isinstance(encoder, nn.LSTM) else None
    states = []
    for step, step_inputs in enumerate(inputs.unbind(0)):
        recurrent = torch.baddbmm(bias, hidden, weight)
        if cell is None:
            gates = (part.flatten(0, 1) for part in (step_inputs, recurrent, hidden))
            hidden = gru(*gates).view_as(hidden)
        else:
            hidden, cell = lstm(step_inputs, recurrent, cell)
        if valid is not None:  # keeps the backward state zero until its sentence begins
            hidden = hidden * valid[step]
            cell = None if cell is None else cell * valid[step]
        states.append(hidden)
    ahead, back = torch.stack(states, 2).unbind(0)  # [sentences, length, units]
    return torch.cat([ahead, back.flip(1)], -1)


def _input_gates(x: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Return the input's share of the gates at all time steps: [length, sentences, gates]."""
    return F.linear(x.transpose(0, 1), weights[0], weights[2])


def gru(inputs: Tensor, recurrent: Tensor, hidden: Tensor) -> Tensor:
    """Return a GRU's next state.

    Args:
        inputs: [rows, 3 · units], the input times its matrix, bias included.
        recurrent: [rows, 3 · units], the state times its matrix, bias included.
        hidden: [rows, units], the state.

    Returns:
        [rows, units].
    """
    if fused(inputs) and not inputs.requires_grad:
        from npad.kernels.layers import gates as kernel

        return kernel(inputs, recurrent, hidden)
    width = hidden.shape[1]
    gates = (inputs[:, : 2 * width] + recurrent[:, : 2 * width]).sigmoid_()
    reset, update = gates.chunk(2, 1)
    new = torch.addcmul(inputs[:, 2 * width :], reset, recurrent[:, 2 * width :]).tanh_()
    return torch.lerp(new, hidden, update)


def lstm(inputs: Tensor, recurrent: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Return an LSTM's next state and cell, [..., units] each.

    Args:
        inputs: [..., 4 · units], the input times its matrix, bias included.
        recurrent: [..., 4 · units], the state times its matrix, bias included.
        cell: [..., units].
    """
    input_gate, forget_gate, new, output_gate = (inputs + recurrent).chunk(4, -1)
    cell = forget_gate.sigmoid() * cell + input_gate.sigmoid() * new.tanh()
    return output_gate.sigmoid() * cell.tanh(), cell
