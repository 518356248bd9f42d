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
from numbers import Integral, Real


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


def whole(name: str, value: object, least: int | None = None) -> None:
    """Require a whole number, of at least `least` where given."""
    fine = not isinstance(value, bool) and isinstance(value, Integral)
    if not fine or (least is not None and value < least):  # type: ignore[operator]
        rule = "a whole number" if least is None else f"a whole number of at least {least}"
        raise InvalidInput(f"{name} must be {rule}, not {value!r}")


def number(
    name: str, value: object, *, above: float | None = None, least: float | None = None, below: float | None = None
) -> None:
    """Require a finite number, `above` a bound or at `least` one, and `below` another."""
    bounds = (("above", above), ("of at least", least), ("below", below))
    rule = "a finite number" + "".join(f" {word} {bound:g}" for word, bound in bounds if bound is not None)
    fine = not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)
    if fine:
        given = float(value)  # type: ignore[arg-type]
        fine = (
            (above is None or given > above) and (least is None or given >= least) and (below is None or given < below)
        )
    if not fine:
        raise InvalidInput(f"{name} must be {rule}, not {value!r}")


def yes_or_no(name: str, value: object) -> None:
    """Require True or False; a word such as "no" would count as true."""
    if not isinstance(value, bool):
        raise InvalidInput(f"{name} must be True or False, not {value!r}")


def an_object(name: str, value: object, rule: str) -> None:
    """Require something callable that is no class: `Constant()`, not `Constant`."""
    if isinstance(value, type):
        raise InvalidInput(f"{name} must be {rule}: write {value.__name__}(), not {value.__name__}")
    if not callable(value):
        raise InvalidInput(f"{name} must be {rule}, not {value!r}")


def one_of(name: str, value: object, offered: tuple[str, ...]) -> None:
    """Require one of a few words."""
    if value not in offered:
        raise InvalidInput(f"{name} must be one of {', '.join(map(repr, offered))}, not {value!r}")
