"""Checks of arguments: each names the value, the rule and the way out, in one line."""

from __future__ import annotations

import math
import os
from numbers import Integral, Rational, Real
from typing import Any

from npad.errors import InvalidInput

MAX_INTEGER = 2**63 - 1  # of the integers that torch stores
MAX_SEED = 2**64 - 1  # seeds and sentence ids are 64-bit patterns


def one_line(path: object) -> str:
    """A path as it is, or as a Python literal where it has characters that would break the line."""
    return str(path) if str(path).isprintable() else repr(str(path))


def brief(value: object, limit: int = 200) -> str:
    """The repr of a value on one line, cut at `limit` characters; its type where there is no repr."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # an integer of too many digits, or a repr that fails
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= limit else f"{text[:limit]}…"


def ensure_integer(
    name: str, value: object, least: int | None = None, most: int = MAX_INTEGER
) -> None:
    """Require a whole number from `least` (−2**63 unless given) to `most`."""
    rule = "a whole number" if least is None else f"a whole number of at least {least}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InvalidInput(f"{name} must be {rule}, not {brief(value)}")
    given, floor = int(value), -MAX_INTEGER - 1 if least is None else least
    if given > most:
        raise InvalidInput(f"{name} must be a whole number of at most {most}, not {brief(given)}")
    if given < floor:
        raise InvalidInput(f"{name} must be a whole number of at least {floor}, not {brief(given)}")


def ensure_number(
    name: str,
    value: object,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
) -> None:
    """Require a finite number, `above` a bound or at `least` one, and `below` another."""
    bounds = (("above", above), ("of at least", least), ("below", below))
    rule = "a finite number" + "".join(
        f" {word} {bound:g}" for word, bound in bounds if bound is not None
    )
    whole_number = isinstance(value, Integral)
    fine = isinstance(value, Real) and not isinstance(value, bool)
    fine = fine and (
        whole_number or not isinstance(value, Rational)
    )  # torch computes with no fractions
    if fine and whole_number and abs(int(value)) > MAX_INTEGER:  # type: ignore[call-overload]
        raise InvalidInput(
            f"{name} must be {rule}, and one beyond 2**63 written as a float, not {brief(value)}"
        )
    if fine:
        given = float(value)  # type: ignore[arg-type]
        fine = math.isfinite(given)
        fine = fine and (above is None or given > above)
        fine = fine and (least is None or given >= least) and (below is None or given < below)
    if not fine:
        raise InvalidInput(f"{name} must be {rule}, not {brief(value)}")


def ensure_bool(name: str, value: object) -> None:
    """Require True or False; a word such as "no" would count as true."""
    if not isinstance(value, bool):
        raise InvalidInput(f"{name} must be True or False, not {brief(value)}")


def ensure_part(name: str, value: object, rule: str) -> None:
    """Require something callable that is no class: `Constant()`, not `Constant`."""
    if isinstance(value, type):
        raise InvalidInput(f"{name} must be {rule}: write {value.__name__}(), not {value.__name__}")
    ensure_callable(name, value, rule)


def ensure_callable(name: str, value: object, rule: str) -> None:
    """Require something callable; a class such as `str` is."""
    if not callable(value):
        raise InvalidInput(f"{name} must be {rule}, not {brief(value)}")


def ensure_path(name: str, value: object) -> None:
    """Require the path of a file or folder, one that the file system can spell."""
    try:
        spelt = os.fsencode(value) if isinstance(value, str | os.PathLike) else b"\0"
    except (UnicodeError, TypeError):
        spelt = b"\0"
    if b"\0" in spelt:
        raise InvalidInput(
            f"{name} must be a path, as a text or a pathlib.Path, not {brief(value)}"
        )


def as_list(name: str, value: Any, rule: str) -> list[Any]:
    """The items of an iterable that is no text."""
    if not isinstance(value, str | bytes):
        try:
            return list(iter(value))
        except TypeError as error:
            raise InvalidInput(f"{name} must be {rule}, not {brief(value)}") from error
    raise InvalidInput(f"{name} must be {rule}, not {brief(value)}")


def ensure_choice(name: str, value: object, offered: tuple[str, ...]) -> None:
    """Require one of a few words."""
    if not isinstance(value, str) or value not in offered:
        raise InvalidInput(
            f"{name} must be one of {', '.join(map(repr, offered))}, not {brief(value)}"
        )
