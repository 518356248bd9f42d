"""The experiment on steering: every step is stored once, rows are what they say, wrong input."""

from __future__ import annotations

import pytest
import sacrebleu
import torch

from attention_cases import build
from cases import tokens
from npad import NPAD, Greedy, InvalidInput, LengthNormalised, Noise, Steered, decode
from npad.reproduce.data import ParallelText
from npad.reproduce.record import Record
from steered_cases import actor_for
from studies.hypotheses import OutOfTime
from studies.steering import experiment
from studies.steering import report as steering_report
from studies.steering.aims import SYSTEMS, SetResults
from studies.steering.experiment import Steering, best_variants
from studies.steering.report import RESULTS, render
from studies.steering.rows import Chosen, Unjudged, best_per_token, rows
from studies.steering.scores import by_system
from studies.steering.steps import OUTPUTS, Plan, checksum_of
from studies.steering.variant import Variant, without_a_word

ACTOR = Variant("actor", units=8, width=3, epochs=2, rate=0.01, batch=200)
WEIGHTS = Variant("weights", kind="weights", width=3, epochs=1, rate=1e-3, batch=200)


def plan(corpus, **changes) -> Plan:
    text = ParallelText.find(corpus, "src", "tgt")
    options = {"actor": ACTOR, "weights": WEIGHTS, "seeds": 2, "weights_seeds": 1, "sources": 30}
    others = {"model": str(corpus / "run"), "max_length": 16, "sentences": 6}
    return Plan(text, "toy", **(options | others | changes))


def experiment_in(folder, corpus, minutes=60) -> Steering:
    return Steering(folder, plan(corpus), minutes, lambda line: None)


@pytest.fixture(scope="module")
def small():
    """Few values of what validation chooses among."""
    patch = pytest.MonkeyPatch()
    patch.setattr(experiment, "SIGMAS", (0.2, 0.5))
    patch.setattr(experiment, "SAMPLES", (2, 4))
    yield patch
    patch.undo()


@pytest.fixture(scope="module")
def ran(corpus, tmp_path_factory, small):
    """The experiment in one, and in many sittings, each killed after a few steps."""
    whole, killed = (tmp_path_factory.mktemp(name) for name in ("whole", "killed"))
    sit(whole, corpus)
    sittings = 1
    while sit(killed, corpus, kill_at=7):
        sittings += 1
    return whole, killed, sittings


class Killed(BaseException):
    """As if the process were killed."""


def sit(folder, corpus, kill_at=None) -> bool:
    """Run the experiment; true if it was killed, as its last record of that number was written."""
    steering, steps = experiment_in(folder, corpus), []

    def row(key, measure):
        new = key not in steering.record.results
        value = Record.row(steering.record, key, measure)
        steps.extend([key] if new else [])
        if len(steps) == kill_at:
            path = folder / OUTPUTS
            path.write_bytes(path.read_bytes()[:-20])  # the last record is cut off
            raise Killed
        return value

    steering.record.row = row
    try:
        steering.run()
        steering.time(2)
    except Killed:
        return True
    return False


def without_time(path):
    results = Record(path / OUTPUTS).results
    return {key: value for key, value in results.items() if key[0] != "seconds"}


def test_killed_runs_continue_and_end_with_the_same_outputs(ran):
    whole, killed, sittings = ran
    assert sittings > 4
    assert without_time(killed) == without_time(whole)


def test_finished_steps_are_not_trained_or_decoded_again(ran, corpus, monkeypatch):
    def fail(*rest, **more):
        pytest.fail("done twice")

    monkeypatch.setattr("studies.steering.steps.Loop.run", fail)
    monkeypatch.setattr("studies.steering.experiment.decode_all", fail)
    experiment_in(ran[0], corpus).run()


def test_every_row_is_there_with_every_seed(ran):
    systems = by_system(Record(ran[0] / OUTPUTS))
    seeds = {name: sorted(found) for name, found in systems.items()}
    assert seeds["greedy"] == seeds["beam 10, length-normalised"] == [0]
    assert seeds["steered greedy"] == seeds["steered NPAD-5, length-normalised"] == [0, 1]
    assert seeds["greedy, fine-tuned"] == [0]
    assert set(systems) == set(SYSTEMS)
    assert all(len(r["texts"]) == 6 for found in systems.values() for r in found.values())


def test_log_probabilities_are_the_clean_models_whatever_decoded(ran, corpus):
    steering = experiment_in(ran[0], corpus)
    sources = steering.encoded(steering.test.sources)
    actor = steering.actor(ACTOR, 1)
    found = decode(steering.model, sources, Greedy(), 16)
    steered = decode(Steered(steering.model, actor), sources, Greedy(), 16)
    recorded = by_system(Record(ran[0] / OUTPUTS))
    for system, seed, outputs in (("greedy", 0, found), ("steered greedy", 1, steered)):
        expected = [best.log_prob for (best, *_) in outputs]
        assert recorded[system][seed]["log_probs"] == pytest.approx(expected, abs=1e-3)


def test_out_of_time_begins_nothing_and_leaves_what_is_done(corpus, tmp_path):
    with pytest.raises(OutOfTime):
        experiment_in(tmp_path, corpus, -1).run()
    assert not Record(tmp_path / OUTPUTS).results


def test_the_report_is_rendered_from_its_results_alone(ran, corpus, small):
    folder = ran[0]
    steering_report.finish(experiment_in(folder, corpus))
    readme = (folder / "README.md").read_text()
    assert render(Record(folder / RESULTS)) == readme
    for system in SYSTEMS:
        assert f"| {system} |" in readme
    assert "6 sentences of test" in readme
    figures = Record(folder / RESULTS).results["figures", "toy", "greedy", 0]
    steering = experiment_in(folder, corpus)
    texts = without_time(folder)["row", "greedy", 0]["texts"]
    references = [steering.test.references]
    assert figures["bleu"] == pytest.approx(sacrebleu.corpus_bleu(texts, references).score)
    assert figures["chrf"] == pytest.approx(sacrebleu.corpus_chrf(texts, references).score)


def test_times_can_be_added_later(ran, corpus, tmp_path):
    timed = Record(tmp_path / OUTPUTS)
    for key, value in Record(ran[0] / OUTPUTS).results.items():
        if key[0] in ("about", "seconds"):
            timed.row(key, lambda value=value: value)
    results = Record(tmp_path / RESULTS)
    text = ParallelText.find(corpus, "src", "tgt")
    steering_report.score_set(results, tmp_path / OUTPUTS, text)
    steering_report.score_set(results, ran[0] / OUTPUTS, text)
    assert SetResults(results, "toy").ratio("cpu", "steered greedy, search alone") > 0


def test_a_grid_is_reported_and_chosen_from(corpus, tmp_path, small):
    good = Variant("good", units=8, width=3, epochs=1, rate=1e-5, batch=200)
    bad = Variant("bad", units=8, width=3, epochs=1, rate=10.0, batch=200, data="seen+varied")
    other = Variant("w", kind="weights", width=3, epochs=1, rate=1e-4, batch=200)
    broken = Variant("broken", data="more")
    notes = []
    Steering(tmp_path, plan(corpus), 60, notes.append).grid([bad, broken, good, other])
    failure = "broken failed: there are no sources 'more' to learn from; give --more"
    assert any(line.startswith(failure) for line in notes)
    actor, weights = best_variants([tmp_path])
    assert (actor, weights) == (good, other)
    assert weights.learning_from(bad).data == "seen+varied"
    results = Record(tmp_path / RESULTS)
    text = ParallelText.find(corpus, "src", "tgt")
    steering_report.score_set(results, tmp_path / OUTPUTS, text)
    assert "| toy, `bad` | units 8, data seen+varied, width 3" in render(results)


# Parts


def test_the_best_per_token_is_what_the_selector_selects():
    model, source = build(torch.float64, scale=2.0), [[1, 2, 3], [4, 5], [6]]
    npad = NPAD(Greedy(), 8, Noise(1.5))
    found = decode(model, source, npad, 12)
    selected = NPAD(Greedy(), 8, Noise(1.5), selector=LengthNormalised())
    expected = [hypotheses[0].tokens for hypotheses in decode(model, source, selected, 12)]
    assert [hypotheses[best_per_token(hypotheses)].tokens for hypotheses in found] == expected
    assert expected != [hypotheses[0].tokens for hypotheses in found]


def test_an_unjudged_model_searches_alike():
    model, source = build(torch.float64, scale=2.0), [[1, 2, 3], [4, 5], [6]]
    actor = actor_for(model)
    judged, alone = (
        decode(kind(model, actor), source, Greedy(), 12) for kind in (Steered, Unjudged)
    )
    assert tokens(alone) == tokens(judged)
    assert [h.log_prob for (h,) in alone] != pytest.approx([h.log_prob for (h,) in judged])


def test_seeds_change_the_rows_with_chance_alone():
    chosen = Chosen(0.3, 0.5, (10, 20))
    first = {row.system: row.decoder for row in rows(chosen, 0)}
    second = {row.system: row.decoder for row in rows(chosen, 1)}
    unchanged = {name for name in second if second[name] == first[name]}
    assert unchanged == {"steered greedy", "steered beam 5"}  # whose actors differ
    certain = {name for name in first if name.startswith(("greedy", "beam"))}
    assert first.keys() - second.keys() == certain


def test_a_varied_sentence_lacks_one_word():
    text = "a man walks his dog home ."
    varied = {without_a_word(text, i) for i in range(40)}
    words = text.split()
    assert varied <= {" ".join(words[:i] + words[i + 1 :]) for i in range(len(words) - 1)}
    assert len(varied) == len(words) - 1
    assert without_a_word("a dog", 3) == "a dog"


# Wrong input


def test_outputs_of_another_model_are_not_mixed(ran, corpus, monkeypatch):
    monkeypatch.setattr(
        "studies.steering.steps.checksum_of", lambda saved: checksum_of(saved)[::-1]
    )
    with pytest.raises(InvalidInput, match="holds outputs of another model"):
        experiment_in(ran[0], corpus).run()


def test_the_command_plans_from_its_options(corpus, tmp_path, capsys, monkeypatch):
    plans = []
    monkeypatch.setattr(Steering, "run", lambda steering: plans.append(steering.plan))
    monkeypatch.setattr(steering_report, "finish", lambda steering: print("reported"))
    options = ["--data", str(corpus), "--from", "src", "--to", "tgt", "--device", "cpu"]
    experiment.main([str(tmp_path), *options, "--model", str(corpus / "run"), "--report"])
    assert capsys.readouterr().out == "reported\ncomplete\n"
    (given,) = plans
    assert (given.model, given.seeds, given.max_source) == (str(corpus / "run"), 3, 50)
    with pytest.raises(SystemExit, match="error: there is no folder"):
        experiment.main([str(tmp_path), "--data", str(tmp_path / "none"), "--model", "toy"])
