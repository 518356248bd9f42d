"""Folders and files that appear whole, even after a power cut, and locks held by one process."""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
from safetensors import SafetensorError

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
    with exclusive_lock(lock, "A"), pytest.raises(InvalidInput, match="another process is"):
        take(lock)
    assert not lock.exists()


def take(lock):
    with exclusive_lock(lock, ""):
        pass


def test_a_file_or_a_pipe_in_the_way_of_a_lock_is_refused_without_waiting(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(StorageError, match=r"run is a file, and must be a folder$"):
        take(tmp_path / "run" / ".lock")
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(StorageError, match=r"cannot write .*\.lock"):
        take(tmp_path / ".lock")


def test_a_lock_is_let_go_after_an_error(tmp_path):
    for _ in range(2):
        with pytest.raises(KeyError), exclusive_lock(tmp_path / ".lock", "here"):
            raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_a_system_without_locks_goes_on_without(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "fcntl", None)
    with exclusive_lock(tmp_path / ".lock", "A"), exclusive_lock(tmp_path / ".lock", "B"):
        pass


def test_folders_on_the_way_are_made(tmp_path):
    for _ in range(2):
        with exclusive_lock(tmp_path / "a/b/.lock", "here"):
            assert (tmp_path / "a/b/.lock").stat().st_mode & 0o111 == 0
        with atomic_folder(tmp_path / "c/d/model"):
            pass
    assert [path.name for path in (tmp_path / "c/d").iterdir()] == ["model"]


def test_no_file_stays_open(tmp_path):
    def opened():
        return len(os.listdir("/proc/self/fd"))

    before = opened()
    os.mkfifo(tmp_path / "pipe")
    for _ in range(3):
        with exclusive_lock(tmp_path / ".lock", "here"):
            pass
        with pytest.raises(StorageError), exclusive_lock(tmp_path / "pipe", ""):
            pass
        write_atomic(tmp_path / "file", "text")
        with atomic_folder(tmp_path / "model") as part:
            (part / "file").touch()
    assert opened() == before


def test_errors_of_the_system_are_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    (tmp_path / "folder/inside").mkdir(parents=True)
    with pytest.raises(StorageError, match=r"cannot write .*folder: Is a directory"):
        write_atomic(tmp_path / "folder", "text")
    with pytest.raises(StorageError, match=r"cannot write .*lock: "):
        take(tmp_path / "file/folder/.lock")
    for error, message in (
        (SafetensorError("too large"), "cannot write .*model: too large"),
        (StorageError("the reason"), "^the reason$"),
    ):
        with pytest.raises(StorageError, match=message), atomic_folder(tmp_path / "model"):
            raise error

    def fail(handle, operation):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(StorageError, match=r"cannot lock .*: Input/output error"):
        take(tmp_path / ".lock")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "file", "folder"]


def test_folders_that_cannot_be_deleted_are_left(tmp_path, monkeypatch):
    """The name is free, or has the new content; that is what counts."""
    for name in ("model", "run", ".run.part"):
        (tmp_path / name).mkdir()
    (tmp_path / "run/file").touch()

    def fail(*path, **_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "rmdir", fail)
    remove(tmp_path / "model")
    recover(tmp_path)
    assert not (tmp_path / "model").exists()
    monkeypatch.undo()
    recover(tmp_path)
    monkeypatch.setattr(os, "rmdir", fail)
    with atomic_folder(tmp_path / "run") as part:
        (part / "new").touch()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["new"]


def test_recovery_keeps_what_is_whole_and_follows_no_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/precious").touch()
    (tmp_path / "run").mkdir()
    for name in ("new", "old"):
        (tmp_path / f"run/{'.' * (name == 'old')}model{'.old' * (name == 'old')}").mkdir()
    (tmp_path / "run/.log.part").write_text("half a file")
    (tmp_path / "run/.link.gone").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "run/.broken.part").symlink_to(tmp_path / "nowhere")
    (tmp_path / "run/model/new").touch()
    recover(tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["model"]
    assert (tmp_path / "run/model/new").exists()
    assert (tmp_path / "elsewhere/precious").exists()


def test_files_cleared_by_another_process_are_no_error(tmp_path, monkeypatch):
    with exclusive_lock(tmp_path / ".lock", "here"):
        (tmp_path / ".lock").unlink()

    def listed(folder, pattern):
        return [folder / ".file.part"] if pattern.endswith("part") else []

    monkeypatch.setattr(Path, "glob", listed)
    recover(tmp_path)
