"""The encoder of a picture: a convolutional network whose grid of features attention looks at.

Every stage halves the picture by a convolution of stride 2, followed by a residual block (He et
al., 2016) whose convolutions normalise and rectify their inputs: from pixels to the last grid there
is a linear path, on which pictures stay as different as they are. Rectified after every
convolution, their features would be nearly the same at first, and stay so. Group normalisation (Wu
& He, 2018) makes a picture's features independent of the others in its batch. The cells of the last
stage's grid, row by row, are the annotations, in (−1, 1) as those of a recurrent encoder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from npad.errors import InvalidInput
from npad.models.encoders.encoder import Encoder, EncoderSizes, type_and_shape
from npad.models.network import MAX_SIZE
from npad.validation import as_list, ensure_integer

PIXEL_MEAN, PIXEL_DEVIATION = 115.0, 69.0  # of photographs, in levels from 0 to 255
MAX_GROUPS = 8  # of channels that are normalised together
MIN_GROUP = 8  # channels; the mean of a single one, such as a picture's colour, would be lost
MAX_STAGES = 10
MAX_PIXELS = 4096  # of a side
EXACT_PICTURES = 64  # convolved at a time by matrix products, which need nine times the memory

Convolve = Callable[[nn.Conv2d, Tensor], Tensor]


class PictureEncoder(Encoder):
    """Encodes pictures: a uint8 tensor [pictures, 3, size, size], or a list of [3, size, size].

    Args:
        sizes: of the model.
        size: pixels of a side, a multiple of 2 to the number of stages.
        channels: of each stage.
    """

    def __init__(
        self, sizes: EncoderSizes, size: int = 80, channels: Sequence[int] = (64, 128, 256)
    ):
        ensure_integer("size", size, 1, MAX_PIXELS)
        stages = as_list("channels", channels, "a list of channels, one number per stage")
        for number in stages:
            ensure_integer("channels: each", number, 1, MAX_SIZE)
        if not 1 <= len(stages) <= MAX_STAGES:
            raise InvalidInput(f"channels must be 1 to {MAX_STAGES} numbers, not {len(stages)}")
        if size % 2 ** len(stages):
            raise InvalidInput(
                f"size must be a multiple of {2 ** len(stages)}, which {len(stages)} stages halve, "
                f"not {size}"
            )
        self.size = int(size)
        self.options = {"size": self.size, "channels": [int(number) for number in stages]}
        self.network = PictureNetwork(self.options["channels"], 2 * sizes.width)
        self.parts = {"encoder": self.network}

    def padded(self, source: Any) -> tuple[Tensor, Tensor | None]:
        return as_pictures(source, self.size).to(self.network.project.weight.device), None

    def annotate(
        self, inputs: Tensor, lengths: Tensor | None, exact: bool
    ) -> tuple[Tensor, Tensor | None]:
        return self.network(inputs, convolution_for(inputs, exact)), None

    def blocks(self, name: str) -> tuple[int, int]:
        return (2, 0) if name.startswith("encoder.project.") else (0, 0)


class PictureNetwork(nn.Module):
    """Maps pixels [pictures, 3, height, width], 0 to 255, to features [pictures, cells, outputs].

    The features are in (−1, 1).

    Args:
        channels: of each stage.
        outputs: of each cell.
    """

    def __init__(self, channels: Sequence[int], outputs: int) -> None:
        super().__init__()
        below = [3, *channels[:-1]]
        self.stages = nn.ModuleList(
            Stage(inputs, number) for inputs, number in zip(below, channels, strict=True)
        )
        self.norm = nn.LayerNorm(channels[-1])
        self.project = nn.Linear(channels[-1], outputs)

    def forward(self, pixels: Tensor, convolve: Convolve) -> Tensor:
        weight = self.project.weight
        x = (pixels.to(weight.dtype) - PIXEL_MEAN) / PIXEL_DEVIATION
        if x.is_cuda:
            x = x.contiguous(memory_format=torch.channels_last)
        for stage in self.stages:
            x = stage(x, convolve)
        cells = self.norm(x.flatten(2).transpose(1, 2))
        return torch.tanh(self.project(cells))


class Stage(nn.Module):
    """A convolution that halves the picture, and a residual block of pre-activations."""

    def __init__(self, inputs: int, channels: int) -> None:
        super().__init__()
        self.halve = nn.Conv2d(inputs, channels, 3, stride=2, padding=1, bias=False)
        self.inner = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.outer = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.GroupNorm(_groups(channels), channels) for _ in range(2))

    def forward(self, x: Tensor, convolve: Convolve) -> Tensor:
        """Map [pictures, inputs, height, width] to [pictures, channels, height / 2, width / 2]."""
        first, second = self.norms
        x = convolve(self.halve, x)
        inner = convolve(self.inner, F.relu(first(x)))
        return x + convolve(self.outer, F.relu(second(inner)))


def _groups(channels: int) -> int:
    """Return a number of groups that divides the channels into groups of enough of them."""
    groups = math.gcd(MAX_GROUPS, channels)
    while groups > 1 and channels // groups < MIN_GROUP:
        groups //= 2
    return groups


def convolution_for(inputs: Tensor, exact: bool) -> Convolve:
    """Return how to convolve inputs: exactly, or as torch does."""
    return convolve_exactly if exact and inputs.is_cuda else convolve


def convolve(convolution: nn.Conv2d, x: Tensor) -> Tensor:
    """Return a convolution as torch computes it, on a GPU by cuDNN in TF32."""
    return convolution(x)  # type: ignore[no-any-return]


def convolve_exactly(convolution: nn.Conv2d, x: Tensor) -> Tensor:
    """Return a convolution as matrix products, in full float32 on a GPU.

    Convolutions of single channels are not products there, and exact anyway.
    """
    if convolution.groups > 1:
        return convolution(x)  # type: ignore[no-any-return]
    matrix = convolution.weight.flatten(1)  # [channels, inputs · kernel]
    kernel, stride, padding = convolution.kernel_size, convolution.stride, convolution.padding
    assert not isinstance(padding, str)
    height, width = (
        (side + 2 * beyond - size) // step + 1
        for side, size, beyond, step in zip(x.shape[2:], kernel, padding, stride, strict=True)
    )
    convolved = [
        matrix @ F.unfold(block, kernel, padding=padding, stride=stride)
        for block in torch.split(x, EXACT_PICTURES)
    ]
    result = torch.cat(convolved).view(len(x), -1, height, width)
    bias = convolution.bias
    return result if bias is None else result + bias[:, None, None]


def as_pictures(source: Any, size: int) -> Tensor:
    """Return pictures as one uint8 tensor [pictures, 3, size, size].

    Raises:
        InvalidInput: one of them is of another type or shape.
    """
    pictures = source if isinstance(source, Tensor) else list(source)
    shape = (3, size, size)
    for i, picture in enumerate(pictures):
        if not (
            isinstance(picture, Tensor)
            and picture.dtype == torch.uint8
            and tuple(picture.shape) == shape
        ):
            raise InvalidInput(
                f"picture {i} must be a uint8 tensor {list(shape)}, not {type_and_shape(picture)}"
            )
    if isinstance(pictures, Tensor):
        return pictures
    return torch.stack(pictures) if pictures else torch.empty(0, *shape, dtype=torch.uint8)
