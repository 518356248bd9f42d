"""Write an English Whisper as a folder that transformers reads, from OpenAI's checkpoint."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import save_file
from tokenizers import Tokenizer

from npad.errors import StorageError
from npad.models.huggingface import whisper_tokens
from npad.models.huggingface.whisper_weights import converted, model_config, read_checkpoint

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


def write_folder(
    checkpoint: Path,
    tokenizer_file: Path,
    folder: Path,
    alignment_heads: Sequence[tuple[int, int]],
) -> None:
    """Write the weights, in the checkpoint's precision, the tokenizer and all configurations.

    Args:
        checkpoint: OpenAI's, such as tiny.en.pt.
        tokenizer_file: the tokenizer.json of an English Whisper.
        folder: an existing folder to write to.
        alignment_heads: (layer, head) of the decoder's heads whose attention follows the sound.

    Raises:
        StorageError: a file is damaged, or not that of an English Whisper.
    """
    sizes, weights = read_checkpoint(checkpoint)
    tensors = converted(sizes, weights)
    tokenizer = _tokenizer(tokenizer_file)
    precision = weights["decoder.token_embedding.weight"].dtype
    longest = sizes["n_text_ctx"]
    contents = {
        "config.json": model_config(sizes, precision) | whisper_tokens.token_settings(tokenizer),
        "generation_config.json": whisper_tokens.generation_config(tokenizer, longest)
        | {"alignment_heads": [list(head) for head in alignment_heads]},
        "tokenizer_config.json": whisper_tokens.tokenizer_config(longest),
        "preprocessor_config.json": HEARING | {"feature_size": sizes["n_mels"]},
    }
    weights_file = folder / "model.safetensors"
    save_file(tensors, weights_file, metadata={"format": "pt"})
    weights_file.chmod(0o644)  # safetensors makes it private
    shutil.copyfile(tokenizer_file, folder / "tokenizer.json")
    for name, content in contents.items():
        text = json.dumps(content, indent=2) + "\n"
        (folder / name).write_text(text, encoding="utf-8")


def _tokenizer(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing more specific
        raise StorageError(f"cannot read {path}: it is no tokenizer.json; give another") from error
