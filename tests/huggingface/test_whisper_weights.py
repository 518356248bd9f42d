"""OpenAI's Whisper checkpoints as models of transformers; hostile and damaged checkpoints."""

from __future__ import annotations

import os
import pickle

import pytest
import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

import openai_whisper
from npad.errors import StorageError
from npad.models.huggingface import whisper_tokens
from npad.models.huggingface.whisper_weights import (
    converted,
    model_config,
    read_checkpoint,
    weight_names,
)
from openai_whisper import SIZES, SPECIAL


@pytest.fixture
def file(tmp_path):
    torch.save(openai_whisper.checkpoint(), tmp_path / "tiny.en.pt")
    return tmp_path / "tiny.en.pt"


def blank() -> WhisperForConditionalGeneration:
    settings = model_config(SIZES, torch.float32)
    special = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0, "decoder_start_token_id": 0}
    return WhisperForConditionalGeneration(WhisperConfig(**(settings | special))).eval()


def test_every_tensor_has_its_name_and_shape_in_transformers(file):
    sizes, weights = read_checkpoint(file)
    assert weight_names(sizes).keys() == weights.keys() == openai_whisper.shapes().keys()
    tensors = converted(sizes, weights)
    parameters = blank().state_dict()
    del parameters["proj_out.weight"]  # the embedding
    assert {name: tensor.shape for name, tensor in tensors.items()} == {
        name: tensor.shape for name, tensor in parameters.items()
    }
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float16}


def test_logits_are_those_of_openais_model(file):
    sizes, weights = read_checkpoint(file)
    model = blank()
    floats = {name: tensor.float() for name, tensor in converted(sizes, weights).items()}
    missing, unexpected = model.load_state_dict(floats, strict=False)
    assert (missing, unexpected) == (["proj_out.weight"], [])
    generator = torch.Generator().manual_seed(1)
    mel = torch.randn(2, 80, 3000, generator=generator)
    tokens = torch.randint(SIZES["n_vocab"], (2, 7), generator=generator)
    with torch.no_grad():
        found = model(input_features=mel, decoder_input_ids=tokens).logits
        expected = openai_whisper.logits(weights, mel, tokens)
    assert torch.allclose(found, expected, atol=1e-4)


def test_a_missing_or_foreign_tensor_is_named(file):
    sizes, weights = read_checkpoint(file)
    lost = {name: weights[name] for name in weights if name != "decoder.ln.bias"}
    with pytest.raises(StorageError, match=r"lacks the tensor 'decoder\.ln\.bias'"):
        converted(sizes, lost)
    with pytest.raises(StorageError, match=r"does not, 'decoder\.extra'"):
        converted(sizes, weights | {"decoder.extra": torch.ones(1)})
    with pytest.raises(StorageError, match="must be as wide, not 16 and 8 units"):
        model_config(sizes | {"n_audio_state": 16}, torch.float16)


class Hostile:
    """A pickle of this creates a folder when it is read."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return os.mkdir, (self.marker,)


@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_a_checkpoint_with_code_is_refused_and_never_run(tmp_path, how):
    marker, file = tmp_path / "ran", tmp_path / "tiny.en.pt"
    content = openai_whisper.checkpoint() | {"more": Hostile(marker)}
    if how == "torch":
        torch.save(content, file)
    else:
        file.write_bytes(pickle.dumps(Hostile(marker)))
    with pytest.raises(StorageError, match="which npad never unpickles") as refused:
        read_checkpoint(file)
    assert "\n" not in str(refused.value)
    assert not marker.exists()


@pytest.mark.parametrize("size", [0, 1, 100, 0.5, 0.999])
def test_a_truncated_checkpoint_is_one_line(file, size):
    content = file.read_bytes()
    file.write_bytes(content[: size if isinstance(size, int) else int(size * len(content))])
    with pytest.raises(
        StorageError, match=r"cannot read .*tiny\.en\.pt as a checkpoint of Whisper"
    ):
        read_checkpoint(file)


@pytest.mark.parametrize(
    "content",
    [
        [1, 2],
        {"model_state_dict": {}},
        {"dims": SIZES, "model_state_dict": {"a": 1}},
        {"dims": SIZES | {"n_mels": "80"}, "model_state_dict": {}},
        {"dims": SIZES | {"n_text_layer": -1}, "model_state_dict": {}},
    ],
)
def test_another_files_tensors_are_no_whisper(tmp_path, content):
    torch.save(content, tmp_path / "other.pt")
    with pytest.raises(StorageError, match="is no checkpoint of OpenAI's Whisper"):
        read_checkpoint(tmp_path / "other.pt")


def test_marks_that_are_no_speech_are_suppressed_and_letters_are_not(tmp_path):
    tokenizer = openai_whisper.tokenizer(tmp_path / "tokenizer.json")
    suppressed = set(whisper_tokens.suppressed_tokens(tokenizer))
    bytes_alone = {*'"#()*+/:;<=>@[\\]^_`{|}~', "--", "Ġ("}
    first_byte = "â"  # of every note, as byte-level tokenizers write 0xE2
    space = "Ġ"  # of " -", " '" and " ♪", where no token holds both
    tasks = {token for token in SPECIAL if token not in (SPECIAL[0], "<|en|>", SPECIAL[-1])}
    expected = bytes_alone | {first_byte, space} | tasks
    assert suppressed == {tokenizer.token_to_id(token) for token in expected}


def test_a_transcript_begins_with_neither_its_end_nor_a_space(tmp_path):
    tokenizer = openai_whisper.tokenizer(tmp_path / "tokenizer.json")
    config = whisper_tokens.generation_config(tokenizer, 16)
    end, start = map(tokenizer.token_to_id, SPECIAL[:2])
    assert config["begin_suppress_tokens"] == [tokenizer.token_to_id("Ġ"), end]
    assert (config["eos_token_id"], config["decoder_start_token_id"]) == (end, start)
    assert config["no_timestamps_token_id"] == tokenizer.token_to_id("<|notimestamps|>")


def test_a_tokenizer_without_whispers_tokens_is_refused(tmp_path):
    tokenizer = openai_whisper.tokenizer(tmp_path / "tokenizer.json")
    with pytest.raises(StorageError, match=r"the tokenizer lacks <\|of\|>"):
        whisper_tokens.token_id(tokenizer, "<|of|>")
