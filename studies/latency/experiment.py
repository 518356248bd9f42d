"""Decode a test set by beams and by chains of many sizes, and time them in turn.

python -m studies.latency --model en-de --data DIR --languages en de --out FILE.jsonl

DIR holds valid and test sets of lines: valid.en, test.en.xz and so on. If source lines are the
paths of WAV files, recordings are transcribed. σ₀ and the schedule of the noise, and the α of
length normalisation, are chosen on the validation set first. Each line of FILE is one decoder on
one set with its outputs and model calls, or the times of all decoders at one batch size. A run that
is stopped continues where it was; times of another machine are measured again.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from npad.engine.cost import clocked_by
from npad.engine.devices import device_named, machine_name
from npad.errors import InvalidInput
from npad.evaluate.report import decode_timed
from npad.evaluate.timing import time_in_turn
from npad.metrics.metric import Scorer
from npad.metrics.registry import metric_named
from npad.model import Capabilities
from npad.noise.noisy import Noise
from npad.pipelines.loading import load_as
from npad.pipelines.pipeline import Pipeline
from npad.pipelines.sound import read
from npad.pipelines.transcription import Transcriber
from npad.pipelines.translation import Translator
from npad.reproduce.bench import decoder_signature
from npad.reproduce.record import Record
from npad.schedules import Annealed, Constant, Schedule
from npad.search.beam import Beam
from npad.search.decoder import Decoder
from npad.search.defaults import Defaults
from npad.search.greedy import Greedy
from npad.search.npad import NPAD
from npad.search.request import Decoding
from npad.search.sampling import Sampling
from npad.search.selected import Selected
from npad.search.steered import SteeredSearch
from npad.selectors import LengthNormalised
from npad.text.files import read_pairs
from npad.version import __version__
from studies.hypotheses import Deadline, OutOfTime

WIDTHS = (2, 5, 10, 20, 50)
CHAINS = (10, 25, 50, 100, 200)
BATCHES = (1, 8, 64)
SEEDS = 3
CHOSEN_BY = 25  # chains by which the noise and α are chosen
BEAM_CHOSEN_BY = 5  # width by which the α of beams is chosen
FACTORS = (1.0, 5 / 3, 7 / 3, 10 / 3)  # σ₀, in units of the model's default
CONSTANT_FACTORS = (1 / 3, 2 / 3)  # noise that does not fade must be weaker
ALPHAS = (0.5, 0.75, 1.0)
SAMPLES = 50


@dataclass(frozen=True)
class ParallelLines:
    """A set of sources and references."""

    name: str
    sources: list[str]
    references: list[str]

    @classmethod
    def read(cls, folder: Path, name: str, languages: Sequence[str], count: int) -> ParallelLines:
        """Read the first lines of FOLDER/NAME.LANGUAGE, plain, .gz or .xz."""
        paths = []
        for language in languages:
            stem = folder / f"{name}.{language}"
            found = [
                path for path in (stem, Path(f"{stem}.gz"), Path(f"{stem}.xz")) if path.exists()
            ]
            if not found:
                raise InvalidInput(f"there is no {stem}, plain, .gz or .xz")
            paths.append(found[0])
        sources, references = read_pairs(*paths)
        return cls(name, sources[:count], references[:count])


@dataclass(frozen=True)
class System:
    """A decoder of the study.

    Attributes:
        name: in tables.
        family: a curve of the plot.
        decoder: with the first seed.
        seeded: whether the other seeds are also decoded.
    """

    name: str
    family: str
    decoder: Decoder
    seeded: bool = False


@dataclass(frozen=True)
class Choice:
    """What was chosen on the validation set."""

    noise: Noise
    npad: LengthNormalised
    beam: LengthNormalised


def noises(model: Any) -> Iterator[Noise]:
    """Yield the noise to choose from."""
    default = Defaults.of(model).noise
    grid: tuple[tuple[Schedule, Sequence[float]], ...] = (
        (Annealed(), FACTORS),
        (Constant(), CONSTANT_FACTORS),
    )
    for schedule, factors in grid:
        for factor in factors:
            assert isinstance(default.sigma, float)
            sigma = float(f"{factor * default.sigma:.2g}")
            yield replace(default, sigma=sigma, schedule=schedule)


def systems(
    model: Any, choice: Choice, widths: Sequence[int], chains: Sequence[int]
) -> Iterator[System]:
    """Yield all decoders, each plain and length-normalised where it has candidates."""
    yield System("greedy", "greedy", Greedy())
    for width in widths:
        yield System(f"beam {width}", "beam", Beam(width))
        yield System(f"beam {width} ln", "beam ln", Selected(Beam(width), choice.beam))
    for count in chains:
        npad = NPAD(Greedy(), count, choice.noise)
        yield System(f"NPAD-{count}", "NPAD", npad, True)
        yield System(f"NPAD-{count} ln", "NPAD ln", replace(npad, selector=choice.npad), True)
    samples = Sampling(SAMPLES, temperature=0.5)
    yield System(f"{SAMPLES} samples, T 0.5", "samples", samples, True)
    if Capabilities.of(model).steer is not None:
        yield System("steered", "steered", SteeredSearch())
        for count in chains:
            npad = NPAD(SteeredSearch(), count, choice.noise, selector=choice.npad)
            yield System(f"steered NPAD-{count} ln", "steered NPAD ln", npad, True)


class Study:
    """One model on one data set; all that is measured is in a record."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.record = Record(options.out, Deadline(options.minutes))
        device = device_named(options.device, "--device")
        languages = options.languages
        self.valid = ParallelLines.read(options.data, "valid", languages, options.validation)
        self.test = ParallelLines.read(options.data, "test", languages, options.test)
        sound = self.test.sources[0].lower().endswith(".wav")
        self.pipeline: Pipeline = load_as(
            Transcriber if sound else Translator, options.model, device
        )
        self.metrics = ["wer"] if sound else ["bleu", "chrf"]
        self.read: Callable[[str], Any] = str
        if isinstance(self.pipeline, Transcriber):
            rate = self.pipeline.rate
            self.read = lambda path: read(path, rate)
        self.limits = Decoding(Greedy(), self.pipeline.max_length, self.pipeline.max_rows)
        clock = "process time" if options.process_time else "wall time"
        self.machine = f"{machine_name(device)}, {clock}"

    def run(self) -> None:
        """Measure what is missing.

        Raises:
            OutOfTime: the time was over before everything was done.
        """
        choice = self.choose()
        listed = list(
            systems(self.pipeline.model, choice, self.options.widths, self.options.chains)
        )
        about = {
            "model": Path(self.options.model).name,
            "data": self.options.data.name,
            "npad": __version__,
            "torch": torch.__version__,
            "machine": self.machine,
            "metrics": self.metrics,
            "references": self.test.references,
            "chosen": {
                "sigma": choice.noise.sigma,
                "schedule": type(choice.noise.schedule).__name__,
                "alpha": {"NPAD": choice.npad.alpha, "beam": choice.beam.alpha},
            },
            "systems": [[system.name, system.family] for system in listed],
        }
        self.record.row(("about",), lambda: about)
        for batch in self.options.batches:
            self.times(listed, batch)
        for seed in range(self.options.seeds):
            for system in listed if seed == 0 else [s for s in listed if s.seeded]:
                self.outputs(system.name, self.test, system.decoder.with_seed(seed), seed)

    def choose(self) -> Choice:
        """Choose noise and α on the validation set by the first metric."""
        model, ln = self.pipeline.model, LengthNormalised(ALPHAS[-1])
        tried = {noise: NPAD(Greedy(), CHOSEN_BY, noise, selector=ln) for noise in noises(model)}
        noise = max(tried, key=lambda noise: self.quality(tried[noise]))
        chains = NPAD(Greedy(), CHOSEN_BY, noise)
        selectors = [LengthNormalised(alpha) for alpha in ALPHAS]
        of_npad = max(selectors, key=lambda s: self.quality(replace(chains, selector=s)))
        beam = Beam(BEAM_CHOSEN_BY)
        of_beams = max(selectors, key=lambda s: self.quality(Selected(beam, s)))
        return Choice(noise, of_npad, of_beams)

    def quality(self, decoder: Decoder) -> float:
        """Return the quality of a decoder on the validation set; higher is better."""
        entry = self.outputs("validation", self.valid, decoder, 0)
        scorer = Scorer(metric_named(self.metrics[0]), self.valid.references)
        statistics = scorer.statistics(entry["texts"], entry["log_probs"])
        return float(scorer.metric.qualities(statistics.sum(0)))

    def outputs(
        self, name: str, lines: ParallelLines, decoder: Decoder, seed: int
    ) -> dict[str, Any]:
        """Return a decoder's outputs on a set, and their cost."""

        def decode() -> dict[str, Any]:
            decoding = replace(self.limits, decoder=decoder)
            done = decode_timed(self.pipeline, map(self.read, lines.sources), decoding)
            print(f"{lines.name} {name}, seed {seed}: {done.seconds:.1f} s", flush=True)
            return {
                "texts": [output.text for output in done.outputs],
                "log_probs": [output.log_prob for output in done.outputs],
                "calls": done.calls,
                "rescored": done.rescored,
            }

        key = ("outputs", lines.name, len(lines.sources), name, seed, decoder_signature(decoder))
        entry: dict[str, Any] = self.record.row(key, decode)
        return entry

    def times(self, listed: Sequence[System], batch: int) -> None:
        """Time all decoders in turn, on the first sentences of the test set."""
        count = max(self.options.timed, batch)
        sources = list(map(self.read, self.test.sources[:count]))

        def measure() -> dict[str, Any]:
            print(f"times of {len(sources)} sources in batches of {batch}", flush=True)
            decodings = {s.name: replace(self.limits, decoder=s.decoder) for s in listed}
            with ExitStack() as stack:
                if self.options.process_time:
                    stack.enter_context(clocked_by(time.process_time))
                rounds = self.options.rounds
                found = time_in_turn(self.pipeline, sources, decodings, batch, rounds)
            return {name: asdict(timing) for name, timing in found.items()}

        names = [decoder_signature(system.decoder) for system in listed]
        self.record.row(("times", self.machine, batch, count, self.options.rounds, *names), measure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is missing in the file."""
    parser = argparse.ArgumentParser(
        "python -m studies.latency", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--model", default="en-de")
    parser.add_argument("--data", type=Path, required=True, help="folder of valid and test sets")
    parser.add_argument("--languages", nargs=2, default=("en", "de"), help="suffixes of the files")
    parser.add_argument("--out", type=Path, required=True, help="FILE.jsonl")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--test", type=int, default=1000, help="lines to measure on")
    parser.add_argument("--validation", type=int, default=400, help="lines to choose on")
    parser.add_argument("--timed", type=int, default=128, help="lines to time")
    parser.add_argument("--rounds", type=int, default=5, help="of which the median counts")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument(
        "--batches", type=int, nargs="*", default=BATCHES, help="none: measure no times"
    )
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS)
    parser.add_argument("--chains", type=int, nargs="+", default=CHAINS)
    parser.add_argument(
        "--process-time", action="store_true", help="time one thread, where the machine is busy"
    )
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin nothing afterwards")
    options = parser.parse_args(arguments)
    if options.process_time:
        torch.set_num_threads(1)
    try:
        Study(options).run()
        print("complete")
    except OutOfTime:
        print(f"stopped after {options.minutes:g} minutes: run it again to continue")
