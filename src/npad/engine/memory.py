"""Memory limits: refuse work that cannot fit, and run work that does not fit at once in halves."""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar, cast

import torch

from npad.errors import MemoryWarning, OutOfMemory

WAY_OUT = "lower the samples, chains, width or max_length, or decode fewer sentences at a time"
HALVED = (
    "out of memory: continuing with half the rows at a time, with the same results; "
    "set a lower max_rows to avoid the failed attempt"
)
# In the messages of torch's RuntimeErrors for lack of memory; the second is oneDNN's.
SHORTAGES = ("allocate memory", "could not create a primitive")
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")

Item = TypeVar("Item")
Result = TypeVar("Result")


@cache
def total_memory(device: torch.device) -> int:
    """Return the memory of a device in bytes; for the CPU, within the process's cgroup limit."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    has_sysconf = hasattr(os, "sysconf")
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if has_sysconf else None
    limits = [sys.maxsize if physical is None else physical]
    for path in map(Path, CGROUP_LIMITS):
        limit = path.read_text().strip() if path.is_file() else ""
        limits += [int(limit)] if limit.isdigit() else []
    return min(limits)


def ensure_fits(rows: int, bytes_per_row: int, device: torch.device) -> None:
    """Raise OutOfMemory for rows that exceed the total memory, before allocating them."""
    memory = total_memory(device)
    if rows * bytes_per_row > memory:
        needed, available = (f"{size / 2**30:,.0f}" for size in (rows * bytes_per_row, memory))
        raise OutOfMemory(
            f"{rows:,} rows need about {needed} GiB and there are {available}; {WAY_OUT}"
        )


@contextmanager
def out_of_memory_errors(way_out: str = WAY_OUT) -> Iterator[None]:
    """Turn torch's out-of-memory errors into a one-line `OutOfMemory` with a way out."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or any(s in str(error) for s in SHORTAGES):
            reason = str(error).splitlines()[0]
            raise OutOfMemory(f"this does not fit in memory; {way_out} ({reason})") from error
        raise


class RowBudget:
    """The number of rows to run at a time: `rows`, halved whenever they do not fit in memory."""

    def __init__(self, rows: int | None = None) -> None:
        self.rows = sys.maxsize if rows is None else rows

    def run(
        self,
        work: Callable[[Sequence[Item]], list[Result]],
        items: Sequence[Item],
        rows_each: int = 1,
    ) -> list[Result]:
        """Return work(items), or the joined results of both halves if they do not fit together.

        Args:
            work: maps consecutive items to a list of results; may raise `OutOfMemory`.
            items: the items to process.
            rows_each: rows per item.

        Raises:
            OutOfMemory: a single item does not fit.
        """
        single = len(items) <= 1
        if single or len(items) * rows_each <= self.rows:
            try:
                with out_of_memory_errors():
                    return work(items)
            except OutOfMemory:
                if single:
                    raise
            # Outside the handler, so that the tensors held by the traceback are freed.
            warn_halved()
            self.rows = (len(items) + 1) // 2 * rows_each
        middle = (len(items) + 1) // 2
        first = self.run(work, items[:middle], rows_each)
        return first + self.run(work, items[middle:], rows_each)


def peak_memory(device: torch.device) -> int:
    """Return the peak memory in bytes: of a GPU since the last reset, of this process on a CPU.

    Returns:
        0 on Windows, which has no such count.
    """
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    if sys.platform == "win32":
        return 0
    import resource

    unit = 1 if sys.platform == "darwin" else 1024  # bytes of ru_maxrss's unit
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def return_free_memory() -> None:
    """Return the pages that malloc holds but does not use to the system; glibc only.

    Otherwise a long-lived object above a freed tensor keeps that memory in the process.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    """Return glibc's malloc_trim, or None with another C library."""
    try:
        return cast("Callable[[int], int]", ctypes.CDLL(None).malloc_trim)
    except (AttributeError, OSError, TypeError):  # no such function; Windows has no CDLL(None)
        return None


def warn_halved() -> None:
    """Warn from a fixed line with a fixed message, so that Python shows it only once."""
    warnings.warn(HALVED, MemoryWarning, stacklevel=1)
