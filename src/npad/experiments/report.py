"""The report of one model: Markdown that anyone can read, made of what the record holds and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from npad.errors import InvalidInput, StorageError
from npad.experiments import beyond, figures, tables
from npad.experiments.bench import Bench
from npad.experiments.claims import findings
from npad.experiments.tables import markdown
from npad.storage.atomic import write_atomic

LEGEND = """\
NLL is the mean over sentences of −log p of the output under the clean model, its end included; BLEU is sacrebleu's,
of detokenised text, with its defaults. `length` is words of output over words of reference. The last columns are of the
first test set: `calls` are rows through one step of the model, a sentence (a GPU is asked every eighth step whether
a sentence is over, so up to seven idle steps count); `re-scored` the same by the clean judge; `seconds` the wall time
of the whole set on the machine above; `distinct` the different texts a sentence was given; `noisy won` the share of
sentences whose output a noisy chain found and the clean one did not.{seeds}
Every choice was made on the validation set, with the first seed. Outputs that were cut at {most} symbols count as they
are; at least {finished:.1%} ended by themselves, in every row.
"""


@dataclass(frozen=True)
class Setup:
    """What was run, as `setup.json` keeps it beside the results."""

    title: str
    command: str
    model: str  # its name, as in signatures
    sets: dict[str, int]  # the validation set, then the test sets, and their sentences
    seeds: int = 3
    max_length: int = 200
    brief: bool = False  # the paper's tables, and the claims that rest on them, alone
    exact: tuple[int, int] = (100, 500)  # sentences, and model calls for each
    sigmas: Sequence[float] = ()  # of the models that were trained with noise
    about: dict[str, Any] = field(
        default_factory=dict
    )  # of the model, its training and the machine
    digests: dict[str, str] = field(default_factory=dict)  # of the weights and of each set

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(
            folder / "setup.json", json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"
        )

    @classmethod
    def load(cls, folder: Path) -> Setup:
        path = folder / "setup.json"
        if not path.is_file():
            raise InvalidInput(f"{folder} holds no results: it has no setup.json")
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                **(plain | {"exact": tuple(plain["exact"]), "sigmas": tuple(plain["sigmas"])})
            )
        except (ValueError, TypeError, KeyError) as error:
            raise StorageError(f"{path} is damaged: {error}") from error


def render(folder: Path) -> str:
    """The report of a folder's results, which need no model."""
    setup = Setup.load(folder)
    return written(
        Bench(folder, list(setup.sets), seeds=setup.seeds, max_length=setup.max_length), setup
    )


def write(bench: Bench, setup: Setup) -> None:
    """README.md and its pictures, in the folder of the results."""
    write_atomic(bench.folder / "README.md", written(bench, setup))
    figures.draw(bench, bench.folder, setup.brief)


def written(bench: Bench, setup: Setup) -> str:
    """The report as Markdown. What it shows and the record lacks is measured on the way."""
    parts: dict[str, Callable[[Bench], str]] = {
        "Beside the paper": lambda b: (
            f"{tables.beside_paper(b)}\n![NLL and BLEU against model calls](calls.png)\n"
        ),
        "Table 1: noise": lambda b: f"{tables.table1(b)}\n![NLL and BLEU against σ₀](sigma.png)\n",
        "Table 2: chains": lambda b: (
            f"{tables.table2(b)}\n![NLL and BLEU against chains](chains.png)\n"
        ),
        "Table 3: NPAD over beam search": tables.table3,
        "Table 4: NPAD and diverse decoding": tables.table4,
        "What the choices were made from": tables.grids,
    }
    if not setup.brief:
        sentences, budget = setup.exact
        parts |= {
            "NPAD over diverse decoding": beyond.over_diverse,
            "Where the model is unsure": lambda b: (
                "![entropy by step](entropy.png)\n" if b.entropy(b.tests[0]) else ""
            ),
            "Equal compute": beyond.equal_compute,
            "Sampling at lower temperatures": beyond.sampling,
            "Schedules": beyond.schedules,
            "Distributions": beyond.distributions,
            "Which candidate to return": beyond.selection,
            "Search errors": partial(beyond.search_errors, sentences=sentences, budget=budget),
        }
    if setup.sigmas:
        parts["Noise in training"] = partial(beyond.noise_in_training, sigmas=setup.sigmas)
    sections = {
        name: make(bench) for name, make in parts.items()
    }  # before the claims, which choose from these
    claims = {
        f"The paper's claims, {where}": _claims(bench, where, setup.brief) for where in bench.tests
    }
    body = "".join(f"\n## {name}\n\n{text}" for name, text in (claims | sections).items())
    chance = (
        f" A row with chance in it is the mean of {setup.seeds} seeds ± their standard deviation."
    )
    legend = LEGEND.format(
        seeds=chance if setup.seeds > 1 else "", most=setup.max_length, finished=bench.finished()
    )
    return f"# {setup.title}\n\n{_about(setup)}\n{legend}{body}"


def _claims(bench: Bench, where: str, brief: bool) -> str:
    rows = ([one.claim, one.verdict, one.figures] for one in findings(bench, where, brief))
    return markdown(["claim", "verdict", "figures"], rows).replace("---:", "---")


def _about(setup: Setup) -> str:
    sets = ", ".join(f"{name} ({size:,} sentences)" for name, size in setup.sets.items())
    lines = {
        "command": f"`{setup.command}`",
        "model": f"`{setup.model}`",
        "sets": sets,
        **setup.about,
    }
    return markdown(["", ""], ([name, str(value)] for name, value in lines.items())).replace(
        "---:", "---"
    )
