"""The manifest: an output continues after its last sound unit, and only as it was begun."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress

import pytest

from npad import InvalidInput
from npad.errors import StorageError
from npad.scale.manifest import COUNTS, continued
from npad.storage.regular import seal

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
    with suppress(Killed), continued(output, IDENTITY, 4) as manifest:
        write(manifest, slice(units))
        raise Killed


def finish(output):
    """Continue, and return how many texts had been done."""
    with continued(output, IDENTITY, 4) as manifest:
        begun = manifest.texts
        write(manifest, slice(next(i for i in range(5) if sum(TEXTS[:i]) == begun), None))
    assert (manifest.texts, manifest.failed, manifest.near_ties) == (4, 1, 4)
    return begun


def resume(output, identity=IDENTITY):
    with continued(output, identity, 4) as manifest:
        manifest.append(b"x\n", 1)


def test_an_output_is_complete_or_absent(tmp_path):
    output = tmp_path / "out"
    begin(output, 2)
    assert not output.exists()
    assert finish(output) == 3
    assert output.read_bytes() == b"".join(UNITS)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_finished_unit_is_in_the_files_at_once(tmp_path):
    """So that a kill loses no more than the unit that is being translated."""
    with suppress(Killed), continued(tmp_path / "out", IDENTITY, 4) as manifest:
        for count in (1, 2):
            write(manifest, slice(count - 1, count))
            assert (tmp_path / "out.part").read_bytes() == b"".join(UNITS[:count])
            assert (tmp_path / "out.manifest.jsonl").read_text().count("\n") == count + 1
        manifest.append(b"", 1)
        assert (manifest.failed, manifest.near_ties) == (1, 3)
        raise Killed


@pytest.mark.parametrize("file", ["out.part", "out.manifest.jsonl"])
def test_whatever_is_cut_off_is_done_again(tmp_path, file):
    begin(tmp_path / "whole", 4)
    size = (tmp_path / f"whole{file.removeprefix('out')}").stat().st_size
    header = (tmp_path / "whole.manifest.jsonl").read_bytes().splitlines()[0]
    assert header.startswith(b'{"npad": 2, "identity": {"an input')
    first = len(header) + 1
    for length in range(first if "manifest" in file else 0, size + 1):
        folder = tmp_path / f"{length}"
        folder.mkdir()
        for end in ("part", "manifest.jsonl"):
            content = (tmp_path / f"whole.{end}").read_bytes()
            (folder / f"out.{end}").write_bytes(content[:length] if end in file else content)
        finish(folder / "out")
        assert (folder / "out").read_bytes() == b"".join(UNITS)


def test_what_was_cut_off_is_dropped_before_more_is_written(tmp_path):
    """So that no end of it is left behind a shorter line or content."""
    begin(tmp_path / "out", 4)
    files = [tmp_path / "out.part", tmp_path / "out.manifest.jsonl"]
    sound = [path.read_bytes() for path in files]
    for path in files:
        path.write_bytes(path.read_bytes() + b"cut off")
    begin(tmp_path / "out", 0)
    assert [path.read_bytes() for path in files] == sound


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


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"{}", "line 1, is damaged or was edited: it has no digest"),
        (b"[]", "line 1, is damaged: it holds no JSON object"),
        (b'{"npad": 1, "identity": {}}', "out was begun by an earlier version of npad"),
        (json.dumps(seal({"npad": 99})).encode(), "is damaged or of another version"),
    ],
)
def test_a_damaged_header_is_one_line(tmp_path, header, reason):
    begin(tmp_path / "out", 1)
    (tmp_path / "out.manifest.jsonl").write_bytes(header + b"\n")
    with pytest.raises(StorageError, match=f"{reason}.*; to start over, delete .*out.manifest"):
        resume(tmp_path / "out")


def test_a_header_without_its_end_is_refused(tmp_path):
    begin(tmp_path / "out", 0)
    journal = tmp_path / "out.manifest.jsonl"
    journal.write_bytes(journal.read_bytes().removesuffix(b"\n"))
    with pytest.raises(StorageError, match="damaged or of another version; to start over"):
        resume(tmp_path / "out")


def outcome_of(output):
    """How a run of all units ends: what it wrote, or why it was refused."""
    try:
        finish(output)
    except (StorageError, InvalidInput) as error:
        assert output.exists() is False
        return str(error)
    return output.read_bytes()


def test_every_flipped_bit_of_a_manifest_is_refused_or_changes_nothing(tmp_path):
    begin(tmp_path / "whole", 4)
    journal = (tmp_path / "whole.manifest.jsonl").read_bytes()
    content = (tmp_path / "whole.part").read_bytes()
    refused = 0
    for place in range(len(journal)):
        damaged = bytearray(journal)
        damaged[place] ^= 1 << place % 8
        (tmp_path / "out.manifest.jsonl").write_bytes(damaged)
        (tmp_path / "out.part").write_bytes(content)
        outcome = outcome_of(tmp_path / "out")
        (tmp_path / "out").unlink(missing_ok=True)
        if isinstance(outcome, str):
            assert "\n" not in outcome
            assert "start over" in outcome
            refused += 1
        else:
            assert outcome == b"".join(UNITS)
    assert refused > len(journal) - 10  # the last line may be cut off


@pytest.mark.parametrize("change", ["swapped", "deleted", "doubled"])
def test_lines_in_another_order_are_refused(tmp_path, change):
    begin(tmp_path / "out", 4)
    path = tmp_path / "out.manifest.jsonl"
    header, *entries = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(
        header
        + {
            "swapped": b"".join([entries[1], entries[0], *entries[2:]]),
            "deleted": b"".join(entries[1:]),
            "doubled": b"".join([entries[0], *entries]),
        }[change]
    )
    line = 3 if change == "doubled" else 2
    rule = (
        rf"line {line}, is damaged: it begins with text \d, and \d come before it; delete this line"
    )
    with pytest.raises(StorageError, match=rule) as caught:
        resume(tmp_path / "out")
    assert not hasattr(caught.value, "__notes__")


@pytest.mark.parametrize("key", COUNTS)
@pytest.mark.parametrize("value", [None, -1, 1.0, True, "1"])
def test_a_sealed_line_without_its_numbers_is_refused(tmp_path, key, value):
    begin(tmp_path / "out", 1)
    path = tmp_path / "out.manifest.jsonl"
    header, entry = path.read_text().splitlines()
    changed = {k: v for k, v in json.loads(entry).items() if k != "digest"} | {key: value}
    if value is None:
        del changed[key]
    path.write_text(f"{header}\n{json.dumps(seal(changed))}\n")
    with pytest.raises(StorageError, match="line 2, is damaged: it must have the numbers"):
        resume(tmp_path / "out")


def test_following_the_way_out_continues_before_the_damage(tmp_path):
    begin(tmp_path / "out", 4)
    path = tmp_path / "out.manifest.jsonl"
    sound = path.read_bytes().splitlines(keepends=True)[:3]
    path.write_bytes(b"".join(sound))
    assert finish(tmp_path / "out") == 3
    assert (tmp_path / "out").read_bytes() == b"".join(UNITS)


@pytest.mark.parametrize("units", [3, 5])
def test_an_output_with_lost_or_doubled_texts_is_never_complete(tmp_path, units):
    def run():
        with continued(tmp_path / "out", IDENTITY, 4) as manifest:
            for _ in range(units):
                manifest.append(b"x\n", 1)

    rule = rf"out would have {units} of 4 texts: the input has changed .*start over"
    with pytest.raises(StorageError, match=rule):
        run()
    assert not (tmp_path / "out").exists()


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
    with continued(tmp_path / "out", IDENTITY, 0) as manifest:
        manifest.append(b"", 0)
        code = (
            "from npad.scale.manifest import continued; from pathlib import Path\n"
            f"with continued(Path({str(tmp_path / 'out')!r}), {IDENTITY!r}, 0): pass"
        )
        second = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = second.stderr.splitlines()[-1]
    assert f"another process is writing {tmp_path / 'out'}; wait for it, or choose another" in last


def test_an_output_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(StorageError, match=r"cannot write .*out: "):
        finish(tmp_path / "out")


def test_an_interrupted_run_says_how_to_continue(tmp_path):
    def interrupted():
        with continued(tmp_path / "o", {}, 1) as manifest:
            manifest.append(b"x\n", 1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        interrupted()
    note = "1 texts are finished: the same command continues after them"
    assert caught.value.__notes__ == [note]
