"""Calls with arguments of wrong types, and what is wrong with the answers.

In a valid call, one argument at a time is replaced by every value of a pool, then random pairs.
"""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import torch

from npad import Beam, Greedy, NpadError
from npad.errors import ContractError

PAIRS = 12  # random pairs of wrong arguments for every call


class Unshowable:
    """A value whose repr fails."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def nothing(*arguments):
    return None


def pool():
    """Values of many types, made anew, since an iterator is used up."""
    sound = [True, False, None, -1, 0, 1, 1.5, np.int64(3), np.float32(0.5), np.bool_(True)]
    numbers = [
        math.nan,
        math.inf,
        -math.inf,
        1e300,
        2**40,
        2**63,
        2**64,
        2**200,
        -(2**63) - 1,
        10**5000,
        -(10**400),
    ]
    numbers += [1j, Fraction(1, 2), np.float64("nan"), np.uint64(2**63)]
    texts = ["x", "", "a\nb", "\ud800", "\0", b"x", np.array(["x", "y"])]
    collections = [[], {}, (), [[1]], [[[1]]], [None], ["x"], range(2), iter("ab"), slice(3)]
    objects = [object(), Unshowable(), Beam, Greedy(), nothing]
    tensors = [torch.tensor(0.5), torch.zeros(2, 3), torch.zeros(0), np.zeros((2, 2))]
    return sound + numbers + texts + collections + objects + tensors


def wrong_calls(name, valid):
    """One argument wrong at a time, and then random pairs of them."""
    for argument in valid:
        for value in pool():
            yield valid | {argument: value}
    draw = random.Random(name)
    for _ in range(PAIRS if len(valid) > 1 else 0):
        yield valid | {argument: draw.choice(pool()) for argument in draw.sample(sorted(valid), 2)}


def fault(call, arguments) -> str | None:
    """What is wrong with the answer to a call, if anything."""
    try:
        call(**arguments)
    except ContractError:
        return None
    except NpadError as error:
        return f"several lines: {error}" if "\n" in str(error) or len(str(error)) > 600 else None
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:100]}"
    return None


def described(value) -> str:
    try:
        return repr(value)[:40]
    except (RuntimeError, ValueError):
        return type(value).__name__


def faults(name, call, valid, fresh=dict):
    """The calls that are answered by something else than a result or one line."""
    call(**valid, **fresh())
    for arguments in wrong_calls(name, valid):
        found = fault(call, fresh() | arguments)
        if found is not None:
            changed = {
                key: described(value) for key, value in arguments.items() if value is not valid[key]
            }
            yield f"{name}({changed}): {found}"
