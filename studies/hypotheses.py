"""Hypotheses of decoders in a file, so that they are selected and measured elsewhere, and later.

FILE.jsonl.gz has a JSON object a line, each a gzip member of its own, so that a run that is
stopped continues where it was. FILE.jsonl.xz has the same lines in a fraction of the bytes, to be
kept. Only torch and NumPy are needed.
"""

from __future__ import annotations

import gzip
import json
import lzma
import os
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from npad.search.hypotheses import Hypothesis
from npad.selectors import MBR, LengthNormalised, MostProbable, Selector
from npad.text.english import spoken
from npad.validation import brief

Entry = dict[str, Any]  # a line of the file
Detokenise = Callable[[tuple[int, ...]], str]


class Candidate(NamedTuple):
    """A distinct hypothesis for one source."""

    text: str
    log_prob: float
    length: int  # tokens, the end token included
    copies: int  # how often it was found
    finished: bool
    chain: int = 0  # that found it first


def candidates(hypotheses: Sequence[Hypothesis], text: Detokenise) -> list[Candidate]:
    """Return the distinct hypotheses for one source, in their order."""
    counts: dict[tuple[tuple[int, ...], bool], int] = {}
    first: dict[tuple[tuple[int, ...], bool], Hypothesis] = {}
    for hypothesis in hypotheses:
        key = hypothesis.tokens, hypothesis.finished
        counts[key] = counts.get(key, 0) + hypothesis.count
        first.setdefault(key, hypothesis)
    return [
        Candidate(
            text(h.tokens),
            round(h.log_prob, 4),
            len(h.tokens) + h.finished,
            counts[key],
            h.finished,
            h.chain,
        )
        for key, h in first.items()
    ]


def choose(ranked: Sequence[Candidate], selector: Selector) -> int:
    """Return the place of the best candidate; finished ones rank before those that were cut.

    Word errors between candidates are those of normalised English.
    """
    if isinstance(selector, MBR):
        plain = spoken if selector.utility == "wer" else str
        texts = [plain(candidate.text) for candidate in ranked]
        copies = [candidate.copies for candidate in ranked]
        scores = [round(value, 9) for value in selector.expected_utilities(texts, texts, copies)]
    elif isinstance(selector, LengthNormalised):
        scores = [selector.score(c.log_prob, max(1, c.length)) for c in ranked]
    elif isinstance(selector, MostProbable):
        scores = [candidate.log_prob for candidate in ranked]
    else:
        raise TypeError(f"candidates in a file are not selected by {brief(selector)}")
    order = [(c.finished, score) for c, score in zip(ranked, scores, strict=True)]
    return order.index(max(order))


def read_entries(path: Path) -> list[Entry]:
    """Return the entries of a file; a last one that a kill cut off is skipped."""
    entries: list[Entry] = []
    if not path.exists():
        return entries
    damage = suppress(EOFError, zlib.error, json.JSONDecodeError, gzip.BadGzipFile)
    opened = lzma.open if path.suffix == ".xz" else gzip.open
    with damage, opened(path, "rt", encoding="utf-8") as file:
        for line in file:
            entries.append(json.loads(line))
    return entries


def resume_entries(path: Path) -> list[Entry]:
    """Return the entries of a file, and remove what a kill cut off, so that more can follow."""
    entries = read_entries(path)
    if entries:
        _replace(path, b"".join(map(_member, entries)))
    return entries


def append_entry(path: Path, entry: Entry) -> None:
    """Append an entry, as a gzip member of its own."""
    with open(path, "ab") as file:
        file.write(_member(entry))


def keep_entries(path: Path, entries: Sequence[Entry]) -> None:
    """Write FILE.jsonl.xz."""
    content = "".join(map(_line, entries)).encode()
    _replace(path, lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))


def _replace(path: Path, content: bytes) -> None:
    part = path.with_name(path.name + ".part")
    part.write_bytes(content)
    os.replace(part, path)


def _line(entry: Entry) -> str:
    return json.dumps(entry, ensure_ascii=False) + "\n"


def _member(entry: Entry) -> bytes:
    return gzip.compress(_line(entry).encode())
