"""The `npad` command. Every error prints one line on stderr and sets the exit code.

1: failure, or lines left out; 2: usage; 70: a bug in npad (EX_SOFTWARE); 130: interrupted; 143:
training was terminated, and wrote a checkpoint. With NPAD_TRACEBACK=1 in the environment the
traceback is printed as well.
"""

from __future__ import annotations

from npad.cli import startup

if startup.is_command():
    startup.begin()  # before the slow imports, so that interrupting them also prints one line

import io
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import typer
import typer.main

from npad.cli.commands import app
from npad.cli.terminal import note
from npad.errors import InvalidInput, MemoryWarning, NpadError, PluginWarning, WaitingWarning
from npad.pipelines.names import PYTHON_FILE, in_a_line
from npad.text.files import NO_SUCH_PATH
from npad.validation import did_you_mean

PACKAGE = Path(__file__).parents[1]  # npad's own
BUG = 70  # EX_SOFTWARE of sysexits.h
# options of other decoders' commands, and those of npad that do the same
INSTEAD = {
    **dict.fromkeys(
        ("--beam", "--beams", "--beam-size", "--num-beams"), "--width, and --decoder beam"
    ),
    **dict.fromkeys(("--n-best", "--n", "-n"), "--nbest"),
    **dict.fromkeys(("--batch-size", "--batch"), "--max-rows"),
    **dict.fromkeys(("--max-new-tokens", "--max-len"), "--max-length"),
}
# errors with a line of their own, wherever they were raised
HANDLED = (NpadError, KeyboardInterrupt, typer.Abort, MemoryError, BrokenPipeError)
ClickException: type[Exception] = typer.BadParameter.__mro__[2]  # click's, or typer's own click's


def main() -> None:
    """Run the command line and exit with its code."""
    startup.share_cores()
    startup.bound_product_caches()
    sys.exit(_run_guarded(sys.argv[1:] or ["--help"]))


def _run_guarded(arguments: list[str]) -> int:
    """Run the command and return its exit code; report any error in one line on stderr."""
    startup.occupy_streams()
    try:
        with startup.interruptible():
            return _run_with_streams(arguments)
    except SystemExit:
        raise
    except BaseException as error:  # a panic in a Rust library is not an Exception
        return _report(error)


def _run_with_streams(arguments: list[str]) -> int:
    """Run the command with UTF-8 streams and one-line warnings; return the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    if sys.stdout is None:
        raise InvalidInput("standard output is closed")
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        code = _invoke(arguments)
    sys.stdout.flush()
    return code


def _invoke(arguments: list[str]) -> int:
    """Parse and run, without typer's error handling, which swallows an interrupt."""
    command: Any = typer.main.get_command(app)
    command._main_shell_completion({}, "npad")  # exits if a shell asks for completions
    try:
        with command.make_context("npad", arguments, color=_color()) as context:
            command.invoke(context)
    except typer.Exit as exit:
        return exit.exit_code
    return 0


def _color() -> bool | None:
    """Return False if the user wants no colors; None, which is where a terminal reads."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


def _report(error: BaseException) -> int:
    """Report an error in one line on stderr and return the exit code."""
    if os.environ.get("NPAD_TRACEBACK"):
        traceback.print_exception(error)
    notes = getattr(error, "__notes__", [])
    found = None if isinstance(error, HANDLED) else culprit(error)
    if found is not None and found.raised:
        return _fail(f"{found.path} raised {found.message}", 1, notes)
    match error:
        case NpadError():
            return _fail(str(error), 2 if isinstance(error, InvalidInput) else 1, notes)
        case KeyboardInterrupt() | typer.Abort():
            number = next(iter(error.args), signal.SIGINT)
            name = "terminated" if number == signal.SIGTERM else "interrupted"
            return _fail(name, startup.SIGNALLED + number, notes)
        case OverflowError():
            return _fail(f"a number is too large: {error}", 2, notes)
        case MemoryError():
            return _fail("out of memory; process less at a time", 1, notes)
        case RecursionError() if "JSON" in str(error):
            return _fail(
                "a JSON file is nested too deeply; npad writes no such file, so it is damaged",
                1,
                notes,
            )
        case BrokenPipeError():  # the reader of our output has exited
            _discard_output()
            return 1
        case OSError():
            code = _fail(_storage_message(error), 2 if error.errno in NO_SUCH_PATH else 1, notes)
            if error.filename is None:  # it was standard output
                _discard_output()
            return code
    if isinstance(error, ClickException):
        return _fail(_usage_message(error), 2, notes)
    return _fail(_bug_message(error, found), BUG, notes)


class Culprit(NamedTuple):
    """A user's file to which an exception may be due, and the exception in one line."""

    path: str  # relative to the working directory where that is shorter
    message: str  # the exception, and the last line of the file that it passed, if any
    raised: bool  # there, or in a library that the file called; not by npad, which the file called


def culprit(error: BaseException) -> Culprit | None:
    """Return the last of a user's files that an exception passed; None if no file was run.

    A user's files are those that were run by name, and their neighbours, which they may import.
    """
    files = [key for key in sys.modules if key.startswith(PYTHON_FILE)]
    run = [Path(key.removeprefix(PYTHON_FILE)) for key in files]
    if not run:
        return None
    folders = {path.parent for path in run}
    passed = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
    own = [i for i, path in enumerate(passed) if path.parent in folders]
    path = passed[own[-1]] if own else run[-1]
    later = passed[own[-1] + 1 :] if own else passed
    raised = bool(own) and not any(frame.is_relative_to(PACKAGE) for frame in later)
    return Culprit(min(str(path), os.path.relpath(path), key=len), in_a_line(error, path), raised)


def _bug_message(error: BaseException, found: Culprit | None) -> str:
    """Return what to do about an unexpected error; found: the user's file it may be due to."""
    if found is not None:
        advice = f"this is a bug in {found.path}, or in npad; NPAD_TRACEBACK=1 shows the traceback"
        return f"{advice}: {found.message}"
    advice = (
        "this is a bug in npad, please report it with the traceback that NPAD_TRACEBACK=1 shows"
    )
    return f"{advice}: {type(error).__name__}: {error}"


def _usage_message(error: Any) -> str:
    """Return what is wrong with the command line, in one line, and where the usage is shown."""
    option, context = str(getattr(error, "option_name", "")), error.ctx
    if option in INSTEAD:
        return f"No such option: {option}; use {INSTEAD[option]}"
    message = str(error.format_message())
    if message.startswith("No such option"):
        known = [name for param in context.command.get_params(context) for name in param.opts]
        return f"No such option: {option}{did_you_mean(option, known)}"
    if message.startswith("No such command"):
        typed, known = message.split("'")[1], context.command.list_commands(context)
        return (
            f"No such command {typed!r}{did_you_mean(typed, known) or '; npad --help lists them'}"
        )
    if message.startswith("Missing command"):
        names = ", ".join(context.command.list_commands(context))
        return f"{context.command_path} needs the name of a command: {names}"
    if message.startswith("Missing"):
        path = context.command_path if context is not None else "npad"
        return f"{message.rstrip('.')}; {path} --help shows examples"
    value = _typed_value(getattr(getattr(error, "param", None), "opts", []))
    if "Input should" in message and value is not None:  # a newer typer does not name the value
        return f"{message.partition(', unable to parse')[0]}, not {value!r}"
    return message


def _typed_value(options: Sequence[str]) -> str | None:
    """Return the value that was typed for an option; options: its names."""
    for i, argument in enumerate(sys.argv):
        name, equals, value = argument.partition("=")
        if argument in options:
            return sys.argv[i + 1] if i + 1 < len(sys.argv) else None
        if equals and name in options:
            return value
    return None


def _storage_message(error: OSError) -> str:
    path = f" {error.filename}" if error.filename else ""
    return f"cannot read or write{path}: {error.strerror}"


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print npad's warnings as one line, and others as Python does."""
    if issubclass(category, MemoryWarning | PluginWarning | WaitingWarning):
        note(f"warning: {message}")
    else:
        print(
            warnings.formatwarning(message, category, filename, lineno, line),
            end="",
            file=file or sys.stderr,
        )


def _discard_output() -> None:
    """Redirect stdout to the null device: the interpreter flushes it once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, code: int, notes: Sequence[str] = ()) -> int:
    note("; ".join((message, *notes)))
    return code
