"""Lines of text: any packing, only UTF-8, and every fault named with its place."""

from __future__ import annotations

import gzip
import lzma
import os
import threading
import tracemalloc

import pytest

from damage import limited
from npad import InvalidInput
from npad.errors import StorageError
from npad.text import files
from npad.text.files import MAX_LINE_BYTES, open_output, read_lines

TEXT = ["eins", "", "zwei\u2028drei", "žluťoučký\x0bkůň", " vier "]
BYTES = "\n".join(TEXT).encode()


packs = pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])


def write(path):
    with open_output(path) as out:
        out.write("new")


@packs
@pytest.mark.parametrize("name", ["text", "text.gz"])
def test_lines_come_as_they_were_written_whatever_the_packing_and_the_name(tmp_path, pack, name):
    (tmp_path / name).write_bytes(pack(BYTES))
    assert list(read_lines(tmp_path / name)) == TEXT
    (tmp_path / name).write_bytes(pack(BYTES + b"\n"))
    assert list(read_lines(tmp_path / name)) == TEXT


def test_a_mark_at_the_start_carriage_returns_and_nothing_at_all_are_no_text(tmp_path):
    (tmp_path / "text").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    assert list(read_lines(tmp_path / "text")) == ["one", "two"]
    (tmp_path / "text").write_bytes(b"")
    assert list(read_lines(tmp_path / "text")) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"fine\nalso\nb\xffd\n",
            r"text, line 3: byte 0xff at column 2 is not UTF-8; convert the file first",
        ),
        (b"fine\n\x00\x01\x02\n", r"text, line 2: a zero byte; this is not a text file"),
        (gzip.compress(BYTES * 50)[:-20], r"text is damaged after line \d+: "),
        (lzma.compress(BYTES * 50)[:-20], r"text is damaged after line \d+: "),
    ],
    ids=["utf-8", "binary", "gzip", "xz"],
)
def test_a_fault_is_named_with_its_line(tmp_path, content, message):
    (tmp_path / "text").write_bytes(content)
    with pytest.raises(InvalidInput, match=message):
        list(read_lines(tmp_path / "text"))


def test_an_unreadable_file_is_named_with_the_reason(tmp_path):
    with pytest.raises(InvalidInput, match=r"cannot read .*nowhere: No such file"):
        list(read_lines(tmp_path / "nowhere"))
    with pytest.raises(InvalidInput, match=r"cannot read .*: Is a directory"):
        list(read_lines(tmp_path))


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/urandom"])
def test_a_device_that_never_ends_is_refused(device):
    with limited(30), pytest.raises(InvalidInput, match=f"cannot read {device}: it is a device"):
        list(read_lines(device))


def test_pipes_and_the_null_device_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(b"one\ntwo\n",))
    writer.start()
    assert list(read_lines(tmp_path / "pipe")) == ["one", "two"]
    writer.join()
    assert list(read_lines("/dev/null")) == []


def test_a_line_that_is_skipped_may_have_megabytes_and_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 4)
    monkeypatch.setattr(files, "MAX_SKIPPED_BYTES", 20)
    (tmp_path / "text").write_bytes(b"ab\n" + b"x" * 24 + b"\ncd\n")
    first, refused, last = files.read_lines_or_errors(tmp_path / "text")
    assert (first, last) == ("ab", "cd")
    assert "line 2 has more than 4 bytes" in str(refused)
    (tmp_path / "text").write_bytes(b"ab\n" + b"x" * 26 + b"\ncd\n")
    with pytest.raises(
        InvalidInput, match="line 2 has more than 20 bytes; this is not a text file"
    ):
        list(files.read_lines_or_errors(tmp_path / "text"))


def test_a_file_appears_when_all_of_it_is_there(tmp_path):
    target = tmp_path / "out"
    target.write_text("old")
    with open_output(target) as out:
        out.write("new\n")
        out.flush()
        assert target.read_text() == "old"
        (part,) = tmp_path.glob("out.*.part")
        assert part.read_text() == "new\n"
    assert target.read_text() == "new\n"
    assert list(tmp_path.iterdir()) == [target]
    with pytest.raises(InvalidInput, match=r"cannot write .*out: No such file or directory$"):
        write(tmp_path / "no/out")
    with pytest.raises(InvalidInput, match=r"cannot write .*: it is a folder"):
        write(tmp_path)


def test_two_writers_of_one_file_do_not_mix(tmp_path):
    with open_output(tmp_path / "out") as first, open_output(tmp_path / "out") as second:
        for out, line in ((first, "first\n"), (second, "second\n")) * 3:
            out.write(line)
            out.flush()
    assert (tmp_path / "out").read_text() == "first\n" * 3
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_part_of_somebody_else_is_left_alone(tmp_path, monkeypatch):
    (tmp_path / "out.part").write_text("theirs\n")
    with open_output(tmp_path / "out") as out:
        out.writelines(f"{line}\n" for line in read_lines(tmp_path / "out.part"))
    assert (tmp_path / "out").read_text() == (tmp_path / "out.part").read_text() == "theirs\n"
    monkeypatch.setattr("secrets.token_hex", lambda size: "0")
    (tmp_path / "out.0.part").write_text("theirs\n")
    with pytest.raises(StorageError, match=r"cannot write .*out: File exists$"):
        write(tmp_path / "out")
    assert (tmp_path / "out.0.part").read_text() == "theirs\n"


@pytest.mark.parametrize(
    "link", [None, os.link, os.symlink], ids=["same", "hard link", "symbolic link"]
)
def test_a_file_may_be_written_while_it_is_read(tmp_path, link):
    text, copy = tmp_path / "text", tmp_path / ("copy" if link else "text")
    text.write_text("one\ntwo\n")
    if link:
        link(text, copy)
    with open_output(copy) as out:
        out.writelines(f"{line}!\n" for line in read_lines(text))
    assert copy.read_text() == "one!\ntwo!\n"
    assert text.read_text() == ("one\ntwo\n" if link is os.link else "one!\ntwo!\n")


def test_an_interrupted_writer_keeps_and_names_its_part_file(tmp_path):
    def interrupted(text):
        with open_output(tmp_path / "out") as out:
            out.write(text)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        interrupted("so far\n")
    (part,) = tmp_path.iterdir()
    assert stopped.value.__notes__ == [f"what was written so far is in {part}"]
    assert part.read_text() == "so far\n"
    part.unlink()
    with pytest.raises(KeyboardInterrupt):
        interrupted("")
    assert list(tmp_path.iterdir()) == []


def test_a_name_may_be_as_long_as_the_system_allows(tmp_path):
    for name in ("n" * 255, "ž" * 127):
        write(tmp_path / name)
        assert (tmp_path / name).read_text() == "new"


def test_a_path_that_cannot_be_is_the_users_mistake(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "file").touch()
    for name, reason in (
        ("loop", "Too many levels of symbolic links"),
        ("n" * 256, "File name too long"),
        ("file/out", "Not a directory"),
        ("\0", "embedded null byte"),
    ):
        with pytest.raises(InvalidInput, match=f"cannot write .*: {reason}"):
            write(tmp_path / name)
        with pytest.raises(InvalidInput, match=f"cannot read .*: {reason}"):
            list(read_lines(tmp_path / name))


@packs
def test_a_line_has_a_longest_length_and_no_more_of_it_is_read(tmp_path, pack):
    longest = b"a" * (MAX_LINE_BYTES - 1) + b"\n"
    (tmp_path / "text").write_bytes(pack(longest + b"b\n" + longest))
    assert [len(line) for line in read_lines(tmp_path / "text")] == [
        MAX_LINE_BYTES - 1,
        1,
        MAX_LINE_BYTES - 1,
    ]
    (tmp_path / "text").write_bytes(pack(b"b\n" + b"a" * (64 * MAX_LINE_BYTES)))
    tracemalloc.start()
    with pytest.raises(
        InvalidInput, match=r"text, line 2 has more than 1,048,576 bytes.*; split it"
    ):
        list(read_lines(tmp_path / "text"))
    assert tracemalloc.get_traced_memory()[1] < 16 * MAX_LINE_BYTES  # xz looks back 8 MiB
    tracemalloc.stop()


def test_output_goes_to_the_target_of_a_link_and_through_a_pipe(tmp_path):
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"
    os.mkfifo(tmp_path / "pipe")
    heard = []
    reader = threading.Thread(target=lambda: heard.append((tmp_path / "pipe").read_text()))
    reader.start()
    write(tmp_path / "pipe")
    reader.join()
    assert heard == ["new"]
