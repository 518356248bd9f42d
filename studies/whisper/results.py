"""What Whisper's decoders found, by system and set: selected outputs, errors, differences."""

from __future__ import annotations

import json
import lzma
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from npad.errors import InvalidInput
from npad.evaluate.bootstrap import Difference, paired
from npad.metrics.metric import FloatArray
from npad.metrics.wer import Wer
from npad.reproduce.record import Record
from npad.selectors import MBR, LengthNormalised, MostProbable, Selector
from studies.hypotheses import Candidate, choose
from studies.whisper.experiment import VALIDATION, Entry

SELECTORS: dict[str, Selector] = {
    "log p": MostProbable(),
    "length-normalised": LengthNormalised(),
    "MBR by WER": MBR("wer"),
}
SYSTEMS = {
    "greedy": "greedy",
    "beam": "beam",
    "recipe": "Whisper's recipe",
    "sampling": "greedy + samples, T = 0.5",
    "npad": "NPAD over greedy",
}
SELECTED = ("beam", "sampling", "npad")  # the decoders with several candidates


class System(NamedTuple):
    """A row of the report: a decoder, its rows, and what selects among its candidates."""

    name: str
    rows: int
    selector: str

    def __str__(self) -> str:
        rows = f", {self.rows}" if self.rows > 1 else ""
        selector = f", {self.selector}" if self.name in SELECTED else ""
        return f"{SYSTEMS[self.name]}{rows}{selector}"


class Selected(NamedTuple):
    """The outputs that a selector chose: word errors and −log p of every recording."""

    errors: FloatArray  # [recordings, 3], the statistics of `Wer`
    nll: float


def selected(record: Entry, selector: str) -> Selected:
    """Return what a selector chooses from a record."""
    found = [[Candidate(*entry) for entry in entries] for entries in record["candidates"]]
    best = [each[choose(each, SELECTORS[selector])] for each in found]
    errors = Wer().statistics([candidate.text for candidate in best], record["references"])
    return Selected(errors, -float(np.mean([candidate.log_prob for candidate in best])))


def read_entries(file: Path) -> list[Entry]:
    """Return the entries of a run's record, or of FILE.jsonl.xz, which has no keys."""
    if file.suffix == ".xz":
        with lzma.open(file, "rt", encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]
    return list(Record(file).results.values())


class Results:
    """The records of an experiment, by system and set.

    Raises:
        InvalidInput: there are none.
    """

    def __init__(self, records: Sequence[Entry]) -> None:
        self.about: dict[str, Any] = next((r["about"] for r in records if "about" in r), {})
        self.calibration = [r for r in records if r.get("set") == VALIDATION]
        tested = [r for r in records if "system" in r and r["set"] != VALIDATION]
        self.records = {(r["system"], r["rows"], r["seed"], r["set"]): r for r in tested}
        if not self.records:
            raise InvalidInput("there are no results of test recordings; run the experiment first")
        self.sets = list(dict.fromkeys(r["set"] for r in tested))
        self._selected: dict[tuple[Any, ...], Selected] = {}

    @cached_property
    def systems(self) -> list[System]:
        """All decoders that ran on every set, with their selectors."""
        keys = {(name, rows) for name, rows, *_ in self.records}
        complete = [
            (name, rows)
            for name, rows in sorted(keys, key=lambda key: (key[1], list(SYSTEMS).index(key[0])))
            if all((name, rows, 0, on) in self.records for on in self.sets)
        ]
        return [
            System(name, rows, selector)
            for name, rows in complete
            for selector in (SELECTORS if name in SELECTED else ["log p"])
        ]

    def seeds(self, system: System) -> list[int]:
        """Return the seeds with which a decoder ran on every set."""
        seeds = {seed for name, rows, seed, _ in self.records if (name, rows) == system[:2]}
        return sorted(
            seed
            for seed in seeds
            if all((*system[:2], seed, on) in self.records for on in self.sets)
        )

    def of(self, system: System, seed: int, on: str) -> Selected:
        """Return what a system chose on a set."""
        key = (*system, seed, on)
        if key not in self._selected:
            record = self.records[system.name, system.rows, seed, on]
            # The recipe chooses by itself.
            self._selected[key] = selected(record, system.selector)
        return self._selected[key]

    def find(self, name: str, rows: int, selector: str = "log p") -> System | None:
        """Return a system if it ran on every set."""
        system = System(name, rows, selector if name in SELECTED else "log p")
        return system if system in self.systems else None

    def compare(self, system: System, baseline: System) -> Difference:
        """Return the difference in word error rate, on all sets together, of means over seeds."""
        first, second = self.errors(system), self.errors(baseline)
        weights = [1 / len(first)] * len(first) + [-1 / len(second)] * len(second)
        return paired(Wer(), [*first, *second], weights)

    def errors(self, system: System) -> list[FloatArray]:
        """Return the word errors of each string, on all sets together, for each seed.

        The sets are the same strings with more or less noise, so a bootstrap draws all of a
        string's recordings at once.
        """
        return [
            np.sum([self.of(system, seed, on).errors for on in self.sets], axis=0)
            for seed in self.seeds(system)
        ]
