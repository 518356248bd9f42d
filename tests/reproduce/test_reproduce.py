"""`npad reproduce`, from text to report, also when it is killed on the way."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from npad.reproduce import report
from runs import kill_when, lines, once, reversal
from runs import npad as command


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A report on a tiny model, interrupted on the way."""

    def make(folder: Path) -> None:
        reversal(folder / "data", train=60, valid=4, test=3)
        results = folder / "run/results.jsonl"
        kill_when(lambda: results.exists() and len(lines(results)) >= 20, *arguments(folder))
        shutil.copy(folder / "run/results.jsonl", folder / "before.jsonl")
        (folder / "out").write_text(command(*arguments(folder)).stdout)

    return once(tmp_path_factory, "experiment", make)


def arguments(folder: Path) -> list[object]:
    small = ["--units", 8, "--embedding", 6, "--vocabulary", 300, "--epochs", 1]
    short = ["--seeds", 2, "--max-length", 6, "--device", "cpu"]
    return ["reproduce", folder / "run", "--data", folder / "data", "--from", "src", *small, *short]


def test_a_report_that_was_killed_goes_on_where_it_was(finished):
    before = lines(finished / "before.jsonl")[:-1]  # the last line may be cut
    assert len(before) >= 19
    assert lines(finished / "run/results.jsonl")[: len(before)] == before


def test_the_report_has_all_its_parts(finished):
    text = (finished / "run/README.md").read_text()
    for part in ("Table 1", "Table 2", "Table 3", "Table 4", "claims"):
        assert part in text
    for picture in ("sigma", "chains", "calls"):
        assert f"({picture}.png)" in text
        assert (finished / "run" / f"{picture}.png").stat().st_size > 10_000
    assert "greedy" in (finished / "out").read_text()
    assert "cut at 6 tokens" in text
    assert report.render(finished / "run") == text


def test_each_row_tells_how_it_was_made(finished):
    rows = rows_of(finished / "run")
    assert len(rows) > 100
    for (_, _, decoder), row in rows.items():
        assert row["signature"].startswith(f"{decoder}|model:model/best-")


def rows_of(folder: Path) -> dict[tuple[str, ...], dict]:
    results = map(json.loads, lines(folder / "results.jsonl"))
    return {tuple(r["key"]): r["value"] for r in results if r["key"][0] == "row"}


def test_an_engine_measures_the_same_rows(finished, tmp_path, printed_here, refused_here):
    rows = []
    options = [*["--data", finished / "data", "--from", "src", "--model", finished / "run/model"]]
    options += [*["--seeds", 1, "--max-length", 4, "--device", "cpu"]]
    for name, engine in (("here", []), ("there", ["--engine", "local"])):
        printed_here("reproduce", tmp_path / name, *options, *engine)
        rows.append({key: row["bleu"] for key, row in rows_of(tmp_path / name).items()})
    assert rows[0] == rows[1]
    setup = json.loads((tmp_path / "there/setup.json").read_text())
    assert "engine local" in setup["about"]["machine"]


def test_a_folder_holds_the_results_of_one_model(finished, refused_here):
    same = arguments(finished)
    other = [*same[:6], "--model", "en-de", "--max-length", 6]
    for changed, message in (
        (other, "holds results with the model model/best-"),
        ([*same, "--max-rows", 99], "holds results with the machine"),
        ([*same, "--embedding", 7], "was trained with other options; choose another folder"),
    ):
        assert message in refused_here(*changed)
    text = finished / "data/test.src"
    kept = text.read_text()
    text.write_text(kept.replace("\n", " nane\n", 1))
    line = refused_here(*same)
    text.write_text(kept)
    assert "holds results with the weights or the text" in line


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--data", "nowhere"], "there is no folder nowhere"),
        (["--data", ".", "--recipe", "sgd"], "recipe must be one of 'paper', 'adam', not 'sgd'"),
        (
            ["--precision", "int4"],
            "precision must be one of 'float32', 'bfloat16', 'int8', not 'int4'",
        ),
        (["--vocabulary", "many"], "--vocabulary must be one or two whole numbers"),
    ],
)
def test_mistakes_get_one_line(finished, wrong, message, refused_here, tmp_path):
    data = [] if "--data" in wrong else ["--data", finished / "data", "--from", "src"]
    assert message in refused_here("reproduce", tmp_path / "r", *data, *wrong)
