"""What can go wrong, as one small tree.

NpadError
├── InvalidInput    (a ValueError)    a value you gave breaks a rule; the message says which, and the way out
├── ModelError      (a RuntimeError)  a model broke its contract while decoding
│   └── ContractError (an AssertionError too)  `npad.testing.check_model` found it broken
├── OutOfMemory     (a MemoryError)   the job does not fit; the message says what to lower
├── StorageError    (an OSError)      a file could not be written, or what was stored is damaged
└── TrainingError   (a RuntimeError)  training cannot go on

and one warning, MemoryWarning: the job did not fit at once, and goes on with half the rows at a time.
"""

from __future__ import annotations

import math
import os
from numbers import Integral, Rational, Real
from typing import Any

LARGEST = 2**63 - 1  # of the integers that torch stores
SEEDS = 2**64 - 1  # seeds and sentence ids are 64-bit patterns


class NpadError(Exception):
    """Everything npad raises on purpose."""


class InvalidInput(NpadError, ValueError):
    """A value given to npad breaks a rule."""


class ModelError(NpadError, RuntimeError):
    """A model returned something that its contract rules out."""


class ContractError(ModelError, AssertionError):
    """`check_model` found a broken contract."""


class OutOfMemory(NpadError, MemoryError):
    """The rows asked for do not fit in memory."""


class MemoryWarning(UserWarning):
    """What was to run together does not fit in memory; it runs in halves, to the same end."""


class StorageError(NpadError, OSError):
    """A file could not be written, or what was stored is damaged or of another format."""


class TrainingError(NpadError, RuntimeError):
    """Training cannot go on; the last good checkpoint is kept."""


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


def whole(name: str, value: object, least: int | None = None, most: int = LARGEST) -> None:
    """Require a whole number from `least` (−2**63 unless given) to `most`."""
    rule = "a whole number" if least is None else f"a whole number of at least {least}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InvalidInput(f"{name} must be {rule}, not {brief(value)}")
    given, floor = int(value), -LARGEST - 1 if least is None else least
    if given > most:
        raise InvalidInput(f"{name} must be a whole number of at most {most}, not {brief(given)}")
    if given < floor:
        raise InvalidInput(f"{name} must be a whole number of at least {floor}, not {brief(given)}")


def number(
    name: str, value: object, *, above: float | None = None, least: float | None = None, below: float | None = None
) -> None:
    """Require a finite number, `above` a bound or at `least` one, and `below` another."""
    bounds = (("above", above), ("of at least", least), ("below", below))
    rule = "a finite number" + "".join(f" {word} {bound:g}" for word, bound in bounds if bound is not None)
    whole_number = isinstance(value, Integral)
    fine = isinstance(value, Real) and not isinstance(value, bool)
    fine = fine and (whole_number or not isinstance(value, Rational))  # torch computes with no fractions
    if fine and whole_number and abs(int(value)) > LARGEST:  # type: ignore[call-overload]
        raise InvalidInput(f"{name} must be {rule}, and one beyond 2**63 written as a float, not {brief(value)}")
    if fine:
        given = float(value)  # type: ignore[arg-type]
        fine = math.isfinite(given)
        fine = fine and (above is None or given > above)
        fine = fine and (least is None or given >= least) and (below is None or given < below)
    if not fine:
        raise InvalidInput(f"{name} must be {rule}, not {brief(value)}")


def yes_or_no(name: str, value: object) -> None:
    """Require True or False; a word such as "no" would count as true."""
    if not isinstance(value, bool):
        raise InvalidInput(f"{name} must be True or False, not {brief(value)}")


def an_object(name: str, value: object, rule: str) -> None:
    """Require something callable that is no class: `Constant()`, not `Constant`."""
    if isinstance(value, type):
        raise InvalidInput(f"{name} must be {rule}: write {value.__name__}(), not {value.__name__}")
    a_function(name, value, rule)


def a_function(name: str, value: object, rule: str) -> None:
    """Require something callable; a class such as `str` is."""
    if not callable(value):
        raise InvalidInput(f"{name} must be {rule}, not {brief(value)}")


def a_path(name: str, value: object) -> None:
    """Require the path of a file or folder, one that the file system can spell."""
    try:
        spelt = os.fsencode(value) if isinstance(value, str | os.PathLike) else b"\0"
    except (UnicodeError, TypeError):
        spelt = b"\0"
    if b"\0" in spelt:
        raise InvalidInput(f"{name} must be a path, as a text or a pathlib.Path, not {brief(value)}")


def several(name: str, value: Any, rule: str) -> list[Any]:
    """The items of an iterable that is no text."""
    if not isinstance(value, str | bytes):
        try:
            return list(iter(value))
        except TypeError as error:
            raise InvalidInput(f"{name} must be {rule}, not {brief(value)}") from error
    raise InvalidInput(f"{name} must be {rule}, not {brief(value)}")


def one_of(name: str, value: object, offered: tuple[str, ...]) -> None:
    """Require one of a few words."""
    if not isinstance(value, str) or value not in offered:
        raise InvalidInput(f"{name} must be one of {', '.join(map(repr, offered))}, not {brief(value)}")
