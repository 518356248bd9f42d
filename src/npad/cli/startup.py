"""Interrupts, standard streams, OpenMP and caches, set up before `npad` imports its modules.

The imports take seconds; an interrupt meanwhile prints one line and exits with 130. npad cannot
catch one that comes while the interpreter itself starts.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALLED = 128  # plus the signal is the exit code of what it ended, as shells count
INTERRUPTED = SIGNALLED + signal.SIGINT
# Threads of one product that wait for each other spin for some microseconds, then sleep. libgomp
# spins for milliseconds, and so takes the core that the awaited thread needs, where others use the
# machine. Sleeping at once costs a fifth on an idle machine (benchmarks/busy.py).
OPENMP_DEFAULTS = {"GOMP_SPINCOUNT": "1000"}
# On a CPU, torch compiles a product for each number of rows, and keeps 1,024 of them in each of two
# caches. These variables bound the caches; an older name also counts as set.
PRODUCTS_KEPT = 64
PRODUCT_CACHES = {
    "LRU_CACHE_CAPACITY": ("LRU_CACHE_CAPACITY",),  # of torch's descriptors
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": (  # of oneDNN's compiled primitives
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY",
        "DNNL_PRIMITIVE_CACHE_CAPACITY",
    ),
}


def is_command() -> bool:
    """Return whether this process is `npad …` or `python -m npad …`, not a program using npad."""
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    if name == "-m":  # while Python looks for the module
        return "npad" in sys.orig_argv[sys.orig_argv.index("-m") + 1 :][:1]
    return name in ("npad", "npad.exe")


def begin() -> None:
    """Make the standard streams safe, and an interrupt one line until `main` takes over."""
    occupy_streams()
    # An ignored interrupt, as under nohup, stays ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit_interrupted)


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt on interrupts inside, and ignore them afterwards, during shutdown.

    Only if `begin` installed its handler; another program's handler is left alone.
    """
    installed = signal.getsignal(signal.SIGINT) is _exit_interrupted
    if installed:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if installed:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def importing() -> Iterator[None]:
    """Exit at once on an interrupt inside: an import can swallow or replace KeyboardInterrupt."""
    handler = signal.getsignal(signal.SIGINT)
    command = is_command() and handler is signal.default_int_handler
    if command:
        signal.signal(signal.SIGINT, _exit_interrupted)
    try:
        yield
    finally:
        if command:
            signal.signal(signal.SIGINT, handler)


def share_cores() -> None:
    """Choose how OpenMP's threads wait, unless the user did; torch reads it when it is imported."""
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & set(os.environ):
        os.environ.update(OPENMP_DEFAULTS)


def occupy_streams() -> None:
    """Open the null device in place of closed standard streams.

    Otherwise the next file opened would get such a stream's number. Messages for a closed stderr
    are dropped: `print` would write them to stdout instead.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def bound_product_caches() -> None:
    """Bound torch's caches of compiled products, unless torch is loaded or the user has set them.

    torch reads the variables when it first multiplies.
    """
    if "torch" in sys.modules:
        return
    for name, names in PRODUCT_CACHES.items():
        if not any(known in os.environ for known in names):
            os.environ[name] = str(PRODUCTS_KEPT)


def _exit_interrupted(number: int, frame: FrameType | None) -> None:
    """Exit at once: a module being imported could catch or replace an exception."""
    os.write(2, b"npad: interrupted\n")
    os._exit(INTERRUPTED)
