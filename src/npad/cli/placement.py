"""Where a command runs: options for the kind and number of workers, and corpora on workers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer

from npad.cli.options import Expanded, option
from npad.cli.terminal import bar, note
from npad.engine.devices import device_named
from npad.errors import InvalidInput
from npad.pipelines.loading import load_as
from npad.pipelines.translation import Translator
from npad.scale.corpus import Corpus, translate_corpus
from npad.scale.distributed import Distributed
from npad.scale.pool import Local, Workers
from npad.scale.processes import Processes
from npad.scale.ray_cluster import RayCluster
from npad.scale.worker import ModelSpec
from npad.search.request import Decoding
from npad.validation import counted, ensure_choice

REPORTED = 20  # failed lines that are listed; of more, only the number
ENGINES = ("local", "processes", "ray")

_option = partial(option, panel="Where to run", hidden=True)

OnError = Annotated[
    str,
    _option(
        "With --engine, a line that cannot be translated: `skip` reports it and leaves it "
        "empty, `fail` stops.",
        names=("skip", "fail"),
    ),
]
Field = Annotated[
    str, _option("With --engine, the field of the text in .jsonl and .parquet.", metavar="NAME")
]


@dataclass(frozen=True)
class Placement:
    """Where to run; the fields are the options of commands that are `placed`."""

    engine: Annotated[
        str | None,
        _option(
            "Workers: `local` (this process), `processes` or `ray` (a cluster, with the extra "
            "`ray`).",
            names=ENGINES,
            hidden=False,
        ),
    ] = None
    address: Annotated[
        str | None,
        _option(
            "ray: the cluster, `HOST:PORT`, `ray://HOST:PORT` or `auto`. [RAY_ADDRESS, or a "
            "cluster of this machine's own]",
            metavar="ADDRESS",
        ),
    ] = None
    workers: Annotated[
        int | None, _option("Workers, each with the model. [one per GPU, else one per CPU]", min=1)
    ] = None
    gpus_per_worker: Annotated[
        float | None,
        _option("ray: GPUs of a worker; 0.5 lets two share one. [1 if there are GPUs]", min=0),
    ] = None
    chain_parts: Annotated[
        int,
        _option(
            "Parts that NPAD's chains are divided into, on different workers: for one slow "
            "sentence at a time.",
            min=1,
        ),
    ] = 1

    def __post_init__(self) -> None:
        if self.engine is None:
            self.ensure_unused()
            return
        ensure_choice("--engine", self.engine, ENGINES)
        for name, value in (
            ("--address", self.address),
            ("--gpus-per-worker", self.gpus_per_worker),
        ):
            if value is not None and self.engine != "ray":
                raise InvalidInput(f"{name} does not go with --engine {self.engine}: it is ray's")
        if self.engine == "local" and self.workers not in (None, 1):
            raise InvalidInput("--engine local has one worker; use --engine processes or ray")

    def ensure_unused(self, on_error: bool = False, field: bool = False) -> None:
        """Refuse options that need --engine."""
        options = {
            "--address": self.address,
            "--workers": self.workers,
            "--gpus-per-worker": self.gpus_per_worker,
            "--chain-parts": self.chain_parts if self.chain_parts > 1 else None,
            "--on-error": on_error or None,
            "--field": field or None,
        }
        for name, value in options.items():
            if value is not None:
                raise InvalidInput(f"{name} needs --engine {', '.join(ENGINES[:-1])} or ray")

    @contextmanager
    def running(self, spec: ModelSpec) -> Iterator[Workers]:
        """Yield the started workers."""
        kinds: dict[str | None, Callable[[], Any]] = {
            "local": lambda: Local(spec),
            "processes": lambda: Processes(spec, self.workers),
            "ray": lambda: RayCluster(spec, self.address, self.workers, self.gpus_per_worker),
        }
        with kinds[self.engine]() as workers:
            workers.start()
            yield workers

    @contextmanager
    def translator(self, spec: ModelSpec) -> Iterator[Translator]:
        """Yield a translator: in this process, or on workers if --engine is given."""
        if self.engine is None:
            device = device_named(spec.device, "--device")
            yield load_as(Translator, spec.model, device, spec.precision).limited_to(
                spec.max_source
            )
            return
        # The workers do the work, so this process needs no GPU for its copy of the model.
        own = load_as(Translator, spec.model, "cpu", spec.precision).limited_to(spec.max_source)
        with self.running(spec.fingerprinted()) as workers:
            yield Distributed.of(own, workers, self.chain_parts)

    def place(
        self, stack: ExitStack, device: str, precision: str, translator: Translator, model: Path
    ) -> Translator:
        """Return a translator that runs on workers, which `stack` closes; or the same one."""
        if self.engine is None:
            return translator
        spec = ModelSpec(str(model), device, precision, translator.longest)
        workers = stack.enter_context(self.running(spec.fingerprinted()))
        return Distributed.of(translator, workers, self.chain_parts)

    @property
    def description(self) -> str:
        """Describe the workers, for reports."""
        if self.engine is None:
            return ""
        workers = "" if self.workers is None else f", {counted(self.workers, 'worker')}"
        return f"engine {self.engine}{workers}"


HERE = Placement()  # in this process


def placed(command: Callable[..., None]) -> Expanded:
    """Give a command that takes `where: Placement` the options of one in its place."""
    options = list(inspect.signature(Placement, eval_str=True).parameters.values())
    return Expanded(
        command,
        "where",
        lambda: options,
        lambda values: Placement(**{option.name: values.pop(option.name) for option in options}),
    )


def run_corpus(
    where: Placement, spec: ModelSpec, corpus: Corpus, decoding: Decoding, unit: int | None
) -> None:
    """Translate a corpus, with progress and a report of lines that failed on stderr."""
    failed = count(1)

    def report(line: int, reason: str) -> None:
        number = next(failed)
        if number <= REPORTED:
            note(f"line {line:,} is left empty: {reason}")
        elif number == REPORTED + 1:
            note("further lines that fail are counted only")

    spec = spec.fingerprinted()
    with where.running(spec) as workers, bar("translating") as update:
        progress = partial(update, "translating")
        summary = translate_corpus(
            corpus, workers, spec, decoding, unit, where.chain_parts, progress, report
        )
    if deaths := getattr(workers, "deaths", 0):
        note(f"{counted(deaths, 'worker')} died meanwhile; their work was run again")
    if summary.continued:
        note(f"{summary.continued:,} of {summary.texts:,} lines were finished by an earlier run")
    if summary.near_ties:
        note(
            f"{summary.near_ties:,} of {summary.texts:,} lines are near-ties: two hypotheses "
            "within 1e-4; in float32, another --window or --max-rows may choose the other one"
        )
    if summary.failed:
        note(f"{summary.failed:,} of {summary.texts:,} lines were not translated; they are empty")
        raise typer.Exit(1)
