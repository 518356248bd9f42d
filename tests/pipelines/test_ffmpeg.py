"""Recordings of other formats go through ffmpeg: a stand-in here, the real one where it is."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys

import pytest
import torch

from media_models import record, tone
from npad import InvalidInput
from npad.cli.evaluate import are_recordings
from npad.pipelines import ffmpeg, sound

STAND_IN = """#!{python}
import json, os, sys, time
open({folder!r} + "/arguments.json", "w").write(json.dumps(sys.argv[1:]))
{body}
"""
COPY = "os.write(1, open({folder!r} + '/converted.wav', 'rb').read())"


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install an ffmpeg that does what is given, which writes converted.wav by default."""

    def make(body: str = COPY) -> None:
        (tmp_path / "bin").mkdir(exist_ok=True)
        program = tmp_path / "bin/ffmpeg"
        body = body.replace("{folder!r}", repr(str(tmp_path)))
        program.write_text(STAND_IN.format(python=sys.executable, folder=str(tmp_path), body=body))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    return make


@pytest.fixture
def talk(tmp_path):
    """A file of another format, and the WAV file that it becomes."""
    record(tmp_path / "converted.wav", tone(300, 0.5, 8000), 8000)
    path = tmp_path / "talk.mp3"
    path.write_bytes(b"ID3\x04" + bytes(200))
    return path


def test_another_format_is_what_ffmpeg_makes_of_it(talk, install, tmp_path):
    install()
    assert torch.equal(sound.read(talk, 8000), sound.read(tmp_path / "converted.wav", 8000))
    assert sound.length(talk) == (math.inf, math.inf)


def test_ffmpeg_opens_the_file_alone_and_its_arguments_are_fixed(
    talk, install, tmp_path, monkeypatch
):
    """A name that looks like an option or an address is the name of a file."""
    install()
    monkeypatch.chdir(tmp_path)
    for name in ("-i", "concat:a|b", "http:"):
        shutil.copy(talk, name)
        sound.read(name, 16000)
        given = (tmp_path / "arguments.json").read_text()
        assert f'"-i", "file:{tmp_path}/{name}"' in given
        assert '"-protocol_whitelist", "file,pipe", "-format_whitelist", "aac,' in given
    assert not {"hls", "concat", "dash", "image2", "lavfi"} & set(ffmpeg.CONTAINERS)


def test_plain_wav_needs_no_ffmpeg_and_wav_of_floats_does(talk, install, tmp_path, monkeypatch):
    install("sys.exit('it was run')")
    whole = sound.read(tmp_path / "converted.wav", 8000)
    content = bytearray((tmp_path / "converted.wav").read_bytes())
    content[20] = 3  # the format's tag: floats
    (tmp_path / "floats.wav").write_bytes(content)
    with pytest.raises(InvalidInput, match="it was run"):
        sound.read(tmp_path / "floats.wav", 8000)
    assert len(whole) == 4000


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "sys.exit('one\\ntwo: not sound\\n')",
            "not a recording that ffmpeg can read: two: not sound$",
        ),
        ("sys.exit('no')", "not a recording that ffmpeg can read: no$"),
        ("sys.exit(1)", "not a recording that ffmpeg can read: it has no sound"),
        ("pass", "not a recording that ffmpeg can read: it has no sound"),
        ("os.write(1, b'RIFFxxxxWAVE')", "talk.mp3 is not a WAV file"),
        (f"{COPY}; time.sleep(60)", "ffmpeg has not converted .*talk.mp3 in 0.5 seconds; cut it"),
        ("os.write(1, b'RIFF' + bytes(10**8))", "talk.mp3 is not a WAV file"),
    ],
)
def test_what_ffmpeg_cannot_do_is_one_line(talk, install, body, message, monkeypatch):
    install(body)
    monkeypatch.setattr(ffmpeg, "SECONDS", 0.5 if "sleep" in body else 60)
    with pytest.raises(InvalidInput, match=message):
        sound.read(talk, 8000)


def test_an_ffmpeg_that_does_not_start_is_one_line(talk, install, tmp_path):
    install()
    (tmp_path / "bin/ffmpeg").write_text("#!/nowhere")
    with pytest.raises(InvalidInput, match=r"^ffmpeg cannot be run: No such file or directory$"):
        sound.read(talk, 8000)


def test_a_long_recording_is_refused(talk, install):
    install()
    with pytest.raises(InvalidInput, match=r"talk\.mp3 has 0 seconds; at most 0\.1 are"):
        sound.read(talk, 8000, max_seconds=0.1)


def test_without_ffmpeg_the_message_names_it(talk, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    message = (
        "talk.mp3 is not a WAV file of integer samples .* ffmpeg, .* is missing; install ffmpeg"
    )
    for call in (lambda: sound.read(talk, 8000), lambda: sound.length(talk)):
        with pytest.raises(InvalidInput, match=message):
            call()


def test_lines_that_name_recordings():
    assert are_recordings(["a.wav", "b/c.MP3", "d.m4a"])
    assert not are_recordings(["a.wav", "A sentence."])
    assert not are_recordings([])


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="ffmpeg is not installed")
@pytest.mark.parametrize("suffix", ["mp3", "m4a", "flac", "ogg", "webm"])
def test_the_real_ffmpeg_keeps_the_sound(suffix, tmp_path):
    source = record(tmp_path / "a.wav", tone(300, 1.0, 16000), 16000)
    target = tmp_path / f"a.{suffix}"
    subprocess.run(["ffmpeg", "-v", "error", "-i", source, target], check=True)
    expected, found = sound.read(source, 8000), sound.read(target, 8000)
    assert abs(len(found) - len(expected)) < 800
    loudness = [float(part.square().mean().sqrt()) for part in (expected, found)]
    assert loudness[1] == pytest.approx(loudness[0], rel=0.2)


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="ffmpeg is not installed")
def test_the_real_ffmpeg_follows_no_playlist(tmp_path):
    record(tmp_path / "a.wav", tone(300, 1.0, 16000), 16000)
    playlist = "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\na.wav\n#EXT-X-ENDLIST\n"
    for text in (playlist, "ffconcat version 1.0\nfile a.wav\n"):
        (tmp_path / "list.mp3").write_text(text)
        with pytest.raises(InvalidInput, match="not a recording that ffmpeg can read"):
            sound.read(tmp_path / "list.mp3", 8000)
