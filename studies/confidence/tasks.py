"""The tasks of the study: what each decoder found for every input, and at what cost."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from npad.evaluate.confidence import quality_of
from npad.hypotheses import Hypothesis
from npad.metrics.chrf import Chrf
from npad.metrics.metric import FloatArray, Metric, Reference, Scorer
from npad.metrics.wer import Wer
from npad.reproduce.record import Record
from npad.selectors import LengthNormalised, Vote
from npad.signals import Alternative
from npad.text.english import spoken
from studies.confidence.decoding import LIST, ROWS
from studies.hypotheses import Candidate

GREEDY = "greedy"
SELECTORS: dict[str, LengthNormalised | Vote] = {
    "log p": LengthNormalised(0.0),
    "length-normalised": LengthNormalised(),
    "vote": Vote(alpha=0.0),
    "vote, α = 0.6": Vote(),
    "vote, α = 1": Vote(alpha=1.0),
    "vote by count": Vote("count"),
}
LOG_P = "log p"
STRINGS = 250  # of the speech set, which validate; the others test
LEVELS = ("20 dB", "10 dB", "0 dB")


@dataclass(frozen=True)
class Outputs:
    """What a decoder found for n inputs.

    Attributes:
        lists: the candidates of each, as signals read them.
        texts: theirs, as they are measured.
        calls: model calls of each input, re-scoring included, [n].
    """

    lists: list[list[Alternative]]
    texts: list[list[str]]
    calls: FloatArray

    @classmethod
    def of(
        cls, found: Sequence[Sequence[Any]], calls: FloatArray, form: Callable[[str], str]
    ) -> Outputs:
        """Return the outputs of a record; a candidate's tokens, which it has not, are numbers."""
        rows = [[Candidate(*entry) for entry in entries] for entries in found]
        lists = [
            [Alternative(form(c.text), _hypothesis(c, i)) for i, c in enumerate(entries)]
            for entries in rows
        ]
        return cls(lists, [[c.text for c in entries] for entries in rows], calls)

    def at(self, places: Sequence[int]) -> Outputs:
        """Return the outputs for some inputs."""
        return Outputs(
            [self.lists[i] for i in places], [self.texts[i] for i in places], self.calls[places]
        )

    def chosen(self, selector: str) -> list[int]:
        """Return the place of the candidate that a selector chooses, for each input."""
        return [_best(candidates, SELECTORS[selector]) for candidates in self.lists]


def _hypothesis(candidate: Candidate, number: int) -> Hypothesis:
    length = max(1, candidate.length - candidate.finished)
    tokens = (number + 1,) + (0,) * (length - 1)
    return Hypothesis(tokens, candidate.log_prob, candidate.finished, count=candidate.copies)


def _best(candidates: list[Alternative], selector: LengthNormalised | Vote) -> int:
    hypotheses = [candidate.hypothesis for candidate in candidates]
    if isinstance(selector, Vote):
        scores = selector.shares([candidate.text for candidate in candidates], hypotheses)
    else:
        lengths = [len(h.tokens) + h.finished for h in hypotheses]
        pairs = zip(hypotheses, lengths, strict=True)
        scores = [selector.score(h.log_prob, length) for h, length in pairs]
    order = [(h.finished, score, h.log_prob) for h, score in zip(hypotheses, scores, strict=True)]
    return order.index(max(order))


@dataclass(frozen=True)
class Part:
    """The validation or the test inputs of a task.

    Attributes:
        references: of each input.
        outputs: by decoder.
        group: inputs that are drawn together in a bootstrap, consecutive: the noise levels of a
            recording.
    """

    metric: Metric
    references: Sequence[Reference]
    outputs: Mapping[str, Outputs]
    group: int = 1

    @cached_property
    def _scorer(self) -> Scorer:
        return Scorer(self.metric, self.references)

    def texts(self, decoder: str, selector: str = LOG_P) -> list[str]:
        """Return the outputs that a selector chooses."""
        found = self.outputs[decoder]
        return [texts[i] for texts, i in zip(found.texts, found.chosen(selector), strict=True)]

    def statistics(self, texts: list[str]) -> FloatArray:
        """Return the metric's statistics [n, k]."""
        return self._scorer.statistics(texts)

    def quality(self, texts: list[str]) -> FloatArray:
        """Return the quality of each output [n]."""
        return quality_of(self.metric, texts, self.references)


@dataclass(frozen=True)
class Task:
    """A task: choices are made on `valid` and reported on `test`.

    Attributes:
        name: its name.
        valid: the inputs on which choices are made.
        test: the inputs that are reported.
        sources: the decoders whose lists signals read, all of about as many model calls.
        fixed: the decoders that run on all inputs alike, with the selectors they may have.
    """

    name: str
    valid: Part
    test: Part
    sources: tuple[str, ...]
    fixed: tuple[tuple[str, str], ...] = field(default=())


def decoded_tasks(files: Sequence[Path]) -> list[Task]:
    """Return the tasks of the records of `studies.confidence.decoding`."""
    found: dict[Any, Any] = {}
    for file in files:
        found |= Record(file).results
    parts: dict[tuple[str, str], dict[str, Any]] = {}
    for (task, name, decoder), value in found.items():
        parts.setdefault((task, name), {})[decoder] = value
    valid = {task: _decoded(values) for (task, name), values in parts.items() if name == "valid"}
    tasks = []
    for (task, name), values in parts.items():
        if name == "test":
            own = task if task in valid else task.split()[0]  # of the same model
            beams = tuple((f"beam {width}", LOG_P) for width in (5, 10, ROWS))
            listed = tuple((LIST, selector) for selector in SELECTORS if selector != LOG_P)
            fixed = ((GREEDY, LOG_P), *beams, *listed, ("npad", LOG_P))
            tasks.append(Task(task, valid[own], _decoded(values), (LIST, "samples", "npad"), fixed))
    return tasks


def _decoded(values: Mapping[str, Any]) -> Part:
    outputs = {}
    for decoder, value in values.items():
        calls = np.array(value["calls"], float)
        calls += value["rescored"] / len(calls)  # not recorded by sentence
        outputs[decoder] = Outputs.of(value["candidates"], calls, str)
    return Part(Chrf(), next(iter(values.values()))["references"], outputs)


def speech_task(file: Path) -> Task:
    """Return the task of the hypotheses of `studies.whisper`: the first strings validate.

    Calls were not recorded by recording: those of a set are shared by the length of the longest
    candidate.
    """
    with lzma.open(file, "rt", encoding="utf-8") as lines:
        entries = [json.loads(line) for line in lines]
    names = {("greedy", 1): GREEDY}
    names |= {("beam", width): f"beam {width}" for width in (5, 10, ROWS)}
    names |= {("sampling", ROWS): "samples", ("npad", ROWS): "npad"}
    found: dict[str, list[Any]] = {name: [] for name in names.values()}
    references: list[str] = []
    for level in LEVELS:
        for entry in entries:
            key = entry.get("system"), entry.get("rows")
            if key in names and entry["set"] == level and entry["seed"] == 0:
                found[names[key]].append(entry)
                references = entry["references"]
    outputs = {name: _heard(levels) for name, levels in found.items()}
    places = range(len(LEVELS) * len(references))
    said = [reference for reference in references for _ in LEVELS]
    cut = len(LEVELS) * STRINGS

    def part(chosen: range) -> Part:
        own = {name: found.at(list(chosen)) for name, found in outputs.items()}
        return Part(Wer(), [said[i] for i in chosen], own, len(LEVELS))

    beams = [(f"beam {width}", selector) for width in (5, 10, ROWS) for selector in SELECTORS]
    others = [("npad", selector) for selector in SELECTORS]
    fixed = ((GREEDY, LOG_P), *beams, *others)
    sources = (f"beam {ROWS}", "samples", "npad")
    return Task("speech", part(places[:cut]), part(places[cut:]), sources, fixed)


def _heard(levels: Sequence[Any]) -> Outputs:
    """Return outputs whose order is that of the strings, each with all levels of noise."""
    rows, calls = [], []
    for entry in levels:
        longest = np.array([max(c[2] for c in found) for found in entry["candidates"]], float)
        total = entry["calls"] + entry["rescored"]
        calls.append(longest * total / longest.sum())
        rows.append(entry["candidates"])
    together = [found for several in zip(*rows, strict=True) for found in several]
    return Outputs.of(together, np.stack(calls, 1).ravel(), spoken)
