"""Calibration: the best decoder within a budget, on sentences that the search has not seen."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import pytest
import torch

import npad
from cases import counting_tokeniser
from npad import Beam, Exact, Greedy, Hypothesis, InvalidInput, Sampling
from npad.calibrate import trials
from npad.calibrate.calibrate import Options, Pairs, calibrate
from npad.calibrate.decoder_space import TEACHER, Candidate
from npad.calibrate.decoding_tasks import Translating
from npad.calibrate.report import as_record, verdict
from npad.engine.cost import Timing, clocked_by, count_calls
from npad.engine.devices import machine_name
from npad.errors import StorageError
from npad.evaluate.report import TimedOutputs, decode_timed
from npad.evaluate.timing import time_in_turn
from npad.metrics.registry import METRICS
from npad.pipelines.outputs import Output
from npad.reproduce.record import Record

TOY = npad.load("toy")
PHRASES = ["das ist mir wurst", "danke", "na ja", "ich verstehe nur bahnhof"]
MANY = Pairs(PHRASES * 12)
BEAMS = [
    Candidate("greedy", "greedy", Greedy(), "greedy"),
    *(Candidate(f"beam {w}", "beam", Beam(w), "beam") for w in (2, 3, 5, 8, 12)),
]
FEW = 6  # sentences of the first rung


@dataclass
class Scripted:
    """A pipeline whose outputs and cost are those of a script, by decoder and source."""

    script: object
    model: object = TOY.model
    max_length: int = 200
    max_rows: int = 1024
    decoded: int = 0
    stops_after: int = 10**9

    def decode_timed(self, sources, decoding):
        self.decoded += 1
        if self.decoded > self.stops_after:
            raise KeyboardInterrupt
        scripted = [self.script(decoding.decoder, source) for source in sources]
        calls = sum(cost for _, cost in scripted)
        outputs = [
            Output(source, log_prob, Hypothesis((), log_prob, True), "")
            for source, (log_prob, _) in zip(sources, scripted, strict=True)
        ]
        return TimedOutputs(outputs, calls, 0, 0.001 * calls)


@pytest.fixture(autouse=True)
def scripts(monkeypatch):
    """Let scripted pipelines say what decoding costs."""

    def decode(pipeline, sources, decoding, *more):
        if isinstance(pipeline, Scripted):
            return pipeline.decode_timed(sources, decoding)
        return decode_timed(pipeline, sources, decoding, *more)

    def in_turn(pipeline, sources, decodings, batch):
        if not isinstance(pipeline, Scripted):
            return time_in_turn(pipeline, sources, decodings, batch)
        found = {n: pipeline.decode_timed(sources, d).seconds for n, d in decodings.items()}
        return {n: Timing((s / len(sources),), batch, len(sources), "") for n, s in found.items()}

    monkeypatch.setattr(trials, "decode_timed", decode)
    monkeypatch.setattr(trials, "time_in_turn", in_turn)


def test_the_best_configuration_of_the_toy_is_found():
    """The most probable phrases begin with the fourth-best word: a beam of 5 is enough for all."""
    found = calibrate(TOY, MANY, Options(100, first_rung=FEW), candidates=BEAMS)
    optimum = [t.log_prob for t in TOY.translate(PHRASES, Exact())]
    reached = {c.name: [t.log_prob for t in TOY.translate(PHRASES, c.decoder)] for c in BEAMS}
    exact = [c.name for c in BEAMS if reached[c.name] == pytest.approx(optimum, abs=1e-4)]
    assert exact[0] == found.winner == found.first == "beam 5"
    assert found.frontier[-1] == "beam 5"
    assert found.on_held_out["greedy"].beats
    assert not any(comparison.is_beaten for comparison in found.on_held_out.values())
    assert found.references == "none"


@pytest.mark.parametrize("unit", ["calls", "milliseconds"])
@pytest.mark.parametrize("budget", [5, 9, 14, 40])
def test_the_recommendation_keeps_the_budget(budget, unit):
    try:
        options = Options(budget, unit, first_rung=FEW)
        found = calibrate(TOY, MANY, options, candidates=BEAMS)
    except InvalidInput as error:
        assert f"a budget of {budget} {unit} a sentence is too small" in str(error)  # noqa: PT017
        return
    if unit == "calls":
        assert found.winner == {5: "greedy", 9: "beam 2", 14: "beam 3", 40: "beam 5"}[budget]
    assert found.held_out[found.winner].cost <= budget
    last = found.rungs[-1].points
    assert all(last[name].cost <= budget for name in (found.first, found.winner, *found.frontier))


def test_a_clock_that_ticks_at_every_call_recommends_what_calls_do():
    with count_calls() as calls, clocked_by(lambda: (calls.search + calls.rescoring) / 1000):
        for budget in (9, 14, 40):
            timed = Options(budget, "milliseconds", first_rung=FEW)
            found = calibrate(TOY, MANY, timed, candidates=BEAMS)
            by_calls = calibrate(TOY, MANY, Options(budget, first_rung=FEW), candidates=BEAMS)
            assert (found.winner, found.frontier) == (by_calls.winner, by_calls.frontier)
    timing = found.times[found.winner]
    assert (timing.batch, timing.machine) == (1, machine_name(torch.device("cpu")))
    assert found.held_out[found.winner].cost == timing.milliseconds
    assert timing.spread == (pytest.approx(timing.milliseconds),) * 2
    assert by_calls.times == {}


def test_times_of_another_machine_are_measured_again(tmp_path, monkeypatch):
    def decoded(unit):
        scripted = Scripted(lambda decoder, source: (-float(decoder.rows), decoder.rows))
        options = Options(100, unit, first_rung=FEW)
        record = Record(tmp_path / f"{unit}.jsonl")
        calibrate(scripted, MANY, options, candidates=BEAMS, record=record)
        return scripted.decoded

    for unit in ("calls", "milliseconds"):
        assert decoded(unit) > decoded(unit) == 0
    monkeypatch.setattr(trials, "machine_name", lambda device: "another")
    assert decoded("calls") == 0
    assert decoded("milliseconds") > 0


def first_sentence(found):
    """Return why the best of the search is not recommended."""
    options = dict.fromkeys(found.candidates, "")
    return verdict(as_record(found, "toy", options, {}))[0].removesuffix(" held-out sentences.")


def test_costs_beyond_the_budget_on_held_out_sentences_are_not_recommended():
    """Sources that cost ten times as much are held out: only greedy search is left."""

    def script(decoder, source):
        return float(decoder.rows), decoder.rows * (10 if source.startswith("long") else 1)

    pairs, held = Pairs(["short"] * 8), Pairs(["long"] * 8)
    found = calibrate(Scripted(script), pairs, Options(12), held, BEAMS)
    assert (found.first, found.winner) == ("beam 12", "greedy")
    sentence = "beam 12 was best in the search, but needs 120.0 calls per sentence, over the budget"
    assert first_sentence(found) == f"{sentence} of 12, on the"
    with pytest.raises(InvalidInput, match=r"cheapest decoder, greedy, takes 10\.0; give more"):
        calibrate(Scripted(script), pairs, Options(9), held, BEAMS)


def test_who_is_beaten_on_held_out_sentences_is_not_recommended():
    """A beam of 3 wins the search, a beam of 8 the held-out sentences, clearly."""

    def script(decoder, source):
        best = 8 if source.startswith("held") else 3
        return -abs(decoder.rows - best), decoder.rows

    pairs, held = Pairs(["seen"] * 20), Pairs([f"held {i}" for i in range(20)])
    found = calibrate(Scripted(script), pairs, Options(100), held, BEAMS, progress=print)
    assert (found.first, found.winner) == ("beam 3", "beam 8")
    assert first_sentence(found) == "beam 3 was best in the search, but is beaten on the"
    assert not any(comparison.is_beaten for comparison in found.on_held_out.values())


def test_the_best_of_every_family_or_all_decoders_are_checked():
    every = {candidate.name for candidate in BEAMS}
    for check_all, names in ((False, {"greedy", "beam 2"}), (True, every)):
        scripted = Scripted(lambda decoder, source: (-float(decoder.rows), decoder.rows))
        options = Options(100, first_rung=FEW, check_all=check_all)
        assert set(calibrate(scripted, MANY, options, candidates=BEAMS).held_out) == names


def test_the_cheapest_tie_is_named():
    found = calibrate(TOY, MANY, Options(100, first_rung=FEW), candidates=BEAMS[3:])
    assert (found.winner, found.cheaper) == ("beam 5", None)

    def script(decoder, source):
        lucky = decoder.rows == 8 and source == "0"
        return -1.0 + lucky, decoder.rows

    pairs = Pairs([str(i % 4) for i in range(40)])
    found = calibrate(Scripted(script), pairs, Options(100), pairs, BEAMS)
    assert (found.winner, found.cheaper) == ("beam 8", None)
    once = Pairs([str(i) for i in range(40)])
    found = calibrate(Scripted(script), once, Options(100), once, BEAMS)
    assert (found.winner, found.cheaper) == ("beam 8", "greedy")  # one sentence may be chance

    def by_part(decoder, source):
        return -1.0 + (decoder.rows == 8 and source != "held"), decoder.rows

    held = Pairs(["held"] * 40)
    found = calibrate(Scripted(by_part), once, Options(100), held, BEAMS)
    assert (found.winner, found.cheaper) == ("beam 8", None)  # clear on one part


def test_the_seed_decides_the_answer():
    options = Options(40, first_rung=FEW)
    first, again = (calibrate(TOY, MANY, options, candidates=BEAMS) for _ in "ab")
    assert replace(first, seconds=0) == replace(again, seconds=0)
    parts = [MANY.split(seed) for seed in (0, 0, 1)]
    assert parts[0] == parts[1] != parts[2]
    assert sorted(parts[0][0].sources + parts[0][1].sources) == sorted(MANY.sources)


def test_an_interrupted_search_continues(tmp_path):
    """After any number of decodings it ends as if nothing had happened, milliseconds included."""

    def script(decoder, source):
        return -abs(decoder.rows - 5) - len(source) % 3, decoder.rows

    def search(task, name):
        record = Record(tmp_path / f"{name}.jsonl")
        options = Options(0.1 * 120, "milliseconds", first_rung=FEW)
        return calibrate(task, MANY, options, candidates=BEAMS, record=record)

    whole = Scripted(script)
    expected = search(whole, "whole")
    for kills in range(1, whole.decoded, 4):
        with pytest.raises(KeyboardInterrupt):
            search(Scripted(script, stops_after=kills), f"cut {kills}")
        path = tmp_path / f"cut {kills}.jsonl"
        if path.exists():
            path.write_bytes(path.read_bytes() + b'{"key": ["outp')  # a line that was cut off
        rest = Scripted(script)
        assert search(rest, f"cut {kills}") == expected
        assert rest.decoded <= whole.decoded - kills + 25  # a part, one by one, and its warm-up


def test_a_record_of_other_sentences_is_not_used(tmp_path):
    def script(decoder, source):
        return -1.0, decoder.rows

    record = tmp_path / "outputs.jsonl"
    for pairs, identity in ((MANY, "m"), (MANY, "n"), (Pairs(["other"] * 40), "m")):
        task = Scripted(script)
        calibrate(task, pairs, Options(100), None, BEAMS, Record(record), identity)
        assert task.decoded > 0
    again = Scripted(script)
    calibrate(again, MANY, Options(100), None, BEAMS, Record(record), "m")
    assert again.decoded == 0
    first, *others = record.read_text().splitlines()
    entry = json.loads(first)
    entry["value"]["texts"].pop()
    record.write_text("\n".join([json.dumps(entry), *others, ""]))
    with pytest.raises(StorageError, match="delete its line to measure it again"):
        calibrate(Scripted(script), MANY, Options(100), None, BEAMS, Record(record), "m")


def test_a_wide_beam_stands_in_for_references():
    found = calibrate(TOY, MANY, Options(100, metric="chrf", first_rung=FEW), candidates=BEAMS)
    assert found.references == f"beam {TEACHER.width}"
    assert found.held_out["beam 5"].quality == pytest.approx(100)  # it finds the same
    given = Pairs(MANY.sources, [t.text for t in TOY.translate(MANY.sources, TEACHER)])
    same = calibrate(TOY, given, Options(100, metric="chrf", first_rung=FEW), candidates=BEAMS)
    assert (same.references, same.held_out) == ("given", found.held_out)


def test_every_sentence_is_tokenised_once():
    translator, read = counting_tokeniser(TOY)
    calibrate(translator.caching(), MANY, Options(60), candidates=BEAMS)
    assert sorted(read) == sorted(PHRASES)


def test_progress_ends_where_it_said():
    steps = []
    note = lambda done, total: steps.append((done, total))  # noqa: E731
    calibrate(TOY, MANY, Options(60, first_rung=FEW), candidates=BEAMS, progress=note)
    done, totals = zip(*steps, strict=True)
    assert list(done) == sorted(done)
    assert all(d <= t for d, t in steps)
    assert done[-1] == totals[-1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: Pairs.checked([], None), "nothing to calibrate with: the sources are empty"),
        (lambda: Pairs.checked(["a"], ["a", "b"]), "there are 1 sources and 2 references"),
        (lambda: Pairs.checked(["danke"], None).split(0), "there is one sentence"),
        (lambda: Options(0), "budget must be a finite number above 0"),
        (lambda: Options(5, "joules"), "unit must be one of 'calls', 'milliseconds'"),
        (lambda: search(metric="comet"), "metric must be one of"),
        (lambda: search(candidates=BEAMS * 2), "each with a name of its own"),
        (lambda: search(budget=2), "too small: the cheapest decoder, greedy, takes 3"),
        (lambda: search(sources=["x" * 10**6]), "sentence 1 has 1,000,000 characters"),
    ],
)
def test_a_mistake_is_one_line(change, message):
    with pytest.raises(InvalidInput, match=message) as error:
        change()
    assert "\n" not in str(error.value)


def search(budget=50, metric=None, sources=(), candidates=BEAMS):
    translator = npad.load("en-de") if sources else TOY
    pairs = Pairs([*sources, *PHRASES])
    options = Options(budget, metric=metric)
    return calibrate(translator, pairs, options, Pairs(PHRASES), candidates)


def test_the_noise_of_samples_does_not_depend_on_the_rung():
    """A rung decodes only what is new, and finds what decoding all would find."""
    sampling = [Candidate("sampling 5", "sampling", Sampling(5), "sampling 5")]
    found = calibrate(TOY, MANY, Options(100, first_rung=3), MANY, sampling)
    assert len(found.rungs) == 5
    quality = found.held_out["sampling 5"].quality
    assert found.rungs[-1].points["sampling 5"].quality == pytest.approx(quality)


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_can_choose_a_decoder(name):
    """The references are what a beam of 5 finds, and it finds the most probable outputs."""
    texts = [output.text for output in TOY.translate(MANY.sources, Beam(5))]
    options = Options(100, metric=name, first_rung=FEW)
    found = calibrate(TOY, Pairs(MANY.sources, texts), options, candidates=BEAMS)
    assert found.winner == "beam 5"
    assert found.on_held_out["greedy"].beats


def test_translating_is_the_translator_with_a_warning():
    with pytest.warns(
        DeprecationWarning, match="is now the translator; the old name will be removed"
    ):
        assert Translating(TOY) is TOY
