"""Sounds, WAV files, and a tiny random Whisper, as people save them."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from transformers import (
    GenerationConfig,
    WhisperFeatureExtractor,
    WhisperProcessor,
    WhisperTokenizer,
)

from hf_cases import build
from media_models import record as saved  # noqa: F401, for tests of recordings
from media_models import tone as tone
from media_models import wav, write_tar
from studies import digits

RATE = 16000
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SPECIAL = [
    "<|endoftext|>",
    "<|startoftranscript|>",
    "<|en|>",
    "<|transcribe|>",
    "<|translate|>",
    "<|notimestamps|>",
]


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    """A tiny random one that knows English, hears 0.4 seconds, and may not write the letter a."""
    folder = tmp_path_factory.mktemp("whisper")
    vocabulary = {word: i for i, word in enumerate([*LETTERS, "Ġ", *SPECIAL])}
    tokenizer = WhisperTokenizer(vocab=vocabulary, merges=[], additional_special_tokens=SPECIAL[1:])
    sizes = {"feature_size": 8, "chunk_length": 1, "hop_length": 400, "n_fft": 400}
    hears = WhisperFeatureExtractor(**sizes)  # 40 frames
    WhisperProcessor(hears, tokenizer).save_pretrained(folder)
    model = build("whisper", torch.float32)
    model.config.eos_token_id = 27
    model.generation_config = GenerationConfig(
        eos_token_id=27,
        pad_token_id=27,
        decoder_start_token_id=28,
        suppress_tokens=[0, *range(28, 40)],
        begin_suppress_tokens=[27],
        is_multilingual=True,
        lang_to_id={"<|en|>": 29},
        task_to_id={"transcribe": 30},
        no_timestamps_token_id=32,
    )
    model.save_pretrained(folder)
    return folder


def recordings():
    noise = torch.rand(3, RATE // 2, generator=torch.Generator().manual_seed(0)) - 0.5
    return [*noise, torch.cat([*noise])]  # the last has two pieces


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A corpus like FSDD: two speakers, ten digits, twelve takes, each a short tone."""
    folder = tmp_path_factory.mktemp("corpus")
    files = {}
    for speaker, number, take in product(("ada", "bob"), range(10), range(12)):
        hertz = 200 + 100 * number + 7 * take + (50 if speaker == "bob" else 0)
        sound = wav(tone(hertz, 0.02, digits.RATE), digits.RATE)
        files[f"recordings/{number}_{speaker}_{take}.wav"] = sound
    write_tar(folder / "fsdd.tar.xz", files, "w:xz")
    return folder
