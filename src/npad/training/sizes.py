"""The number of parameters of a model, computed without building it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from npad.engine.memory import total_memory
from npad.errors import InvalidInput
from npad.models.cgru.model import padded_width
from npad.models.encoders import encoder_of
from npad.models.encoders.encoder import EncoderSizes
from npad.models.network import without_weights
from npad.training.recipe import Recipe
from npad.validation import ensure_integer

MAX_LAYERS = 100
SIZES = {"units": 1028, "embedding": 512, "layers": 1}  # the defaults of AttentionModel
GATES = {"gru": 3, "lstm": 4}
COPIES = {"adam": 4, "adadelta": 4, "sgd": 2}  # of a weight: itself, gradient, optimiser state


def ensure_fits(
    vocabulary: Sequence[int],
    options: Mapping[str, Any],
    recipe: Recipe,
    device: torch.device,
) -> None:
    """Refuse a model that could not be trained in the memory of a device.

    Args:
        vocabulary: the sizes of source and target, or lower bounds of them.
        options: the arguments of AttentionModel.
        recipe: its optimiser decides how many copies of the weights are held.
        device: where to train.

    Raises:
        InvalidInput: a size is invalid, or the memory is too small.
    """
    sizes = {name: options.get(name, default) for name, default in SIZES.items()}
    for name, size in sizes.items():
        ensure_integer(name, size, 1)
    if sizes["layers"] > MAX_LAYERS:
        raise InvalidInput(f"layers must be at most {MAX_LAYERS}, not {sizes['layers']}")
    required = 4 * COPIES[recipe.optimiser] * parameters(vocabulary, options)  # bytes, in float32
    memory = _memory(device)
    if required > memory:
        model = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
        raise InvalidInput(
            f"a model of {model} cannot be trained in the {memory / 2**30:,.0f} GiB of {device}; "
            "lower the units, the embedding, the layers or the vocabulary"
        )


def _memory(device: torch.device) -> int:
    """Return a device's memory; the machine's for a missing GPU, which is reported later."""
    try:
        return total_memory(device)
    except (AssertionError, RuntimeError):
        return total_memory(torch.device("cpu"))


def parameters(vocabulary: Sequence[int], options: Mapping[str, Any]) -> int:
    """Return the number of parameters of an AttentionModel, the padding of its units included."""
    units, embedding, layers = (options.get(name, default) for name, default in SIZES.items())
    source, target = vocabulary
    width, gates = padded_width(units), GATES.get(options.get("cell", "gru"), 3)

    def cell(inputs: int) -> int:
        return gates * width * (inputs + width + 2)

    source_kind = options.get("source", "text")
    if source_kind == "text":
        encoder = 2 * (cell(embedding) + (layers - 1) * cell(2 * width)) + source * embedding
    else:
        encoder = _encoder_parameters(source_kind, options, width)
    decoder = cell(embedding) + cell(2 * width) + (layers - 1) * cell(width)
    initial = (2 * width + 1) * layers * width
    attention = 2 * width * width + (2 * width + 1) * 2 * width + 2 * width
    readout = (3 * width + embedding + 1) * embedding
    embeddings = target * embedding
    logits = target * (1 if options.get("tied") else embedding + 1)
    total = encoder + decoder + initial + readout + embeddings + logits
    return int(total + (attention if options.get("attention", True) else 0))


def _encoder_parameters(source: str, options: Mapping[str, Any], width: int) -> int:
    """Return the number of parameters of the encoder of pictures or sounds."""
    network = nn.LSTM if options.get("cell") == "lstm" else nn.GRU
    sizes = EncoderSizes(1, 1, width, options.get("layers", 1), network, 0, nn.Identity())
    with without_weights():
        parts = encoder_of(source, sizes, options.get("source_options")).parts
    return sum(weight.numel() for part in parts.values() for weight in part.parameters())
