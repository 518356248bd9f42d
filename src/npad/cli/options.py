"""Options that several commands share: model, device, precision and limits."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    get_args,
    get_origin,
    get_type_hints,
)

import typer

from npad.specs import Registry, label

if TYPE_CHECKING:
    from npad.pipelines.translation import Translator

OUTPUT = "What to write"
DEFAULT_MODEL = "en-de"


def completing(*names: str) -> Callable[[str], list[str]]:
    """Return a function by which a shell completes one of these names."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def complete_model(incomplete: str) -> list[str]:
    """Return the names of models, and the folders, that begin like this."""
    from npad.pipelines.names import SHIPPED, TOY

    folder, begun = os.path.split(incomplete)
    try:
        inside = [entry.name for entry in os.scandir(folder or ".") if entry.is_dir()]
    except OSError:
        inside = []
    shown = [name for name in sorted(inside) if name.startswith(begun) and name[0] != "."]
    return completing(*SHIPPED, TOY)(incomplete) + [os.path.join(folder, name) for name in shown]


def option(
    help: str,
    *flags: str,
    names: Sequence[str] = (),
    complete: Callable[..., Any] | None = None,
    panel: str | None = None,
    **more: Any,
) -> Any:
    """Return an option for typer.

    Args:
        help: the text in the help.
        flags: its flags; by default that of the parameter.
        names: what its value may be called, as shells complete it.
        complete: returns the completions of what was typed, instead.
        panel: of the help.
        more: arguments of `typer.Option`.
    """
    if complete is not None or names:
        more = {"metavar": "NAME", "autocompletion": complete or completing(*names)} | more
    return typer.Option(*flags, help=help, rich_help_panel=panel, **more)


ModelName = Annotated[
    str,
    option(
        "`en-de`, `toy`, a folder of `npad train`, `hf:NAME_OR_PATH`, `chat:NAME_OR_PATH` or "
        "`my.py:make`.",
        "--model",
        "-m",
        complete=complete_model,
    ),
]
Device = Annotated[
    str,
    option(
        "`cpu`, `cuda`, `cuda:1`, …; `auto` uses a GPU if there is one.",
        names=("auto", "cpu", "cuda"),
    ),
]
Precision = Annotated[
    str,
    option(
        "Of NPAD's noisy chains: float32, bfloat16, int8. int8-all: of all, scores included.",
        names=("float32", "bfloat16", "int8", "int8-all"),
        hidden=True,
    ),
]
Json = Annotated[
    bool, option("One JSON object per source: outputs, scores, signature.", "--json", panel=OUTPUT)
]
Nbest = Annotated[
    int, option("Outputs per source, in Moses' format unless --json.", panel=OUTPUT, min=1)
]
OutputFile = Annotated[Path | None, option("File to write instead of stdout.", "--output", "-o")]
WithTime = Annotated[
    bool,
    option(
        "Also measure milliseconds per sentence alone, and sentences per second in batches "
        "of 64: three rounds, on the first sentences.",
        "--time",
    ),
]
AsText = Annotated[
    bool, option("Take arguments as texts, even if they name a file.", "--text", "-t")
]
MaxLength = Annotated[int, option("Tokens an output may have, its end token included.", min=1)]
Constrain = Annotated[
    list[str] | None,
    option(
        "What outputs must satisfy, such as without(Handy) or choices(@FILE); several times for "
        "several.",
        "--constraint",
        metavar="SPEC",
        hidden=True,
    ),
]
MaxSource = Annotated[
    int, option("Tokens a source may have; the model's own limit also holds.", min=1, hidden=True)
]
MaxRows = Annotated[
    int,
    option(
        "Rows (sentences × chains × beams) at a time; affects memory and speed only.",
        min=1,
        hidden=True,
    ),
]


def source_limit(translator: Translator, max_source: int) -> str:
    """Return the limit on sources that is in force, as error messages name it."""
    if translator.longest < max_source:
        return f"the model's limit of {translator.longest:,}"
    return f"--max-source {max_source:,}"


def flag_of(name: str) -> str:
    """Return the flag of a field: top_k -> --top-k."""
    return "--" + name.replace("_", "-")


def field_parameter(
    name: str,
    kind: Any,
    metadata: Mapping[str, Any],
    default: Any,
    text: str,
    panel: str,
    hidden: bool = False,
) -> inspect.Parameter:
    """Return a dataclass field as an option for typer, which is None unless it is set.

    Args:
        name: of the option.
        kind: the field's type.
        metadata: the field's: `flags`, more names of the option; `negatable`, of a flag; `shown`,
            the default in the help; `metavar`, for the value in the help.
        default: the field's, in the help; MISSING for none.
        text: the help, without the default.
        panel: of the help.
        hidden: whether the option is left out of the short help.
    """
    several = any(get_origin(part) is tuple for part in (kind, *get_args(kind)))
    kinds = () if several else get_args(kind) or (kind,)
    plain: Any = next((part for part in (bool, int, float) if part in kinds), str)
    flags = [flag_of(name), *metadata.get("flags", ())]
    if plain is bool:
        negatable = default is True or metadata.get("negatable", False)
        flags = [f"{flags[0]}/--no-{flags[0][2:]}" if negatable else flags[0]]
    missing = default is MISSING or default is None or default is False
    shown = "" if missing else label(default)
    shown = str(metadata.get("shown", shown))
    text = f"{text}. [{shown}]" if shown else f"{text}."
    numbers = plain is not str or {int, float} & set(get_args(kind))
    metavar = None if plain is bool else metadata.get("metavar", "N" if numbers else "NAME")
    given = option(text, *flags, names=values_of(kind), panel=panel, hidden=hidden, metavar=metavar)
    annotation: Any = Annotated[plain | None, given]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def values_of(kind: Any) -> list[str]:
    """Return the names that a field of this type may have; empty if they cannot be listed."""
    registry = Registry.for_field(kind)
    options = get_args(kind) if get_origin(kind) is Literal else ()
    return list(map(str, options)) if registry is None else registry.names()


def field_parameters(
    value: Any, panel: str, names: Sequence[str] = (), everyday: Sequence[str] | None = None
) -> list[inspect.Parameter]:
    """Return fields of a dataclass as options: those named, or all that have a `help`.

    Args:
        value: the dataclass, or an instance whose fields are the defaults.
        panel: of the help.
        names: of the fields.
        everyday: the fields in the short help; by default all.
    """
    types = get_type_hints(value if isinstance(value, type) else type(value))
    return [
        field_parameter(
            part.metadata.get("option", part.name),
            types[part.name],
            part.metadata,
            part.default if isinstance(value, type) else getattr(value, part.name),
            part.metadata["help"],
            panel,
            everyday is not None and part.name not in everyday,
        )
        for part in fields(value)
        if "help" in part.metadata and (not names or part.name in names)
    ]


class Expanded:
    """A command one of whose parameters is made of several options.

    The options are asked for when the command is: a decoder may be registered until then.

    Args:
        command: the command.
        name: of the parameter.
        options: returns the options, which come in its place.
        made: takes them out of the values of all options, and returns the parameter's value.
    """

    def __init__(
        self,
        command: Callable[..., None],
        name: str,
        options: Callable[[], Sequence[inspect.Parameter]],
        made: Callable[[dict[str, Any]], Any],
    ) -> None:
        self.command, self.name, self.options, self.made = command, name, options, made
        self.__name__, self.__doc__ = command.__name__, command.__doc__

    @property
    def __signature__(self) -> inspect.Signature:
        own = inspect.signature(self.command, eval_str=True).parameters
        parts = [self.options() if name == self.name else [own[name]] for name in own]
        keyword = inspect.Parameter.KEYWORD_ONLY
        return inspect.Signature([p.replace(kind=keyword) for part in parts for p in part])

    @property
    def __annotations__(self) -> dict[str, Any]:  # type: ignore[override]
        return {p.name: p.annotation for p in self.__signature__.parameters.values()}

    def __call__(self, **values: Any) -> None:
        made = self.made(values)
        self.command(**values, **{self.name: made})


def with_options(*options: inspect.Parameter) -> Callable[[Callable[..., None]], Expanded]:
    """Give a command more options, of which it receives those that are set as `settings`."""
    return lambda command: Expanded(
        command, "settings", lambda: options, lambda values: taken(values, options)
    )


def are_set(**options: Any) -> dict[str, Any]:
    """Return the options that the user set."""
    return {name: value for name, value in options.items() if value is not None}


def taken(settings: dict[str, Any], parameters: Sequence[inspect.Parameter]) -> dict[str, Any]:
    """Take options out of a command's settings, and return those that the user set."""
    return are_set(
        **{parameter.name: settings.pop(parameter.name, None) for parameter in parameters}
    )
