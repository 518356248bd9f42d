"""`confidence.json` beside a model: the quality to expect of an output, by a signal.

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

from npad.errors import InvalidInput, StorageError
from npad.hypotheses import Hypothesis
from npad.search.decoder import Decoder
from npad.signals import DEFAULT, SIGNALS, log_prob_per_token
from npad.specs import name_of_kind, spec
from npad.storage.atomic import write_atomic
from npad.storage.regular import seal, unseal
from npad.version import __version__

FILE = "confidence.json"
FORMAT = 2
ONLY_LOG_PROB = 1  # the format that had the map of log p per token alone
BEST = 100.0
PLAIN = name_of_kind(type(DEFAULT))


@dataclass(frozen=True)
class SignalMap:
    """Expected quality by a signal: linear between its knots and constant beyond them.

    Attributes:
        signal: as `npad.signals.SIGNALS` reads it.
        values: of the signal at the knots, in ascending order.
        expected: quality there, 0 to 100; it never falls.
    """

    signal: str
    values: tuple[float, ...]
    expected: tuple[float, ...]

    def __call__(self, value: float) -> float:
        """Return the quality to expect at a value of the signal."""
        right = bisect_right(self.values, value)
        if right in (0, len(self.values)):
            return self.expected[max(0, right - 1)]
        left, quality = self.values[right - 1], self.expected[right - 1]
        share = (value - left) / (self.values[right] - left)
        return quality + share * (self.expected[right] - quality)


@dataclass(frozen=True)
class Confidence:
    """Maps from signals to expected quality, and how they were fitted.

    Attributes:
        plain: by log-probability per token, of the outputs of any decoder.
        chosen: by the signal that cross-validation chose, if that is another one. It reads the
            candidates of a search, and holds for one decoder.
        listed: that decoder, as `listing_of` writes it.
        decoder: its signature.
        data: names of the validation set's files.
        data_sha256: of the validation set's pairs.
        sentences: number of these pairs.
        measure: name of the metric that is expected; of a metric of errors, 100 less its score.
        metric: its signature, if it has one.
        rank_correlation: of the confidence with quality. Like the figures below, of maps that were
            chosen and fitted on one half of the data, on the other.
        auroc: the probability that a good output has more confidence than a bad one.
        error: calibration error, in units of quality.
        constant_error: the same of a constant, the mean quality.
    """

    plain: SignalMap
    decoder: str
    data: str
    data_sha256: str
    sentences: int
    metric: str
    rank_correlation: float
    error: float
    constant_error: float
    auroc: float | None = None
    chosen: SignalMap | None = None
    listed: str = ""
    measure: str = "chrf"

    def __call__(self, hypothesis: Hypothesis) -> float:
        """Return the expected quality of a hypothesis by its log-probability alone."""
        return self.plain(log_prob_per_token(hypothesis))

    def for_decoder(self, decoder: Decoder) -> SignalMap | None:
        """Return the map of the signal that reads a decoder's candidates; None if there is none."""
        return self.chosen if self.chosen and listing_of(decoder) == self.listed else None

    @property
    def shown(self) -> SignalMap:
        """The map of the decoder that it was fitted to."""
        return self.chosen or self.plain

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
        if content.get("format") not in (ONLY_LOG_PROB, FORMAT):
            raise StorageError(
                f"{path} is of format {content.get('format')!r:.40} and this npad ({__version__}) "
                f"reads {FORMAT}; remove it"
            )
        if content.get("weights") != weights:
            raise StorageError(
                f"{path} was fitted to other weights than the model's; remove it, and fit another: "
                "npad fit-confidence"
            )
        if content["format"] == ONLY_LOG_PROB:
            knots = {"values": content.get("log_prob_per_token"), "expected": content.get("chrf")}
            content = DEFAULTS | content | {"plain": {"signal": PLAIN, **knots}}
        values: dict[str, Any] = {field.name: content.get(field.name) for field in fields(cls)}
        if flaw := _flaw(values):
            raise StorageError(f"{path} is damaged: {flaw}")
        maps = {name: _map(values[name]) for name in ("plain", "chosen")}
        return cls(**values | maps)


DEFAULTS = {"auroc": None, "chosen": None, "listed": "", "measure": "chrf"}  # of the first format


def listing_of(decoder: Decoder) -> str:
    """Return a decoder as it is compared, whatever its seed."""
    return spec(decoder.with_seed(0))


def _map(value: Any) -> SignalMap | None:
    if value is None:
        return None
    return SignalMap(
        value["signal"], *(tuple(map(float, value[n])) for n in ("values", "expected"))
    )


def _flaw(values: dict[str, Any]) -> str:
    """Return what is wrong with the fields of a file, or an empty string."""
    for name in ("plain", "chosen"):
        if (values[name] is not None or name == "plain") and (flaw := _map_flaw(values[name])):
            return f"{name!r} {flaw}"
    for name in ("decoder", "data", "data_sha256", "metric", "listed", "measure"):
        if not isinstance(values[name], str):
            return f"{name!r} must be a text"
    for name in ("sentences", "rank_correlation", "error", "constant_error", "auroc"):
        if not (_is_number(values[name]) or (name == "auroc" and values[name] is None)):
            return f"{name!r} must be a number"
    return ""


def _map_flaw(value: Any) -> str:
    """Return what is wrong with a map, or an empty string."""
    if not isinstance(value, dict) or set(value) != {"signal", "values", "expected"}:
        return "must have a signal, values and expected quality"
    try:
        SIGNALS.parse(value["signal"])
    except (InvalidInput, AttributeError) as error:
        return f"has a signal that this npad does not know: {error}"
    for name in ("values", "expected"):
        numbers = value[name]
        if not isinstance(numbers, list) or not numbers or not all(map(_is_number, numbers)):
            return f"needs a list of numbers as {name!r}"
        if any(right < left for left, right in pairwise(numbers)):
            return f"has {name!r} that fall"
    if len(value["values"]) != len(value["expected"]):
        return "has two lists that differ in length"
    if value["expected"][0] < 0 or value["expected"][-1] > BEST:
        return "expects a quality outside 0 to 100"
    return ""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
