"""npad bench: what it counts, and what it prints."""

from __future__ import annotations

import json

import pytest
import torch

from npad import NPAD, Greedy, Noise, load
from npad.cli.bench import _strategies
from npad.engine.cost import clocked_by
from npad.reproduce import speed
from npad.search.defaults import Defaults
from npad.search.registry import DECODERS
from npad.search.request import Decoding
from npad.selectors import WithCut

SMALL = {"units": 8, "embedding": 4, "vocabulary": 10, "source": 3, "length": 3, "sentences": 2}
SMALL_MODEL = [f"--{name}={value}" for name, value in SMALL.items()]


def test_operations_are_two_a_weight_of_every_matrix_that_a_step_multiplies():
    sizes = speed.Workload(units=24, embedding=7, vocabulary=50, source=5)
    model = speed.untrained(24, 7, 50)
    cells = [model.first, model.second]
    matrices = [m for cell in cells for m in (cell.weight_ih, cell.weight_hh)]
    matrices += [model.query.weight, model.readout.weight, model.logits.weight]
    attention = 5 * 48 * 6  # per source token and unit: add, tanh, two to weigh, two to sum up
    assert sizes.operations() == 2 * sum(m.numel() for m in matrices) + attention


def test_an_untrained_model_never_ends():
    sizes = speed.Workload(8, 4, 10, 3, 6)
    beam = speed.STRATEGIES["beam, 5"]
    nbest_lists = speed.decode(speed.untrained(8, 4, 10), sizes.sources(3), beam, 6)
    hypotheses = [hypothesis for nbest in nbest_lists for hypothesis in nbest]
    assert all(len(hypothesis.tokens) == 6 for hypothesis in hypotheses)
    assert not any(hypothesis.finished for hypothesis in hypotheses)


def test_every_registered_decoder_is_measured_unless_it_says_otherwise():
    defaults = {kind().title: kind().compared for kind in DECODERS}
    shown = {title: title in speed.STRATEGIES for title in defaults}
    assert shown == defaults
    assert speed.STRATEGIES["NPAD-10 + greedy"] == NPAD(Greedy(), 10)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_every_strategy_is_measured(precision):
    rates = dict.fromkeys(("float32", precision), 1e9)
    workload, cpu = speed.Workload(**SMALL), torch.device("cpu")
    rows = list(speed.measured(workload, cpu, precision, rates, rounds=1))
    assert [row.strategy for row in rows] == list(speed.STRATEGIES)
    for row in rows:
        assert row.share is not None
        assert min(row.latency, row.tokens, row.share) > 0
        assert row.row_steps >= row.tokens
        assert row.memory > 2**20
    by_strategy = {row.strategy: row for row in rows}
    greedy, chains = by_strategy["greedy"], by_strategy["NPAD-50 + greedy"]
    assert greedy.row_steps == pytest.approx(greedy.tokens)
    assert chains.row_steps == pytest.approx(50 * chains.tokens)


@pytest.mark.parametrize(
    ("options", "strategies"),
    [
        ([], list(speed.STRATEGIES)),
        (
            ["-d", "beam(width=2)", "--decoder", "npad", "-d", "exact(budget=9)"],
            ["beam, 2", "NPAD-50 + greedy", "exact"],
        ),
    ],
    ids=["usual", "chosen"],
)
def test_the_command_prints_a_row_a_decoder(options, strategies, npad_here, monkeypatch):
    monkeypatch.setattr(speed, "matrix_rate", lambda *_: 1e9)
    monkeypatch.setenv("COLUMNS", "200")
    done = npad_here("bench", "--device=cpu", *SMALL_MODEL, *options)
    cells = [line.split("│")[1].strip() for line in done.stdout.splitlines() if line[0:1] == "│"]
    assert cells == strategies
    assert "TFLOP/s" in done.stderr
    assert "vocabulary 10" in done.stdout
    count = len(strategies)  # without a terminal, a line per decoder says how far it is
    for number, name in enumerate(strategies, start=1):
        assert f"npad: {number} of {count} done: {name}\n" in done.stderr


def test_decoders_with_one_title_are_told_apart_by_their_specs():
    specs = ["npad(chains=3)", "npad(chains=3,seed=1)", "greedy", "npad(chains=3)"]
    assert _strategies(specs, Defaults()) == {
        "npad(chains=3)": NPAD(chains=3),
        "npad(chains=3,seed=1)": NPAD(chains=3, seed=1),
        "greedy": Greedy(),
    }


def test_a_slow_round_does_not_count():
    times = iter([0.0, 1.0, 0.0, 9.0, 0.0, 2.0])
    with clocked_by(lambda: next(times)):
        assert speed.clock(lambda: None, 3, torch.device("cpu")) == 2.0
    assert speed.ROUNDS >= 5


def test_a_share_is_of_the_fastest_product(monkeypatch):
    monkeypatch.setattr(speed, "times_of", lambda *_: [3.0, 1.0, 2.0])
    assert speed.matrix_rate(torch.device("cpu"), torch.float32) == 2 * 2048**3


def test_the_command_explains_its_columns_or_prints_json(printed_here, monkeypatch):
    monkeypatch.setattr(speed, "matrix_rate", lambda *_: 1e9)
    options = [*SMALL_MODEL, "-d", "greedy", "-d", "beam", "--rounds", "2"]
    shown = printed_here("bench", *options)
    header = next(line for line in shown.splitlines() if "strategy" in line)
    columns = [column.strip() for column in header.strip("┃").split("┃")][1:]
    legend = shown.partition("\nlatency")[1] + shown.partition("\nlatency")[2]
    for column in columns:
        assert f"\n{column} " in legend
    assert "medians of 2 rounds" in legend
    printed = printed_here("bench", *options, "--json").splitlines()
    records = [json.loads(line) for line in printed]
    assert [record["strategy"] for record in records] == ["greedy", "beam, 5"]
    assert all(record["latency"] > 0 and record["rounds"] == 2 for record in records)


def test_ones_own_model_is_timed_on_ones_own_texts(tmp_path, printed_here):
    (tmp_path / "few").write_text("danke\n\nna ja\n")
    model = ["bench", "--model", "toy", "--input", tmp_path / "few", "--rounds", 1]
    printed = printed_here(*model, "--sentences", 3, "-d", "beam", "-d", "npad", "--json")
    records = {record["strategy"]: record for record in map(json.loads, printed.splitlines())}
    assert list(records) == ["beam, 5", "NPAD-50 + greedy"]
    for record in records.values():
        assert record["share"] is None
        assert min(record["latency"], record["tokens"], record["row_steps"]) > 0
    shown = printed_here(*model, "-d", "greedy")
    assert "model toy, sentences 16" in shown
    assert "share" not in shown


def test_the_tokens_of_ones_own_model_are_those_of_its_outputs(monkeypatch):
    """In one second: "thanks" and the end token twice, once as a batch of two sentences."""
    monkeypatch.setattr(speed, "clock", lambda *_: 1.0)
    strategies = {"greedy": Decoding(Greedy())}
    (row,) = speed.measured_model(load("toy"), ["danke"] * 2, torch.device("cpu"), strategies)
    assert (row.tokens, row.row_steps) == (4, 4)


def test_the_usual_strategies_have_the_models_defaults():
    noise = Noise(0.1, relative=True)
    usual = speed.usual_strategies(Defaults(noise, WithCut()))
    assert list(usual) == list(speed.STRATEGIES)
    chains = [decoder for decoder in usual.values() if isinstance(decoder, NPAD)]
    assert {(decoder.noise, decoder.selector) for decoder in chains} == {(noise, WithCut())}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--units=0"], "units must be"),
        (["--decoder=fast"], "--decoder must be one of greedy, sampling, beam, "),
        (["--decoder=beam(width=0)"], "width must be a whole number of at least 1, not 0"),
        (["--precision=int4"], "precision must be"),
        (["--rows=0"], "rows"),
        (["--model", "toy", "--units", 8], "--units applies to the untrained model; leave it out"),
        (["--input", "lines"], "--input needs a model of your own: add --model"),
        (["--model", "toy", "--input", "blank"], "there is nothing to translate in blank"),
        (["--model", "toy", "--length", 0], "length must be a whole number of at least 1"),
    ],
    ids=str,
)
def test_mistakes_are_one_line(options, message, tmp_path, refused_here, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "blank").write_text("\n \n")
    assert message in refused_here("bench", "--device=cpu", *options)
