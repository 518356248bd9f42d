"""The confidence of an answer."""

from __future__ import annotations

from npad.search.hypotheses import Hypothesis
from npad.serve.models import ServedModel


def confidence_of(model: ServedModel, hypothesis: Hypothesis) -> float | None:
    """Return the expected chrF of a hypothesis; None if the model has no calibration."""
    return None
