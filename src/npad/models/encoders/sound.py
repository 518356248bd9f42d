"""The encoder of a sound: strided convolutions over log-mel frames, and a bidirectional GRU.

Two convolutions in time, of five frames and stride 2, leave one position in four frames. They are
computed as products of a matrix with neighbouring frames, which is the same on every device. What
is beyond a sound's last frame is zero in each layer, so that padding changes nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from npad.errors import InvalidInput
from npad.models.encoders.encoder import EncoderSizes, type_and_shape
from npad.models.encoders.recurrent import RecurrentEncoder
from npad.models.network import MAX_SIZE
from npad.validation import ensure_integer

KERNEL = 5  # frames that a convolution reads
CONVOLUTIONS = 2
STRIDE = 2**CONVOLUTIONS  # frames of a position


class SoundEncoder(RecurrentEncoder):
    """Encodes sounds: a list of floating-point tensors [frames, bins] of log-mel features.

    Args:
        sizes: of the model.
        rate: samples per second of the recordings; the features depend on it.
        bins: features of a frame.
        channels: of the convolutions.
    """

    def __init__(self, sizes: EncoderSizes, rate: int = 8000, bins: int = 40, channels: int = 256):
        options = {"rate": rate, "bins": bins, "channels": channels}
        for name, value in options.items():
            ensure_integer(name, value, 1, MAX_SIZE)
        self.options = {name: int(value) for name, value in options.items()}
        self.bins = self.options["bins"]
        self.convolutions = nn.ModuleList(
            Convolution(inputs, self.options["channels"])
            for inputs in [self.bins, *[self.options["channels"]] * (CONVOLUTIONS - 1)]
        )
        self.network = sizes.network(
            channels, sizes.width, sizes.layers, batch_first=True, bidirectional=True
        )
        self.parts = {"convolutions": self.convolutions, "encoder": self.network}
        self.drop = sizes.drop

    def padded(self, source: Any) -> tuple[Tensor, Tensor | None]:
        sounds = list(source)
        for i, sound in enumerate(sounds):
            if not (
                isinstance(sound, Tensor)
                and sound.is_floating_point()
                and sound.dim() == 2
                and sound.shape[1] == self.bins
                and len(sound)
            ):
                raise InvalidInput(
                    f"sound {i} must be a floating-point tensor [frames, {self.bins}], "
                    f"not {type_and_shape(sound)}"
                )
        weight = self.network.all_weights[0][0]
        lengths = torch.tensor([len(sound) for sound in sounds], dtype=torch.long)
        if not sounds:
            return weight.new_zeros(0, 1, self.bins), None
        padded = nn.utils.rnn.pad_sequence([sound.to(weight) for sound in sounds], batch_first=True)
        return padded, None if bool((lengths == padded.shape[1]).all()) else lengths

    def embedded(self, inputs: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return features of every `STRIDE` frames, zero at padding, and the lengths."""
        x = inputs
        for convolution in self.convolutions:
            x = convolution(x)
            if lengths is not None:
                lengths = -(-lengths // 2)
                ends = lengths.to(x.device, non_blocking=True)[:, None, None]
                x = x.masked_fill(torch.arange(x.shape[1], device=x.device)[:, None] >= ends, 0)
        return self.drop(x), lengths


class Convolution(nn.Module):
    """A convolution in time of stride 2, with layer normalisation and GELU."""

    def __init__(self, inputs: int, channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(KERNEL * inputs, channels)
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Map [sounds, length, inputs] to [sounds, ⌈length / 2⌉, channels]."""
        around = F.pad(x, (0, 0, KERNEL // 2, KERNEL // 2))
        windows = around.unfold(1, KERNEL, 2)  # [sounds, ⌈length / 2⌉, inputs, KERNEL]
        return F.gelu(self.norm(self.linear(windows.flatten(2))))
