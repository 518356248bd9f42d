"""The `npad` command, and what becomes of errors: one line on stderr; exit code 2 for usage, 1 for failure."""

from __future__ import annotations

import io
import os
import sys
import warnings
from typing import TextIO

import typer

from npad.cli import (
    bench,
    calibrate,
    compare,
    evaluate,
    info,
    pack,
    plot,
    prepare,
    reproduce,
    score,
    train,
    transcribe,
    translate,
)
from npad.cli.terminal import note
from npad.errors import InvalidInput, MemoryWarning, NpadError
from npad.version import __version__

ClickException: type[Exception] = typer.BadParameter.__mro__[2]  # of click, or of the click inside newer typers

app = typer.Typer(
    name="npad",
    help="Decode better from the sequence model you already have.",
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (
    translate,
    transcribe,
    compare,
    score,
    evaluate,
    calibrate,
    prepare,
    train,
    reproduce,
    info,
    pack,
    bench,
):
    app.command(module.__name__.rpartition(".")[2])(module.command)
app.add_typer(plot.app, name="plot")


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="The version."),
) -> None:
    """Decode better from the sequence model you already have."""


def main() -> None:
    """Run the command line: one line and an exit code for an error, no traceback."""
    code: object = 1
    try:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(encoding="utf-8", errors="backslashreplace")
        if sys.stdout is None:
            raise InvalidInput("standard output is closed")
        with warnings.catch_warnings():
            warnings.showwarning = _warned
            code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
        sys.stdout.flush()
    except NpadError as error:
        code = _failed(str(error), 2 if isinstance(error, InvalidInput) else 1)
    except ClickException as error:
        code = _failed(error.format_message(), 2)  # type: ignore[attr-defined]
    except (KeyboardInterrupt, typer.Abort):
        code = _failed("interrupted", 130)
    except OverflowError as error:
        code = _failed(f"a number is too large: {error}", 2)
    except BrokenPipeError:  # whoever read our output has left
        _discard_output()
    except OSError as error:
        code = _failed(f"cannot read or write: {error.strerror}", 1)
        _discard_output()
    sys.exit(code if isinstance(code, int) else 0)


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
        print(warnings.formatwarning(message, category, filename, lineno, line), end="", file=file or sys.stderr)


def _discard_output() -> None:
    """Else the interpreter would try once more to write it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _failed(message: str, code: int) -> int:
    print(f"npad: {' '.join(message.split())}", file=sys.stderr)
    return code
