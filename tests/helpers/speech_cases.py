"""Sounds, WAV files, and a tiny random Whisper, as people save them."""

from __future__ import annotations

import io
import struct
import tarfile
import wave

import pytest
import torch
from transformers import (
    GenerationConfig,
    WhisperFeatureExtractor,
    WhisperProcessor,
    WhisperTokenizer,
)

from hf_cases import build
from media_models import tone as tone
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


def saved(path, samples, rate, size=2, channels=1):
    """A WAV file by hand: whole numbers of `size` bytes, the same in each channel."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(size)
        file.setframerate(rate)
        for sample in samples.tolist():
            value = round(sample * (2 ** (8 * size - 1) - 1))
            one = (
                struct.pack("<B", value + 128)
                if size == 1
                else value.to_bytes(size, "little", signed=True)
            )
            file.writeframes(one * channels)
    return path


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    """A tiny random one that knows English, hears 0.4 seconds, and may not write the letter a."""
    folder = tmp_path_factory.mktemp("whisper")
    vocabulary = {letter: i for i, letter in enumerate([*LETTERS, "Ġ"])} | {
        w: 27 + i for i, w in enumerate(SPECIAL)
    }
    tokenizer = WhisperTokenizer(vocab=vocabulary, merges=[], additional_special_tokens=SPECIAL[1:])
    hears = WhisperFeatureExtractor(
        feature_size=8, chunk_length=1, hop_length=400, n_fft=400
    )  # 40 frames
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
    with tarfile.open(folder / "fsdd.tar.xz", "w:xz") as archive:
        for speaker in ("ada", "bob"):
            for number in range(10):
                for take in range(12):
                    hertz = 200 + 100 * number + 7 * take + (50 if speaker == "bob" else 0)
                    path = saved(folder / "a.wav", tone(hertz, 0.02, digits.RATE), digits.RATE)
                    content = path.read_bytes()
                    info = tarfile.TarInfo(f"recordings/{number}_{speaker}_{take}.wav")
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))
    return folder
