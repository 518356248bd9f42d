"""Whisper checkpoints in OpenAI's format: their weights and sizes as transformers names them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from npad.errors import StorageError
from npad.storage.regular import open_regular

SIZES = (
    *("n_mels", "n_audio_ctx", "n_audio_state", "n_audio_head", "n_audio_layer"),
    *("n_vocab", "n_text_ctx", "n_text_state", "n_text_head", "n_text_layer"),
)
WIDENING = 4  # width of a feed-forward layer ÷ width of the model, in every Whisper
# Parts of OpenAI's model -> the modules of transformers, for modules with a weight and a bias.
ENCODER = {"conv1": "conv1", "conv2": "conv2", "ln_post": "layer_norm"}
DECODER = {"ln": "layer_norm"}
LAYER = {
    "attn_ln": "self_attn_layer_norm",
    "cross_attn_ln": "encoder_attn_layer_norm",
    "mlp.0": "fc1",
    "mlp.2": "fc2",
    "mlp_ln": "final_layer_norm",
}
ATTENTION = {"attn": "self_attn", "cross_attn": "encoder_attn"}
PROJECTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}


def read_checkpoint(path: str | Path) -> tuple[dict[str, int], dict[str, Tensor]]:
    """Read a checkpoint without running code: nothing but tensors and plain values is unpickled.

    Returns:
        The sizes of the model and its tensors, both by OpenAI's names.

    Raises:
        StorageError: the file cannot be read, is damaged, or holds anything else.
    """
    try:
        with open_regular(path) as file:
            content = torch.load(file, map_location="cpu", weights_only=True)
    except StorageError:
        raise
    except Exception as error:  # torch raises exceptions of all kinds
        rule = "it is damaged, or holds objects other than tensors, which npad never unpickles"
        raise StorageError(f"cannot read {path} as a checkpoint of Whisper: {rule}") from error
    sizes, weights = _parts(content)
    if sizes is None or weights is None:
        rule = "it needs 'dims', whole numbers, and 'model_state_dict', tensors"
        raise StorageError(f"{path} is no checkpoint of OpenAI's Whisper: {rule}")
    return sizes, weights


def _parts(content: Any) -> tuple[dict[str, int] | None, dict[str, Tensor] | None]:
    """Return the sizes and the tensors of a checkpoint; None for a part that is not valid."""
    if not isinstance(content, dict):
        return None, None
    sizes, weights = content.get("dims"), content.get("model_state_dict")
    if not isinstance(sizes, dict) or not all(
        isinstance(sizes.get(name), int) and sizes[name] > 0 for name in SIZES
    ):
        sizes = None
    if not isinstance(weights, dict) or not all(
        isinstance(tensor, Tensor) for tensor in weights.values()
    ):
        weights = None
    return sizes, weights


def weight_names(sizes: dict[str, int]) -> dict[str, str]:
    """Return OpenAI's name of every tensor of a model, mapped to that of transformers.

    The output layer is not among them: it is the embedding.
    """
    modules = {f"encoder.{part}": f"encoder.{module}" for part, module in ENCODER.items()}
    modules |= {f"decoder.{part}": f"decoder.{module}" for part, module in DECODER.items()}
    for side, layers in (("encoder", sizes["n_audio_layer"]), ("decoder", sizes["n_text_layer"])):
        for i in range(layers):
            modules |= {
                f"{side}.blocks.{i}.{part}": f"{side}.layers.{i}.{module}"
                for part, module in _layer_modules(side).items()
            }
    names = {
        f"{part}.{kind}": f"model.{module}.{kind}"
        for part, module in modules.items()
        for kind in ("weight", "bias")
        if not (part.endswith(".key") and kind == "bias")  # softmax cancels it: there is none
    }
    for side in ("encoder", "decoder"):
        names[f"{side}.positional_embedding"] = f"model.{side}.embed_positions.weight"
    names["decoder.token_embedding.weight"] = "model.decoder.embed_tokens.weight"
    return names


def _layer_modules(side: str) -> dict[str, str]:
    """Return the modules of one layer, of the encoder or of the decoder."""
    modules = LAYER | {
        f"{part}.{projection}": f"{module}.{name}"
        for part, module in ATTENTION.items()
        for projection, name in PROJECTION.items()
    }
    crosses = side == "decoder"
    return {part: modules[part] for part in modules if crosses or not part.startswith("cross_")}


def converted(sizes: dict[str, int], weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename the tensors of a checkpoint as transformers names them; their precision is kept.

    Raises:
        StorageError: a tensor is missing, or is none of the model's.
    """
    names = weight_names(sizes)
    for wrong, rule in (
        (names.keys() - weights.keys(), "lacks the tensor"),
        (weights.keys() - names.keys(), "has a tensor that Whisper does not,"),
    ):
        if wrong:
            raise StorageError(f"the checkpoint of Whisper {rule} {min(wrong)!r}")
    return {name: weights[original].contiguous() for original, name in names.items()}


def model_config(sizes: dict[str, int], precision: torch.dtype) -> dict[str, Any]:
    """Return the config.json of a model of these sizes, less its tokens.

    Raises:
        StorageError: encoder and decoder differ in width, which transformers does not implement.
    """
    width = sizes["n_text_state"]
    if sizes["n_audio_state"] != width:
        widths = f"{sizes['n_audio_state']} and {width} units"
        raise StorageError(f"encoder and decoder of Whisper must be as wide, not {widths}")
    return {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "dtype": str(precision).removeprefix("torch."),
        "is_encoder_decoder": True,
        "activation_function": "gelu",
        "scale_embedding": False,
        "tie_word_embeddings": True,
        "d_model": width,
        "vocab_size": sizes["n_vocab"],
        "num_mel_bins": sizes["n_mels"],
        "max_source_positions": sizes["n_audio_ctx"],
        "max_target_positions": sizes["n_text_ctx"],
        "encoder_layers": sizes["n_audio_layer"],
        "decoder_layers": sizes["n_text_layer"],
        "encoder_attention_heads": sizes["n_audio_head"],
        "decoder_attention_heads": sizes["n_text_head"],
        "encoder_ffn_dim": WIDENING * width,
        "decoder_ffn_dim": WIDENING * width,
    }
