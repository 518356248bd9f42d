"""The study of quality against time, on the toy: it resumes, and its report renders."""

from __future__ import annotations

import pytest

from npad.engine.cost import clocked_by, count_calls
from npad.reproduce.record import Record
from studies.latency import experiment, report

PAIRS = {
    "das ist mir wurst": "i do not care",
    "danke": "thanks",
    "na ja": "well",
    "ich verstehe nur bahnhof": "it is all greek to me",
}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """The arguments of a study of the toy, whose clock ticks at every model call."""
    folder = tmp_path_factory.mktemp("latency")
    for name in ("valid", "test"):
        (folder / f"{name}.de").write_text("".join(f"{source}\n" for source in PAIRS))
        (folder / f"{name}.en").write_text("".join(f"{target}\n" for target in PAIRS.values()))
    words = (
        f"--model toy --data {folder} --languages de en --out {folder / 'toy.jsonl'} --device cpu"
    )
    sizes = "--widths 2 5 --chains 3 10 --batches 1 4 --seeds 2 --timed 4 --rounds 2"
    return [*words.split(), *sizes.split()], folder


def run(arguments):
    with count_calls() as calls, clocked_by(lambda: (calls.search + calls.rescoring) / 1000):
        experiment.main(arguments)
    return calls.search


def test_a_study_that_is_complete_measures_nothing_again_and_renders(study, capsys):
    arguments, folder = study
    assert run([*arguments, "--minutes", "0"]) == 0
    assert "run it again to continue" in capsys.readouterr().out
    assert run(arguments) > 0
    assert run(arguments) == 0
    assert capsys.readouterr().out.endswith("complete\n")
    report.main([str(folder / "toy.jsonl"), str(folder / "report")])
    page = (folder / "report/README.md").read_text()
    assert page == report.page(report.Results(Record(folder / "report/outputs.jsonl.xz")))
    for name in ("greedy", "beam 2 ln", "NPAD-10 ln", "50 samples"):
        assert f"| {name}" in page
    assert "**One sentence at a time on the CPU**, the best NPAD is" in page
    assert "4 sentences at a time" in page
    assert (folder / "report/frontier.png").stat().st_size > 10_000


def test_a_beam_is_found_to_be_faster_and_better_where_it_is(study):
    """By a clock of model calls, ten chains take longer than a beam of two."""
    arguments, folder = study
    run(arguments)
    results = report.Results(Record(folder / "toy.jsonl"))
    alone = results.settings[0]
    assert alone.batch == 1
    cost = results.timed(["greedy", "beam", "NPAD ln"], alone)
    assert cost["greedy"] < cost["beam 2"] < cost["beam 5"] < cost["NPAD-10 ln"]
    assert list(results.timed(["beam"], alone, cost["beam 2"])) == ["beam 2"]
    assert any("No NPAD is as fast as beam 2" in found for found in report.findings(results))


def test_decoders_that_were_not_timed_on_a_machine_have_no_time_there(study, tmp_path):
    arguments, folder = study
    run(arguments)
    record = Record(tmp_path / "two.jsonl")
    for key, value in Record(folder / "toy.jsonl").results.items():
        record.row(key, lambda value=value: value)
        if key[0] == "times":
            few = {name: value[name] for name in ("greedy", "beam 2", "NPAD-3 ln", "beam 2 ln")}
            record.row(("times", "a GPU", *key[2:]), lambda few=few: few)
    results = report.Results(record)
    assert [at.device for at in results.settings] == ["GPU", "GPU", "CPU", "CPU"]
    header, _, *rows = report.table(results).splitlines()
    cells = {row.split(" | ")[0].strip("| "): row.split(" | ") for row in rows}
    place = header.split(" | ").index("GPU ms, batch 1")
    assert cells["beam 5"][place] == "–"
    assert cells["beam 2"][place] == cells["beam 2"][header.split(" | ").index("CPU ms, batch 1")]
