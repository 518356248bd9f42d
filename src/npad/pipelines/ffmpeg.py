"""Recordings of any format as WAV, by the program ffmpeg where it is installed.

The file may be untrusted. ffmpeg opens it alone: containers that refer to other files or to
addresses, such as playlists, are not in the list of those it may read. Its time and its output are
bounded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from npad.errors import InvalidInput
from npad.storage.regular import Bounded

CONTAINERS = (
    *("aac", "ac3", "aiff", "amr", "ape", "asf", "au", "avi", "caf", "dts", "eac3", "flac", "flv"),
    *("matroska", "mov", "mp3", "mp4", "mpeg", "mpegts", "ogg", "rm", "tta", "w64", "wav", "wv"),
)
# endings of files that are taken for recordings where a text could be meant
SUFFIXES = (
    *(".wav", ".mp3", ".m4a", ".aac", ".flac", ".ogg", ".opus", ".wma", ".aiff", ".amr"),
    *(".mp4", ".m4b", ".mov", ".mkv", ".webm", ".avi"),
)
SECONDS = 600.0  # of ffmpeg's own time: six hours of speech take it one to two minutes
SAMPLE_BYTES = 2  # of its output
HEADER_BYTES = 4096  # of its output
REASON_BYTES = 4000  # of its messages, from the end


def is_installed() -> bool:
    """Return whether there is an ffmpeg to run."""
    return shutil.which("ffmpeg") is not None


def ensure_installed(name: str) -> None:
    """Require ffmpeg to read a file that npad cannot read itself.

    Raises:
        InvalidInput: it is not installed.
    """
    if not is_installed():
        rule = (
            "is not a WAV file of integer samples (PCM), and ffmpeg, which reads others, is missing"
        )
        raise InvalidInput(f"{name} {rule}; install ffmpeg, or convert the recording")


@contextmanager
def as_wav(path: str | Path, rate: int, max_seconds: float) -> Iterator[BinaryIO]:
    """Yield a recording as the content of a WAV file, of one channel and `rate` samples per second.

    Raises:
        InvalidInput: ffmpeg is not installed, cannot read the file, or takes too long.
    """
    ensure_installed(str(path))
    command = ["ffmpeg", "-nostdin", "-v", "error", "-protocol_whitelist", "file,pipe"]
    command += ["-format_whitelist", ",".join(CONTAINERS), "-i", f"file:{os.path.abspath(path)}"]
    command += ["-map", "0:a:0", "-ac", "1", "-ar", str(rate), "-c:a", "pcm_s16le"]
    command += ["-t", f"{max_seconds + 1:.0f}", "-f", "wav", "pipe:1"]
    with tempfile.TemporaryFile() as content, tempfile.TemporaryFile() as messages:
        try:
            code = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=content,
                stderr=messages,
                timeout=SECONDS,
            ).returncode
        except subprocess.TimeoutExpired as error:
            rule = f"ffmpeg has not converted {path} in {SECONDS:g} seconds"
            raise InvalidInput(f"{rule}; cut it, or convert it yourself") from error
        except OSError as error:
            raise InvalidInput(f"ffmpeg cannot be run: {error.strerror}") from error
        if code != 0 or not content.tell():
            raise InvalidInput(
                f"{path} is not a recording that ffmpeg can read: {_reason(messages)}"
            )
        content.seek(0)
        max_bytes = int((max_seconds + 1) * rate * SAMPLE_BYTES) + HEADER_BYTES
        yield Bounded(content, max_bytes=max_bytes)  # type: ignore[misc]


def _reason(messages: BinaryIO) -> str:
    """Return the last line that ffmpeg wrote."""
    messages.seek(max(0, messages.seek(0, os.SEEK_END) - REASON_BYTES))
    lines = messages.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it has no sound")
