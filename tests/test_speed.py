"""npad bench: what it counts, and what it prints."""

from __future__ import annotations

import pytest
import torch

from npad.experiments import speed
from runs import npad

SMALL = {"units": 8, "embedding": 4, "symbols": 10, "source": 3, "length": 3, "sentences": 2}


def test_operations_are_two_a_weight_of_every_matrix_that_a_step_multiplies():
    sizes = speed.Sizes(units=24, embedding=7, symbols=50, source=5)
    model = speed.untrained(24, 7, 50)
    cells = [model.first, model.second]
    matrices = [m for cell in cells for m in (cell.weight_ih, cell.weight_hh)]
    matrices += [model.query.weight, model.readout.weight, model.logits.weight]
    attention = 5 * 48 * 6  # of each source symbol and unit: add, tanh, two to weigh, two to sum up
    assert sizes.operations() == 2 * sum(m.numel() for m in matrices) + attention


def test_an_untrained_model_never_ends():
    sizes = speed.Sizes(8, 4, 10, 3, 6)
    found = speed.decode(speed.untrained(8, 4, 10), sizes.sources(3), speed.STRATEGIES["beam 5"], 6)
    assert all(len(one.tokens) == 6 and not one.finished for each in found for one in each)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_every_strategy_is_measured(precision):
    found = list(
        speed.measured(
            speed.Sizes(**SMALL),
            torch.device("cpu"),
            precision,
            dict.fromkeys(("float32", precision), 1e9),
            1,
        )
    )
    assert [one.strategy for one in found] == list(speed.STRATEGIES)
    for one in found:
        assert min(one.latency, one.tokens, one.share) > 0
        assert one.row_steps >= one.tokens
        assert one.memory > 2**20
    greedy, chains = found[0], found[4]
    assert greedy.row_steps == pytest.approx(greedy.tokens)
    assert chains.row_steps == pytest.approx(50 * chains.tokens)


def test_the_command_prints_a_row_a_strategy():
    options = [f"--{name}={value}" for name, value in SMALL.items()]
    done = npad("bench", "--device", "cpu", *options)
    assert all(name in done.stdout for name in speed.STRATEGIES)
    assert "TFLOP/s" in done.stderr


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--units=0", "units must be"),
        ("--precision=int4", "precision must be"),
        ("--rows=0", "rows"),
    ],
)
def test_bad_sizes_are_one_line(option, said):
    done = npad("bench", "--device=cpu", option, code=2)
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
