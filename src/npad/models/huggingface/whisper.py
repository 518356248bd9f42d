"""Write an English Whisper as a folder that transformers reads, from OpenAI's checkpoint.

Both files are pinned by their SHA-256 (`npad.pipelines.fetching`) before they come here, so that
their contents are known.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

# What OpenAI calls a part of the model -> what transformers calls it, replaced in this order.
RENAMED = {
    "blocks.": "layers.",
    "mlp.0.": "fc1.",
    "mlp.2.": "fc2.",
    "mlp_ln": "final_layer_norm",
    "cross_attn_ln": "encoder_attn_layer_norm",
    "cross_attn.": "encoder_attn.",
    "attn_ln": "self_attn_layer_norm",
    ".attn.": ".self_attn.",
    ".query.": ".q_proj.",
    ".key.": ".k_proj.",
    ".value.": ".v_proj.",
    ".out.": ".out_proj.",
    ".ln_post.": ".layer_norm.",
    ".ln.": ".layer_norm.",
    "token_embedding": "embed_tokens",
    "positional_embedding": "embed_positions.weight",
}
WIDENING = 4  # width of a feed-forward layer ÷ width of the model, in every Whisper
# How every Whisper hears: 30 seconds at a time, as a spectrogram of overlapping frames.
HEARING = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "processor_class": "WhisperProcessor",
    "sampling_rate": 16000,
    "chunk_length": 30,  # seconds
    "n_fft": 400,  # samples of a frame
    "hop_length": 160,  # samples from one frame to the next
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": False,
}
END, START, PREVIOUS = "<|endoftext|>", "<|startoftranscript|>", "<|startofprev|>"
# Tokens that an English Whisper does not write, as OpenAI published them: marks that annotate
# subtitles rather than speech, such as (laughs), [music] or ♪, and what prompts a task.
SUPPRESSED = """
    1 2 7 8 9 10 14 25 26 27 28 29 31 58 59 60 61 62 63 90 91 92 93 357 366 438 532 685 705 796
    930 1058 1220 1267 1279 1303 1343 1377 1391 1635 1782 1875 2162 2361 2488 3467 4008 4211
    4600 4808 5299 5855 6329 7203 9609 9959 10563 10786 11420 11709 11907 13163 13697 13700
    14808 15306 16410 16791 17992 19203 19510 20724 22305 22935 27007 30109 30420 33409 34949
    40283 40493 40549 47282 49146 50257 50357 50358 50359 50360 50361
"""


def write_folder(
    checkpoint: Path, tokenizer_file: Path, folder: Path, alignment_heads: Sequence[tuple[int, int]]
) -> None:
    """Write the weights, in the checkpoint's precision, the tokenizer and all configurations.

    Args:
        checkpoint: OpenAI's, such as tiny.en.pt; nothing but tensors and plain values is unpickled.
        tokenizer_file: the tokenizer.json of an English Whisper.
        folder: an existing folder to write to.
        alignment_heads: (layer, head) of the decoder's heads whose attention follows the sound.
    """
    content = torch.load(checkpoint, map_location="cpu", weights_only=True)
    sizes, weights = content["dims"], content["model_state_dict"]
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    precision = str(weights["decoder.token_embedding.weight"].dtype).removeprefix("torch.")
    special, longest = _special_tokens(tokenizer), sizes["n_text_ctx"]
    contents = {
        "config.json": _model_config(sizes) | {"dtype": precision} | special,
        "generation_config.json": _generation_config(tokenizer, sizes["n_vocab"], longest)
        | special
        | {"alignment_heads": [list(head) for head in alignment_heads]},
        "tokenizer_config.json": _tokenizer_config(longest),
        "preprocessor_config.json": HEARING | {"feature_size": sizes["n_mels"]},
    }
    weights_file = folder / "model.safetensors"
    tensors = {renamed(name): tensor.contiguous() for name, tensor in weights.items()}
    save_file(tensors, weights_file, metadata={"format": "pt"})
    weights_file.chmod(0o644)  # safetensors makes it private
    shutil.copyfile(tokenizer_file, folder / "tokenizer.json")
    for name, settings in contents.items():
        text = json.dumps(settings, indent=2) + "\n"
        (folder / name).write_text(text, encoding="utf-8")


def renamed(name: str) -> str:
    """Return transformers' name of a tensor. The output layer has none: it is the embedding."""
    for theirs, ours in RENAMED.items():
        name = name.replace(theirs, ours)
    return f"model.{name}"


def _special_tokens(tokenizer: Tokenizer) -> dict[str, Any]:
    start, end = tokenizer.token_to_id(START), tokenizer.token_to_id(END)
    settings = {"bos_token_id": start, "eos_token_id": end, "pad_token_id": end}
    return settings | {"decoder_start_token_id": start}


def _model_config(sizes: dict[str, int]) -> dict[str, Any]:
    return {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "is_encoder_decoder": True,
        "activation_function": "gelu",
        "scale_embedding": False,
        "tie_word_embeddings": True,
        "d_model": sizes["n_text_state"],
        "vocab_size": sizes["n_vocab"],
        "num_mel_bins": sizes["n_mels"],
        "max_source_positions": sizes["n_audio_ctx"],
        "max_target_positions": sizes["n_text_ctx"],
        "encoder_layers": sizes["n_audio_layer"],
        "decoder_layers": sizes["n_text_layer"],
        "encoder_attention_heads": sizes["n_audio_head"],
        "decoder_attention_heads": sizes["n_text_head"],
        "encoder_ffn_dim": WIDENING * sizes["n_text_state"],
        "decoder_ffn_dim": WIDENING * sizes["n_text_state"],
    }


def _generation_config(tokenizer: Tokenizer, vocabulary: int, longest: int) -> dict[str, Any]:
    """Return the settings of a decoder of `vocabulary` tokens that reads `longest` of them.

    The first token of a transcript is neither its end nor a space.
    """
    space = tokenizer.encode(" ", add_special_tokens=False).ids
    return {
        "is_multilingual": False,
        "max_length": longest,
        "return_timestamps": False,
        "no_timestamps_token_id": tokenizer.token_to_id("<|notimestamps|>"),
        "prev_sot_token_id": tokenizer.token_to_id(PREVIOUS),
        "max_initial_timestamp_index": 50,  # a transcript begins within the first second
        "suppress_tokens": [token for token in map(int, SUPPRESSED.split()) if token < vocabulary],
        "begin_suppress_tokens": [*space, tokenizer.token_to_id(END)],
    }


def _tokenizer_config(longest: int) -> dict[str, Any]:
    special = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), END)
    return special | {
        "tokenizer_class": "WhisperTokenizer",
        "processor_class": "WhisperProcessor",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": longest,
    }
