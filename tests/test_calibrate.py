"""Calibration: the σ₀ that trying all would find, for no more than was to be spent."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pytest

import npad
from cases import counting_tokeniser
from npad import NPAD, Beam, Greedy, InvalidInput, Laplace, Noise, WithCut
from npad.cli.decoder_choice import options_for
from npad.evaluate.bootstrap import Difference
from npad.experiments.calibrate import Trial, _smallest_tie, _trials, calibrate, mean_difference
from npad.search.defaults import Defaults
from runs import npad as command
from runs import printed_here

TOY = npad.load("toy")
PHRASES = ["das ist mir wurst", "danke", "na ja", "ich verstehe nur bahnhof"]


def test_calibration_finds_what_trying_all_finds():
    """On the toy, whose NLL falls with the noise until all is found; 0.3 and 30 tie."""
    sigmas = (0.01, 0.3, 30.0)
    decoder = NPAD(Greedy(), 8)
    found = calibrate(TOY, PHRASES, decoder, 20_000, sigmas)
    nll = {}
    for sigma in sigmas:
        outputs = TOY.translate(PHRASES, NPAD(Greedy(), 8, Noise(sigma)))
        nll[sigma] = -sum(one.log_prob for one in outputs) / 4
    assert min(sigmas, key=nll.__getitem__) == 30.0
    ties = {trial.sigma: trial.ties for trial in found.trials if trial.gain.value > 0}
    assert (found.sigma, ties) == (0.3, {0.3: True, 30.0: True})
    assert {one.sigma: one.nll for one in found.trials} == pytest.approx(nll)
    assert found == calibrate(TOY, PHRASES, decoder, 20_000, sigmas)


def test_calibration_keeps_its_budget_and_halves():
    many = PHRASES * 300
    found = calibrate(TOY, many, NPAD(Greedy(), 8), 30_000, (0.1, 0.2, 0.3, 0.4, 0.5))
    assert 15_000 < found.calls < 36_000
    rounds = [
        [one.sigma for one in found.trials if one.sentences == n]
        for n in dict.fromkeys(t.sentences for t in found.trials)
    ]
    assert [len(each) for each in rounds] == [5, 2]
    assert found.sigma in rounds[-1]
    with pytest.raises(InvalidInput, match="a budget of 100 model calls is too small for 5 σ₀"):
        calibrate(TOY, many, NPAD(Greedy(), 8), 100, (0.1, 0.2, 0.3, 0.4, 0.5))


def test_calibration_foresees_that_much_noise_makes_outputs_long():
    found = calibrate(
        npad.load("en-de"),
        ["Hello.", "I am here.", "Go home now."] * 4,
        NPAD(Greedy(), 3),
        9_000,
        (0.1, 20.0),
    )
    assert found.calls < 10_000
    assert len({one.sentences for one in found.trials}) == 1


def test_every_sentence_is_tokenised_once():
    """However many σ₀ are tried on it."""
    translator, read = counting_tokeniser(TOY)
    calibrate(translator, PHRASES * 2, NPAD(Greedy(), 8), 20_000, (0.1, 0.3))
    assert sorted(read) == sorted(PHRASES)


def test_the_command_calibrates(tmp_path):
    (tmp_path / "few").write_text("\n".join(PHRASES) + "\n")
    done = command(
        "calibrate", tmp_path / "few", "--model", "toy", "--calls", 20_000, "--sigmas", "0.1,0.5"
    )
    assert "σ₀ = 0." in done.stdout
    assert "--decoder npad --sigma 0." in done.stdout
    assert "-M" not in done.stdout  # 50 chains are the default


def test_the_interval_is_that_of_a_resampled_mean():
    """Of many values it is the mean ± 1.96 standard errors; of constants it is the constant."""
    values = np.random.default_rng(1).normal(0.5, 2.0, 4000)
    found = mean_difference(values)
    error = 1.96 * values.std() / len(values) ** 0.5
    assert found.value == pytest.approx(values.mean(), abs=1e-3)
    assert (found.low, found.high) == pytest.approx(
        (values.mean() - error, values.mean() + error), abs=0.01
    )
    assert mean_difference(np.full(9, 0.25)) == Difference(0.25, 0.25, 0.25)
    assert mean_difference(np.full(9, 5e-4)) == Difference(0.0, 0.0, 0.0)  # float32 sums differ


def test_ties_go_to_the_smaller_sigma():
    """1.0 is better by 0.001 on average, which other sentences may turn around; 0.1 is worse."""
    random = np.random.default_rng(0)
    inner = random.uniform(3, 5, 400)
    half = inner - 0.5 + random.normal(0, 0.1, 400)
    nll = {1.0: half - 0.001 + random.normal(0, 0.3, 400), 0.5: half, 0.1: inner - 0.1}
    nll[1.0] -= nll[1.0].mean() - half.mean() + 0.001
    trials = _trials(nll, inner)
    assert [trial.ties for trial in trials] == [True, True, False]
    assert trials[0].behind.value == 0 < trials[1].behind.value
    assert _smallest_tie(trials) == 0.5
    clear = _trials(nll | {1.0: half - 0.2}, inner)
    assert _smallest_tie(clear) == 1.0


def test_a_sigma_that_gained_nothing_is_not_chosen():
    """Though it may tie: one sentence in four is better at 0.3, which resampling may leave out."""
    inner = np.array([3.0, 3.0, 3.0, 3.0])
    trials = _trials({0.01: inner, 0.3: inner - [1.0, 0, 0, 0]}, inner)
    assert [trial.ties for trial in trials] == [True, True]
    assert _smallest_tie(trials) == 0.3
    assert _smallest_tie(_trials({0.01: inner, 0.3: inner}, inner)) is None
    assert _smallest_tie(list[Trial]()) is None


def test_no_winner_without_gains(tmp_path, capsys, monkeypatch):
    few = tmp_path / "few"
    few.write_text("\n".join(PHRASES) + "\n")
    options = ["calibrate", few, "-m", "toy", "--calls", 20_000, "--sigmas", "1e-6,2e-6"]
    shown = printed_here(capsys, monkeypatch, *options)
    assert "No σ₀ gained anything" in shown
    assert "--sigma" not in shown
    record = json.loads(printed_here(capsys, monkeypatch, *options, "--json"))
    assert (record["sigma"], record["options"]) == (None, None)


def test_the_line_to_paste_makes_the_calibrated_decoder(tmp_path, capsys, monkeypatch):
    few = tmp_path / "few"
    few.write_text("\n".join(PHRASES) + "\n")
    chosen = ["-M", 6, "--relative", "--inner", "beam(width=1)", "--noise", "laplace"]
    options = ["calibrate", few, "-m", "toy", "--calls", 20_000, "--sigmas", "0.2,2", *chosen]
    record = json.loads(printed_here(capsys, monkeypatch, *options, "--json"))
    assert record["options"] in printed_here(capsys, monkeypatch, *options)
    words = shlex.split(record["options"])
    again = printed_here(capsys, monkeypatch, "translate", "-m", "toy", "--json", *words, "na ja")
    noise = Noise(record["sigma"], distribution=Laplace(), relative=True)
    expected = npad.signature(NPAD(Beam(1), 6, noise), TOY.model)
    assert json.loads(again)["signature"] == expected


def test_the_line_to_paste_leaves_out_the_models_defaults():
    open_ended = Defaults(Noise(0.1, relative=True), WithCut())
    decoder = NPAD(Greedy(), 50, Noise(0.2, relative=True), selector=WithCut())
    assert options_for(decoder, open_ended) == "--decoder npad --sigma 0.2"
    assert options_for(NPAD(noise=Noise(0.2)), open_ended) == (
        "--decoder npad --sigma 0.2 --selector most-probable --no-relative"
    )
    assert options_for(NPAD(chains=10, noise=Noise(0.2, relative=True), clean_chain=False)) == (
        "--decoder npad --sigma 0.2 -M 10 --no-clean-chain --relative"
    )
