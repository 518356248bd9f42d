"""The confidence of an answer, if the model has a calibration."""

from __future__ import annotations

from collections.abc import Callable

from npad.search.hypotheses import Hypothesis
from npad.serve.models import ServedModel
from npad.serve.reading import rounded

DIGITS = 2


def has_confidence(model: ServedModel) -> bool:
    """Return whether the model has a calibration."""
    return _estimate(model) is not None


def confidence_of(model: ServedModel, hypothesis: Hypothesis) -> float | None:
    """Return the expected chrF of a hypothesis; None if the model has no calibration."""
    estimate = _estimate(model)
    value = None if estimate is None else estimate(hypothesis)
    return None if value is None else rounded(value, DIGITS)


def _estimate(model: ServedModel) -> Callable[[Hypothesis], float | None] | None:
    return getattr(model.translator, "confidence", None)
