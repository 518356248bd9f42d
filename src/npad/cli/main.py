"""The `npad` command, and what becomes of errors: one line on stderr and an exit code.

1: failure, or lines left out; 2: usage; 70: a bug in npad (EX_SOFTWARE); 130: interrupted. With
NPAD_TRACEBACK=1 in the environment the traceback of any of them is shown as well.
"""

from __future__ import annotations

from npad.cli import startup

if startup.is_command():
    startup.begin()  # an interrupt while the rest is imported is one line, too

import io
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import TextIO

import typer
import typer.main

from npad.cli.commands import app
from npad.cli.terminal import note
from npad.errors import InvalidInput, MemoryWarning, NpadError
from npad.text.files import NO_SUCH_PATH

BUG = 70  # EX_SOFTWARE of sysexits.h
ClickException: type[Exception] = typer.BadParameter.__mro__[2]  # click's, or typer's own click's


def main() -> None:
    """Run the command line and exit with its code."""
    sys.exit(_guarded(sys.argv[1:] or ["--help"]))


def _guarded(arguments: list[str]) -> int:
    """The exit code; whatever goes wrong is one line on stderr."""
    startup.occupy_streams()
    try:
        with startup.interruptible():
            return _printed(arguments)
    except SystemExit:
        raise
    except BaseException as error:  # a panic of a library in Rust is no Exception
        return _explained(error)


def _printed(arguments: list[str]) -> int:
    """Run the command with its streams as they should be; the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    if sys.stdout is None:
        raise InvalidInput("standard output is closed")
    with warnings.catch_warnings():
        warnings.showwarning = _warned
        code = _invoked(arguments)
    sys.stdout.flush()
    return code


def _invoked(arguments: list[str]) -> int:
    """Parse and run, without typer's own handling, which swallows an interrupt."""
    command = typer.main.get_command(app)
    try:
        with command.make_context("npad", arguments) as context:
            command.invoke(context)
    except typer.Exit as done:
        return done.exit_code
    return 0


def _explained(error: BaseException) -> int:
    """Say in one line what went wrong; the exit code."""
    if os.environ.get("NPAD_TRACEBACK"):
        traceback.print_exception(error)
    notes = getattr(error, "__notes__", [])
    match error:
        case NpadError():
            return _failed(str(error), 2 if isinstance(error, InvalidInput) else 1, notes)
        case KeyboardInterrupt() | typer.Abort():
            return _failed("interrupted", startup.INTERRUPTED, notes)
        case OverflowError():
            return _failed(f"a number is too large: {error}", 2, notes)
        case MemoryError():
            return _failed("out of memory; give it less at a time", 1, notes)
        case RecursionError() if "JSON" in str(error):
            return _failed(
                "a JSON file is nested too deeply to be one of npad's; it is damaged", 1, notes
            )
        case BrokenPipeError():  # whoever read our output has left
            _discard_output()
            return 1
        case OSError():
            code = _failed(_storage(error), 2 if error.errno in NO_SUCH_PATH else 1, notes)
            if error.filename is None:  # it was standard output
                _discard_output()
            return code
    if isinstance(error, ClickException):
        return _failed(error.format_message(), 2, notes)  # type: ignore[attr-defined]
    how = "this is a bug in npad, please report it with the traceback that NPAD_TRACEBACK=1 shows"
    return _failed(f"{how}: {type(error).__name__}: {error}", BUG, notes)


def _storage(error: OSError) -> str:
    where = f" {error.filename}" if error.filename else ""
    return f"cannot read or write{where}: {error.strerror}"


def _warned(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """npad's own warning as one line; those of others as Python shows them."""
    if issubclass(category, MemoryWarning):
        note(f"warning: {message}")
    else:
        print(
            warnings.formatwarning(message, category, filename, lineno, line),
            end="",
            file=file or sys.stderr,
        )


def _discard_output() -> None:
    """Else the interpreter would try once more to write it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _failed(message: str, code: int, notes: Sequence[str] = ()) -> int:
    print(f"npad: {' '.join('; '.join((message, *notes)).split())}", file=sys.stderr)
    return code
