"""The exceptions of npad.

NpadError
├── InvalidInput    (a ValueError)    a value given to npad is invalid; the message names the rule
│   └── Unsatisfied                   no output was found that satisfies a constraint
├── ModelError      (a RuntimeError)  a model broke its contract while decoding
│   ├── ContractError (also an AssertionError)  `npad.testing.check_model` found it broken
│   └── NoiseTooStrong (also an InvalidInput)  noise has made its logits NaN or infinite
├── OutOfMemory     (a MemoryError)   the work does not fit; the message says what to lower
├── StorageError    (an OSError)      a file could not be written, or a stored file is damaged
└── TrainingError   (a RuntimeError)  training cannot continue

There are three warnings. MemoryWarning: the work did not fit at once and runs in halves.
PluginWarning: a decoder of an installed package cannot be used, and is left out. WaitingWarning:
a worker is slow to start, and npad waits for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class NpadError(Exception):
    """The base class of all exceptions that npad raises deliberately."""


class InvalidInput(NpadError, ValueError):
    """A value given to npad is invalid; the message names the rule and the way out."""


class Unsatisfied(InvalidInput):
    """A search has found no output that satisfies a constraint."""


def missing_library(what: str, extra: str) -> InvalidInput:
    """Return the error of a missing library, with the command that installs it.

    Args:
        what: what needs the library.
        extra: npad's extra that has it. The command names the extra's libraries, so that it works
            from any folder, also while npad itself is on no package index.
    """
    from importlib.metadata import PackageNotFoundError, requires

    try:
        asked = [line.split(";") for line in requires("npad") or ()]
    except PackageNotFoundError:
        asked = []
    libraries = [f'"{line[0].strip()}"' for line in asked if extra in re.split(r"\W+", line[-1])]
    return InvalidInput(f"{what}: pip install {' '.join(libraries) or f'npad[{extra}]'}")


class ModelError(NpadError, RuntimeError):
    """A model broke its contract while decoding."""


class ContractError(ModelError, AssertionError):
    """`check_model` found a broken contract."""


class NoiseTooStrong(ModelError, InvalidInput):
    """Noise has made a model's logits NaN or infinite."""


class OutOfMemory(NpadError, MemoryError):
    """The work does not fit in memory; the message says what to lower."""


class MemoryWarning(UserWarning):
    """The work does not fit in memory at once; it runs in halves, with the same results."""


class PluginWarning(UserWarning):
    """A part of an installed package cannot be used; it is left out of a list of all parts."""


class WaitingWarning(UserWarning):
    """A worker is slow to start; npad waits for it."""


class StorageError(NpadError, OSError):
    """A file could not be written, or a stored file is damaged or of another format."""


class TrainingError(NpadError, RuntimeError):
    """Training cannot continue; the last good checkpoint is kept."""


@contextmanager
def noting_interrupts(note: Callable[[], str]) -> Iterator[None]:
    """Add to an interrupt how the work continues; an empty note adds nothing."""
    try:
        yield
    except KeyboardInterrupt as error:
        if text := note():
            error.add_note(text)
        raise
