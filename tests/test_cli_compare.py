"""npad compare: every decoder, side by side."""

from __future__ import annotations

from runs import npad


def test_compare_shows_every_strategy():
    done = npad("compare", "-m", "toy", "--exact", "na ja")
    for name in (
        "greedy",
        "sampling, 10",
        "beam, 5",
        "diverse, 5",
        "NPAD-10 + greedy",
        "NPAD-10 + beam 5",
        "exact, proven",
    ):
        assert name in done.stdout


def test_brackets_in_a_text_are_text(trained):
    assert "[/a] [bold]" in npad("compare", "-m", trained, "[/a] [bold]", "--max-length", 5).stdout
