"""Decoders are timed warm and in turn, and the median of the rounds counts."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch

import npad
from npad import Beam, Greedy
from npad.engine.cost import Timing, clocked_by
from npad.engine.cuda_graphs import EAGER_CALLS
from npad.engine.devices import machine_name
from npad.evaluate.report import Evaluation, with_times
from npad.evaluate.timing import time_in_turn, warm_up
from npad.search.request import Decoding

CPU = torch.device("cpu")
DECODINGS = {"greedy": Decoding(Greedy()), "beam": Decoding(Beam())}


@dataclass
class Clockwork:
    """A pipeline that takes so many seconds per call, by decoder, and notes what it decodes."""

    seconds: dict[str, list[float]]
    model: object = field(default_factory=lambda: SimpleNamespace(device=CPU))
    time: float = 0.0
    decoded: list[tuple[str, int]] = field(default_factory=list)

    def run(self, sources, decoding, window):
        name = next(name for name, known in DECODINGS.items() if known is decoding)
        self.decoded.append((name, len(sources)))
        self.time += self.seconds[name].pop(0)
        yield from sources


def test_decoders_take_turns_after_a_warm_up_and_the_median_counts():
    pipeline = Clockwork({"greedy": [90.0, 1, 2, 8, 9, 3, 3], "beam": [90.0, *[5] * 6]})
    steps = []
    with clocked_by(lambda: pipeline.time):
        times = time_in_turn(pipeline, "abc", DECODINGS, 2, 3, lambda *step: steps.append(step))
    turn = [("greedy", 2), ("greedy", 1), ("beam", 2), ("beam", 1)]
    assert pipeline.decoded == [("greedy", 2), ("beam", 2), *turn * 3]
    assert steps[-1] == (6, 6)
    greedy, beam = times["greedy"], times["beam"]
    assert greedy == Timing((1, 17 / 3, 2), 2, 3, machine_name(CPU))
    assert (greedy.milliseconds, greedy.per_second) == (2000, 0.5)
    assert greedy.spread == (1000, pytest.approx(17000 / 3))
    assert beam.milliseconds == pytest.approx(10000 / 3)


def test_a_gpu_is_warm_once_its_steps_are_captured():
    batches = [["a"], ["b"]]
    assert warm_up(batches, CPU) == [["a"]]
    assert warm_up(batches, torch.device("cuda")) == batches * (EAGER_CALLS + 1)


def test_reports_have_the_time_of_one_sentence_and_of_many():
    toy, sources = npad.load("toy"), ["danke", "na ja"]
    report, _ = Evaluation(toy, sources, sources).evaluate(DECODINGS["greedy"])
    assert (report.times, report.in_words()) == ((), [])
    reports = with_times(toy, sources, {"greedy": DECODINGS["greedy"]}, {"greedy": report})
    alone, many = reports["greedy"].times
    assert (alone.batch, many.batch) == (1, 2)
    first, second = reports["greedy"].in_words()
    assert first.startswith(f"{alone.milliseconds:.1f} ms [")
    assert second.startswith(f"{many.per_second:,.1f}/s [")
    recorded = reports["greedy"].to_json()["times"]
    assert [timing["machine"] for timing in recorded] == [machine_name(CPU)] * 2


def test_the_commands_show_times_on_request(tmp_path, npad_here):
    source, reference = tmp_path / "few.de", tmp_path / "few.en"
    source.write_text("danke\nna ja\n")
    reference.write_text("thanks\nwell\n")
    printed = npad_here("evaluate", source, reference, "-m", "toy", "--time").stdout
    assert "ms [" in printed
    assert "sentences per second" in printed
    assert machine_name(CPU) in printed
    toy = ("compare", source, "-m", "toy", "-d", "greedy", "-d", "beam")
    printed = npad_here(*toy, "--time").stdout
    assert "batches of 2: sentences per second" in printed
    records = [json.loads(line) for line in npad_here(*toy, "--time", "--json").stdout.splitlines()]
    assert [len(record["times"]) for record in records] == [2, 2]
    assert "Time on" not in npad_here(*toy).stdout
    for mistake, rule in {
        ("compare", "-m", "toy", "danke", "--time"): "--time is measured on the lines of a file",
        ("evaluate", source, reference, "-m", "toy", "--time", "--engine", "local"): (
            "--time is measured on texts in this process, without --engine"
        ),
    }.items():
        assert rule in npad_here(*mistake, code=2).stderr
