"""Tiny random checkpoints in OpenAI's format, and Whisper's forward pass written out from them."""

from __future__ import annotations

import math
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

SIZES = {"n_mels": 80, "n_audio_ctx": 1500, "n_text_ctx": 16, "n_vocab": 300}
SIZES |= {"n_audio_state": 8, "n_audio_head": 2, "n_audio_layer": 2}
SIZES |= {"n_text_state": 8, "n_text_head": 2, "n_text_layer": 3}
SPECIAL = [
    "<|endoftext|>",
    "<|startoftranscript|>",
    "<|en|>",
    "<|translate|>",
    "<|transcribe|>",
    "<|startoflm|>",
    "<|startofprev|>",
    "<|nocaptions|>",
    "<|notimestamps|>",
]


def shapes(sizes=SIZES) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor of a checkpoint, by OpenAI's names."""
    width, mels = sizes["n_text_state"], sizes["n_mels"]
    found: dict[str, tuple[int, ...]] = {
        "encoder.conv1.weight": (width, mels, 3),
        "encoder.conv1.bias": (width,),
        "encoder.conv2.weight": (width, width, 3),
        "encoder.conv2.bias": (width,),
        "encoder.positional_embedding": (sizes["n_audio_ctx"], width),
        "decoder.positional_embedding": (sizes["n_text_ctx"], width),
        "decoder.token_embedding.weight": (sizes["n_vocab"], width),
    }
    norms = ["encoder.ln_post", "decoder.ln"]
    for side, layers in (("encoder", sizes["n_audio_layer"]), ("decoder", sizes["n_text_layer"])):
        for i in range(layers):
            block = f"{side}.blocks.{i}"
            attentions = ["attn", "cross_attn"] if side == "decoder" else ["attn"]
            norms += [f"{block}.{name}_ln" for name in (*attentions, "mlp")]
            for name in attentions:
                for part in ("query", "key", "value", "out"):
                    found[f"{block}.{name}.{part}.weight"] = (width, width)
                    if part != "key":
                        found[f"{block}.{name}.{part}.bias"] = (width,)
            found[f"{block}.mlp.0.weight"] = (4 * width, width)
            found[f"{block}.mlp.0.bias"] = (4 * width,)
            found[f"{block}.mlp.2.weight"] = (width, 4 * width)
            found[f"{block}.mlp.2.bias"] = (width,)
    for norm in norms:
        found[f"{norm}.weight"] = found[f"{norm}.bias"] = (width,)
    return found


def checkpoint(seed: int = 0, dtype: torch.dtype = torch.float16) -> dict[str, object]:
    """A random checkpoint."""
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: (0.5 * torch.randn(shape, generator=generator)).to(dtype)
        for name, shape in shapes().items()
    }
    return {"dims": dict(SIZES), "model_state_dict": weights}


def logits(weights: dict[str, Tensor], mel: Tensor, tokens: Tensor) -> Tensor:
    """Logits [batch, tokens, vocabulary] from a spectrogram [batch, mels, frames]."""
    w = {name: tensor.float() for name, tensor in weights.items()}

    def linear(name: str, x: Tensor) -> Tensor:
        return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))

    def norm(name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"])

    def attend(name: str, x: Tensor, memory: Tensor, heads: int, causal: bool = False) -> Tensor:
        query, key, value = (
            linear(f"{name}.{part}", y).unflatten(-1, (heads, -1)).transpose(1, 2)
            for part, y in (("query", x), ("key", memory), ("value", memory))
        )
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        if causal:
            ahead = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(ahead, -torch.inf)
        return linear(f"{name}.out", (scores.softmax(-1) @ value).transpose(1, 2).flatten(2))

    def feed_forward(block: str, x: Tensor) -> Tensor:
        hidden = F.gelu(linear(f"{block}.mlp.0", norm(f"{block}.mlp_ln", x)))
        return linear(f"{block}.mlp.2", hidden)

    x = F.gelu(F.conv1d(mel, w["encoder.conv1.weight"], w["encoder.conv1.bias"], padding=1))
    x = F.conv1d(x, w["encoder.conv2.weight"], w["encoder.conv2.bias"], stride=2, padding=1)
    x = F.gelu(x).transpose(1, 2) + w["encoder.positional_embedding"]
    for i in range(SIZES["n_audio_layer"]):
        block = f"encoder.blocks.{i}"
        y = norm(f"{block}.attn_ln", x)
        x = x + attend(f"{block}.attn", y, y, SIZES["n_audio_head"])
        x = x + feed_forward(block, x)
    sound = norm("encoder.ln_post", x)
    x = w["decoder.token_embedding.weight"][tokens]
    x = x + w["decoder.positional_embedding"][: tokens.shape[1]]
    for i in range(SIZES["n_text_layer"]):
        block, heads = f"decoder.blocks.{i}", SIZES["n_text_head"]
        y = norm(f"{block}.attn_ln", x)
        x = x + attend(f"{block}.attn", y, y, heads, causal=True)
        x = x + attend(f"{block}.cross_attn", norm(f"{block}.cross_attn_ln", x), sound, heads)
        x = x + feed_forward(block, x)
    return norm("decoder.ln", x) @ w["decoder.token_embedding.weight"].T


def tokenizer(path: Path) -> Tokenizer:
    """Save the tokenizer.json of a byte-level Whisper: the 256 bytes, two words, special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: i for i, letter in enumerate([*alphabet, "--", "Ġ("])}
    merges = [("-", "-"), ("Ġ", "(")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.save(str(path))
    return tokenizer
