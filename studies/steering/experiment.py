"""Steering: does greedy search with an actor find what a beam finds, at the cost of greedy search?

python -m studies.steering FOLDER --data DIR --model en-de

trains and decodes; it needs neither sacrebleu nor a terminal's libraries. Every step is stored once
(studies.steering.steps), so that the same command continues a killed run. Actors and weights are
chosen by BLEU of greedy search on the validation set, σ₀ by the log-probability of what NPAD-5
finds there. --report then times 100 sentences, scores the outputs and writes FOLDER/README.md.
--seconds-only times the rows, best while nothing else runs; --grid trains variants of the actor
with one seed.
"""

from __future__ import annotations

import argparse
import math
import platform
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from npad.engine.devices import device_named
from npad.errors import NpadError
from npad.hypotheses import Hypothesis
from npad.noise.noisy import Noise
from npad.reproduce.data import ParallelText
from npad.reproduce.record import Record
from npad.search.beam import Beam
from npad.search.greedy import Greedy
from npad.search.npad import NPAD
from npad.search.sampling import SharedSampling
from npad.storage.atomic import exclusive_lock
from studies.hypotheses import OutOfTime
from studies.steering.rows import (
    CLEAN,
    SAMPLES,
    SIGMAS,
    SIZES,
    STEERED,
    TEMPERATURE,
    Chosen,
    Row,
    Unjudged,
    best_per_token,
    decode_all,
    described,
    judged,
    mean,
    rows,
    seconds_of,
    timed_rows,
    weights_rows,
)
from studies.steering.steps import ACTOR, FINE_TUNING, NUMBERS, OUTPUTS, Entry, Plan, Steps
from studies.steering.variant import WEIGHTS, Variant

CALIBRATED = 300  # validation sentences that choose σ₀ and the number of samples


class Steering(Steps):
    """The experiment: its steps, and the rows of its report."""

    @cached_property
    def chosen(self) -> Chosen:
        """σ₀ over both models and the numbers of samples, chosen on validation sentences."""
        sources = self.encoded(self.valid.sources[:CALIBRATED])
        limit = self.plan.max_length

        def values() -> Entry:
            steered = self.searched(self.plan.actor, 0)
            grids: Entry = {}
            for over, model in ((CLEAN, self.model), (STEERED, steered)):
                found = {
                    sigma: decode_all(model, sources, NPAD(Greedy(), 5, Noise(sigma)), limit)
                    for sigma in SIGMAS
                }
                grids[over] = {
                    str(sigma): mean(judged(self.model, sources, decoded.best))
                    for sigma, decoded in found.items()
                }
            beams = [decode_all(self.model, sources, Beam(width), limit).calls for width in SIZES]
            calls = {}
            for samples in SAMPLES:
                shared = SharedSampling(samples, TEMPERATURE)
                calls[str(samples)] = decode_all(self.model, sources, shared, limit).calls
                if calls[str(samples)] > max(beams):
                    break
            return {"log_prob": grids, "beam_calls": beams, "sample_calls": calls}

        record = self.record.row(("chosen",), values)
        best = {
            over: float(max(grid, key=grid.__getitem__))
            for over, grid in record["log_prob"].items()
        }
        samples = [
            max((int(n) for n, calls in record["sample_calls"].items() if calls <= beam), default=1)
            for beam in record["beam_calls"]
        ]
        return Chosen(best[CLEAN], best[STEERED], (samples[0], samples[1]))

    def decode(self, row: Row, seed: int, model: Any) -> None:
        """Decode the test set by a row, and store its outputs."""
        sources = self.encoded(self.test.sources)

        def values() -> Entry:
            decoded = decode_all(model, sources, row.decoder, self.plan.max_length)
            log_probs = judged(self.model, sources, decoded.best)
            self.note(f"{row.system}, seed {seed}: NLL {-mean(log_probs):.3f}")
            record = {
                "signature": described(row, self.model),
                "seeded": row.seeded,
                "calls": decoded.calls,
                "rescored": decoded.rescored,
                **self._outputs(decoded.best, log_probs),
            }
            if row.normalised:
                chosen = [hypotheses[best_per_token(hypotheses)] for hypotheses in decoded.found]
                record["normalised"] = self._outputs(chosen, judged(self.model, sources, chosen))
            return record

        self.record.row(("row", row.system, seed), values)

    def _outputs(self, best: Sequence[Hypothesis], log_probs: Sequence[float]) -> Entry:
        return {
            "finished": mean([hypothesis.finished for hypothesis in best]),
            "log_probs": list(log_probs),
            "texts": self.detokeniser.all([hypothesis.tokens for hypothesis in best]),
        }

    def run(self) -> None:
        """Train and decode whatever is missing; seed by seed, so that a stopped run has a report.

        Raises:
            OutOfTime: the time was over before everything was done.
        """
        plan = self.plan
        for seed in range(max(plan.seeds, plan.weights_seeds)):
            if seed < plan.seeds:
                steered = self.searched(plan.actor, seed)
                for row in rows(self.chosen, seed):
                    self.decode(row, seed, steered if row.over == STEERED else self.model)
            if seed < plan.weights_seeds:
                tuned = self.searched(plan.weights, seed)
                for row in weights_rows():
                    self.decode(row, seed, tuned)

    def grid(self, variants: Sequence[Variant]) -> None:
        """Train variants with the first seed; greedy search with each decodes the test set."""
        self.decode(Row("greedy", CLEAN, Greedy(), False), 0, self.model)
        for variant in variants:
            try:
                model = self.searched(variant, 0)
                self.decode(Row(f"grid {variant.name}", STEERED, Greedy()), 0, model)
            except (NpadError, RuntimeError) as error:  # the other variants go on
                self.note(f"{variant.name} failed: {error}")

    def time(self, sentences: int) -> None:
        """Time the rows of the first seed on the first test sentences; 0: on all of them."""
        sources = self.encoded(self.test.sources)[: sentences or None]
        device = device_words(self.plan.device)
        models = {CLEAN: self.model, STEERED: self.searched(self.plan.actor, 0)}
        weights = self.plan.weights_seeds > 0 and self.plan.device.type == "cuda"
        if weights:
            models[WEIGHTS] = self.searched(self.plan.weights, 0)
        for row, alone in timed_rows(self.chosen, weights):
            model = models[row.over]
            if alone:
                model = Unjudged(self.model, self.actor(self.plan.actor, 0))

            def values(row: Row = row, model: Any = model) -> Entry:
                seconds = seconds_of(model, sources, row.decoder, self.plan.max_length)
                self.note(f"{row.system}: {min(seconds):.3f} s on {device}")
                return {"sentences": len(sources), "device": device, "seconds": seconds}

            self.record.row(("seconds", self.plan.device.type, row.system), values)


def device_words(device: torch.device) -> str:
    """Return a device in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{torch.get_num_threads()} threads of a CPU, {platform.machine()}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Train and decode what is missing in the folder."""
    options = _parser().parse_args(arguments)
    began = time.monotonic()
    try:
        device = device_named(options.device, "--device")
        variants = [Variant.parse(text) for text in options.grid]
        with exclusive_lock(options.folder / ".lock", f"working in {options.folder}"):
            plan = _plan(options, device)
            steering = Steering(options.folder, plan, options.minutes, _note(began))
            if options.seconds_only is not None:
                steering.time(options.seconds_only)
            elif variants:
                steering.grid(variants)
            else:
                steering.run()
                if options.report:
                    from studies.steering.report import finish  # needs sacrebleu

                    finish(steering)
        print("complete")
    except OutOfTime:
        print(f"stopped after {options.minutes:g} minutes: run it again to continue")
    except NpadError as error:
        raise SystemExit(f"error: {error}") from error


def _note(began: float) -> Any:
    return lambda text: print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)


def _plan(options: argparse.Namespace, device: torch.device) -> Plan:
    actor, weights = best_variants(options.choose_from)
    actor = Variant.parse(f"actor:{options.actor}", actor)
    weights = Variant.parse(f"weights:{options.weights}", weights)
    return Plan(
        ParallelText.find(options.data, options.source, options.target),
        options.title or options.data.resolve().name,
        options.model,
        actor,
        weights.learning_from(actor),
        tuple(map(str, options.more)),
        device,
        **{number.name: getattr(options, number.name) for number in NUMBERS},
    )


def best_variants(folders: Sequence[Path]) -> tuple[Variant, Variant]:
    """Return the actor and the weights of best validation BLEU in grids; the defaults without."""
    best, scores = {"actor": ACTOR, "weights": FINE_TUNING}, {"actor": 0.0, "weights": 0.0}
    for folder in folders:
        for (kind, *_), record in Record(folder / OUTPUTS).results.items():
            if kind in best:
                score = max(point["criterion"] for point in record["curve"])
                if score > scores[kind]:
                    scores[kind], best[kind] = score, Variant(**record["variant"])
    return best["actor"], best["weights"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m studies.steering",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="folder of parallel text")
    parser.add_argument("--from", dest="source", default="en", help="source language")
    parser.add_argument("--to", dest="target", help="target language")
    parser.add_argument("--model", required=True, help="a model, such as one of `npad train`")
    parser.add_argument("--title", help="of the data set in the report")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--actor", default="", help="field=value,… of the actor's variant")
    parser.add_argument("--weights", default="", help="the same of fine-tuning")
    parser.add_argument("--grid", nargs="+", default=[], help="NAME:field=value,… to train")
    parser.add_argument(
        "--choose-from",
        type=Path,
        nargs="+",
        default=[],
        metavar="FOLDER",
        help="take the variants of best validation BLEU in these folders of --grid",
    )
    parser.add_argument("--more", type=Path, nargs="+", default=[], help="further sources")
    parser.add_argument("--report", action="store_true", help="then time, score and report")
    parser.add_argument("--seconds-only", type=int, help="time so many test sentences; 0: all")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin nothing afterwards")
    for number in NUMBERS:
        flag, help = f"--{number.name.replace('_', '-')}", number.metadata["help"]
        parser.add_argument(flag, type=int, default=number.default, help=f"{help} [%(default)s]")
    return parser


if __name__ == "__main__":
    main()
