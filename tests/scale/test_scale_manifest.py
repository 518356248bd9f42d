"""The manifest: an output continues after its last sound unit, and only as it was begun."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress

import pytest

from npad import InvalidInput
from npad.errors import StorageError
from npad.scale.manifest import continued

IDENTITY = {"an input of digest": "1" * 64, "the decoder": "greedy"}
UNITS = [b"eins\n", b"zwei\ndrei\n", b"", "vier über\n".encode()]
TEXTS = [1, 2, 0, 1]


class Killed(BaseException):
    """Stands for the end of the driver."""


def write(manifest, units):
    for content, texts in list(zip(UNITS, TEXTS, strict=True))[units]:
        manifest.append(content, texts, failed=texts - 1 if texts > 1 else 0, near_ties=texts)


def begin(output, units):
    """Write some units and die."""
    with suppress(Killed), continued(output, IDENTITY) as manifest:
        write(manifest, slice(units))
        raise Killed


def finish(output):
    """Continue, and return how many texts had been done."""
    with continued(output, IDENTITY) as manifest:
        begun = manifest.texts
        write(manifest, slice(next(i for i in range(5) if sum(TEXTS[:i]) == begun), None))
    assert (manifest.texts, manifest.failed, manifest.near_ties) == (4, 1, 4)
    return begun


def resume(output, identity=IDENTITY):
    with continued(output, identity) as manifest:
        manifest.append(b"x\n", 1)


def test_an_output_is_complete_or_absent(tmp_path):
    output = tmp_path / "out"
    begin(output, 2)
    assert not output.exists()
    assert finish(output) == 3
    assert output.read_bytes() == b"".join(UNITS)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("file", ["out.part", "out.manifest.jsonl"])
def test_whatever_is_cut_off_is_done_again(tmp_path, file):
    begin(tmp_path / "whole", 4)
    size = (tmp_path / f"whole{file.removeprefix('out')}").stat().st_size
    first = len((tmp_path / "whole.manifest.jsonl").read_bytes().splitlines()[0]) + 1
    for length in range(first if "manifest" in file else 0, size + 1):
        folder = tmp_path / f"{length}"
        folder.mkdir()
        for end in ("part", "manifest.jsonl"):
            content = (tmp_path / f"whole.{end}").read_bytes()
            (folder / f"out.{end}").write_bytes(content[:length] if end in file else content)
        finish(folder / "out")
        assert (folder / "out").read_bytes() == b"".join(UNITS)


def test_a_changed_byte_is_found(tmp_path):
    begin(tmp_path / "out", 4)
    content = bytearray((tmp_path / "out.part").read_bytes())
    content[7] ^= 1
    (tmp_path / "out.part").write_bytes(content)
    assert finish(tmp_path / "out") == 1
    assert (tmp_path / "out").read_bytes() == b"".join(UNITS)


@pytest.mark.parametrize("name", IDENTITY)
def test_another_input_model_or_decoder_is_refused(tmp_path, name):
    begin(tmp_path / "out", 2)
    before = (tmp_path / "out.part").read_bytes()
    refusal = rf"out was begun with {name} {IDENTITY[name][:9]}.*, not beam.*delete .*out.manifest"
    with pytest.raises(InvalidInput, match=refusal):
        resume(tmp_path / "out", IDENTITY | {name: "beam(width=5)"})
    assert (tmp_path / "out.part").read_bytes() == before
    assert finish(tmp_path / "out") == 3


def test_a_damaged_header_is_one_line(tmp_path):
    begin(tmp_path / "out", 1)
    for header in ("{}\n", "[]\n", json.dumps({"npad": 99}) + "\n"):
        (tmp_path / "out.manifest.jsonl").write_text(header)
        with pytest.raises(StorageError, match="damaged or of another version; to begin anew"):
            resume(tmp_path / "out")


def test_a_file_that_npad_did_not_write_is_not_overwritten(tmp_path):
    (tmp_path / "out.part").write_text("mine")
    with pytest.raises(InvalidInput, match=r"out\.part is in the way"):
        resume(tmp_path / "out")
    assert (tmp_path / "out.part").read_text() == "mine"
    (tmp_path / "out.part").write_text("")  # left by a driver that was killed at once
    finish(tmp_path / "out")


def test_an_output_that_was_just_completed_begins_anew(tmp_path):
    """Killed after the rename, before the manifest was removed."""
    begin(tmp_path / "out", 4)
    (tmp_path / "out.part").rename(tmp_path / "out")
    assert finish(tmp_path / "out") == 0


def test_two_drivers_of_one_output_are_refused(tmp_path):
    with continued(tmp_path / "out", IDENTITY) as manifest:
        manifest.append(b"", 0)
        code = (
            "from npad.scale.manifest import continued; from pathlib import Path\n"
            f"with continued(Path({str(tmp_path / 'out')!r}), {IDENTITY!r}): pass"
        )
        second = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = second.stderr.splitlines()[-1]
    assert f"another process is writing {tmp_path / 'out'}; wait for it, or choose another" in last


def test_an_output_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(StorageError, match=r"cannot write .*out: "):
        resume(tmp_path / "out")


def test_an_interrupted_run_says_how_to_continue(tmp_path):
    def interrupted():
        with continued(tmp_path / "o", {}) as manifest:
            manifest.append(b"x\n", 1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        interrupted()
    note = "1 texts are finished: the same command continues after them"
    assert caught.value.__notes__ == [note]
