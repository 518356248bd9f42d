"""Files from strangers: only regular ones are opened, and damage is one line."""

from __future__ import annotations

import os

import pytest

import npad
from checkpoint_cases import SUBWORDS, tiny
from npad.errors import StorageError
from npad.storage import checkpoint
from npad.storage.regular import ensure_regular, open_regular, read_json

FILES = ("config.json", "model.safetensors", "source.tokenizer.json", "target.tokenizer.json")


@pytest.mark.parametrize("read", [ensure_regular, open_regular, read_json])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "link", "nothing"])
def test_only_regular_files_are_opened(tmp_path, read, kind):
    path = tmp_path / "file"
    {
        "pipe": lambda: os.mkfifo(path),
        "device": lambda: path.symlink_to("/dev/zero"),
        "folder": path.mkdir,
        "link": lambda: path.symlink_to(path),
        "nothing": lambda: None,
    }[kind]()
    with pytest.raises(StorageError, match=f"^cannot read {path}: [^\n]+$"):
        read(path)


def test_a_link_to_a_regular_file_is_one(tmp_path):
    (tmp_path / "file").write_text('{"a": [1, Infinity]}')
    (tmp_path / "link").symlink_to("file")
    assert read_json(tmp_path / "link") == {"a": [1, float("inf")]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[" * 200_000, "is damaged: it is nested too deeply"),
        (b'{"a":' * 200_000, "is damaged: it is nested too deeply"),
        (b'"\xff"', "is damaged: it is not UTF-8 at byte 1"),
        (b"[NaN]", "is damaged: NaN is no number"),
        (b'{"a": 1, "a": 2}', "is damaged: 'a' is there twice"),
        (b"", "is damaged: Expecting value"),
        (b"9" * 5000, "is damaged: Exceeds the limit"),
        (b" " * 10_001, "cannot read .*: it has 10,001 bytes, more than 10,000"),
    ],
    ids=["lists", "objects", "latin", "nan", "twice", "empty", "digits", "long"],
)
def test_damaged_json_is_one_line(tmp_path, content, message):
    (tmp_path / "file").write_bytes(content)
    limit = {"max_bytes": 10_000} if "10,000" in message else {}
    with pytest.raises(StorageError, match=message) as caught:
        read_json(tmp_path / "file", **limit)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_model_with_a_pipe_or_a_device_is_refused(tmp_path, name, kind):
    folder = tmp_path / "model"
    checkpoint.save(folder, tiny(), (SUBWORDS, SUBWORDS), {})
    (folder / name).unlink()
    os.mkfifo(folder / name) if kind == "pipe" else (folder / name).symlink_to("/dev/zero")
    refusal = "holds no model" if name == "config.json" else "must be a regular file, not a pipe"
    with pytest.raises(npad.errors.NpadError, match=refusal):
        npad.load(folder)
