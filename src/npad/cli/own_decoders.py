"""Decoders from a user's Python file, `--decoder my.py:Make`, or from an installed package."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from npad.errors import InvalidInput
from npad.pipelines.names import PythonName
from npad.search.decoder import Decoder
from npad.search.registry import DECODERS
from npad.validation import brief

OPTIONS = ("--decoder", "-d", "--inner")
PART = re.compile(r"[\w-]+")
NAME_INSIDE = re.compile(r"[^(),=]+\.py:[^\W\d]\w*")


def register_own_decoders(arguments: Sequence[str]) -> None:
    """Register the decoders that these arguments take from Python files and installed packages.

    Those from files are registered under the names typed.

    Raises:
        InvalidInput: there is no such file or name, or it is no decoder.
    """
    for value in _values(arguments):
        for name in PART.findall(value):
            DECODERS.kind_of(name)
        for text in NAME_INSIDE.findall(value):
            own = PythonName.parse(text)
            if own is not None and text not in DECODERS:
                DECODERS.kinds[text] = _kind(own)


def _values(arguments: Sequence[str]) -> list[str]:
    """Return the values of the options that choose a decoder."""
    values = []
    for i, argument in enumerate(arguments):
        if argument == "--":
            break
        option, equals, value = argument.partition("=")
        if argument in OPTIONS and i + 1 < len(arguments):
            values.append(arguments[i + 1])
        elif equals and option in OPTIONS:
            values.append(value)
        elif argument.startswith("-d") and not argument.startswith("--"):
            values.append(argument[2:])
    return values


def _kind(own: PythonName) -> Any:
    """Return a decoder's class, or one whose only instance is the decoder that the name gives."""
    value = own.load()
    if isinstance(value, type) and issubclass(value, Decoder):
        return DECODERS.usable(value, str(own))
    decoder = own.call(value) if callable(value) else value
    if not isinstance(decoder, Decoder):
        raise InvalidInput(
            f"{own} is {brief(decoder)}, and must be a decoder, its class, or a function that "
            "returns one"
        )
    return _kind_of(decoder)


def _kind_of(decoder: Decoder) -> type:
    """Return a class without fields whose call returns the given decoder."""

    @dataclass(frozen=True)
    class Given:
        label = type(decoder).__name__
        returns_several = decoder.returns_several
        compared = True

        def __new__(cls) -> Any:
            return decoder

    return Given
