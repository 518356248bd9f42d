"""Lines of text: any packing, only UTF-8, and every fault named with its place."""

from __future__ import annotations

import gzip
import lzma
import os
import threading

import pytest

from npad import InvalidInput
from npad.errors import StorageError
from npad.text.files import lines, written

TEXT = ["eins", "", "zwei\u2028drei", "žluťoučký\x0bkůň", " vier "]
BYTES = "\n".join(TEXT).encode()


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress], ids=["plain", "gzip", "xz"])
@pytest.mark.parametrize("name", ["text", "text.gz"])
def test_lines_come_as_they_were_written_whatever_the_packing_and_the_name(tmp_path, pack, name):
    (tmp_path / name).write_bytes(pack(BYTES))
    assert list(lines(tmp_path / name)) == TEXT
    (tmp_path / name).write_bytes(pack(BYTES + b"\n"))
    assert list(lines(tmp_path / name)) == TEXT


def test_a_mark_at_the_start_and_carriage_returns_at_the_ends_are_no_text(tmp_path):
    (tmp_path / "text").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    assert list(lines(tmp_path / "text")) == ["one", "two"]


def test_an_empty_file_has_no_lines(tmp_path):
    (tmp_path / "text").write_bytes(b"")
    assert list(lines(tmp_path / "text")) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"fine\nalso\nb\xffd\n", r"text, line 3: byte 0xff at column 2 is not UTF-8; convert the file first"),
        (b"fine\n\x00\x01\x02\n", r"text, line 2: a zero byte; this is no text file"),
        (gzip.compress(BYTES * 50)[:-20], r"text is damaged after line \d+: "),
        (lzma.compress(BYTES * 50)[:-20], r"text is damaged after line \d+: "),
    ],
    ids=["utf-8", "binary", "gzip", "xz"],
)
def test_a_fault_is_named_with_its_line(tmp_path, content, message):
    (tmp_path / "text").write_bytes(content)
    with pytest.raises(InvalidInput, match=message):
        list(lines(tmp_path / "text"))


def test_what_cannot_be_read_is_named(tmp_path):
    with pytest.raises(InvalidInput, match=r"cannot read .*nowhere: No such file"):
        list(lines(tmp_path / "nowhere"))
    with pytest.raises(InvalidInput, match=r"cannot read .*: Is a directory"):
        list(lines(tmp_path))


def test_a_file_appears_when_all_of_it_is_there(tmp_path):
    target = tmp_path / "out"
    target.write_text("old")
    with written(target) as out:
        out.write("new\n")
        out.flush()
        assert target.read_text() == "old"
        assert (tmp_path / "out.part").read_text() == "new\n"
    assert target.read_text() == "new\n"
    assert list(tmp_path.iterdir()) == [target]
    with (
        pytest.raises(StorageError, match=r"cannot write .*out: No such file or directory$"),
        written(tmp_path / "no/out"),
    ):
        pass
    with pytest.raises(InvalidInput, match=r"cannot write .*: it is a folder"), written(tmp_path):
        pass


def test_what_a_link_points_to_is_written_and_a_pipe_stays_one(tmp_path):
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with written(tmp_path / "link") as out:
        out.write("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"
    os.mkfifo(tmp_path / "pipe")
    heard = []
    reader = threading.Thread(target=lambda: heard.append((tmp_path / "pipe").read_text()))
    reader.start()
    with written(tmp_path / "pipe") as out:
        out.write("through")
    reader.join()
    assert heard == ["through"]
