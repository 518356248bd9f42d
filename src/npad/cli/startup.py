"""The first moments of the `npad` command, before its imports, which take seconds.

An interrupt while importing is one line and exit code 130; one while the interpreter itself starts is beyond us.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130  # 128 + SIGINT, as shells count


def is_command() -> bool:
    """Whether this process is `npad …` or `python -m npad …`, and no other program that imports npad."""
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    if name == "-m":  # while Python looks for the module
        return "npad" in sys.orig_argv[sys.orig_argv.index("-m") + 1 :][:1]
    return name in ("npad", "npad.exe")


def begin() -> None:
    """Make the standard streams safe, and an interrupt quiet until `main` takes over."""
    occupy_streams()
    if (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ):  # it may be ignored, as nohup has it
        signal.signal(signal.SIGINT, _leave)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let interrupts raise KeyboardInterrupt within, and ignore them after, while the interpreter ends.

    Only for a process that `begin` began; another program's own handler is left alone.
    """
    begun = signal.getsignal(signal.SIGINT) is _leave
    if begun:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if begun:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def importing() -> Iterator[None]:
    """End at once if interrupted within: an import can swallow or replace KeyboardInterrupt."""
    handler = signal.getsignal(signal.SIGINT)
    command = is_command() and handler is signal.default_int_handler
    if command:
        signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        if command:
            signal.signal(signal.SIGINT, handler)


def occupy_streams() -> None:
    """Open the null device in place of closed standard streams, whose numbers another file would be given.

    What goes to stderr is dropped where that is closed: `print` would write it to stdout instead.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _leave(number: int, frame: FrameType | None) -> None:
    """End at once: an exception could be caught, or turned into another, by what is being imported."""
    os.write(2, b"npad: interrupted\n")
    os._exit(INTERRUPTED)
