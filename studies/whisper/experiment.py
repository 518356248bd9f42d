"""Decode noisy strings of digits with a Whisper model, by many decoders: what the report reads.

python -m studies.whisper --model hf:whisper-tiny.en --data DIR --out FILE.jsonl.gz

DIR holds fsdd.tar.xz or fsdd/fsdd.tar.xz. Site, σ₀ and schedule of the noise are chosen on
validation speech first, by the log-probability of what NPAD-5 finds. Each line of FILE is one
decoder on one set: its distinct candidates for every recording with their counts and scores, so
that the report can select by any rule; calls and seconds. A run that is stopped continues where it
was. It needs torch, transformers, tokenizers and NumPy only.
"""

from __future__ import annotations

import argparse
import math
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from npad.decoding import decode
from npad.engine.cost import count_calls
from npad.engine.devices import device_named
from npad.noise.noisy import Noise
from npad.noise.random import stable_hash
from npad.pipelines.loading import load_as
from npad.pipelines.transcription import Transcriber
from npad.reproduce.record import Record
from npad.schedules import Annealed, Constant, Schedule
from npad.search.beam import Beam
from npad.search.best_of import BestOf
from npad.search.decoder import Decoder
from npad.search.fallback import Fallback
from npad.search.greedy import Greedy
from npad.search.npad import NPAD
from npad.search.sampling import Sampling
from npad.signatures import signature
from studies.digits import (
    TEST_SEED,
    TEST_TAKES,
    VALIDATION_SEED,
    VALIDATION_TAKES,
    Utterance,
    archive_in,
    at_levels,
    read_takes,
    utterances,
)
from studies.hypotheses import Deadline, OutOfTime, candidates

SIZES = (5, 10, 20)  # rows of each decoder
DECIBELS = (20, 10, 0)
SITES = ("embedding", "hidden", "output")
SIGMAS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.8)  # relative to the size of what they perturb
SCHEDULES: dict[str, Schedule] = {"1/t": Annealed(), "constant": Constant()}
CALIBRATED_ROWS = 5
VALIDATION = "validation"  # the set of all noise levels
SEEDS = 3
MAX_LENGTH = 60  # tokens; eight digits have about 20
MAX_ROWS = 4096
MAX_WINDOWS = 256  # at a time: each has 18 MB of keys and values


Entry = dict[str, Any]  # a line of the file


@dataclass(frozen=True)
class SpeechSet:
    """Recordings as the model reads them, with their transcripts."""

    name: str
    references: list[str]
    source: Any  # one row per recording
    ids: list[int]


@dataclass(frozen=True)
class Job:
    """A decoder on a set of recordings."""

    system: str
    rows: int
    seed: int
    on: str
    decoder: Decoder

    @property
    def key(self) -> tuple[str, int, int, str]:
        return self.system, self.rows, self.seed, self.on


def speech_set(
    heard: Transcriber, strings: Sequence[Utterance], name: str, levels: Sequence[float]
) -> SpeechSet:
    """Return all strings with noise at each level, as the model's source on its device."""
    noisy, references = zip(*at_levels(strings, levels), strict=True)
    parts = [heard.hear(noisy[i : i + 50]) for i in range(0, len(noisy), 50)]
    device = getattr(heard.model, "device", "cpu")
    tensors = {
        key: torch.cat([part.tensors[key] for part in parts]).to(device) for key in parts[0].tensors
    }
    ids = [stable_hash(samples.numpy().tobytes()) for samples in noisy]
    return SpeechSet(name, list(references), type(parts[0])(**tensors), ids)


def calibration_jobs() -> Iterator[tuple[Noise, Job]]:
    """Yield every site, schedule and σ₀ with NPAD-5."""
    for site in SITES:
        for name, schedule in SCHEDULES.items():
            for sigma in SIGMAS:
                noise = Noise(sigma, schedule, site=site, relative=True)
                decoder = NPAD(Greedy(), CALIBRATED_ROWS, noise)
                system = f"npad {site} {name} {sigma:g}"
                yield noise, Job(system, CALIBRATED_ROWS, 0, VALIDATION, decoder)


def jobs(noise: Noise, sets: Sequence[str], seeds: int, sizes: Sequence[int]) -> Iterator[Job]:
    """Yield all decoders on all sets, the first seed first."""
    for seed in range(seeds):
        for on in sets:
            if seed == 0:
                yield Job("greedy", 1, 0, on, Greedy())
        for rows in sizes:
            for on in sets:
                if seed == 0:
                    yield Job("beam", rows, 0, on, Beam(rows, nbest=rows))
                yield Job("npad", rows, seed, on, NPAD(Greedy(), rows, noise, seed=seed))
                sampled = Sampling(rows - 1, temperature=0.5, seed=seed)
                yield Job("sampling", rows, seed, on, BestOf((Greedy(), sampled)))
                recipe = Fallback(Beam(rows), samples=rows, seed=seed)
                yield Job("recipe", rows, seed, on, recipe)


def run(heard: Transcriber, job: Job, data: SpeechSet, max_rows: int = MAX_ROWS) -> Entry:
    """Decode a set; return the candidates of every recording, and the cost."""
    decoder = job.decoder.with_texts(heard.detokenise, heard.detokenise)
    size = max(1, min(MAX_WINDOWS, max_rows // decoder.rows))
    text = cache(heard.detokenise)
    start, found = time.perf_counter(), []
    with count_calls() as calls:
        for i in range(0, len(data.ids), size):
            part = slice(i, i + size)
            found += decode(
                heard.model, data.source[part], decoder, MAX_LENGTH, data.ids[part], max_rows
            )
    entry = {
        "system": job.system,
        "rows": job.rows,
        "seed": job.seed,
        "set": job.on,
        "signature": signature(job.decoder, heard.model),
        "seconds": round(time.perf_counter() - start, 3),
        "calls": calls.search,
        "rescored": calls.rescoring,
        "references": data.references,
        "candidates": [candidates(hypotheses, text) for hypotheses in found],
    }
    print(f"{job.key}: {-mean_log_prob(entry):.3f}; {entry['seconds']:.1f} s", flush=True)
    return entry


def mean_log_prob(entry: Entry) -> float:
    """Return the mean log-probability of each recording's first candidate."""
    best = [found[0][1] for found in entry["candidates"]]
    return math.fsum(best) / len(best)


def main(arguments: Sequence[str] | None = None) -> None:
    """Decode what is missing in the file."""
    parser = argparse.ArgumentParser(
        "python -m studies.whisper", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--model", required=True, help="hf:FOLDER of a Whisper model")
    parser.add_argument("--data", type=Path, required=True, help="folder of fsdd.tar.xz")
    parser.add_argument("--out", type=Path, required=True, help="FILE.jsonl.gz")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--test", type=int, default=500, help="strings of digits to measure on")
    parser.add_argument("--validation", type=int, default=100, help="strings to calibrate on")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin nothing afterwards")
    options = parser.parse_args(arguments)
    try:
        decode_all(options)
        print("complete")
    except OutOfTime:
        print(f"stopped after {options.minutes:g} minutes: run it again to continue")


def decode_all(options: argparse.Namespace) -> None:
    """Choose the noise on validation speech, and decode the test sets by every decoder.

    Raises:
        OutOfTime: the time was over before everything was done.
    """
    record = Record(options.out, Deadline(options.minutes))
    heard = load_as(Transcriber, options.model, device_named(options.device, "--device"))
    record.row(("about",), lambda: {"about": _about(heard, options)})

    def strings(takes: range, count: int, seed: int) -> list[Utterance]:
        recordings = read_takes(archive_in(options.data), takes, heard.rate)
        return utterances(recordings, count, heard.rate, seed)

    def outputs(job: Job, data: SpeechSet) -> Entry:
        entry: Entry = record.row(job.key, lambda: run(heard, job, data))
        return entry

    spoken = strings(VALIDATION_TAKES, options.validation, VALIDATION_SEED)
    valid = speech_set(heard, spoken, VALIDATION, DECIBELS)
    scores = {noise: mean_log_prob(outputs(job, valid)) for noise, job in calibration_jobs()}
    noise = max(scores, key=scores.__getitem__)
    print(f"chosen on validation speech: {noise}")
    spoken = strings(TEST_TAKES, options.test, TEST_SEED)
    test = {f"{db} dB": speech_set(heard, spoken, f"{db} dB", [db]) for db in DECIBELS}
    for job in jobs(noise, list(test), options.seeds, options.sizes):
        outputs(job, test[job.on])


def _about(heard: Transcriber, options: argparse.Namespace) -> dict[str, Any]:
    device = getattr(heard.model, "device", torch.device("cpu"))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        "command": "python -m studies.whisper",
        "model": Path(options.model).name,
        "device": name,
        "torch": torch.__version__,
        "test": options.test,
        "validation": options.validation,
        "decibels": list(DECIBELS),
        "max_length": MAX_LENGTH,
    }


if __name__ == "__main__":
    main()
