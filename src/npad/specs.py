"""Parts by name: `power(p=0.7)` in a signature, on the command line and in a checkpoint is `Power(p=0.7)`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from numbers import Integral, Real
from typing import Any

from npad.errors import InvalidInput

SPELT = re.compile(r"(?P<name>[^()=,]+)(?:\((?P<inside>.*)\))?")
BETWEEN = re.compile(r",(?![^(]*\))")  # commas that are not within brackets


def label(value: Any) -> str:
    """A short word for a value: numbers as they are, objects by name with all their fields."""
    if isinstance(value, bool) or value is None:
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, Real):  # numpy's too, which would print their type
        return repr(int(value) if isinstance(value, Integral) else float(value))
    if isinstance(value, tuple):
        return ",".join(map(label, value))
    if isinstance(value, type) or not is_dataclass(value):
        return str(getattr(value, "__qualname__", kebab(type(value))))
    name = getattr(value, "label", kebab(type(value)))
    inside = ",".join(f"{field.name}={label(getattr(value, field.name))}" for field in fields(value))
    return f"{name}({inside})" if inside else name


def parse(what: str, text: str, offered: Iterable[type]) -> Any:
    """The object that `label` would call so; fields that are left out have their defaults."""
    offered = tuple(offered)
    kinds = {getattr(kind, "label", kebab(kind)): kind for kind in offered}
    spelt = SPELT.fullmatch(text.strip())
    if spelt is None or spelt["name"] not in kinds:
        raise InvalidInput(f"{what} must be one of {', '.join(kinds)}, not {text!r}")
    kind = kinds[spelt["name"]]
    known = {field.name: field.type for field in fields(kind)}
    given = {}
    for part in BETWEEN.split(spelt["inside"]) if spelt["inside"] else ():
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in known or not value:
            rule = f"it has {', '.join(f'{field}=…' for field in known) or 'none'}"
            raise InvalidInput(f"{spelt['name']} has no field {part!r}; {rule}")
        given[name] = _value(f"{what} {spelt['name']}'s {name}", value, str(known[name]), offered)
    return kind(**given)


def _value(what: str, text: str, kind: str, offered: tuple[type, ...]) -> Any:
    if kind in ("int", "float"):
        try:
            return int(text) if kind == "int" else float(text)
        except ValueError as error:
            raise InvalidInput(f"{what} must be a number, not {text!r}") from error
    return text if kind.startswith("str") else parse(what, text, offered)


def kebab(kind: type) -> str:
    """LengthNormalised -> length-normalised."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", kind.__name__).lower()
