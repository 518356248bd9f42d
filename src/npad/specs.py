"""Parts by name: `power(p=0.7)` in signatures, options and checkpoints is `Power(p=0.7)`.

A `Registry` knows the parts of one kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from numbers import Integral, Real
from typing import Any, Literal, get_args, get_origin, get_type_hints

from npad.errors import InvalidInput


def label(value: Any) -> str:
    """Return a short text for a value: numbers as they are, objects by name with their fields."""
    if isinstance(value, bool) or value is None:
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, Real):  # NumPy's too, whose repr would show their type
        return repr(int(value) if isinstance(value, Integral) else float(value))
    if isinstance(value, tuple):
        return ",".join(map(label, value))
    if isinstance(value, type) or not is_dataclass(value):
        return str(getattr(value, "__qualname__", kebab(type(value))))
    inside = ",".join(
        f"{field.name}={label(getattr(value, field.name))}" for field in fields(value)
    )
    name = name_of_kind(type(value))
    return f"{name}({inside})" if inside else name


def kebab(kind: type) -> str:
    """Return a class's name in kebab case: LengthNormalised -> length-normalised."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", kind.__name__)
    return words.lower()


def name_of_kind(kind: type) -> str:
    """Return a part's name: its class's `label`, or its class's name in kebab case."""
    return str(getattr(kind, "label", kebab(kind)))


class Registry:
    """The parts of one kind by name. Adding one here is all that the command line needs.

    Example: `SCHEDULES.parse("power(p=0.7)")` is `Power(p=0.7)`.
    """

    def __init__(self, noun: str, *kinds: type) -> None:
        self.noun = noun  # what error messages call a part
        self.kinds: dict[str, type] = {}
        for kind in kinds:
            self.add(kind)

    def add(self, kind: type) -> type:
        """Register a dataclass under its name; also a class decorator."""
        self.kinds[name_of_kind(kind)] = kind
        return kind

    def remove(self, kind: type) -> None:
        """Take a registered dataclass out again."""
        del self.kinds[name_of_kind(kind)]

    def __iter__(self) -> Iterator[type]:
        return iter(self.kinds.values())

    def __contains__(self, name: object) -> bool:
        return name in self.kinds

    def parse(self, text: str) -> Any:
        """Return the part that `label` writes so; fields left out have their defaults.

        Raises:
            InvalidInput: no part or field has that name, or a value is of another type.
        """
        name, inside = _split_call(text)
        if name not in self.kinds:
            raise InvalidInput(f"{self.noun} must be one of {', '.join(self.kinds)}, not {text!r}")
        kind = self.kinds[name]
        types = get_type_hints(kind)
        field_types = {field.name: types[field.name] for field in fields(kind)}
        values = {}
        for argument in split_commas(inside):
            field_name, equals, value = (part.strip() for part in argument.partition("="))
            if field_name not in field_types or not equals or not value:
                options = ", ".join(f"{field}=…" for field in field_types) or "none"
                raise InvalidInput(f"{name} has no field {argument!r}; it has {options}")
            described = f"{self.noun} {name}'s {field_name}"
            if field_name in values:
                raise InvalidInput(f"{name} has its field {field_name!r} twice in {text!r}")
            values[field_name] = parse_value(described, value, field_types[field_name], self)
        return kind(**values)

    def parse_all(self, text: str) -> tuple[Any, ...]:
        """Return the parts of a list with commas between them."""
        return tuple(self.parse(part) for part in split_commas(text))


def parse_value(name: str, text: str, kind: Any, registry: Registry) -> Any:
    """Return a field's value from its text, by the field's type.

    Args:
        name: the field, as error messages call it.
        text: the value as `label` writes it.
        kind: the field's type; one that is not plain is a part of the registry.
        registry: where nested parts are looked up.
    """
    options = [option for option in get_args(kind) or (kind,) if option is not type(None)]
    if get_origin(kind) is Literal:
        if text not in options:
            raise InvalidInput(f"{name} must be one of {', '.join(options)}, not {text!r}")
        return text
    if get_origin(kind) is tuple:
        return registry.parse_all(text)
    if int in options or float in options:
        try:
            return float(text) if float in options else int(text)
        except ValueError as error:
            raise InvalidInput(f"{name} must be a number, not {text!r}") from error
    if bool in options:
        if text not in ("yes", "no"):
            raise InvalidInput(f"{name} must be yes or no, not {text!r}")
        return text == "yes"
    return text if str in options else registry.parse(text)


def _split_call(text: str) -> tuple[str, str]:
    """Split `name(inside)` into its two parts; the second is empty without brackets."""
    name, bracket, inside = text.strip().partition("(")
    if not bracket:
        return name, ""
    if not inside.endswith(")"):
        return text, ""  # no part has such a name
    return name.strip(), inside[:-1]


def split_commas(text: str) -> list[str]:
    """Split at the commas that are not within brackets; an empty text has no parts."""
    parts, depth, start = [], 0, 0
    for i, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    return [*parts, text[start:].strip()] if text.strip() else []
