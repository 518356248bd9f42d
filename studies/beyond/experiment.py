"""Measure a folder of `npad reproduce` further, with the same model and data.

python -m studies.beyond FOLDER --data DATA [--model NAME] [--train-sigmas 0.1,0.3,0.5]

The report in FOLDER/README.md then also has equal compute, tempered sampling, other schedules and
distributions, selectors, search errors and, with --train-sigmas, models trained with noise. An
interrupted run continues where it stopped.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from npad.cli.display import Display
from npad.engine.devices import device_named
from npad.errors import InvalidInput, NpadError
from npad.noise.noisy import Noise
from npad.pipelines.translation import Translator
from npad.reproduce import reproduce as experiment
from npad.reproduce.data import ParallelText
from npad.reproduce.report import Setup
from npad.search.greedy import Greedy
from npad.search.request import Decoding
from npad.training.run import TrainingPlan
from npad.validation import ensure_number
from studies.beyond.outline import Beyond


def run(options: argparse.Namespace) -> None:
    """Measure what the report of the folder lacks, and write it."""
    folder, sigmas = options.folder, parse_sigmas(options.train_sigmas)
    setup, own = Setup.load(folder), folder / "model"
    if sigmas and options.model is not None:
        raise InvalidInput("--train-sigmas compares models trained here; leave out --model")
    device = device_named(options.device, "--device")
    plan = experiment.Reproduction(
        text=ParallelText.find(options.data, options.source, options.target),
        title=setup.title,
        command=shlex.join(["python -m studies.beyond", *sys.argv[1:]]),
        model=options.model or str(own),
        seeds=setup.seeds,
        limits=Decoding(Greedy(), setup.max_length, options.max_rows),
        device=device,
        precision=options.precision,
    )
    watch, models = Display(), dict[float, Path]()
    with watch.live():
        for sigma in sigmas:
            trained = TrainingPlan.load(own)
            training = experiment.Training(trained.options, trained.recipe)
            models[sigma] = experiment.trained_model(
                folder, replace(plan, training=training), watch, Noise(sigma)
            )
        sets = plan.text.sets()

        def noisy(sigma: float) -> Translator:
            return experiment.loaded(plan, models[sigma], sets)

        exact = (options.exact, options.budget)
        further = {"brief": False, "exact": exact, "sigmas": sigmas}
        experiment.reproduce(folder, plan, watch, watch.measuring, Beyond(noisy), **further)


def parse_sigmas(text: str) -> tuple[float, ...]:
    """Return the σ₀ of a list with commas.

    Raises:
        InvalidInput: one is not a number above 0.
    """
    try:
        sigmas = tuple(float(part) for part in text.split(",") if part)
    except ValueError as error:
        raise InvalidInput(
            f"--train-sigmas must be numbers separated by commas, not {text!r}"
        ) from error
    for sigma in sigmas:
        ensure_number("the σ₀ to train with", sigma, above=0)
    return sigmas


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure further; a mistake prints one line."""
    parser = argparse.ArgumentParser(
        "python -m studies.beyond", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("folder", type=Path, help="folder of npad reproduce")
    parser.add_argument("--data", type=Path, required=True, help="its parallel text")
    parser.add_argument("--from", dest="source", default="en", help="source language")
    parser.add_argument("--to", dest="target", help="target language; the other one by default")
    parser.add_argument("--model", help="its model, unless it trained one")
    parser.add_argument("--train-sigmas", default="", help="σ₀ of models to train with noise")
    parser.add_argument("--exact", type=int, default=100, help="sentences for exact search")
    parser.add_argument("--budget", type=int, default=500, help="calls of exact search for each")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="float32", help="of noisy chains")
    parser.add_argument("--max-rows", type=int, default=1024, help="as for npad reproduce")
    try:
        run(parser.parse_args(arguments))
    except NpadError as error:
        raise SystemExit(f"error: {error}") from error
