"""A bidirectional GRU or LSTM one time step after another, both directions in step.

On a GPU `nn.GRU` runs in cuDNN, which multiplies float32 in TF32 and keeps three digits. Its only
switches are flags of the whole process, which threads would change under each other; decoding
computes the recurrence here instead, with as few launches per time step, and sets no flag.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from npad.kernels import fused


def bidirectional(encoder: nn.RNNBase, embedded: Tensor, lengths: Tensor | None) -> Tensor:
    """What a bidirectional, batch-first `encoder` returns for packed sequences; zero at padding.

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
    """[length, 2, sentences, 1], one where a direction reads a symbol at a step, zero at padding."""
    position = torch.arange(embedded.shape[1], device=embedded.device)
    reads = torch.stack([position, position.flip(0)], 1)  # [length, 2]
    inside = reads[..., None] < lengths.to(embedded.device, non_blocking=True)
    return inside[..., None].to(embedded.dtype)


def _layer(encoder: nn.RNNBase, layer: int, x: Tensor, valid: Tensor | None) -> Tensor:
    """One layer: [sentences, length, inputs] to [sentences, length, 2 · units]."""
    forward, backward = encoder.all_weights[2 * layer : 2 * layer + 2]
    inputs = torch.stack(
        [_read(x, forward), _read(x, backward).flip(0)], 1
    )  # [length, 2, sentences, gates]
    weight = torch.stack([forward[1], backward[1]]).mT  # [2, units, gates]
    bias = torch.stack([forward[3], backward[3]])[:, None]
    hidden = x.new_zeros(2, len(x), encoder.hidden_size)
    cell = hidden if isinstance(encoder, nn.LSTM) else None
    states = []
    for step, read in enumerate(inputs.unbind(0)):
        recurrent = torch.baddbmm(bias, hidden, weight)
        if cell is None:
            gates = (part.flatten(0, 1) for part in (read, recurrent, hidden))
            hidden = gru(*gates).view_as(hidden)
        else:
            hidden, cell = lstm(read, recurrent, cell)
        if (
            valid is not None
        ):  # the backward direction begins at the end of each sentence, with zeros
            hidden = hidden * valid[step]
            cell = None if cell is None else cell * valid[step]
        states.append(hidden)
    ahead, back = torch.stack(states, 2).unbind(0)  # [sentences, length, units]
    return torch.cat([ahead, back.flip(1)], -1)


def _read(x: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """The input's part of all gates, for all time steps in one product: [length, sentences, gates]."""
    return F.linear(x.transpose(0, 1), weights[0], weights[2])


def gru(inputs: Tensor, recurrent: Tensor, old: Tensor) -> Tensor:
    """A GRU's new state from what its two matrices made, [rows, 3 · units] each, biases included."""
    if fused(inputs) and not inputs.requires_grad:
        from npad.kernels.gates import gates as kernel

        return kernel(inputs, recurrent, old)
    width = old.shape[1]
    gates = (inputs[:, : 2 * width] + recurrent[:, : 2 * width]).sigmoid_()
    reset, update = gates.chunk(2, 1)
    new = torch.addcmul(inputs[:, 2 * width :], reset, recurrent[:, 2 * width :]).tanh_()
    return torch.lerp(new, old, update)


def lstm(inputs: Tensor, recurrent: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """An LSTM's new state and cell from what its matrices made, [..., 4 · units] each."""
    enter, forget, new, leave = (inputs + recurrent).chunk(4, -1)
    cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
    return leave.sigmoid() * cell.tanh(), cell
