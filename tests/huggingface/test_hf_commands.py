"""The commands on a model of Hugging Face, tiny and random."""

from __future__ import annotations

import json
import shlex

import pytest

from hf_cases import build
from hf_cases import saved as saved
from npad import NPAD, Greedy, MostProbable, Noise, load
from npad.cli.main import main
from npad.pipelines.loading import defaults_of
from npad.search.defaults import Defaults
from npad.selectors import WithCut


def test_a_line_over_the_models_own_limit_is_left_empty(saved, capsys, monkeypatch):
    """Bart has 1,024 positions, whatever --max-source allows."""
    arguments = ["translate", "-m", f"hf:{saved / 'bart'}", "-d", "greedy", "--json"]
    texts = ["w5 w6", "w7 " * 1100, "w8"]
    monkeypatch.setattr("sys.argv", ["npad", *arguments, "--max-source", "5000", *texts])
    with pytest.raises(SystemExit, match="1"):
        main()
    out, err = capsys.readouterr()
    scores = [json.loads(line)["log_prob"] for line in out.splitlines()]
    assert [score is None for score in scores] == [False, True, False]
    assert "npad: line 2 has 1,100 tokens, more than the model's limit of 1,023;" in err


@pytest.mark.parametrize(("kind", "name"), [("bart", "Bart"), ("llama", "Llama")])
def test_info_shows_the_model(saved, kind, name, printed_here):
    shown = printed_here("info", f"hf:{saved / kind}")
    parameters = sum(weight.numel() for weight in build(kind).parameters())
    for part in (f"{name}For", f"{parameters:,}", "hidden (32)", "embedding (16)"):
        assert part in shown
    record = json.loads(printed_here("info", "--json", f"hf:{saved / kind}"))
    assert (record["parameters"], record["sites"]["hidden"]) == (parameters, 32)


@pytest.mark.parametrize(("kind", "selector"), [("bart", MostProbable()), ("llama", WithCut())])
def test_the_default_noise_is_the_models(saved, kind, selector, printed_here):
    """Relative noise of 0.1, as in npad.hf; the same by name, loaded, and in low precision."""
    name = f"hf:{saved / kind}"
    expected = Defaults(Noise(0.1, relative=True), selector, chains=10)
    assert defaults_of(name) == expected
    assert Defaults.of(load(name).model) == expected
    assert Defaults.of(load(name, precision="bfloat16").model) == expected
    command = ["-m", name, "--max-length", "6", "w5 w6"]
    record = json.loads(printed_here("translate", "-d", "npad", "-M", "3", "--json", *command))
    decoder = NPAD(Greedy(), 3, Noise(0.1, relative=True), selector=selector)
    by_hand = load(name).translate(["w5 w6"], decoder, 6)[0]
    assert (record["log_prob"], record["signature"]) == (by_hand.log_prob, by_hand.signature)
    shown = printed_here("info", name)
    assert "--sigma 0.1 (--relative" in shown
    described = json.loads(printed_here("info", "--json", name))
    assert described["default_noise"] == {"sigma": 0.1, "relative": True}
    assert ("with-cut" in described["default_selector"]) == (kind == "llama")


def test_the_default_noise_of_npads_own_models():
    for name in ("toy", "en-de"):
        assert defaults_of(name) == Defaults.of(load(name).model) == Defaults(Noise(0.3))


@pytest.mark.parametrize("kind", ["bart", "llama"])
def test_calibrate_prints_a_line_that_runs(saved, kind, tmp_path, printed_here):
    """With the model's own noise and order; without references, by log-probability."""
    (tmp_path / "few").write_text("w5 w6\nw7\nw8 w9\nw5\n")
    options = ["-m", f"hf:{saved / kind}", "--calls", "14", "--max-length", "4", "--json"]
    search = ["calibrate", str(tmp_path / "few"), *options]
    data = json.loads(printed_here(*search))
    assert data["metric"] == "log p"
    assert {"greedy", "beam"} <= {row["family"] for row in data["decoders"]}
    words = shlex.split(data["command"]["best"])[1:]
    lines = printed_here(*words, "--json").splitlines()
    log_probs = [json.loads(line)["log_prob"] for line in lines]
    (row,) = [row for row in data["decoders"] if row["name"] == data["winner"]]
    both = row["score"] + row["held_out"]["score"]
    assert sum(log_probs) / 2 == pytest.approx(both, abs=3e-3)
