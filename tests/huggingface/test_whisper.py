"""OpenAI's Whisper checkpoints become folders of transformers with the same logits."""

from __future__ import annotations

import json
import os
import pickle

import pytest
import torch
from transformers import WhisperForConditionalGeneration

import openai_whisper
from npad.models.huggingface.whisper import write_folder
from openai_whisper import SIZES, SPECIAL


@pytest.fixture
def files(tmp_path):
    """A tiny checkpoint and its tokenizer."""
    torch.save(openai_whisper.checkpoint(), tmp_path / "tiny.en.pt")
    openai_whisper.tokenizer(tmp_path / "tokenizer.json")
    (tmp_path / "made").mkdir()
    return tmp_path


def write(files):
    write_folder(files / "tiny.en.pt", files / "tokenizer.json", files / "made", [(1, 0)])


def test_logits_are_those_of_openais_model(files):
    write(files)
    model, report = WhisperForConditionalGeneration.from_pretrained(
        files / "made", dtype=torch.float32, output_loading_info=True
    )
    assert not report["missing_keys"] | report["unexpected_keys"]
    generator = torch.Generator().manual_seed(1)
    mel = torch.randn(2, 80, 3000, generator=generator)
    tokens = torch.randint(SIZES["n_vocab"], (2, 7), generator=generator)
    weights = torch.load(files / "tiny.en.pt", weights_only=True)["model_state_dict"]
    with torch.no_grad():
        found = model.eval()(input_features=mel, decoder_input_ids=tokens).logits
        expected = openai_whisper.logits(weights, mel, tokens)
    assert torch.allclose(found, expected, atol=1e-4)


class Hostile:
    """A pickle of this creates a folder when it is read."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return os.mkdir, (self.marker,)


def test_code_in_a_checkpoint_is_never_run(files):
    torch.save(openai_whisper.checkpoint() | {"more": Hostile(files / "ran")}, files / "tiny.en.pt")
    with pytest.raises(pickle.UnpicklingError):
        write(files)
    assert not (files / "ran").exists()


def test_a_transcript_begins_with_neither_its_end_nor_a_space(files):
    write(files)
    tokenizer = openai_whisper.tokenizer(files / "tokenizer.json")
    config = json.loads((files / "made" / "generation_config.json").read_text())
    end, start = map(tokenizer.token_to_id, SPECIAL[:2])
    assert config["begin_suppress_tokens"] == [tokenizer.token_to_id("Ġ"), end]
    assert (config["eos_token_id"], config["decoder_start_token_id"]) == (end, start)
    assert config["no_timestamps_token_id"] == tokenizer.token_to_id("<|notimestamps|>")
    assert config["alignment_heads"] == [[1, 0]]
