"""What fits in memory, said before it hurts and in one line."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar

import torch

from npad.errors import MemoryWarning, OutOfMemory

WAY_OUT = "lower the samples, chains, width or max_length, or decode fewer sentences at a time"
HALVED = "out of memory: going on with half the rows at a time, to the same results; a lower max_rows saves the attempt"
CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")

Item = TypeVar("Item")
Result = TypeVar("Result")


@cache
def total_memory(device: torch.device) -> int:
    """Bytes that there are at all: of the GPU, or of the machine as far as this process is let."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else sys.maxsize]
    for path in map(Path, CGROUPS):
        text = path.read_text().strip() if path.is_file() else ""
        limits += [int(text)] if text.isdigit() else []
    return min(limits)


def ensure_fits(rows: int, bytes_each: int, device: torch.device) -> None:
    """Refuse what the whole memory could not hold, before the attempt brings the machine down."""
    memory = total_memory(device)
    if rows * bytes_each > memory:
        need, there = (f"{size / 2**30:,.0f}" for size in (rows * bytes_each, memory))
        raise OutOfMemory(f"{rows:,} rows need about {need} GiB and there are {there}; {WAY_OUT}")


@contextmanager
def plain_memory_errors(way_out: str = WAY_OUT) -> Iterator[None]:
    """Say in one line what torch says in many."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error):
            raise OutOfMemory(f"this does not fit in memory; {way_out} ({str(error).splitlines()[0]})") from error
        raise


def halved() -> None:
    """Say that rows are halved. Always from this line, in these words: Python then shows it once, however often."""
    warnings.warn(HALVED, MemoryWarning, stacklevel=1)


class Room:
    """How many rows run at a time: as many as asked for, until some do not fit; then half of those, and so on."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def run(self, work: Callable[[list[Item]], list[Result]], items: list[Item], each: int = 1) -> list[Result]:
        """What `work` makes of all items, `each` of them some rows; half of them at a time where all do not fit."""
        alone = len(items) == 1
        if alone or len(items) * each <= self.rows:
            try:
                return work(items)
            except OutOfMemory:
                if alone:
                    raise
            halved()  # here, where the error is gone and what it held of memory with it
            self.rows = (len(items) + 1) // 2 * each
        middle = (len(items) + 1) // 2
        return self.run(work, items[:middle], each) + self.run(work, items[middle:], each)
