"""Untrusted folders that load and then cannot decode: one line, and exit code 2."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer

import npad
from hf_cases import save
from npad.storage.checkpoint import config_digest

GENERATION, TOKENIZER = "generation_config.json", "tokenizer_config.json"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for kind in ("bart", "llama"):
        save(folder / kind, kind)
    return folder


@pytest.fixture
def folder(pristine, tmp_path):
    shutil.copytree(pristine, tmp_path / "models")
    return tmp_path / "models"


def change(path, fields):
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize(
    ("kind", "file", "fields", "message"),
    [
        ("bart", GENERATION, {"eos_token_id": 4000}, "eos_token_id must be .*, not 4000"),
        ("llama", GENERATION, {"eos_token_id": -3}, "eos_token_id must be .*, not -3"),
        ("llama", GENERATION, {"eos_token_id": "eos"}, "eos_token_id must be .*, not 'eos'"),
        ("llama", TOKENIZER, {"model_max_length": []}, "cannot load .*not supported"),
        ("llama", GENERATION, {"eos_token_id": [2, 40]}, "eos_token_id must be .*, not 40;"),
        ("bart", GENERATION, {"decoder_start_token_id": 4000}, "decoder_start_token_id.*not 4000"),
        ("bart", GENERATION, {"decoder_start_token_id": -5}, "decoder_start_token_id.*not -5"),
        ("bart", GENERATION, {"forced_bos_token_id": 40}, "forced_bos_token_id.*not 40"),
        ("bart", "config.json", {"dropout": float("nan")}, "dropout in the .* must be a probab"),
        ("bart", GENERATION, {"decoder_start_token_id": True}, "decoder_start_token_id.*not True"),
        ("llama", GENERATION, {"eos_token_id": float("nan")}, "eos_token_id must be .*, not nan"),
        ("bart", "config.json", {"dropout": 2}, "dropout in the .* must be a probability"),
        ("bart", "config.json", {"dropout": 1.5}, "dropout in the .* must be a probability"),
    ],
)
def test_values_outside_their_range_are_named(folder, refused_here, kind, file, fields, message):
    change(folder / kind / file, fields)
    name = f"hf:{folder / kind}"
    line = refused_here("translate", "-m", name, "-d", "greedy", "w5")
    assert re.search(message, line), line


def test_tokens_that_the_model_does_not_have_are_forbidden_already(folder, printed_here):
    options = ["translate", "-m", f"hf:{folder / 'llama'}", "-d", "greedy", "--max-length", 4, "w5"]
    free = printed_here(*options)
    forbidden = {"suppress_tokens": [4000, -1], "bad_words_ids": [[4000], [5, 4000], []]}
    change(folder / "llama" / GENERATION, forbidden)
    assert printed_here(*options) == free


@pytest.mark.parametrize(
    "template",
    ["{{ ''.__class__.__mro__ }}", "{{ raise_exception('no') }}", "{% if %}", "{{ 1 / 0 }}"],
)
def test_a_chat_template_that_fails_is_one_line(folder, refused_here, template):
    tokenizer = AutoTokenizer.from_pretrained(folder / "llama")
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder / "llama")
    name = folder / "llama"
    line = refused_here("translate", "-m", f"chat:{name}", "w5")
    assert line.startswith(f"the chat template of {name} fails with ")
    assert f"write hf:{name}" in line


@pytest.mark.parametrize("training", [0, {}, {"recipe": 0}, {"recipe": {}}], ids=str)
def test_info_names_a_resealed_folder(tmp_path, refused_here, training):
    shutil.copytree(Path(npad.__file__).parent / "shipped" / "en-de", tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    about = json.loads(path.read_text()) | {"training": training}
    about["sha256"]["config.json"] = config_digest(about)
    path.write_text(json.dumps(about))
    line = refused_here("info", tmp_path / "model", code=1)
    assert "is damaged" in line
