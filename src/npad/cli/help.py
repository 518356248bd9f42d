"""Help that fits on a screen: usage, options in groups and examples as plain text.

`--help` shows the options that a user of the command needs; `--help-all` also shows those that are
`hidden`.
"""

from __future__ import annotations

import inspect
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from textwrap import wrap
from typing import Any

import typer
import typer.core

WIDEST = 100  # columns of a page
LEFT = 30  # columns of the longest name that has its explanation beside it
WORD = re.compile(r'(?:-\S+ )?(?:"[^"]*"|\S)+')  # of a command line; an option with its value
BOLD, PLAIN = "\033[1m", "\033[0m"  # click removes them where no terminal reads
ALL = "--help-all"

Rows = Mapping[str, str]  # names and their explanations


class Command(typer.core.TyperCommand):
    """A command with a short help, and --help-all if that leaves out options."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        params: list[Any] = self.params
        self.further = {param.name for param in params if getattr(param, "hidden", False)}
        for param in params:
            param.hidden = False  # shells complete all options
        self.whole: Any = None  # the option --help-all

    def get_help(self, ctx: Any) -> str:
        return help_of(self, ctx, self.further)

    def get_params(self, ctx: Any) -> list[Any]:
        *params, usual = super().get_params(ctx)
        if not self.further:
            return [*params, usual]
        if self.whole is None:
            arguments = sum(param.param_type_name == "argument" for param in params)
            self.whole = copy(usual)
            self.whole.name, self.whole.opts = "help_all", [ALL]
            self.whole.help = f"Show all {len(params) - arguments + 2} options."
            self.whole.callback = _show_all
        return [*params, usual, self.whole]


def _show_all(ctx: Any, param: Any, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        typer.echo(help_of(ctx.command, ctx), color=ctx.color)
        ctx.exit()


class Group(typer.core.TyperGroup):
    """A group of commands with a help like that of its commands."""

    def get_help(self, ctx: Any) -> str:
        return help_of(self, ctx)

    def listed(self, ctx: Any) -> dict[str, Rows]:
        """Return the commands with their summaries, under a title for each group of them."""
        commands: dict[str, Any] = {n: self.get_command(ctx, n) for n in self.list_commands(ctx)}
        return {"Commands": {name: split(found.help)[0][0] for name, found in commands.items()}}


def help_of(command: Any, ctx: Any, besides: Collection[str] = ()) -> str:
    """Return the help of a command, or of a group of commands.

    Args:
        command: the command.
        ctx: its context.
        besides: names of parameters to leave out.
    """
    params = command.get_params(ctx)
    arguments = [param for param in params if param.param_type_name == "argument"]
    options = [param for param in params if param.param_type_name == "option"]
    shown = [option for option in options if option.name not in besides]
    sections: dict[str, dict[str, str]] = {"Arguments": {}, "Options": {}}
    for argument in arguments:
        sections["Arguments"][_taken(argument, ctx)] = argument.help or ""
    for option in shown:
        panel = getattr(option, "rich_help_panel", None) or "Options"
        names = [*option.opts, *option.secondary_opts]
        sections.setdefault(panel, {})[flags(names, _taken(option, ctx))] = _explained(option)
    for title in [title for title in sections if len(sections[title]) == 1 and besides]:
        if title not in ("Arguments", "Options"):  # a section of one is none
            sections["Options"] |= sections.pop(title)
    for name in [name for name in sections["Options"] if "--help" in name]:  # last
        sections["Options"][name] = sections["Options"].pop(name)
    listed = command.listed(ctx) if isinstance(command, Group) else {}
    paragraphs, examples = split(command.help)
    usage = ["[OPTIONS]", *map(_usage, arguments), *(["COMMAND …"] if listed else [])]
    page = Page(f"Usage: {ctx.command_path} {' '.join(usage)}")
    page.paragraphs(paragraphs)
    page.sections(listed)
    page.sections(sections)
    page.command_lines(examples)
    path = ctx.command_path
    if listed:
        page.paragraphs([f"{path} COMMAND --help shows the options of a command, with examples."])
    if any(option.name == "decoder" for option in options):
        page.paragraphs(
            ["npad decoders lists the decoders; npad decoders beam shows the options of one."]
        )
    return str(page)


class Page:
    """Text as wide as the terminal."""

    def __init__(self, *lines: str) -> None:
        self.width = max(40, min(shutil.get_terminal_size().columns, WIDEST))
        self.lines = list(lines)

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def title(self, title: str) -> None:
        """Begin a section."""
        self.lines += ["", f"{BOLD}{title}:{PLAIN}"]

    def paragraphs(self, texts: Iterable[str]) -> None:
        """Add paragraphs, and lists whose lines begin with `- `."""
        for text in texts:
            self.lines.append("")
            for item in re.split(r"\n(?=- )", text):
                hanging = "  " if item.startswith("- ") else ""
                self.lines += self._wrapped(item, indent=hanging)

    def sections(self, sections: Mapping[str, Rows]) -> None:
        """Add tables of names and explanations, aligned with each other."""
        names = [name for rows in sections.values() for name in rows]
        left = 4 + max((len(name) for name in names if len(name) <= LEFT), default=0)
        left = min(left, self.width // 2)
        for title, rows in sections.items():
            if rows:
                self.title(title)
            for name, text in rows.items():
                first, *others = self._wrapped(text.replace("`", ""), left) or [""]
                if len(name) + 4 > left:
                    self.lines.append(f"  {name}")
                    first, others = "", [first, *others]
                else:
                    first = f"  {name:{left - 2}}{first}"
                self.lines += [*([first] if first else []), *(" " * left + line for line in others)]

    def command_lines(self, lines: Sequence[str]) -> None:
        """Add examples."""
        if lines:
            self.title("Examples" if len(lines) > 1 else "Example")
        for line in lines:
            self.lines += self._command_line(line)

    def _wrapped(self, text: str, left: int = 0, indent: str = "") -> list[str]:
        line, width = " ".join(text.split()), self.width - left
        return wrap(line, width, subsequent_indent=indent, break_on_hyphens=False)

    def _command_line(self, text: str) -> Iterator[str]:
        """Yield a command line, continued with backslashes where it is too long."""
        line = " "
        for word in WORD.findall(text):
            if len(line) + len(word) + 3 > self.width and line.strip():
                yield f"{line} \\"
                line = "     "
            line += f" {word}"
        yield line


def split(text: str | None) -> tuple[list[str], list[str]]:
    """Return the paragraphs of a docstring, and the command lines at its end."""
    blocks = inspect.cleandoc(text or "").split("\n\n")
    titles = (i for i, block in enumerate(blocks) if block in ("Example:", "Examples:"))
    end = next(titles, len(blocks))
    return blocks[:end], [" ".join(block.split()) for block in blocks[end + 1 :]]


def flags(names: Sequence[str], takes: str) -> str:
    """Return the names of an option and what it takes, aligned: `-d, --decoder NAME`."""
    short = [name for name in names if not name.startswith("--")]
    long = [name for name in names if name.startswith("--")]
    if len(long) == 2 and long[1] == f"--no-{long[0][2:]}":
        long = [f"--[no-]{long[0][2:]}"]
    text = ", ".join([*short, *long])
    return f"{text if short else f'    {text}'} {takes}".rstrip()


def _usage(argument: Any) -> str:
    """Return an argument as the usage has it: [TEXT]..."""
    name = _taken(argument)
    if name.startswith("["):
        return name  # says itself how often
    several = "..." if argument.nargs == -1 else ""
    return f"{name}{several}" if argument.required else f"[{name}]{several}"


def _taken(param: Any, ctx: Any = None) -> str:
    """Return what an argument or an option takes, as the help calls it: TEXT, N, PATH."""
    if getattr(param, "is_flag", False):
        return ""
    if param.metavar:
        return str(param.metavar)
    if param.param_type_name == "argument":
        return str(param.name).upper()
    kind = param.display_type(ctx) if hasattr(param, "display_type") else param.type.name
    kind = str(kind).lower()
    if "int" in kind or "float" in kind:
        return "N"
    return "PATH" if "path" in kind else "TEXT"


def _explained(option: Any) -> str:
    """Return an option's help, with its default in brackets."""
    text, default = option.help or "", option.default
    if option.required:
        return f"{text} [required]"
    given = not option.is_flag and default not in (None, "") and not text.endswith("]")
    return f"{text} [{default}]" if given else text
