"""Untrusted models: no code runs, files are bounded, damage is reported in one line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import WhisperFeatureExtractor, WhisperProcessor, WhisperTokenizer

import npad
from hf_cases import build, save
from npad.errors import InvalidInput
from npad.models.huggingface import loading as pretrained

NEEDS_CODE = "needs its own Python code, which npad never runs; choose a model that transformers"
CODE = "from pathlib import Path\nPath({marker!r}).touch()\n"
CLASS = """
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast, ProcessorMixin
class Configuration(PreTrainedConfig):
    model_type = "own"
class Model(PreTrainedModel):
    config_class = Configuration
class Tokenizer(PreTrainedTokenizerFast): pass
class Processor(ProcessorMixin): pass
"""


@pytest.fixture(scope="module")
def strangers(tmp_path_factory):
    """A text model and a speech model, as yet harmless."""
    folder = tmp_path_factory.mktemp("models")
    save(folder / "text", "bart")
    hears = WhisperFeatureExtractor(feature_size=8, chunk_length=1, hop_length=400, n_fft=400)
    vocabulary = {letter: i for i, letter in enumerate("abcĠ")} | {"<|endoftext|>": 4}
    letters = WhisperTokenizer(vocab=vocabulary, merges=[])
    WhisperProcessor(hears, letters).save_pretrained(folder / "speech")
    build("whisper", torch.float32).save_pretrained(folder / "speech")
    return folder


@pytest.fixture
def copied(strangers, tmp_path):
    def copy(kind):
        return shutil.copytree(strangers / kind, tmp_path / kind)

    return copy


def rewrite(path, **changes):
    about = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(about | changes))


def with_code(folder, file, auto_map, **changes):
    """The folder with code of its own, which leaves a marker where it runs, and the marker."""
    marker = folder.parent / "ran"
    (folder / "own.py").write_text(CODE.format(marker=str(marker)) + CLASS)
    rewrite(folder / file, auto_map=auto_map, **changes)
    return marker


OWN = {"tokenizer_class": "Own", "processor_class": "Own", "feature_extractor_type": "Own"}
OWN_CONFIG = {"AutoConfig": "own.Configuration", "AutoModelForSeq2SeqLM": "own.Model"}
OWN_SPEECH = {"AutoConfig": "own.Configuration", "AutoModelForSpeechSeq2Seq": "own.Model"}
CODES = {
    "configuration": ("text", "config.json", OWN_CONFIG, {"model_type": "own"}),
    "tokenizer": ("text", "tokenizer_config.json", {"AutoTokenizer": [None, "own.Tokenizer"]}, OWN),
    "old tokenizer": ("text", "tokenizer_config.json", ["own.Tokenizer", None], OWN),
    "processor": ("speech", "processor_config.json", {"AutoProcessor": "own.Processor"}, OWN),
    "extractor": ("speech", "preprocessor_config.json", {"AutoFeatureExtractor": "own.X"}, OWN),
    "speech": ("speech", "config.json", OWN_SPEECH, {"model_type": "own"}),
}


@pytest.mark.parametrize("place", CODES)
def test_a_models_own_code_never_runs(copied, place):
    kind, file, auto_map, changes = CODES[place]
    folder = copied(kind)
    marker = with_code(folder, file, auto_map, **changes)
    with pytest.raises(InvalidInput, match=NEEDS_CODE):
        npad.load(f"hf:{folder}")
    assert not marker.exists()


def test_code_and_kernels_that_transformers_replaces_are_left_unread(copied):
    folder = copied("text")
    kernel = {"attn_implementation": "somebody/kernel"}
    marker = with_code(folder, "config.json", OWN_CONFIG, **kernel)
    assert npad.load(f"hf:{folder}").translate(["w5"], npad.Greedy(), max_length=3)
    assert not marker.exists()


@pytest.mark.parametrize("place", ["configuration", "tokenizer"])
def test_loading_neither_asks_nor_reads_standard_input(copied, tmp_path, place):
    kind, file, auto_map, changes = CODES[place]
    folder = copied(kind)
    marker = with_code(folder, file, auto_map, **changes)
    (tmp_path / "texts").write_text("y\ny\nHello.\n")
    with open(tmp_path / "texts") as texts:
        command = [sys.executable, "-m", "npad", "translate", "--model", f"hf:{folder}"]
        done = subprocess.run(command, stdin=texts, capture_output=True, text=True, timeout=300)
        read = os.lseek(texts.fileno(), 0, os.SEEK_CUR)
    assert (done.returncode, done.stdout, read, marker.exists()) == (2, "", 0, False)
    assert done.stderr.count("\n") == 1


def test_only_the_loading_thread_is_without_standard_input(monkeypatch, tmp_path):
    (tmp_path / "texts").write_text("one\ntwo\n")
    with open(tmp_path / "texts") as texts, ThreadPoolExecutor(1) as other:
        monkeypatch.setattr(sys, "stdin", texts)
        with pretrained._attempt("x"):
            with pytest.raises(EOFError):
                input()
            assert other.submit(lambda: sys.stdin.readline()).result() == "one\n"
            assert other.submit(lambda: list(sys.stdin)).result() == ["two\n"]
        assert sys.stdin is texts


def test_weights_that_are_no_safetensors_are_refused(copied):
    folder = copied("text")
    torch.save({}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(InvalidInput, match=r"has no model.safetensors; npad reads .safetensors"):
        npad.load(f"hf:{folder}")


def test_a_configuration_has_a_largest_size(copied, monkeypatch):
    monkeypatch.setattr("npad.models.huggingface.loading.MAX_TOKENIZER_BYTES", 9)
    with pytest.raises(InvalidInput, match=r"config.json: it has [\d,]+ bytes, more than 9"):
        npad.load(f"hf:{copied('text')}")


@pytest.mark.parametrize("file", ["pytorch_model.bin", "../elsewhere.safetensors", "/dev/zero"])
def test_shards_are_safetensors_of_the_same_folder(copied, file):
    folder = copied("text")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    index = folder / "model.safetensors.index.json"
    rewrite(index, metadata={}, weight_map={"final_logits_bias": file})
    with pytest.raises(InvalidInput, match=f"keeps weights in '{file}'; npad reads .safetensors"):
        npad.load(f"hf:{folder}")


@pytest.mark.parametrize("kind", ["text", "speech"])
def test_an_incomplete_checkpoint_is_refused_in_one_line(copied, kind, capfd):
    weights = copied(kind) / "model.safetensors"
    tensors = load_file(weights)
    name = next(name for name in tensors if name.endswith("decoder.layers.0.fc1.weight"))
    del tensors[name]
    save_file(tensors, weights, {"format": "pt"})
    with pytest.raises(InvalidInput, match=f"incomplete: it lacks the tensor '{name}'; download"):
        npad.load(f"hf:{weights.parent}")
    assert capfd.readouterr().err == ""


ADAPTER = {"base_model_name_or_path": "/elsewhere", "peft_type": "LORA"}
OTHER = {"transformers_weights": "adapter_model.bin"}
DOUBLED = {"type": "Replace", "pattern": {"String": "w"}, "content": "ww"}
MULTIPLIED = {"normalizer": {"type": "Sequence", "normalizers": [DOUBLED] * 30}}


@pytest.mark.parametrize(
    ("file", "changes", "rule"),
    [
        ("adapter_config.json", ADAPTER, "has an adapter, .* merge it into its base model"),
        ("config.json", OTHER, "keeps weights in 'adapter_model.bin'; npad reads "),
        ("tokenizer.json", MULTIPLIED, "replacements can lengthen a text"),
    ],
    ids=["adapter", "weights", "tokenizer"],
)
def test_other_weights_and_a_tokenizer_that_multiplies_are_refused(copied, file, changes, rule):
    folder = copied("text")
    rewrite(folder / file, **changes)
    with pytest.raises(InvalidInput, match=rule):
        npad.load(f"hf:{folder}")


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "model.safetensors"])
def test_a_pipe_among_a_models_files_is_refused(copied, name):
    folder = copied("text")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(InvalidInput, match=f"{name} must be a regular file, not a pipe"):
        npad.load(f"hf:{folder}")


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
@pytest.mark.parametrize(
    "text", ["[" * 100_000, "[]", "\ud800", ""], ids=["deep", "list", "half", "no"]
)
def test_a_damaged_configuration_is_one_line(copied, name, text):
    folder = copied("text")
    (folder / name).write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(InvalidInput) as caught:
        npad.load(f"hf:{folder}")
    assert "\n" not in str(caught.value)
