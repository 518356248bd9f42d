"""Where results come from, in words: a model, its training and the machine."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import torch

from npad.version import __version__


def about_model(config: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a model and its training, from its config.json."""
    about = {"sizes": _in_words(config["model"])}
    if "training" in config:
        training = config["training"]
        recipe = {k: v for k, v in training["recipe"].items() if v not in (None, False)}
        about["training"] = _in_words(recipe)
        pairs, updates = training["data"]["train"]["kept"], training["update"]
        about["trained on"] = f"{pairs:,} pairs, {updates:,} updates"
        about["validation perplexity"] = f"{training['perplexity']:.3f}"
    return about


def machine(device: torch.device, rows: str) -> str:
    """Describe a machine and how many rows it decodes at a time."""
    cuda = device.type == "cuda"
    processor = torch.cuda.get_device_name(device) if cuda else platform.machine()
    return f"{processor}, {rows}, torch {torch.__version__}, npad {__version__}"


def _in_words(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items())
