"""Untrusted files: only regular ones are opened, and damage is reported in one line."""

from __future__ import annotations

import hashlib
import io
import json
import os
from contextlib import nullcontext

import pytest

from npad.errors import StorageError
from npad.storage.regular import (
    Bounded,
    digest,
    ensure_regular,
    file_digest,
    open_regular,
    read_bytes,
    read_json,
    seal,
    unsealed,
    writing,
)


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


def test_a_file_that_is_replaced_before_it_is_opened_is_checked_again(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"01234")
    monkeypatch.setattr("npad.storage.regular.ensure_regular", lambda *_: None)
    for name, rule in (("pipe", "must be a regular file"), ("large", "more than 4")):
        with pytest.raises(StorageError, match=rule):
            open_regular(tmp_path / name, 4)


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
        (b"[NaN]", "is damaged: NaN is not a number"),
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


def test_a_bounded_file_is_read_as_it_is(tmp_path):
    (tmp_path / "file").write_bytes(b"0123456789")
    with open(tmp_path / "file", "rb") as file:
        bounded = Bounded(file, seconds=60, max_read=4, max_bytes=10)
        assert bounded.readable()
        assert bounded.seekable()
        assert (bounded.read(4), bounded.tell()) == (b"0123", 4)
        assert (bounded.seek(6), bounded.read(4)) == (6, b"6789")
        assert (bounded.seek(-1, os.SEEK_END), bounded.read(4)) == (9, b"9")
        assert bounded.read(0) == b""
    assert Bounded(io.BytesIO(b"0123")).read() == b"0123"
    assert Bounded(io.BytesIO(b"0123")).read(None) == b"0123"


@pytest.mark.parametrize(
    ("limit", "attempt", "message"),
    [
        ({"max_read": 4}, lambda file: file.read(5), "a header of 5 bytes, more than 4"),
        ({"max_read": 4}, lambda file: file.read(), "a header of -1 bytes, more than 4"),
        ({"max_read": 4}, lambda file: file.read(None), "a header of -1 bytes, more than 4"),
        ({"max_bytes": 4}, lambda file: file.read(5), "it has more than 4 bytes"),
        ({"max_bytes": 4}, lambda file: file.seek(5), "it has more than 4 bytes"),
        ({"seconds": 0.0}, lambda file: file.read(1), "it takes more than 0 seconds to read"),
        ({"seconds": 0.0}, lambda file: file.seek(1), "it takes more than 0 seconds to read"),
    ],
)
def test_a_parser_cannot_go_beyond_a_limit(limit, attempt, message):
    bounded = Bounded(io.BytesIO(b"0123456789"), **limit)
    for _ in range(2):
        with pytest.raises(StorageError, match=f"^{message}$"):
            attempt(bounded)


def test_a_file_of_the_largest_size_is_opened(tmp_path):
    (tmp_path / "file").write_bytes(b"0123")
    assert read_bytes(tmp_path / "file", 4) == b"0123"
    with pytest.raises(StorageError, match="it has 4 bytes, more than 3"):
        read_bytes(tmp_path / "file", 3)


def test_a_sealed_object_is_parsed_only_as_it_was_sealed():
    content = {"a": [1, "ü"], "b": {"c": None}}
    text = json.dumps(seal(content)).encode()
    assert unsealed(text, "it") == seal(content)
    for other in (text.replace(b"1", b"2"), text.replace(b'"a"', b'"x"')):
        with pytest.raises(StorageError, match="it is damaged or was edited: its digest does not"):
            unsealed(other, "it")
    with pytest.raises(StorageError, match="it is damaged or was edited: it has no digest"):
        unsealed(json.dumps(content).encode(), "it")
    with pytest.raises(StorageError, match="it is damaged: it holds no JSON object"):
        unsealed(b"[]", "it")


def test_a_digest_is_of_canonical_json():
    """Other layouts would make the files of earlier versions unreadable."""
    canonical = b'{"a":[1,"\\u00fc"],"b":null}'
    assert digest({"b": None, "a": [1, "ü"]}) == hashlib.sha256(canonical).hexdigest()


@pytest.mark.parametrize("read", [file_digest, open_regular, lambda path: read_bytes(path, 9)])
@pytest.mark.parametrize("when", ["opened", "read"])
def test_an_error_of_the_system_is_one_line(tmp_path, monkeypatch, read, when):
    (tmp_path / "file").write_bytes(b"0123")

    class Broken(io.RawIOBase):
        def fileno(self):
            return descriptor

        def readable(self):
            return True

        def fail(self, *_):
            raise OSError(5, "Input/output error")

        read = readinto = fail

    def opened(*_, **__):
        return Broken() if when == "read" else Broken().fail()

    with open(tmp_path / "file", "rb") as sound:
        descriptor = sound.fileno()
        monkeypatch.setattr("builtins.open", opened)
        with (
            nullcontext()
            if (read, when) == (open_regular, "read")
            else pytest.raises(
                StorageError, match=f"^cannot read {tmp_path}/file: Input/output error$"
            )
        ):
            read(tmp_path / "file")


def test_errors_of_writing_name_the_path_and_npads_own_stay():
    for error, message in (
        (OSError(28, "No space left on device"), "cannot write it: No space left on device"),
        (KeyError("x"), "cannot write it: 'x'"),
        (StorageError("as it is"), "^as it is$"),
    ):
        with pytest.raises(StorageError, match=message), writing("it", KeyError, StorageError):
            raise error
    with pytest.raises(KeyError), writing("it"):
        raise KeyError
