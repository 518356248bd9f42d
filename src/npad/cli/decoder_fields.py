"""The fields of decoders as options of the command line."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields
from typing import Annotated, Any, get_args, get_type_hints

import typer

from npad.noise.noisy import Noise
from npad.search.decoder import Decoder, has_candidates
from npad.search.registry import DECODERS
from npad.search.selected import Selected
from npad.selectors import Selector
from npad.specs import Registry, label, name_of_kind, parse_value

PANEL = "How to decode"  # of the help


@dataclass(frozen=True)
class DecoderOption:
    """One field of a decoder, or of its noise, as an option of the command line."""

    field: Field[Any]
    kind: Any  # the field's type

    @property
    def name(self) -> str:
        return str(self.field.metadata.get("option", self.field.name))

    @property
    def flag(self) -> str:
        return flag_of(self.name)

    def parse(self, value: Any) -> Any:
        """Return the field's value from the option's."""
        if not isinstance(value, str):
            return value
        return parse_value(self.flag, value, self.kind)

    def parameter(self, owners: list[str]) -> inspect.Parameter:
        """Return the option as a parameter for typer; `owners` are the decoders that have it."""
        flags = [self.flag, *self.field.metadata.get("flags", ())]
        kind = self._plain_kind()
        if kind is bool:
            negatable = self.field.default is True or self.field.metadata.get("negatable", False)
            flags = [f"{self.flag}/--no-{self.flag[2:]}" if negatable else self.flag]
        options: dict[str, Any] = {"help": self._help(owners), "rich_help_panel": PANEL}
        if kind is not bool:
            options["metavar"] = "NAME" if kind is str and self.name != "sigma" else "N"
        annotation: Any = Annotated[kind | None, typer.Option(*flags, **options)]
        return inspect.Parameter(
            self.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
        )

    def _plain_kind(self) -> Any:
        """The type that typer parses: a plain one, or text."""
        if self.name == "sigma":
            return str
        kinds = get_args(self.kind) or (self.kind,)
        return next((kind for kind in (bool, int, float) if kind in kinds), str)

    def _help(self, owners: list[str]) -> str:
        text = f"{', '.join(owners)}: {self.field.metadata['help']}"
        parts = Registry.for_field(self.kind)
        if parts is not None and parts is not DECODERS:
            text += f": {', '.join(map(described, parts))}"
        default = self._default()
        return f"{text}. [{default}]" if default else f"{text}."

    def _default(self) -> str:
        if "shown" in self.field.metadata:
            return str(self.field.metadata["shown"])
        if self.field.default is not MISSING:
            default = self.field.default
            return "" if default is None or default is False else label(default)
        if self.field.default_factory is not MISSING:
            return label(self.field.default_factory())
        return ""


SELECTOR = DecoderOption(
    next(field for field in fields(Selected) if field.name == "selector"), Selector
)


def flag_of(name: str) -> str:
    """Return the flag of a field: top_k -> --top-k."""
    return "--" + name.replace("_", "-")


def described(kind: type) -> str:
    """Return a part's name with its plain fields: power(p=0.5)."""
    types = get_type_hints(kind)
    plain = [
        f"{field.name}={label(field.default)}"
        for field in fields(kind)
        if types[field.name] in (int, float) and field.default is not MISSING
    ]
    return name_of_kind(kind) + (f"({','.join(plain)})" if plain else "")


def options_of(kind: type) -> Iterator[DecoderOption]:
    """Yield the options of a decoder: its fields that have a help, and those of its noise.

    A decoder with candidates has --selector, too, which wraps it in `Selected`.
    """
    types = get_type_hints(kind)
    for field in fields(kind):
        if types[field.name] is Noise:
            yield from options_of(Noise)
        elif "help" in field.metadata:
            yield DecoderOption(field, types[field.name])
    if "selector" not in types and issubclass(kind, Decoder) and has_candidates(kind):
        yield SELECTOR


def option_names(kind: type) -> set[str]:
    """Return the names of a decoder's options."""
    return {option.name for option in options_of(kind)}
