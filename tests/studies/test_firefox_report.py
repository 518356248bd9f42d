"""The report on Firefox's models is what its figures say."""

from __future__ import annotations

from npad.reproduce.record import Record
from runs import ROOT
from studies.firefox.__main__ import FIGURES, chosen, named, render

FOLDER = ROOT / "docs/results/firefox"


def test_the_committed_report_is_what_its_figures_say():
    found = Record(FOLDER / FIGURES)
    directions = sorted({key[0] for key in found.results})
    assert render(lambda *key: found.row(key), directions) == (FOLDER / "README.md").read_text()


def test_the_noise_of_the_report_finds_the_most_probable_outputs_of_the_validation_set():
    found = Record(FOLDER / FIGURES)
    for direction in {key[0] for key in found.results}:
        noise = named(chosen(lambda *key: found.row(key), direction))
        tried = {key[2]: row["nll"] for key, row in found.results.items() if "σ" in key[2]}
        of_direction = [
            row["nll"]
            for key, row in found.results.items()
            if key[:2] == (direction, "valid") and "σ" in key[2]
        ]
        assert len(tried) == len(of_direction)
        assert found.row((direction, "valid", noise))["nll"] == min(of_direction)
