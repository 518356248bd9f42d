"""Manifests: which text belongs to which picture or recording, and the files themselves.

A manifest has lines of a file's name, a tab and a text. Several lines may name the same file, such
as the five captions of a picture. The files are in a folder or a tar archive.
"""

from __future__ import annotations

import lzma
import os
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from npad.errors import InvalidInput, StorageError
from npad.storage.regular import Bounded, open_regular, read_bytes
from npad.text.files import decompressed, display_name, read_lines

MAX_FILE_BYTES = 1 << 28  # of a picture or a recording
MAX_HEADER_BYTES = 1 << 20  # of a file in an archive; names have a few hundred
MAX_RATIO = 100  # that a larger archive may be compressed by; sound reaches 10, pictures 1
ARCHIVE_ERRORS = (OSError, tarfile.TarError, EOFError, ValueError, lzma.LZMAError, zlib.error)


def read_manifest(path: str | Path) -> dict[str, list[str]]:
    """Return the texts of each file that a manifest names, both in its order.

    Args:
        path: the manifest: plain, gzip, xz, or `-` for standard input.

    Raises:
        InvalidInput: the manifest cannot be read, is empty, or has a line of another form.
    """
    texts: dict[str, list[str]] = {}
    for number, line in enumerate(read_lines(path), start=1):
        name, tab, text = line.partition("\t")
        if not tab or not name:
            raise InvalidInput(
                f"{display_name(path)}, line {number}: a manifest has a file's name, a tab and a "
                "text in each line"
            )
        texts.setdefault(name, []).append(text.strip())
    if not texts:
        raise InvalidInput(f"{display_name(path)} is empty: it names no file")
    return texts


def holds_files(path: str | Path) -> bool:
    """Return whether a path is a folder or a tar archive."""
    if Path(path).is_dir():
        return True
    try:
        with _opened(path) as (_, archive):
            return archive.next() is not None
    except ARCHIVE_ERRORS:
        return False


@contextmanager
def _opened(path: str | Path) -> Iterator[tuple[BinaryIO, tarfile.TarFile]]:
    """Open the content of an archive, and its list of files, which reads no large headers."""
    with open_regular(path) as raw:
        size = os.fstat(raw.fileno()).st_size
        content = decompressed(raw)
        limit = size if content is raw else max(MAX_FILE_BYTES, MAX_RATIO * size)
        headers = Bounded(content, max_read=MAX_HEADER_BYTES, max_bytes=limit)
        with tarfile.open(fileobj=cast(Any, headers), mode="r:") as archive:
            yield content, archive


def read_files(files: str | Path, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each file, in the order that is fastest to read.

    Args:
        files: a folder, or a tar archive: plain, gzip or xz. An archive is read once, from its
            beginning to its end; "./" before its names is ignored.
        names: of the files, in the folder or the archive.

    Raises:
        InvalidInput: a file is missing, or larger than `MAX_FILE_BYTES`; or the archive is damaged.
    """
    wanted, files = dict.fromkeys(names), Path(files)
    if files.is_dir():
        return _in_folder(files, wanted)
    return _in_archive(files, wanted)


def _in_folder(folder: Path, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    for name in names:
        try:
            content = read_bytes(folder / name, MAX_FILE_BYTES)
        except StorageError as error:
            raise InvalidInput(f"{error} (named by the manifest)") from error
        yield name, content


def _in_archive(archive: Path, names: dict[str, None]) -> Iterator[tuple[str, bytes]]:
    missing = dict(names)
    try:
        with _opened(archive) as (content, listed):
            while (member := listed.next()) is not None:
                # A list of all files needs gigabytes for millions.
                cast(Any, listed).members.clear()
                name = member.name.removeprefix("./")
                if name not in missing or not member.isreg() or member.issparse():
                    continue
                if member.size > MAX_FILE_BYTES:
                    rule = f"has {member.size:,} bytes, more than {MAX_FILE_BYTES:,}"
                    raise InvalidInput(f"{name} in {archive} {rule}")
                del missing[name]
                content.seek(member.offset_data)
                data = content.read(member.size)
                if len(data) < member.size:
                    raise EOFError("it ends early")
                yield name, data
                if not missing:
                    return
    except InvalidInput:
        raise
    except ARCHIVE_ERRORS as error:
        reason = getattr(error, "strerror", None) or str(error) or "it ends early"
        rule = "files must be a folder or a tar archive"
        raise InvalidInput(f"cannot read {archive}: {rule} ({reason.splitlines()[0]})") from error
    first, more = next(iter(missing)), len(missing) - 1
    others = f" and {more:,} more" if more else ""
    raise InvalidInput(f"{archive} has no file {first}{others}, which the manifest names")
