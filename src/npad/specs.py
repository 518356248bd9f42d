"""Parts by name: `power(p=0.7)` in signatures, options and checkpoints is `Power(p=0.7)`.

A `Registry` knows the parts of one kind. A part may hold parts of other kinds:
`npad(inner=beam(width=3),selector=mbr)`.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from npad.errors import InvalidInput, PluginWarning
from npad.plugins import installed
from npad.validation import did_you_mean


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


@cache
def default_of(field: Field[Any]) -> Any:
    """Return a field's default, which no one changes; `MISSING` if it has none."""
    return field.default if field.default_factory is MISSING else field.default_factory()


def changed_fields(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their defaults."""
    values = {
        field.name: (getattr(value, field.name), default_of(field)) for field in fields(value)
    }
    return {name: chosen for name, (chosen, default) in values.items() if chosen != default}


def spec(value: Any) -> str:
    """Return a part by name, with its fields that are not the defaults: `beam(width=3)`."""
    if isinstance(value, tuple):
        return ",".join(map(spec, value))
    if isinstance(value, type) or not is_dataclass(value):
        return label(value)
    changed = [f"{name}={spec(field)}" for name, field in changed_fields(value).items()]
    return name_of_kind(type(value)) + (f"({','.join(changed)})" if changed else "")


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

    Args:
        noun: what error messages call a part.
        base: the type that fields for such a part have.
        kinds: dataclasses.
        group: of the entry points by which installed packages bring more parts; none by default.
    """

    by_base: ClassVar[dict[Any, Registry]] = {}

    def __init__(self, noun: str, base: Any, *kinds: type, group: str = "") -> None:
        self.noun, self.base, self.group = noun, base, group
        self.by_base[base] = self
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

    @classmethod
    def for_field(cls, kind: Any) -> Registry | None:
        """Return the registry of a field's type, or None: its parts have no names."""
        bases = (kind, *getattr(kind, "__mro__", ()))
        return next((cls.by_base[base] for base in bases if base in cls.by_base), None)

    def __iter__(self) -> Iterator[type]:
        return iter(self.kinds.values())

    def __contains__(self, name: object) -> bool:
        return name in self.kinds

    def names(self) -> list[str]:
        """Return the names of all parts, with those of installed packages, which stay unloaded."""
        return [*self.kinds, *(name for name in installed(self.group) if name not in self.kinds)]

    def kind_of(self, text: str) -> Any:
        """Return the class of a part as `label` writes it; None if there is no such part.

        Raises:
            InvalidInput: an installed package has the part, and it cannot be used.
        """
        name = _split_call(text)[0]
        plugin = installed(self.group).get(name) if name not in self.kinds else None
        if plugin is not None:
            kind = self.usable(plugin.load(), str(plugin))
            if name_of_kind(kind) != name:
                rule = f"is called {name_of_kind(kind)}; give the class label = {name!r}"
                raise InvalidInput(f"{plugin} {rule}")
            self.add(kind)
        return self.kinds.get(name)

    def load_all(self) -> None:
        """Load the parts of all installed packages; warn of those that cannot be used."""
        for name in self.names():
            try:
                self.kind_of(name)
            except InvalidInput as error:
                warnings.warn(str(error), PluginWarning, stacklevel=2)

    def usable(self, kind: Any, source: str) -> Any:
        """Return a class that is not npad's own, if it can be a part.

        Args:
            kind: the class.
            source: where it is from, for error messages.

        Raises:
            InvalidInput: it is not such a class, is abstract, or a field has no default.
        """
        is_protocol = getattr(self.base, "_is_protocol", False)  # of which no class need derive
        own = isinstance(kind, type) and (is_protocol or issubclass(kind, self.base))
        if not own or not is_dataclass(kind) or inspect.isabstract(kind):
            methods = getattr(self.base, "__abstractmethods__", ())
            missing = "".join(f", with a method `{name}`" for name in methods)
            module = str(self.base.__module__)
            home = module if module.count(".") == 1 else "npad"  # which offers what lies deeper
            rule = f"must be a dataclass that derives from {home}.{self.base.__name__}"
            raise InvalidInput(f"{source} {rule}{missing}")
        for field in fields(kind):
            if field.init and default_of(field) is MISSING:
                raise InvalidInput(f"{source} needs a default for its field {field.name!r}")
        return kind

    def parse(self, text: str, fill: Fill | None = None) -> Any:
        """Return the part that `label` writes so; fields left out have their defaults.

        Args:
            text: the part.
            fill: returns other defaults for fields that are left out, by the part's class; for the
                parts within it as well.

        Raises:
            InvalidInput: no part or field has that name, or a value is of another type.
        """
        name, inside = _split_call(text)
        kind = self.kind_of(text)
        if kind is None:
            rule = f"{self.noun} must be one of {', '.join(self.names())}, not {text!r}"
            open_bracket = "(" in text and not text.rstrip().endswith(")")
            hint = "; its bracket is not closed" if open_bracket else ""
            raise InvalidInput(rule + (hint or did_you_mean(name, self.names())))
        types = get_type_hints(kind)
        field_types = {field.name: types[field.name] for field in fields(kind)}
        texts: dict[str, str] = {}
        for argument in split_commas(inside):
            match = re.match(r"(\w+)\s*=\s*(.+)", argument)
            if match is None and texts and _holds_several(field_types[last := [*texts][-1]]):
                texts[last] += f",{argument}"  # the next item of a list
                continue
            if match is None or match[1] not in field_types:
                options = ", ".join(f"{field}=…" for field in field_types) or "none"
                nearest = did_you_mean(argument.partition("=")[0].strip(), field_types)
                raise InvalidInput(f"{name} has no field {argument!r}; it has {options}{nearest}")
            if match[1] in texts:
                raise InvalidInput(f"{name} has its field {match[1]!r} twice in {text!r}")
            texts[match[1]] = match[2]
        values = {} if fill is None else dict(fill(kind))
        for field, value in texts.items():
            called = f"{name}'s {field}" if name == self.noun else f"{self.noun} {name}'s {field}"
            values[field] = parse_value(called, value, field_types[field], fill)
        return kind(**values)


Fill = Callable[[Any], Mapping[str, Any]]  # takes a part's class and returns fields


def _parse_tuple(name: str, text: str, kind: Any, fill: Fill | None) -> tuple[Any, ...]:
    """Return the values of a field of several, from their text."""
    try:
        return tuple(parse_value(name, part, kind, fill) for part in split_commas(text))
    except InvalidInput as error:
        if kind not in (int, float):
            raise
        rule = f"{name} must be numbers separated by commas, not {text!r}"
        raise InvalidInput(rule) from error


def parse_value(name: str, text: str, kind: Any, fill: Fill | None = None) -> Any:
    """Return a field's value from its text, by the field's type.

    Args:
        name: the field, as error messages call it.
        text: the value as `label` writes it.
        kind: the field's type: plain, a base of registered parts, a tuple of such, or a union.
        fill: as in `Registry.parse`.

    Raises:
        InvalidInput: the text is not a value of that type.
    """
    options = get_args(kind)
    if get_origin(kind) is Literal:
        if text not in options:
            rule = f"{name} must be one of {', '.join(options)}, not {text!r}"
            raise InvalidInput(rule + did_you_mean(text, options))
        return text
    if get_origin(kind) is tuple:
        return _parse_tuple(name, text, options[0], fill)
    if get_origin(kind) in (Union, UnionType):
        if NoneType in options and text == "no":
            return None
        several = len(split_commas(text)) > 1
        chosen = [option for option in options if (get_origin(option) is tuple) == several]
        return parse_value(name, text, (chosen or options)[0], fill)
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError as error:
            raise InvalidInput(f"{name} must be a number, not {text!r}") from error
    if kind is bool:
        if text not in ("yes", "no"):
            raise InvalidInput(f"{name} must be yes or no, not {text!r}")
        return text == "yes"
    if kind is str:
        return text
    registry = Registry.for_field(kind)
    if registry is None:
        raise InvalidInput(f"{name} cannot be written as text; set it from Python, not as {text!r}")
    return registry.parse(text, fill)


def _holds_several(kind: Any) -> bool:
    """Return whether a field of this type may hold a tuple."""
    return any(get_origin(option) is tuple for option in (kind, *get_args(kind)))


def _split_call(text: str) -> tuple[str, str]:
    """Split `name(inside)` into its two parts; the second is empty without brackets."""
    name, bracket, inside = text.strip().partition("(")
    if not bracket:
        return name, ""
    if not inside.endswith(")"):
        return text, ""  # no part has such a name
    return name.strip(), inside[:-1]


def split_commas(text: str) -> list[str]:
    """Split at the commas outside brackets; an empty text has no parts."""
    parts, depth, start = [], 0, 0
    for i, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    return [*parts, text[start:].strip()] if text.strip() else []
