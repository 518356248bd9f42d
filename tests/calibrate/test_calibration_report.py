"""The report of a calibration: its table, its plot, and the committed one on the shipped model."""

from __future__ import annotations

import re

import pytest

from npad.calibrate.report import (
    plot,
    table_rows,
)
from npad.evaluate import plots
from runs import ROOT
from studies.calibration import page, read_record

FOLDER = ROOT / "docs/results/calibrate"


@pytest.fixture(scope="module")
def data():
    return read_record(FOLDER / "calibration.json")


def test_the_page_is_what_the_record_renders(data):
    assert (FOLDER / "README.md").read_text() == page(data)


def test_the_plot_shows_every_decoder_of_the_last_round(data, monkeypatch, tmp_path):
    figures = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, path: figures.append(figure))
    plot(data, tmp_path / "frontier.png")
    (axes,) = figures[0].axes
    last = [row for row in data["decoders"] if row["sentences"] == data["sentences"]["search"]]
    drawn = {
        (round(float(x), 6), round(float(y), 6))
        for line in axes.lines
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
    }
    assert {(round(row["cost"], 6), round(row["score"], 6)) for row in last} <= drawn
    joined = [line for line in axes.lines if line.get_linestyle() == "-"]
    assert len(joined) == 1  # the frontier alone
    assert "recommended" in [text.get_text() for text in axes.texts]
    assert f"{data['metric']} (higher is better)" == axes.get_ylabel()


def test_the_guide_quotes_the_report(data):
    guide = (ROOT / "docs/calibrating.md").read_text()
    quoted = re.search(r"```text\n\$ (npad calibrate .*?)```", guide, re.DOTALL)
    assert quoted
    assert data["made_by"].removesuffix(" --json") in quoted[1]
    assert data["command"]["best"] in quoted[1]
    for cells in table_rows(data):
        assert " ".join(cells).strip() in " ".join(quoted[1].split())
