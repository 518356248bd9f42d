"""Stream lines through a translator: from an input to an output, with progress."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import IO

from npad.cli.outputs import not_decoded
from npad.cli.terminal import Decoded
from npad.engine.memory import return_free_memory
from npad.errors import InvalidInput
from npad.pipelines.outputs import Translation
from npad.pipelines.overlap import ReadAhead
from npad.pipelines.pipeline import on_decoded
from npad.pipelines.translation import Translator
from npad.search.decoder import Decoder
from npad.signatures import signature
from npad.text.files import read_lines

LINES_PER_UPDATE = 1024  # lines written before the progress bar moves, if more have been read
LINES_PER_TRIM = 4096  # lines written before free memory is returned to the system

# of an output, a line's number from 0, the line, its translation, and outputs per line
Write = Callable[[IO[str], int, str, Translation, int], None]


def input_lines(text: list[str] | None, file: Path | None) -> tuple[Iterator[str], int | None]:
    """Return the lines of a text, a file or standard input, and their number if it is known."""
    if text:
        return iter(text), len(text)
    if file is not None and os.path.isfile(file):
        return read_lines(file), sum(1 for _ in read_lines(file))
    return read_lines(file or "-"), None


def write_translations(
    translator: Translator,
    lines: Iterator[str],
    total: int | None,
    out: IO[str],
    write: Write,
    progress: Callable[[str, int, int], None],
    on_long: Callable[[int, InvalidInput], None],
    *,
    decoder: Decoder,
    nbest: int = 1,
    max_length: int = 200,
    max_rows: int = 1024,
    window: int | None = None,
) -> int:
    """Translate lines and write each in its place; return how many were too long and left empty.

    Args:
        translator: the translator.
        lines: the input.
        total: their number, if it is known: then they can be read at any time, without waiting.
        out: the output, which is flushed before reading may wait.
        write: writes a translation.
        progress: called after every batch with what is in progress, the lines decoded, and their
            total or 0.
        on_long: called with the number of each line that is too long, from 1.
        decoder: the search.
        nbest: outputs per line.
        max_length: tokens that an output may have.
        max_rows: rows decoded at a time.
        window: lines read before their translations are written.
    """
    pending: deque[str] = deque()  # lines that were read and not yet written

    def read() -> Iterator[str]:
        for line in lines:
            pending.append(line)
            yield line

    texts = read() if total is None else ReadAhead(read())
    skipped = trimmed = 0
    decoded = Decoded(progress, "translating", total or 0)
    stream = translator.stream_or_skip(texts, decoder, max_length, max_rows, window)
    with on_decoded(decoded.add), closing(stream) as outcomes:
        for done, outcome in enumerate(outcomes, start=1):
            if isinstance(outcome, InvalidInput):
                on_long(done, outcome)
                outcome = not_decoded(signature(decoder, translator.model))
                skipped += 1
            write(out, done - 1, pending.popleft(), outcome, nbest)
            if not pending or done % LINES_PER_UPDATE == 0:
                out.flush()  # reading the next line may block
                decoded.reach(done)
                if done - trimmed >= LINES_PER_TRIM:
                    return_free_memory()
                    trimmed = done
    return skipped
