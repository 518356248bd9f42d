"""Corpora as lines of text, JSON lines or Parquet, distinguished by the end of the file's name.

The only place that imports pyarrow, which the extra `ray` brings along.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from npad.errors import InvalidInput, StorageError
from npad.scale.units import Failed
from npad.storage.regular import ensure_regular
from npad.text.files import (
    MAX_SKIPPED_BYTES,
    display_name,
    open_input,
    read_lines_or_errors,
    reading_errors,
)

JSON_LINES = (".jsonl", ".jsonl.gz", ".jsonl.xz")
PARQUET = ".parquet"
ROWS = 1024  # of a Parquet file, read or written at a time
BLOCK_BYTES = 1 << 20


def is_json_lines(path: Path) -> bool:
    """Return whether a file's name says that it holds JSON lines."""
    return path.name.endswith(JSON_LINES)


def is_parquet(path: Path) -> bool:
    """Return whether a file's name says that it is a Parquet file."""
    return path.suffix == PARQUET


def read_texts(path: Path, field: str = "text") -> Iterator[str | Failed]:
    """Yield the texts of a corpus; a `Failed` in place of each that cannot be read.

    Args:
        path: `.jsonl`: an object per line; `.parquet`: a table; anything else: a text per line.
            Lines may be compressed by gzip or xz.
        field: the field, or column, of the text in JSON lines and Parquet.

    Raises:
        InvalidInput: the file cannot be read or is damaged, or a table has no such column.
    """
    if is_parquet(path):
        yield from _read_parquet(path, field)
        return
    for line in read_lines_or_errors(path):
        if isinstance(line, InvalidInput):
            yield Failed(str(line))
        elif is_json_lines(path):
            yield _text_of(line, field)
        else:
            yield line


def count_texts(path: Path) -> int:
    """Return the number of texts in a corpus.

    Raises:
        InvalidInput: it is not a regular file, which could be read again after a restart; it cannot
            be read; or it is not text, since a line has more than `MAX_SKIPPED_BYTES`.
    """
    try:
        ensure_regular(path)
    except StorageError as error:
        raise InvalidInput(f"{error}; a corpus must be a file") from error
    if is_parquet(path):
        with _open_parquet(path) as table:
            return int(table.metadata.num_rows)
    lines, unended = 0, 0  # bytes since a block with a line's end
    with open_input(path) as file, reading_errors(path):
        while block := file.read(BLOCK_BYTES):
            lines += block.count(b"\n")
            unended = len(block) - 1 - block.rfind(b"\n") + (b"\n" not in block) * unended
            if unended > MAX_SKIPPED_BYTES:
                rule = f"line {lines + 1} has more than {MAX_SKIPPED_BYTES:,} bytes"
                raise InvalidInput(f"{display_name(path)}, {rule}; this is not a text file")
    return lines + (unended > 0)


def write_parquet(lines: Path, path: Path) -> None:
    """Write JSON lines as a Parquet file, a few rows at a time; the file appears complete."""
    pyarrow = _import_parquet()
    schema = _schema(pyarrow)
    part = path.with_name(f".{path.name}.part")
    with open(lines, "rb") as file, pyarrow.parquet.ParquetWriter(part, schema) as writer:
        while rows := [json.loads(line) for line in islice(file, ROWS)]:
            writer.write_table(pyarrow.Table.from_pylist(rows, schema))
    os.replace(part, path)


def _schema(pyarrow: Any) -> Any:
    """Return the columns of translations: the fields that `npad translate --json` writes."""
    found = {
        "text": pyarrow.string(),
        "log_prob": pyarrow.float64(),
        "noisy_log_prob": pyarrow.float64(),
        "chain": pyarrow.int64(),
        "finished": pyarrow.bool_(),
    }
    more = {"signature": pyarrow.string(), "alternatives": pyarrow.list_(pyarrow.struct(found))}
    return pyarrow.schema({"id": pyarrow.int64(), "source": pyarrow.string(), **found, **more})


def _text_of(line: str, field: str) -> str | Failed:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Failed(f"it is not JSON: {error}")
    text = record.get(field) if isinstance(record, dict) else None
    if not isinstance(text, str):
        return Failed(f"it is not a JSON object with a text {field!r}")
    try:
        text.encode()
    except UnicodeEncodeError:
        return Failed("it holds half a surrogate pair, which is not text")
    return text


def _read_parquet(path: Path, field: str) -> Iterator[str | Failed]:
    with _open_parquet(path) as table:
        if field not in table.schema_arrow.names:
            names = ", ".join(table.schema_arrow.names)
            raise InvalidInput(f"{path} has no column {field!r}; it has {names}: see --field")
        for batch in table.iter_batches(ROWS, columns=[field]):
            for text in batch.column(0).to_pylist():
                yield text if isinstance(text, str) else Failed(f"its {field!r} is not text")


def _open_parquet(path: Path) -> Any:
    pyarrow = _import_parquet()
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (OSError, pyarrow.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise InvalidInput(f"cannot read {display_name(path)}: {reason}") from error


def _import_parquet() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise InvalidInput(
            "Parquet needs pyarrow: pip install pyarrow; or use JSON lines"
        ) from error
    return pyarrow
