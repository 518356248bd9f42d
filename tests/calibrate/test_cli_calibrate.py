"""npad calibrate: what it prints runs, what it kept is used again, and mistakes print one line."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time

import pytest

import npad
from npad import NPAD, Beam, Noise
from npad.calibrate.report import LEGEND, by_name, cheaper
from npad.distributions import Laplace

TOY = npad.load("toy")
PHRASES = ["das ist mir wurst", "danke", "na ja", "ich verstehe nur bahnhof"]
QUICK = ["-m", "toy", "--calls", 30]


@pytest.fixture
def few(tmp_path, monkeypatch):
    """A folder to work in, with sources and references."""
    (tmp_path / "few.de").write_text("\n".join(PHRASES * 14) + "\n")
    references = [t.text for t in TOY.translate(PHRASES, Beam(5))]
    (tmp_path / "few.en").write_text("\n".join(references * 14) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def recorded(printed_here):
    """What `npad calibrate` finds."""
    return lambda *arguments: json.loads(printed_here("calibrate", *arguments, "--json"))


@pytest.mark.parametrize(
    "options",
    [
        ["few.de", "few.en", "--metric", "chrf"],
        ["few.de", "few.en", "--calls", 4],
        ["few.de", "--max-length", 9],
    ],
    ids=["chrf", "greedy's budget", "log p"],
)
def test_the_line_runs_as_printed(few, options, recorded, printed_here):
    """And is the decoder that was measured: greedy search is all that four calls pay for."""
    data = recorded(*QUICK, *options)
    for key, name in (("best", data["winner"]), ("cheaper", data["cheaper"])):
        if name is None:
            continue
        assert data["command"][key].startswith("npad translate --model toy")
        words = shlex.split(data["command"][key])[1:]
        lines = printed_here(*words, "--json").splitlines()
        assert len(lines) == len(PHRASES) * 14
        row = by_name(data)[name]
        assert row["options"] in data["command"][key]
        log_probs = [json.loads(line)["log_prob"] for line in lines]
        if data["metric"] == "log p":  # the two halves have the mean of all
            parts = row["score"] + row["held_out"]["score"]
            assert sum(log_probs) / len(lines) == pytest.approx(parts / 2, abs=1e-3)
    if options[-1] == 4:
        assert data["winner"] == "greedy"


def test_calibrate_prints_the_frontier_the_command_and_what_it_beats(few, recorded, npad_here):
    options = ["few.de", *QUICK, "--records", "kept.jsonl", "--plot", "frontier.png"]
    done = npad_here("calibrate", *options)
    shown = done.stdout
    assert done.stderr == ""  # without a terminal it is quiet
    data = recorded(*options)
    cost = by_name(data)[data["winner"]]["held_out"]["cost"]
    recommended = f"Recommended: {data['winner']} ({cost:.1f} calls per sentence)"
    assert f"{recommended}\n  {data['command']['best']}\n" in shown
    last = shown.splitlines()[-2:]
    assert last[0].startswith("As good within chance, at ") or "No cheaper" in last[1]
    for name in data["frontier"]:
        assert f"{name} *" in shown
    words = " ".join(shown.split())
    for part in (
        "28 held-out sentences, the recommended decoder beats",
        "none beats it",
        "Holm's correction",
    ):
        assert part in words
    assert (few / "frontier.png").read_bytes().startswith(b"\x89PNG")
    costs = [by_name(data)[name]["cost"] for name in data["frontier"]]
    scores = [by_name(data)[name]["score"] for name in data["frontier"]]
    assert costs == sorted(costs)
    assert scores == sorted(set(scores))
    assert max(costs) <= 30
    assert by_name(data)[data["winner"]]["held_out"]["cost"] <= 30


def test_killed_and_started_again_it_gives_the_same_answer(few, printed_here):
    """kill -9 while it decodes; milliseconds are those of the record."""
    arguments = ["calibrate", "few.de", "-m", "toy", "--ms", "1000", "--json"]
    arguments += ["--records", "kept.jsonl"]
    process = subprocess.Popen(
        [sys.executable, "-m", "npad", *arguments],
        stdout=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    kept = few / "kept.jsonl"
    while process.poll() is None and not (kept.exists() and kept.read_bytes().count(b"\n") >= 40):
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it was done before it could be killed"
    lines = kept.read_text().splitlines()
    data = json.loads(printed_here(*arguments))
    assert kept.read_text().splitlines()[:40] == lines[:40]
    assert data == json.loads(printed_here(*arguments))


def test_sigma_alone_is_searched_for_a_given_npad(few, recorded, printed_here):
    chosen = ["-M", 6, "--relative", "--inner", "beam(width=1)", "--distribution", "laplace"]
    options = ["few.de", "-m", "toy", "--sigmas", "0.2,2", "-d", "npad", *chosen]
    data = recorded(*options)
    assert {row["name"] for row in data["decoders"]} == {"without noise", "σ₀ = 0.2", "σ₀ = 2"}
    assert all(row["held_out"] is not None for row in data["decoders"])
    words = shlex.split(data["command"]["best"])[1:]
    again = printed_here(*words, "--json").splitlines()
    sigma = float(data["winner"].removeprefix("σ₀ = "))
    noise = Noise(sigma, distribution=Laplace(), relative=True)
    expected = npad.signature(NPAD(Beam(1), 6, noise), TOY.model)
    assert json.loads(again[0])["signature"] == expected


def test_a_budget_of_time_names_the_machine_and_the_rounds(few, recorded, printed_here):
    options = ["few.de", "-m", "toy", "--ms", 1000, "--batch", 7, "-d", "npad", "--sigmas", "0.1"]
    data = recorded(*options)
    timing = data["measured"]
    assert (timing["batch"], len(timing["seconds"])) == (7, 3)
    assert timing["machine"]
    text = printed_here("calibrate", *options)
    assert "in batches of 7" in text
    assert "±" in text


def test_held_out_lines_may_have_a_file(few, recorded):
    (few / "other.de").write_text("danke\nna ja\n")
    (few / "other.en").write_text("thanks\noh well\n")
    files = ["--held-out", "other.de", "--held-out-reference", "other.en"]
    data = recorded("few.de", "few.en", *QUICK, *files, "--check-all")
    assert data["sentences"] == {"search": 56, "held_out": 2}
    assert data["metric"] == "BLEU"
    assert all(row["held_out"] is not None for row in data["decoders"] if row["cost"] <= 30)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (["few.de", "empty"], "few.de has 56 lines and empty has 0"),
        (["few.de", "--calls", 0], "--calls must be a finite number above 0, not 0.0"),
        (["few.de", "--plot", "x.foo"], "its name must end in .png, .svg or .pdf"),
        (["few.de", "--plot", "no/x.png"], "cannot write no/x.png: there is no folder no"),
        (["few.de", "--calls", 9, "--ms", 9], "the budget is --calls or --milliseconds, not both"),
        (["few.de", "--batch", 4], "--batch applies to a time budget: add --milliseconds"),
        (["few.de", "--metric", "comet"], "metric must be one of bleu, chrf, ter"),
        (["few.de", "--sigmas", "a,b"], "--sigmas must be numbers separated by commas"),
        (["few.de", "-d", "beam"], "only NPAD has a σ₀ to calibrate; leave out --decoder"),
        (["few.de", "--chains", 5], "--chains belongs to a decoder; choose it with --decoder"),
        (["few.de", "--held-out-reference", "few.en"], "--held-out-reference needs --held-out"),
        (["few.de", "few.en", "--held-out", "few.de"], "give references of both SOURCE and"),
    ],
    ids=str,
)
def test_a_mistake_is_one_line(few, options, rule, refused_here):
    (few / "empty").write_text("")
    message = refused_here("calibrate", "-m", "toy", *options)
    assert rule in message


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ([], "with --records FILE, the same command continues after an interrupt"),
        (["--records", "kept.jsonl"], "the same command continues"),
    ],
)
def test_an_interrupt_says_how_to_go_on(few, options, hint, refused_here, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("npad.cli.calibrate.calibrate", interrupted)
    command = ("calibrate", "few.de", "-m", "toy", *options)
    assert hint in refused_here(*command, code=130)


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        (20.0, "at a third of the cost: beam 2 (20.0 calls per sentence)"),
        (31.0, "at half the cost: beam 2 (31.0 calls per sentence)"),
        (25.5, "at two fifths of the cost"),
        (51.0, "at 85 % of the cost"),
        (3.0, "at 5 % of the cost"),
        (None, "No cheaper decoder is as good within chance."),
    ],
)
def test_the_last_sentence_says_what_a_cheaper_decoder_saves(cost, words):
    rows = [{"name": "beam 2", "held_out": {"cost": cost}}]
    rows += [{"name": "beam 8", "held_out": {"cost": 60.0}}]
    data = {"winner": "beam 8", "cheaper": cost and "beam 2", "decoders": rows, "unit": "calls"}
    assert words in cheaper(data)


def test_calibrate_output_fits_80_columns(few, npad_here):
    """But for the command lines, which are to be copied."""
    done = npad_here("calibrate", "few.de", *QUICK, columns=80)
    lines = [line for line in done.stdout.splitlines() if not line.startswith("  npad ")]
    assert max(map(len, lines)) <= 80
    assert max(len(line.format(level="95 %")) for line in LEGEND.splitlines()) <= 80
