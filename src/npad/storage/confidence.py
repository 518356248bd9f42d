"""`confidence.json` beside a model: the chrF to expect of an output, by its log-probability.

The file carries its own digest and that of the weights it was fitted to, so that config.json stays
as training wrote it. A model without the file has no confidence.
"""

from __future__ import annotations

import json
import math
import os
from bisect import bisect_right
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from npad.errors import StorageError
from npad.hypotheses import Hypothesis
from npad.selectors import LengthNormalised
from npad.storage.atomic import write_atomic
from npad.storage.regular import seal, unseal
from npad.version import __version__

FILE = "confidence.json"
FORMAT = 1
BEST_CHRF = 100.0


@dataclass(frozen=True)
class Confidence:
    """A map from log-probability per token to expected sentence chrF, and how it was fitted.

    The map is linear between its knots and constant beyond them.

    Attributes:
        log_prob_per_token: of the knots, in ascending order.
        chrf: expected there, 0 to 100; it never falls.
        decoder: signature of the decoder whose outputs it was fitted to.
        data: names of the validation set's files.
        data_sha256: of the validation set's pairs.
        sentences: number of these pairs.
        metric: signature of the chrF.
        rank_correlation: of log-probability per token with chrF.
        error: calibration error in chrF, fitted to one half and measured on the other.
        constant_error: the same of a constant, the mean chrF.
    """

    log_prob_per_token: tuple[float, ...]
    chrf: tuple[float, ...]
    decoder: str
    data: str
    data_sha256: str
    sentences: int
    metric: str
    rank_correlation: float
    error: float
    constant_error: float

    def __call__(self, hypothesis: Hypothesis) -> float:
        """Return the expected chrF of a hypothesis."""
        value, knots = log_prob_per_token(hypothesis), self.log_prob_per_token
        right = bisect_right(knots, value)
        if right in (0, len(knots)):
            return self.chrf[max(0, right - 1)]
        left, chrf = knots[right - 1], self.chrf[right - 1]
        share = (value - left) / (knots[right] - left)
        return chrf + share * (self.chrf[right] - chrf)

    def write(self, folder: Path, weights: str) -> None:
        """Write `confidence.json` into a model's folder, atomically.

        Args:
            folder: the model's.
            weights: SHA-256 of the model's weights, as config.json has it.

        Raises:
            StorageError: the file could not be written.
        """
        content = {"format": FORMAT, "npad": __version__, "weights": weights, **asdict(self)}
        write_atomic(folder / FILE, json.dumps(seal(content)) + "\n")

    @classmethod
    def read(cls, folder: Path, weights: str) -> Confidence | None:
        """Read the confidence of a model; None if it has none.

        Args:
            folder: the model's.
            weights: SHA-256 of the model's weights, as config.json has it.

        Raises:
            StorageError: the file is damaged, of another format, or fitted to other weights.
        """
        path = folder / FILE
        if not os.path.lexists(path):
            return None
        content = unseal(path)
        if content.get("format") != FORMAT:
            raise StorageError(
                f"{path} is of format {content.get('format')!r:.40} and this npad ({__version__}) "
                f"reads {FORMAT}; remove it"
            )
        if content.get("weights") != weights:
            raise StorageError(
                f"{path} was fitted to other weights than the model's; remove it, and fit another: "
                "npad fit-confidence"
            )
        values: dict[str, Any] = {field.name: content.get(field.name) for field in fields(cls)}
        if flaw := _flaw(values):
            raise StorageError(f"{path} is damaged: {flaw}")
        for name in ("log_prob_per_token", "chrf"):
            values[name] = tuple(map(float, values[name]))
        return cls(**values)


def log_prob_per_token(hypothesis: Hypothesis) -> float:
    """Return the log-probability over the tokens it is of, the end token included if finished."""
    length = max(1, len(hypothesis.tokens) + hypothesis.finished)
    return LengthNormalised().score(hypothesis.log_prob, length)


def _flaw(values: dict[str, Any]) -> str:
    """Return what is wrong with the fields of a file, or an empty string."""
    for name in ("log_prob_per_token", "chrf"):
        numbers = values[name]
        if not isinstance(numbers, list) or not numbers or not all(map(_is_number, numbers)):
            return f"{name!r} must be a list of numbers"
        if any(right < left for left, right in pairwise(numbers)):
            return f"{name!r} must not fall"
    if len(values["log_prob_per_token"]) != len(values["chrf"]):
        return "its two lists differ in length"
    if not 0 <= values["chrf"][0] <= values["chrf"][-1] <= BEST_CHRF:
        return "chrF lies between 0 and 100"
    for name in ("decoder", "data", "data_sha256", "metric"):
        if not isinstance(values[name], str):
            return f"{name!r} must be a text"
    for name in ("sentences", "rank_correlation", "error", "constant_error"):
        if not _is_number(values[name]):
            return f"{name!r} must be a number"
    return ""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
