"""Options that say where units run: the engine, its workers, and how work is divided."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from npad.engine.devices import device_named
from npad.errors import InvalidInput
from npad.pipelines.loading import load
from npad.pipelines.translation import Translator
from npad.scale.distributed import Distributed
from npad.scale.engine import Engine, Local
from npad.scale.processes import Processes
from npad.scale.ray_engine import RayCluster
from npad.scale.worker import ModelSpec
from npad.validation import ensure_choice

PANEL = "Where to run"  # of the help
ENGINES = ("local", "processes", "ray")

EngineName = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="NAME",
        help="`local` (this process), `processes` (of this machine) or `ray` (a cluster; needs "
        "the extra `ray`). Results are the same. [this process, without units]",
        rich_help_panel=PANEL,
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="ray: the cluster, `HOST:PORT`, `ray://HOST:PORT` or `auto`. [RAY_ADDRESS, or a "
        "cluster of this machine's own]",
        rich_help_panel=PANEL,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Workers, each with the model. [one per GPU, else one per CPU]",
        rich_help_panel=PANEL,
    ),
]
GpusPerWorker = Annotated[
    float | None,
    typer.Option(
        metavar="N",
        min=0,
        help="ray: GPUs of a worker; 0.5 lets two share one. [1 if there are GPUs]",
        rich_help_panel=PANEL,
    ),
]
ChainParts = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=1,
        help="Parts that NPAD's chains are divided into, on different workers: for one slow "
        "sentence at a time.",
        rich_help_panel=PANEL,
    ),
]
OnError = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="With --engine, a line that cannot be translated: `skip` reports it and leaves it "
        "empty, `fail` stops.",
        rich_help_panel=PANEL,
    ),
]
Field = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="With --engine, the field of the text in .jsonl and .parquet.",
        rich_help_panel=PANEL,
    ),
]


@dataclass(frozen=True)
class Placement:
    """The chosen engine and its options, as the command line names them."""

    engine: str | None
    address: str | None = None
    workers: int | None = None
    gpus_per_worker: float | None = None
    chain_parts: int = 1

    def __post_init__(self) -> None:
        if self.engine is None:
            self.ensure_unused()
            return
        ensure_choice("--engine", self.engine, ENGINES)
        for option, value in (
            ("--address", self.address),
            ("--gpus-per-worker", self.gpus_per_worker),
        ):
            if value is not None and self.engine != "ray":
                raise InvalidInput(f"{option} does not go with --engine {self.engine}: it is ray's")
        if self.engine == "local" and self.workers not in (None, 1):
            raise InvalidInput("--engine local has one worker; use --engine processes or ray")

    def ensure_unused(self, on_error: bool = False, field: bool = False) -> None:
        """Refuse options that need an engine."""
        options = {
            "--address": self.address,
            "--workers": self.workers,
            "--gpus-per-worker": self.gpus_per_worker,
            "--chain-parts": self.chain_parts if self.chain_parts > 1 else None,
            "--on-error": on_error or None,
            "--field": field or None,
        }
        for option, value in options.items():
            if value is not None:
                raise InvalidInput(f"{option} needs --engine {', '.join(ENGINES[:-1])} or ray")

    @contextmanager
    def running(self, spec: ModelSpec) -> Iterator[Engine]:
        """Yield the engine with its workers started."""
        kinds: dict[str | None, Callable[[], Any]] = {
            "local": lambda: Local(spec),
            "processes": lambda: Processes(spec, self.workers),
            "ray": lambda: RayCluster(spec, self.address, self.workers, self.gpus_per_worker),
        }
        with kinds[self.engine]() as engine:
            engine.start()
            yield engine

    @contextmanager
    def translator(self, spec: ModelSpec) -> Iterator[Translator]:
        """Yield a translator: in this process, or on the engine's workers if there is an engine."""
        if self.engine is None:
            device = device_named(spec.device, "--device")
            yield load(spec.model, device, spec.precision).limited_to(spec.max_source)
            return
        # The workers do the work, so this process needs no GPU for its copy of the model.
        own = load(spec.model, "cpu", spec.precision).limited_to(spec.max_source)
        with self.running(spec.fingerprinted()) as engine:
            yield Distributed.of(own, engine, self.chain_parts)

    def place(
        self, engines: ExitStack, device: str, precision: str, translator: Translator, model: Path
    ) -> Translator:
        """Return a translator that runs on the engine, which `engines` closes; or the same one."""
        if self.engine is None:
            return translator
        spec = ModelSpec(str(model), device, precision, translator.longest)
        engine = engines.enter_context(self.running(spec.fingerprinted()))
        return Distributed.of(translator, engine, self.chain_parts)

    @property
    def description(self) -> str:
        """The engine and its workers in words, for reports."""
        if self.engine is None:
            return ""
        workers = "" if self.workers is None else f", {self.workers} workers"
        return f"engine {self.engine}{workers}"
