"""npad bench: what it counts, and what it prints."""

from __future__ import annotations

import json
from itertools import count

import pytest

from npad.engine.cost import clocked_by

TOY = ["bench", "--model", "toy", "--device", "cpu", "--input", "few"]


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "few").write_text("danke\n\ndanke\n")
    (tmp_path / "blank").write_text("\n \n")


def records(printed: str) -> dict[str, dict]:
    """The figures of each strategy."""
    return {record["strategy"]: record for record in map(json.loads, printed.splitlines())}


def test_every_compared_decoder_is_timed_unless_some_are_named(printed_here):
    usual = records(printed_here(*TOY, "--rounds", 1, "--chains", 3, "--json"))
    assert {"greedy", "beam, 5", "NPAD-3 + greedy", "NPAD-3 + beam 5"} < usual.keys()
    chosen = ["-d", "beam(width=2)", "-d", "npad(chains=3)", "-d", "npad(chains=3,seed=1)"]
    named = records(printed_here(*TOY, "--rounds", 1, *chosen, "--json"))
    assert list(named) == ["beam, 2", "NPAD-3 + greedy", "npad(chains=3,seed=1)"]
    for record in [*usual.values(), *named.values()]:
        assert min(record["latency"], record["tokens"], record["row_steps"]) > 0
        assert record["memory"] > 2**20


def test_rates_are_of_the_tokens_and_rows_of_all_sentences(printed_here):
    """Each pass takes a second; "thanks" and its end token are two tokens, and two steps."""
    ticks = count()
    with clocked_by(lambda: float(next(ticks))):
        found = records(printed_here(*TOY, "--sentences", 3, "-d", "greedy", "--json"))
    greedy = found["greedy"]
    assert (greedy["latency"], greedy["tokens"], greedy["row_steps"]) == (1.0, 6.0, 6.0)
    assert (greedy["rounds"], greedy["precision"]) == (7, "float32")


def test_the_legend_explains_every_column(printed_here, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("GOMP_SPINCOUNT", "1000")
    shown = printed_here(*TOY, "-d", "greedy", "--rounds", 2)
    header = next(line for line in shown.splitlines() if "strategy" in line)
    for column in header.split()[1:]:
        assert f"\n{column} " in shown
    assert "medians of 2 rounds" in shown
    assert "model toy, float32 chains, sentences 16" in shown
    assert "GOMP_SPINCOUNT=1000" in shown  # how threads wait for each other
    assert "Peak memory, the model included: " in shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--decoder=fast"], "--decoder must be one of greedy, sampling, beam, "),
        (["--decoder=beam(width=0)"], "width must be a whole number of at least 1, not 0"),
        (["--precision=int4"], "precision must be"),
        (["--rounds=0"], "--rounds"),
        (["--input", "blank"], "there is nothing to translate in blank"),
    ],
    ids=str,
)
def test_mistakes_are_one_line(options, message, refused_here):
    assert message in refused_here(*TOY, *options)
