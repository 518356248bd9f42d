"""Manifests and the files that they name: in folders and in archives, whole and damaged."""

from __future__ import annotations

import lzma
import tarfile

import pytest

from media_models import write_tar
from npad import InvalidInput
from npad.pipelines import manifests
from npad.pipelines.manifests import holds_files, read_files, read_manifest

FILES = {"b.wav": b"second" * 999, "a.wav": b"first", "sub/c.wav": b"third"}


def archive(path, mode="w", prefix=""):
    write_tar(path, {prefix + name: data for name, data in FILES.items()}, mode)
    return path


def test_a_file_has_the_texts_of_all_its_lines(tmp_path):
    path = tmp_path / "test.tsv.xz"
    path.write_bytes(lzma.compress(b"b.png\tA dog .\na.png\tTwo\tcats\nb.png\tone dog\n"))
    texts = read_manifest(path)
    assert texts == {"b.png": ["A dog .", "one dog"], "a.png": ["Two\tcats"]}
    assert list(texts) == ["b.png", "a.png"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "names no file"),
        ("a.png\tx\n\n", "line 2: a manifest has a file's name, a tab and a text"),
        ("a.png A dog", "line 1: a manifest has"),
        ("\tA dog", "line 1: a manifest has"),
    ],
)
def test_a_line_of_another_form_is_one_line(tmp_path, content, reason):
    path = tmp_path / "test.tsv"
    path.write_text(content)
    with pytest.raises(InvalidInput, match=reason):
        read_manifest(path)


@pytest.mark.parametrize(("mode", "prefix"), [("w", ""), ("w:xz", ""), ("w:gz", "./")])
def test_archives_and_folders_give_the_same_files(tmp_path, mode, prefix):
    for name, data in FILES.items():
        (tmp_path / "folder" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / name).write_bytes(data)
    wanted = ["sub/c.wav", "b.wav"]
    expected = {name: FILES[name] for name in wanted}
    assert dict(read_files(tmp_path / "folder", wanted)) == expected
    assert dict(read_files(archive(tmp_path / "tar", mode, prefix), wanted)) == expected


def test_a_missing_file_is_one_line(tmp_path):
    with pytest.raises(InvalidInput, match=r"tar has no file x\.wav and 1 more"):
        list(read_files(archive(tmp_path / "tar"), ["a.wav", "x.wav", "y.wav"]))
    with pytest.raises(InvalidInput, match=r"cannot read .*x\.wav: No such file"):
        list(read_files(tmp_path, ["x.wav"]))


@pytest.mark.parametrize("mode", ["w", "w:xz", "w:gz"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.6])
def test_a_truncated_archive_is_one_line(tmp_path, mode, share):
    path = archive(tmp_path / "tar", mode)
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    for names in (FILES, ["b.wav"])[: 1 + (mode == "w")]:  # it is cut within b.wav
        with pytest.raises(InvalidInput, match="tar") as refused:
            list(read_files(path, names))
        assert "\n" not in str(refused.value)


def test_files_that_are_no_archive_and_huge_members_are_refused(tmp_path, monkeypatch):
    (tmp_path / "notes").write_text("no archive")
    with pytest.raises(InvalidInput, match="a folder or a tar archive"):
        list(read_files(tmp_path / "notes", ["a.wav"]))
    with pytest.raises(InvalidInput, match="No such file"):
        list(read_files(tmp_path / "none.tar", ["a.wav"]))
    monkeypatch.setattr(manifests, "MAX_FILE_BYTES", 10)
    with pytest.raises(InvalidInput, match=r"b\.wav in .*tar has 5,994 bytes, more than 10"):
        list(read_files(archive(tmp_path / "tar"), FILES))


def test_a_link_in_an_archive_is_no_file(tmp_path):
    with tarfile.open(tmp_path / "tar", "w") as content:
        link = tarfile.TarInfo("a.wav")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        content.addfile(link)
    with pytest.raises(InvalidInput, match=r"has no file a\.wav"):
        list(read_files(tmp_path / "tar", ["a.wav"]))


def test_folders_and_archives_hold_files(tmp_path):
    (tmp_path / "lines").write_text("one\n")
    (tmp_path / "lines.xz").write_bytes(lzma.compress(b"one\n"))
    assert holds_files(tmp_path)
    assert holds_files(archive(tmp_path / "tar", "w:xz"))
    for path in (tmp_path / "lines", tmp_path / "lines.xz", tmp_path / "none", "-", "/dev/null"):
        assert not holds_files(path)
