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
