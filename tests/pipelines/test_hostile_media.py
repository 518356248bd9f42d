"""Untrusted pictures, recordings and archives: each is read soon, or refused in one line."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import random
import resource
import struct
import tarfile
import time
import wave
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from damage import limited
from media_models import write_tar
from npad import InvalidInput
from npad.pipelines import manifests, pictures, sound
from npad.pipelines.manifests import holds_files, read_files
from npad.pipelines.pictures import read_picture
from npad.pipelines.sound import read_wav
from npad.pipelines.writers import as_manifest

RATE = 8000


@contextmanager
def small(seconds=60, gigabytes=1):
    """Let what is inside take so much time, and so much memory more than there is now."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (gigabytes << 30), before[1]))
    try:
        with limited(seconds):
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def one_line(error) -> None:
    assert len(str(error.value).splitlines()) == 1


# ---------------------------------------------------------------------------------- recordings


def wav(rate=RATE, seconds=0.2, channels=1, size=2) -> bytes:
    """A WAV file of noise, with a chunk that is none of its samples."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(size)
        file.setframerate(rate)
        count = int(rate * seconds) * channels * size
        file.writeframes(np.random.default_rng(0).integers(0, 256, count, np.uint8).tobytes())
    content = buffer.getvalue()
    content = content[:36] + b"LIST\x04\0\0\0INFO" + content[36:]
    return changed(content, 4, struct.pack("<I", len(content) - 8))


HEADER = 56  # bytes before the samples


def changed(content: bytes, place: int, value: bytes) -> bytes:
    return content[:place] + value + content[place + len(value) :]


def damaged(content: bytes, seed: int, header: int) -> bytes:
    """The content with some bytes of its header changed, cut out, or its end cut off."""
    draw, data = random.Random(seed), bytearray(content)
    for _ in range(draw.randrange(1, 5)):
        place = draw.randrange(header)
        data[place] = draw.choice([0, 1, 255, draw.randrange(256)])
    if draw.random() < 0.2:
        start = draw.randrange(header)
        del data[start : start + draw.choice([1, 2, 4, 8])]
    return bytes(data[: draw.randrange(len(data))] if draw.random() < 0.2 else data)


def outcome(read, *arguments):
    """What a function returns, or its error, which is one line with the name of the file."""
    try:
        return read(*arguments)
    except InvalidInput as error:
        message = str(error)
    assert "\n" not in message
    assert "a.file " in message
    return message


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_damaged_wav_files_are_samples_or_one_line(tmp_path, first):
    forms = [wav(), wav(44100, 0.05, 2, 3), wav(16000, 0.1, 1, 1), wav(8000, 0.1, 5, 4)]
    refused = 0
    with small(60, gigabytes=4):
        for seed in range(first, first + 100):
            content = damaged(forms[seed % 4], seed, HEADER)
            (tmp_path / "a.file").write_bytes(content)
            read = outcome(read_wav, io.BytesIO(content), "a.file", 16000)
            measured = outcome(sound.length, tmp_path / "a.file")
            if isinstance(read, str):
                refused += 1
            else:
                assert len(read) > 0
                assert read.isfinite().all()
                assert measured.present > 0
    assert 20 < refused < 100


@pytest.mark.parametrize("place", [4, 16, 40, 52], ids=["RIFF", "fmt", "LIST", "data"])
def test_a_chunk_of_four_gigabytes_is_what_is_there_or_one_line(tmp_path, place):
    content = changed(wav(), place, b"\xff\xff\xff\xff")
    assert content[place - 4 : place] in (b"RIFF", b"fmt ", b"LIST", b"data")
    with small():
        if place in (4, 52):  # programs that write to a pipe do not know these
            assert len(read_wav(io.BytesIO(content), "a.wav", RATE)) >= 1600
        else:
            with pytest.raises(InvalidInput, match=r"^a\.wav is not a WAV file") as refused:
                read_wav(io.BytesIO(content), "a.wav", RATE)
            one_line(refused)


@pytest.mark.parametrize("rate", [0, 1, 999, 1_000_001, 0xFFFFFFFF])
def test_a_sampling_rate_that_no_sound_has_is_refused(tmp_path, rate):
    """At 1 Hz, 40 KB would be 11 hours, which take 4.8 GB at 16,000 Hz."""
    content = changed(wav(seconds=5), 24, struct.pack("<I", rate))
    (tmp_path / "a.wav").write_bytes(content)
    rule = rf"is not a WAV file.*: {rate:,} samples per second, not 1,000 to 1,000,000"
    rule = rule if rate else "is not a WAV file"
    with small():
        for read in (sound.length, lambda path: sound.read(path, 16000)):
            with pytest.raises(InvalidInput, match=rule):
                read(tmp_path / "a.wav")


@pytest.mark.parametrize("rate", [1000, 1_000_000])
def test_the_lowest_and_the_highest_rate_are_read(rate):
    assert len(read_wav(io.BytesIO(wav(rate, 0.1)), "a.wav", RATE)) == 800


def test_a_recording_that_is_too_long_is_refused_before_it_is_read(tmp_path):
    content = wav(1000, seconds=3.5, size=1)
    assert len(read_wav(io.BytesIO(content), "a.wav", RATE, 3.5)) == 3.5 * RATE
    with pytest.raises(InvalidInput, match=r"a\.wav has 4 seconds; at most 3\.499 are allowed"):
        read_wav(io.BytesIO(content), "a.wav", RATE, 3.499)
    # what the header announces and is not there does not count
    unknown = changed(content, 52, b"\xff\xff\xff\x7f")
    assert len(read_wav(io.BytesIO(unknown), "a.wav", RATE, 3.5)) == 3.5 * RATE
    sparse = tmp_path / "sparse.wav"
    sparse.write_bytes(changed(wav(1000), 52, b"\xff\xff\xff\xff"))
    os.truncate(sparse, 1 << 30)
    with small(), pytest.raises(InvalidInput, match="at most 21600 are allowed"):
        sound.read(sparse, 16000)
    os.truncate(sparse, (1 << 32) + 1)
    with small(), pytest.raises(InvalidInput, match="has 4,294,967,297 bytes, more than"):
        sound.read(sparse, 16000)


def test_a_million_empty_chunks_are_not_read_for_ever(monkeypatch):
    monkeypatch.setattr(sound, "HEADER_SECONDS", 0.2)
    content = b"RIFF\xff\xff\xff\x7fWAVE" + b"LIST\0\0\0\0" * 2_000_000
    start = time.monotonic()
    with pytest.raises(InvalidInput, match=r"it takes more than 0\.2 seconds to read"):
        read_wav(io.BytesIO(content), "a.wav", RATE)
    assert time.monotonic() - start < 20


@pytest.mark.parametrize("function", [sound.length, lambda path: sound.read(path, RATE)])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_a_recording_is_a_regular_file(tmp_path, function, kind):
    path = tmp_path / "a.wav"
    {
        "pipe": lambda: os.mkfifo(path),
        "device": lambda: path.symlink_to("/dev/zero"),
        "folder": path.mkdir,
    }[kind]()
    with limited(30), pytest.raises(InvalidInput, match=r"^cannot read .*a\.wav: it ") as refused:
        function(path)
    one_line(refused)


# ------------------------------------------------------------------------------------ pictures


def picture(form="PNG") -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (24, 24, 3), np.uint8)
    Image.fromarray(pixels).save(buffer, form)
    return buffer.getvalue()


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP", "PPM"])
def test_damaged_headers_of_pictures_give_a_picture_or_one_line(form):
    content = picture(form)
    header = min(64, len(content))
    with small(60, gigabytes=4):
        for seed in range(60):
            read = outcome(read_picture, damaged(content, seed, header), 8, "a.file")
            assert isinstance(read, str) or read.shape == (3, 8, 8)


@pytest.mark.parametrize("start", [b"GIF89a\x08\0\x08\0\0\0\0", b"\xff\xd8\xff\xe0\0\x10", b"P6 8"])
def test_a_sparse_picture_is_not_searched_for_ever(tmp_path, monkeypatch, start):
    """Pillow looks for the parts of a GIF and a JPEG byte by byte."""
    monkeypatch.setattr(pictures, "MAX_SECONDS", 0.5)
    path = tmp_path / "a.gif"
    path.write_bytes(start)
    os.truncate(path, pictures.MAX_BYTES)
    with small(30), pytest.raises(InvalidInput, match=r"a\.gif (is|has)") as refused:
        read_picture(path, 8)
    one_line(refused)
    os.truncate(path, pictures.MAX_BYTES + 1)
    with small(30), pytest.raises(InvalidInput, match="has 268,435,457 bytes, more than 268,435,"):
        read_picture(path, 8)


# ------------------------------------------------------------------------------------ archives


def bomb(kind: bytes, gigabytes: int) -> bytes:
    """The first header of an archive: of a long name, or of attributes, that has gigabytes."""
    header = tarfile.TarInfo("a")
    header.type, header.size = kind, gigabytes << 30
    return header.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XGLTYPE])
@pytest.mark.parametrize("pack", [bytes, lzma.compress])
def test_a_header_of_gigabytes_is_refused(tmp_path, kind, pack):
    path = tmp_path / "a.png"
    path.write_bytes(pack(bomb(kind, 3) + bytes(1 << 26)))
    if pack is bytes:
        os.truncate(path, 3 << 30)
    with small(30):
        assert not holds_files(path)
        with pytest.raises(InvalidInput, match=r"bytes, more than 1,048,576\)$") as refused:
            list(read_files(path, ["a"]))
        one_line(refused)
        with pytest.raises(InvalidInput):
            read_picture(path, 8)


def test_a_sparse_file_of_zeros_is_no_archive(tmp_path):
    path = tmp_path / "a.png"
    path.touch()
    os.truncate(path, 1 << 30)
    with small(30):
        assert not holds_files(path)
    path.write_bytes(gzip.compress(bytes(1 << 24)))
    assert not holds_files(path)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_an_archive_is_a_regular_file(tmp_path, kind):
    path = tmp_path / "a.tar"
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    with limited(30):
        assert not holds_files(path)
        with pytest.raises(InvalidInput, match="must be a regular file, not a pipe or a device"):
            list(read_files(path, ["a"]))


def test_an_archive_unpacks_to_a_hundred_times_its_size_at_most(tmp_path, monkeypatch):
    path = tmp_path / "a.tar.gz"
    write_tar(path, dict.fromkeys("abc", bytes(1 << 20)), "w:gz")
    monkeypatch.setattr(manifests, "MAX_FILE_BYTES", 1 << 20)
    with pytest.raises(InvalidInput, match=r"it has more than 1,048,576 bytes\)$"):
        list(read_files(path, ["c"]))
    monkeypatch.setattr(manifests, "MAX_FILE_BYTES", 4 << 20)
    assert dict(read_files(path, ["c"])) == {"c": bytes(1 << 20)}
    monkeypatch.setattr(manifests, "MAX_FILE_BYTES", 1 << 20)
    monkeypatch.setattr(manifests, "MAX_RATIO", 2000)
    assert dict(read_files(path, ["c"])) == {"c": bytes(1 << 20)}


def test_a_sparse_member_is_no_file(tmp_path):
    header = tarfile.TarInfo("a.wav")
    header.type, header.size = tarfile.GNUTYPE_SPARSE, 0
    block = bytearray(header.tobuf(tarfile.GNU_FORMAT))
    block[483:495] = b"%011o\0" % (1 << 33)  # its size with the holes
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    (tmp_path / "a.tar").write_bytes(bytes(block) + bytes(1024))
    with small(), pytest.raises(InvalidInput, match=r"has no file a\.wav"):
        list(read_files(tmp_path / "a.tar", ["a.wav"]))


def test_a_name_with_control_characters_is_written_as_python_does():
    class Empty:
        text = "a dog"

    line = as_manifest(0, "a\x1b[31m\n\tb  \u202fc\u202e.png", Empty(), 1)
    assert line == "a\\x1b[31m \\tb  \u202fc\\u202e.png\ta dog\n".replace(" \\tb", " b")
