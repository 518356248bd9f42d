"""Help that fits on a screen: usage, options in groups and examples as plain text.

`--help` shows the options that a user of the command needs, and `--help-all` those that are
`hidden`, too.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from copy import copy
from textwrap import wrap
from typing import Any

import typer
import typer.core

WIDEST = 100  # columns of a page
LEFT = 28  # columns of the longest name beside its explanation
WORD = re.compile(r'(?:"[^"]*"|\'[^\']*\'|\S)+')  # of a command line, quoted ones whole
BOLD, PLAIN = "\033[1m", "\033[0m"  # click removes them where no terminal reads


class Command(typer.core.TyperCommand):
    """A command with a short help, and the option --help-all if that leaves out options."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.further = {param.name for param in self.params if getattr(param, "hidden", False)}
        for param in self.params:
            param.hidden = False  # from shells, which complete all options  # type: ignore
        self.whole: Any = None  # the option --help-all

    def get_help(self, ctx: Any) -> str:
        return page(self, ctx, self.further)

    def get_params(self, ctx: Any) -> list[Any]:
        *params, usual = super().get_params(ctx)
        if not self.further:
            return [*params, usual]
        if self.whole is None:
            self.whole = copy(usual)
            self.whole.name, self.whole.opts = "help_all", ["--help-all"]
            self.whole.help, self.whole.callback = "Show all options.", _show_all
        return [*params, usual, self.whole]


def _show_all(ctx: Any, param: Any, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        typer.echo(page(ctx.command, ctx), color=ctx.color)
        ctx.exit()


class Group(typer.core.TyperGroup):
    """A group of commands with a help like that of its commands."""

    def get_help(self, ctx: Any) -> str:
        return page(self, ctx)

    def listed(self, ctx: Any) -> dict[str, dict[str, str]]:
        """Return the commands with their summaries, under a title for each group of them."""
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        return {"Commands": {name: _split(found.help)[0][0] for name, found in commands.items()}}


def page(command: Any, ctx: Any, besides: Iterable[str] = ()) -> str:
    """Return the help of a command.

    Args:
        command: the command, or a group of commands.
        ctx: its context.
        besides: names of parameters to leave out.
    """
    params = command.get_params(ctx)
    arguments = [p for p in params if p.param_type_name == "argument"]
    options = [p for p in params if p.param_type_name == "option"]
    shown = [option for option in options if option.name not in besides]
    sections: dict[str, dict[str, str]] = {"Arguments": {}, "Options": {}}
    sections["Arguments"] = {_value(argument, ctx): argument.help or "" for argument in arguments}
    for option in shown:
        panel = getattr(option, "rich_help_panel", None) or "Options"
        sections.setdefault(panel, {})[_flags(option, ctx)] = _explained(option)
    listed = command.listed(ctx) if isinstance(command, Group) else {}
    paragraphs, examples = _split(command.help)
    usage = ["[OPTIONS]", *map(_usage, arguments), *(["COMMAND …"] if listed else [])]
    text = _Page(f"Usage: {ctx.command_path} {' '.join(usage)}")
    text.paragraphs(paragraphs)
    text.sections({title: rows for title, rows in {**listed, **sections}.items() if rows})
    text.examples(examples)
    notes = []
    if len(shown) < len(options):
        notes.append(f"{ctx.command_path} --help-all shows all {len(options)} options.")
    if any(option.name in ("decoder", "inner") for option in options):
        notes.append("npad decoders lists the decoders; npad decoders beam shows one's options.")
    if listed:
        notes.append(f"{ctx.command_path} COMMAND --help shows a command's options and examples.")
    text.paragraphs(notes)
    return str(text)


class _Page:
    """Text of the terminal's width."""

    def __init__(self, *lines: str) -> None:
        self.width = max(40, min(shutil.get_terminal_size().columns, WIDEST))
        self.lines = list(lines)

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def paragraphs(self, texts: Iterable[str]) -> None:
        """Add paragraphs with blank lines between."""
        for text in texts:
            self.lines += ["", *self._wrapped(text)]

    def sections(self, sections: dict[str, dict[str, str]]) -> None:
        """Add tables of names and explanations, aligned with each other."""
        names = [name for rows in sections.values() for name in rows]
        left = min(LEFT, self.width // 3, max(map(len, names), default=0)) + 4
        for title, rows in sections.items():
            self.title(title)
            for name, text in rows.items():
                lines = self._wrapped(text, left) or [""]
                beside = len(name) + 4 <= left
                self.lines += [f"  {name:{left - 2}}{lines[0]}"] if beside else [f"  {name}"]
                self.lines += [" " * left + line for line in lines[beside:]]

    def examples(self, lines: list[str]) -> None:
        """Add command lines."""
        if lines:
            self.title("Examples" if len(lines) > 1 else "Example")
        for line in lines:
            self.lines += self._command_line(line)

    def title(self, title: str) -> None:
        """Begin a section."""
        self.lines += ["", f"{BOLD}{title}:{PLAIN}"]

    def _wrapped(self, text: str, left: int = 0) -> list[str]:
        plain = " ".join(text.replace("`", "").split())
        return wrap(plain, self.width - left, break_on_hyphens=False)

    def _command_line(self, text: str) -> Iterator[str]:
        """Yield a command line, continued by backslashes where it is too wide."""
        line = " "
        for word in WORD.findall(text):
            if len(line) + len(word) + 3 > self.width:  # a blank before it, and a backslash after
                yield f"{line} \\"
                line = "     "
            line += f" {word}"
        yield line


def _split(text: str | None) -> tuple[list[str], list[str]]:
    """Return the paragraphs of a docstring, and the command lines at its end."""
    blocks = [" ".join(block.split()) for block in (text or "").split("\n\n")]
    titles = (i for i, block in enumerate(blocks) if block in ("Example:", "Examples:"))
    end = next(titles, len(blocks))
    return blocks[:end], blocks[end + 1 :]


def _usage(argument: Any) -> str:
    """Return an argument as the usage has it: [TEXT]..."""
    name = _value(argument)
    several = "..." if argument.nargs == -1 else ""
    return f"{name}{several}" if argument.required else f"[{name}]{several}"


def _value(param: Any, ctx: Any = None) -> str:
    """Return what an argument or an option takes, as the help calls it: TEXT, N, PATH."""
    if param.metavar:
        return str(param.metavar)
    if param.param_type_name == "argument":
        return str(param.name).upper()
    kind = param.display_type(ctx) if hasattr(param, "display_type") else param.type.name
    if "int" in kind or "float" in kind:
        return "N"
    return "PATH" if "path" in kind else "TEXT"


def _flags(option: Any, ctx: Any) -> str:
    """Return the names of an option and what it takes: -d, --decoder NAME."""
    short = [name for name in option.opts if not name.startswith("--")]
    long = [name for name in option.opts if name.startswith("--")]
    if option.secondary_opts:
        long = [f"--[no-]{name[2:]}" for name in long]
    flags = ", ".join([*short, *long]) if short else f"    {', '.join(long)}"
    return flags if option.is_flag else f"{flags} {_value(option, ctx)}"


def _explained(option: Any) -> str:
    """Return an option's help, with its default in brackets."""
    text = option.help or ""
    if option.required:
        return f"{text} [required]"
    default = option.default
    if option.is_flag or default in (None, "") or text.endswith("]"):
        return text
    return f"{text} [{default}]"
