"""Decoders, noise and selectors from a user's Python file, as in `--decoder my.py:Make`.

Decoders of installed packages are loaded here as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any

from npad.distributions import DISTRIBUTIONS
from npad.errors import InvalidInput
from npad.pipelines.names import PythonName
from npad.schedules import SCHEDULES
from npad.search.registry import DECODERS, SELECTORS
from npad.specs import Registry
from npad.validation import brief

# The fields of parts that may be from a file; at the top level of the command line, options.
FIELDS = {
    **dict.fromkeys(("decoder", "inner"), DECODERS),
    **dict.fromkeys(("distribution", "base"), DISTRIBUTIONS),
    "schedule": SCHEDULES,
    "selector": SELECTORS,
}
OPTIONS = {f"--{name}": parts for name, parts in FIELDS.items() if name != "base"} | {
    "-d": DECODERS
}
FUNCTIONS = (SCHEDULES, SELECTORS)  # their parts are functions, or dataclasses that can be called
PART = re.compile(r"[\w-]+")
NAME_INSIDE = re.compile(r"(?:(\w+)\s*=\s*)?([^(),=]+\.py:[^\W\d]\w*)")


def register_own_parts(arguments: Sequence[str]) -> None:
    """Register the parts that these arguments take from Python files and installed packages.

    Those from files are registered under the names typed.

    Raises:
        InvalidInput: there is no such file or name, or it is not such a part.
    """
    for parts, value in _values(arguments):
        if parts is DECODERS:
            for name in PART.findall(value):
                DECODERS.kind_of(name)
        for field, text in NAME_INSIDE.findall(value):
            registry, own = FIELDS.get(field, parts), PythonName.parse(text.strip())
            if own is not None and str(own) not in registry:
                registry.kinds[str(own)] = _kind(own, registry)


def _values(arguments: Sequence[str]) -> Iterator[tuple[Registry, str]]:
    """Yield the values of the options that choose parts, with the parts' registry."""
    for i, argument in enumerate(arguments):
        if argument == "--":
            break
        option, equals, value = argument.partition("=")
        if argument in OPTIONS and i + 1 < len(arguments):
            yield OPTIONS[argument], arguments[i + 1]
        elif equals and option in OPTIONS:
            yield OPTIONS[option], value
        elif argument.startswith("-d") and not argument.startswith("--"):
            yield DECODERS, argument[2:]


def _kind(own: PythonName, registry: Registry) -> Any:
    """Return a part's class, or one whose only instance is the part that the name gives."""
    value, base = own.load(), registry.base
    is_class = isinstance(value, type)
    if is_class and (is_dataclass(value) or registry is DECODERS):
        return registry.usable(value, str(own))
    if registry in FUNCTIONS and callable(value) and not is_class:
        return _kind_of(value)
    part = own.call(value) if callable(value) else value
    if not (callable(part) if registry in FUNCTIONS else isinstance(part, base)):
        noun = base.__name__.lower()
        rule = f"a {noun}, its class, or a function that returns one"
        rule = f"a {noun} or its class" if registry in FUNCTIONS else rule
        raise InvalidInput(f"{own} is {brief(part)}, and must be {rule}")
    return _kind_of(part)


def _kind_of(part: Any) -> type:
    """Return a class without fields whose call returns the given part."""

    @dataclass(frozen=True)
    class Given:
        label = type(part).__name__
        returns_several = getattr(part, "returns_several", False)
        compared = True

        def __new__(cls) -> Any:
            return part

    return Given
