"""Argument checks: error messages name the value, the rule and the way out, in one line."""

from __future__ import annotations

import math
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import cache
from numbers import Integral, Rational, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from npad.errors import InvalidInput

MAX_INTEGER = 2**63 - 1  # the largest integer that torch stores
EMBEDDINGS = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")  # of Unicode
MAX_SEED = 2**64 - 1  # the largest seed or sentence id, as an unsigned 64-bit pattern


def one_line(path: object) -> str:
    """Return a path as text, or as a Python literal if it has unprintable characters."""
    return str(path) if str(path).isprintable() else repr(str(path))


def printable(text: str) -> str:
    r"""Return a text in one line, with what a terminal would obey as Python writes it: \x1b.

    Names of files and messages of libraries may hold such characters: control characters, half
    surrogates, and those that change the direction of writing.
    """
    line = re.sub(r"\s*\n\s*", " ", text)
    return "".join(c.encode("unicode_escape").decode() if _is_obeyed(c) else c for c in line)


def _is_obeyed(character: str) -> bool:
    kind, direction = unicodedata.category(character), unicodedata.bidirectional(character)
    return kind in ("Cc", "Cs", "Zl", "Zp") or direction in EMBEDDINGS


def brief(value: object, limit: int = 200) -> str:
    """Return the repr of a value on one line, cut at `limit` characters; its type if repr fails."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # an integer of too many digits, or a repr that fails
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= limit else f"{text[:limit]}…"


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: 1 worker, 2,000 workers."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def ensure_integer(
    name: str, value: object, minimum: int | None = None, maximum: int = MAX_INTEGER
) -> None:
    """Require an integer from `minimum` (−2**63 by default) to `maximum`."""
    rule = "a whole number" if minimum is None else f"a whole number of at least {minimum}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InvalidInput(f"{name} must be {rule}, not {brief(value)}")
    number = int(value)
    lower_bound = -MAX_INTEGER - 1 if minimum is None else minimum
    if number > maximum:
        rule = f"a whole number of at most {maximum}"
        raise InvalidInput(f"{name} must be {rule}, not {brief(number)}")
    if number < lower_bound:
        rule = f"a whole number of at least {lower_bound}"
        raise InvalidInput(f"{name} must be {rule}, not {brief(number)}")


def ensure_number(
    name: str,
    value: object,
    *,
    above: float | None = None,
    minimum: float | None = None,
    below: float | None = None,
    maximum: float | None = None,
) -> None:
    """Require a finite number within bounds: > `above`, ≥ `minimum`, < `below`, ≤ `maximum`."""
    bounds = (("above", above), ("of at least", minimum), ("below", below), ("of at most", maximum))
    rule = "a finite number " + " and ".join(
        f"{word} {bound:g}" for word, bound in bounds if bound is not None
    )
    rule = rule.rstrip().replace(" and of at most ", " and at most ")
    whole_number = isinstance(value, Integral)
    valid = isinstance(value, Real) and not isinstance(value, bool)
    # torch does not accept a Fraction.
    valid = valid and (whole_number or not isinstance(value, Rational))
    if valid and whole_number and abs(int(value)) > MAX_INTEGER:  # type: ignore[call-overload]
        raise InvalidInput(
            f"{name} must be {rule}, and a float if beyond 2**63, not {brief(value)}"
        )
    if valid:
        number = float(value)  # type: ignore[arg-type]
        valid = math.isfinite(number) and (above is None or number > above)
        valid = valid and (minimum is None or number >= minimum)
        valid = valid and (below is None or number < below)
        valid = valid and (maximum is None or number <= maximum)
    if not valid:
        raise InvalidInput(f"{name} must be {rule}, not {brief(value)}")


def ensure_bool(name: str, value: object) -> None:
    """Require True or False; a string such as "no" would be truthy."""
    if not isinstance(value, bool):
        raise InvalidInput(f"{name} must be True or False, not {brief(value)}")


def ensure_part(name: str, value: object, rule: str) -> None:
    """Require a callable that is not a class: `Constant()`, not `Constant`."""
    if isinstance(value, type):
        raise InvalidInput(f"{name} must be {rule}: write {value.__name__}(), not {value.__name__}")
    ensure_callable(name, value, rule)


def ensure_callable(name: str, value: object, rule: str) -> None:
    """Require a callable; a class such as `str` is accepted."""
    if not callable(value):
        raise InvalidInput(f"{name} must be {rule}, not {brief(value)}")


def ensure_path(name: str, value: object) -> None:
    """Require the path of a file or folder that the file system can encode."""
    try:
        encoded = os.fsencode(value) if isinstance(value, str | os.PathLike) else b"\0"
    except (UnicodeError, TypeError):
        encoded = b"\0"
    if b"\0" in encoded:
        raise InvalidInput(
            f"{name} must be a path, as a text or a pathlib.Path, not {brief(value)}"
        )


def as_list(name: str, value: Any, rule: str) -> list[Any]:
    """Return the items of an iterable; text is refused."""
    if not isinstance(value, str | bytes):
        try:
            return list(iter(value))
        except TypeError as error:
            raise InvalidInput(f"{name} must be {rule}, not {brief(value)}") from error
    raise InvalidInput(f"{name} must be {rule}, not {brief(value)}")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that was probably meant; None if none is similar."""
    from difflib import get_close_matches

    by_case = {other.lower(): other for other in known}
    return next((by_case[match] for match in get_close_matches(name.lower(), by_case, 1)), None)


def nearest_path(path: Path, is_folder: bool = False) -> str | None:
    """Return the file (or only a folder) in the same place that was probably meant, or None."""
    try:
        others = [other for other in path.parent.iterdir() if other.is_dir() or not is_folder]
        near = nearest(path.name, [other.name for other in others])
    except OSError:
        return None
    return near and str(path.with_name(near))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message, such as `; did you mean beam?`; empty if none is near."""
    near = nearest(name, known)
    return f"; did you mean {near}?" if near else ""


def ensure_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Require one of the given strings."""
    if not isinstance(value, str) or value not in choices:
        rule = f"{name} must be one of {', '.join(map(repr, choices))}, not {brief(value)}"
        raise InvalidInput(rule + did_you_mean(str(value), choices))


BOUNDS = ("minimum", "maximum", "above", "below")


def ensure_fields(value: Any, owned: bool = False) -> None:
    """Require that each field of a dataclass has its type and keeps the bounds in its metadata.

    Numbers, truth values, `Literal`s, tuples of them and `X | None` are checked by the annotation,
    numbers also by `minimum`, `maximum`, `above` and `below`. Another field is checked if its
    metadata has a `rule`, the text of the error message: an instance of its class, or a callable.

    Example: `width: int = field(default=5, metadata={"help": "…", "minimum": 1})`

    Args:
        value: the dataclass.
        owned: whether messages also name the class: "Power's p must be …".

    Raises:
        InvalidInput: names the field, the rule and the value.
    """
    for name, kind, metadata in _checked_fields(type(value)):  # type: ignore[arg-type]
        owner = type(value).__name__
        full = f"{owner}'{'' if owner.endswith('s') else 's'} {name}" if owned else name
        _ensure_value(full, getattr(value, name), kind, metadata)


@cache
def _checked_fields(kind: Any) -> list[tuple[str, Any, Mapping[str, Any]]]:
    try:
        types = get_type_hints(kind)
    except NameError:  # an annotation names what only the body of a function knows
        return []
    return [(f.name, types[f.name], f.metadata) for f in fields(kind)]


def _ensure_value(name: str, value: object, kind: Any, metadata: Mapping[str, Any]) -> None:
    if get_origin(kind) in (Union, UnionType):
        options = [option for option in get_args(kind) if option is not NoneType]
        if value is None and len(options) < len(get_args(kind)):
            return
        fitting = [o for o in options if (get_origin(o) is tuple) == isinstance(value, tuple)]
        chosen = fitting or options
        if len(chosen) != 1 and "rule" not in metadata:
            return
        kind = chosen[0]
    bounds = {bound: metadata[bound] for bound in BOUNDS if bound in metadata}
    if kind is int:
        ensure_integer(name, value, **bounds)
    elif kind is float:
        ensure_number(name, value, **bounds)
    elif kind is bool:
        ensure_bool(name, value)
    elif get_origin(kind) is Literal:
        ensure_choice(name, value, get_args(kind))
    elif get_origin(kind) is tuple and get_args(kind)[0] in (int, float):
        if not isinstance(value, tuple):
            raise InvalidInput(f"{name} must be a tuple of numbers, not {brief(value)}")
        for number in value:
            _ensure_value(f"{name}: each", number, get_args(kind)[0], metadata)
    elif "rule" in metadata:
        _ensure_part(name, value, kind, metadata["rule"])


def _ensure_part(name: str, value: object, kind: Any, rule: str) -> None:
    if get_origin(kind) is not None:  # Callable[…]
        ensure_callable(name, value, rule)
    elif getattr(kind, "_is_protocol", False):
        ensure_part(name, value, rule)
    elif isinstance(value, type):
        way_out = f"write {value.__name__}(), not {value.__name__}"
        raise InvalidInput(f"{name} must be {rule}: {way_out}")
    elif not isinstance(value, kind):
        raise InvalidInput(f"{name} must be {rule}, not {brief(value)}")
