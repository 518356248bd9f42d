"""Calls with arguments of wrong types, one at a time: they work, or say why not in one line."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

from npad import Beam, NpadError
from npad.errors import ContractError

WRONG = (None, -1, math.nan, 10**400, "a\nb", [[1]], (1,), object(), Beam)


def assert_answered(call: Callable[..., object], **arguments: Any) -> None:
    """Require a result, or an error of npad's in one line; a broken contract may take several."""
    message = ""
    try:
        call(**arguments)
    except ContractError:
        return
    except NpadError as error:
        message = str(error)
    assert "\n" not in message, arguments
    assert len(message) < 600, arguments


def assert_wrong_arguments_are_refused(
    function: Callable[..., object],
    valid: dict[str, Any],
    fresh: Callable[[], dict[str, Any]] = dict,
) -> None:
    """Replace every argument of a valid call, one at a time, by each wrong value.

    fresh: returns arguments that no two calls may share, such as a folder to write.
    """
    function(**valid, **fresh())
    parameters = inspect.signature(function).parameters.values()
    named = {p.name for p in parameters if p.kind is not inspect.Parameter.VAR_KEYWORD}
    for argument in sorted(named | set(valid)):
        for value in WRONG:
            assert_answered(function, **valid | fresh() | {argument: value})
