"""The Markdown report of one model, rendered from recorded results."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from npad.errors import InvalidInput, StorageError
from npad.reproduce import figures, tables
from npad.reproduce.bench import TRANSLATION, Bench, Measures
from npad.reproduce.claims import Check, Finding, findings
from npad.reproduce.markdown import document, markdown_table
from npad.reproduce.record import Form, has_form, is_number, is_text
from npad.storage.atomic import write_atomic
from npad.storage.regular import read_json
from npad.version import __version__

MAX_SEEDS = 1000

# The committed reports contain this text: keep its lines as they are.
LEGEND = """\
NLL is the mean over {unit}s of −log p of the output under the clean model, end token included; {metrics} `length` is words of output over words of reference. The last columns are for the
first test set: `calls` are rows through one step of the model per {unit} (on a GPU, npad checks at every eighth step
whether a {unit} is finished, so up to seven idle steps count); `re-scored` the same for re-scoring by the clean model;
`seconds` the wall time for the whole set on the machine above; `distinct` the number of different texts found per
{unit}; `noisy won` the share of {unit}s whose output was found by a noisy chain and not by the clean one.{seeds}
Every choice was made on the validation set, with the first seed. Outputs that were cut at {max_length} tokens count as they
are; in every row, at least {finished:.1%} of the outputs ended by themselves.
"""  # noqa: E501


@dataclass(frozen=True)
class Setup:
    """The settings of an experiment, stored in `setup.json` beside the results."""

    title: str
    command: str
    model: str  # name of the model, as in signatures
    sets: dict[str, int]  # sentences of the validation set, then of the test sets
    seeds: int = 3
    max_length: int = 200
    about: dict[str, Any] = field(default_factory=dict)  # the model, its training, the machine
    digests: dict[str, str] = field(default_factory=dict)  # SHA-256 of the weights and of each set
    task: str = "translation"  # the name of the outline
    controls: Sequence[str] = ()  # sets of the task's controls
    descriptions: Sequence[str] = ()  # of the pictures that are shown; else their references are
    # Of `studies.beyond`, which measures more than the paper's tables.
    brief: bool = True
    exact: tuple[int, int] = (100, 500)  # sentences to search exactly, model calls for each
    sigmas: Sequence[float] = ()  # σ₀ of the models trained with noise

    def save(self, folder: Path) -> None:
        """Write `setup.json`."""
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(asdict(self), indent=2, ensure_ascii=False)
        write_atomic(folder / "setup.json", text + "\n")

    @classmethod
    def load(cls, folder: Path) -> Setup:
        """Read `setup.json`.

        Raises:
            InvalidInput: the folder has none.
            StorageError: it is damaged.
        """
        path = folder / "setup.json"
        if not os.path.lexists(path):
            raise InvalidInput(f"{folder} holds no results: it has no setup.json")
        values = read_json(path)
        for name, value in values.items():
            if name not in FORMS or not has_form(value, FORMS[name]):
                raise StorageError(f"{path} is damaged: {name!r:.60} cannot be {value!r:.60}")
        try:
            return cls.of(values)
        except TypeError as error:  # a field is missing
            raise StorageError(f"{path} is damaged: {error}") from error

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Setup:
        """Return the setup of values that JSON has made lists of tuples in."""
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
        }
        return cls(**fields)


FORMS: dict[str, Form] = {
    "title": is_text,
    "command": is_text,
    "model": is_text,
    "sets": lambda sets: (
        isinstance(sets, dict) and len(sets) >= 2 and all(map(is_number, sets.values()))
    ),
    "seeds": lambda number: type(number) is int and 1 <= number <= MAX_SEEDS,
    "max_length": is_number,
    "brief": lambda value: isinstance(value, bool),
    "exact": (is_number, is_number),
    "sigmas": [is_number],
    "about": lambda value: isinstance(value, dict),
    "digests": lambda value: isinstance(value, dict),
    "task": is_text,
    "controls": [is_text],
    "descriptions": [is_text],
}


def about_model(config: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a model and its training, from its config.json."""
    about = {"sizes": _in_words(config["model"])}
    if "training" in config:
        training = config["training"]
        recipe = {k: v for k, v in training["recipe"].items() if v not in (None, False)}
        about["training"] = _in_words(recipe)
        pairs, updates = training["data"]["train"]["kept"], training["update"]
        about["trained on"] = f"{pairs:,} pairs, {updates:,} updates"
        about["validation perplexity"] = f"{training['perplexity']:.3f}"
    return about


def machine(device: torch.device, rows: str) -> str:
    """Describe a machine and how many rows it decodes at a time."""
    cuda = device.type == "cuda"
    processor = torch.cuda.get_device_name(device) if cuda else platform.machine()
    return f"{processor}, {rows}, torch {torch.__version__}, npad {__version__}"


def _in_words(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items())


Sections = dict[str, Callable[[Bench], str]]  # what renders each section, by heading


class Outline:
    """What a report says: the paper's claims and tables.

    Reports on other tasks than translation, or with further experiments, override what differs.

    Attributes:
        task: the name of what is measured, as in setup.json.
        measures: the metrics to measure by.
        bench: measures the decoders.
    """

    task: str = "translation"
    measures: Measures = TRANSLATION
    bench: type[Bench] = Bench

    def summary(self, bench: Bench, by_set: Mapping[str, Sequence[Finding]]) -> dict[str, str]:
        """Return sections that precede the paper's claims, by heading.

        Args:
            bench: measures the decoders.
            by_set: the verdicts on the paper's claims, by test set.
        """
        return {}

    def claims(self, bench: Bench, setup: Setup) -> dict[str, Check]:
        """Return the checks of claims that the paper makes without measuring them."""
        return {}

    def draw(self, bench: Bench, setup: Setup, title: str) -> None:
        """Draw the report's plots into the bench's folder."""
        figures.draw(bench, bench.folder, title)

    def sections(self, setup: Setup) -> Sections:
        """Return what renders each section after the claims, in order."""
        *names, last = self.measures.names
        measures = f"{', '.join(names)} and {last}"
        return {
            "Beside the paper": lambda bench: (
                f"{tables.beside_paper(bench)}\n![{measures} against model calls](calls.png)\n"
            ),
            "Table 1: noise": lambda bench: (
                f"{tables.table1(bench)}\n![{measures} against σ₀](sigma.png)\n"
            ),
            "Table 2: chains": lambda bench: (
                f"{tables.table2(bench)}\n![{measures} against chains](chains.png)\n"
            ),
            "Table 3: NPAD over beam search": tables.table3,
            "Table 4: NPAD and diverse decoding": tables.table4,
            "What the choices were made from": tables.grids,
        }


OUTLINE = Outline()


def render(folder: Path, outline: Outline = OUTLINE) -> str:
    """Render the report of a folder's recorded results; no model is needed.

    Args:
        folder: holds setup.json and results.jsonl.
        outline: what the report says.

    Raises:
        InvalidInput: the folder has no setup.json, or that of a report with another outline.
        NotMeasured: a result is missing.
    """
    setup = Setup.load(folder)
    return markdown_of(recorded(folder, setup, outline), setup, outline)


def recorded(folder: Path, setup: Setup, outline: Outline = OUTLINE) -> Bench:
    """Return a bench of a folder's recorded results, which measures nothing.

    Raises:
        InvalidInput: the results are of a report with another outline.
    """
    if setup.task != outline.task:
        raise InvalidInput(f"{folder} holds results on {setup.task}, not on {outline.task}")
    return outline.bench(folder, list(setup.sets), seeds=setup.seeds, measures=outline.measures)


def write(bench: Bench, setup: Setup, outline: Outline = OUTLINE) -> None:
    """Write README.md and its plots into the bench's folder; measure missing results."""
    write_atomic(bench.folder / "README.md", markdown_of(bench, setup, outline))
    draw(bench, setup, outline)


def draw(bench: Bench, setup: Setup, outline: Outline = OUTLINE) -> None:
    """Draw the report's plots into the bench's folder; measure missing results."""
    set_name = bench.tests[0]
    sentences = f"{setup.sets[set_name]:,} {bench.measures.unit}s of {set_name}"
    title = f"{setup.title}: {setup.model} on {sentences}"
    outline.draw(bench, setup, title)


def redraw(folder: Path, outline: Outline = OUTLINE) -> None:
    """Draw the plots of a folder's recorded results again; no model is needed.

    Raises:
        InvalidInput: the folder has no setup.json, or matplotlib is not installed.
        NotMeasured: a result is missing.
    """
    setup = Setup.load(folder)
    draw(recorded(folder, setup, outline), setup, outline)


def markdown_of(bench: Bench, setup: Setup, outline: Outline = OUTLINE) -> str:
    """Return the report; every result that it shows is asked of the bench."""
    sections = {name: section(bench) for name, section in outline.sections(setup).items()}
    # Claims come first in the report, but last here: they choose from the sections' results.
    by_set = {name: findings(bench, name, outline.claims(bench, setup)) for name in bench.tests}
    claims = {f"The paper's claims, {name}": _claims(by_set[name]) for name in bench.tests}
    claims = outline.summary(bench, by_set) | claims
    seeds = f" A row that depends on chance is the mean over {setup.seeds} seeds"
    seeds += " ± the standard deviation."
    if bench.measures.valid_seeds == 1:
        seeds += " On the validation set it is the result of the first seed."
    legend = LEGEND.format(
        seeds=seeds if setup.seeds > 1 else "",
        max_length=setup.max_length,
        finished=bench.finished(),
        unit=bench.measures.unit,
        metrics=bench.measures.legend,
    )
    lead = f"{_about(setup, bench.measures.unit)}\n{legend}"
    return document(setup.title, lead, claims | sections)


def _claims(verdicts: Sequence[Finding]) -> str:
    rows = ([finding.claim, finding.verdict, finding.figures] for finding in verdicts)
    return markdown_table(["claim", "verdict", "figures"], rows, words=True)


def _about(setup: Setup, unit: str) -> str:
    """Return where the results come from: the command, the model, the sets, the machine."""
    sets = ", ".join(f"{name} ({size:,} {unit}s)" for name, size in setup.sets.items())
    settings = {
        "command": f"`{setup.command}`",
        "model": f"`{setup.model}`",
        "sets": sets,
        **setup.about,
    }
    rows = ([name, str(value)] for name, value in settings.items())
    return markdown_table(["", ""], rows, words=True)
