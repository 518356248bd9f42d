"""Folders and files that appear whole, even after a power cut, and locks held by one process."""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from npad import InvalidInput
from npad.errors import StorageError
from npad.storage import atomic as folders
from npad.storage.atomic import atomic_folder, exclusive_lock, recover, remove, write_atomic


@pytest.fixture
def disk(monkeypatch):
    """What is flushed and renamed, in order: ("fsync", path) and ("replace", path)."""
    events = []
    fsync, replace = os.fsync, os.replace

    def recording_fsync(handle):
        events.append(("fsync", Path(os.readlink(f"/proc/self/fd/{handle}"))))
        fsync(handle)

    def recording_replace(old, new):
        events.append(("replace", Path(new)))
        replace(old, new)

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(os, "replace", recording_replace)
    return events


def test_a_folder_is_on_disk_before_it_has_its_name(tmp_path, disk):
    """Else a power cut leaves the name with nothing behind it."""
    with atomic_folder(tmp_path / "model") as part:
        (part / "inner").mkdir()
        (part / "inner/b").write_text("b")
        (part / "a").write_text("a")
    renamed = disk.index(("replace", tmp_path / "model"))
    flushed = {path.relative_to(part) for kind, path in disk[:renamed] if kind == "fsync"}
    assert flushed == {Path(name) for name in (".", "a", "inner", "inner/b")}
    assert disk[renamed + 1 :] == [("fsync", tmp_path)]


def test_a_file_is_on_disk_before_it_has_its_name(tmp_path, disk):
    write_atomic(tmp_path / "run.json", "{}")
    file, folder = tmp_path / ".run.json.part", tmp_path
    assert disk == [("fsync", file), ("replace", tmp_path / "run.json"), ("fsync", folder)]


def test_half_a_folder_is_never_seen_under_its_name(tmp_path, monkeypatch):
    """Removal is stopped half-way: the name is gone, and `recover` clears the rest."""
    folder = tmp_path / "checkpoint-3"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).touch()

    def half(path, **_):
        if Path(path).exists():
            (Path(path) / "config.json").unlink()
            raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", half)
    with pytest.raises(KeyboardInterrupt):
        remove(folder)
    assert not folder.exists()
    monkeypatch.undo()
    recover(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_two_never_hold_a_lock_whose_file_was_removed_in_between(tmp_path, monkeypatch):
    """A opens the lock file of B; B removes it; C makes a new one; then A locks the old one."""
    lock, flock = tmp_path / ".lock", fcntl.flock
    with ExitStack() as others:

        def late(handle, operation):
            monkeypatch.setattr(fcntl, "flock", flock)
            lock.unlink()
            others.enter_context(exclusive_lock(lock, "C"))
            flock(handle, operation)

        monkeypatch.setattr(fcntl, "flock", late)
        with pytest.raises(InvalidInput, match="another process is A"), exclusive_lock(lock, "A"):
            pass
        assert lock.exists()
    assert not lock.exists()


def test_a_lock_whose_file_was_removed_is_taken_anew(tmp_path, monkeypatch):
    lock, flock = tmp_path / ".lock", fcntl.flock

    def late(handle, operation):
        monkeypatch.setattr(fcntl, "flock", flock)
        lock.unlink()
        flock(handle, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with (
        exclusive_lock(lock, "A"),
        pytest.raises(InvalidInput, match="is B"),
        exclusive_lock(lock, "B"),
    ):
        pass
    assert not lock.exists()


def test_a_lock_is_let_go_after_an_error(tmp_path):
    for _ in range(2):
        with pytest.raises(KeyError), exclusive_lock(tmp_path / ".lock", "here"):
            raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_in_place_of_a_lock_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / ".lock")
    with (
        pytest.raises(StorageError, match=r"cannot write .*\.lock"),
        exclusive_lock(tmp_path / ".lock", ""),
    ):
        pass


def test_a_system_without_locks_goes_on_without(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "fcntl", None)
    with exclusive_lock(tmp_path / ".lock", "A"), exclusive_lock(tmp_path / ".lock", "B"):
        pass
