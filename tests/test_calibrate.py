"""Calibration: the σ₀ that trying all would find, for no more than was to be spent."""

from __future__ import annotations

import pytest

import npad
from cases import counting_tokeniser
from npad import NPAD, Greedy, InvalidInput, Noise
from npad.experiments.calibrate import calibrate
from runs import npad as command

TOY = npad.load("toy")
PHRASES = ["das ist mir wurst", "danke", "na ja", "ich verstehe nur bahnhof"]


def test_calibration_finds_what_trying_all_finds():
    """On the toy, whose NLL falls with the noise until all is found."""
    sigmas = (0.01, 0.3, 30.0)
    decoder = NPAD(Greedy(), 8)
    found = calibrate(TOY, PHRASES, decoder, 20_000, sigmas)
    nll = {}
    for sigma in sigmas:
        outputs = TOY.translate(PHRASES, NPAD(Greedy(), 8, Noise(sigma)))
        nll[sigma] = -sum(one.log_prob for one in outputs) / 4
    assert found.sigma == min(sigmas, key=nll.__getitem__)
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
