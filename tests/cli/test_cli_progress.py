"""Progress of commands: it moves with every batch, and a log gets a line now and then."""

from __future__ import annotations

import pytest

import npad as package
from npad import NPAD, Greedy, Noise
from npad.cli import terminal
from npad.cli.outputs import write_outputs
from npad.cli.terminal import Bar, Notes, clock_time
from npad.pipelines.pipeline import on_decoded
from npad.search.request import Decoding

PHRASES = ["danke", "na ja", "danke", "", "na ja"]


def test_every_batch_is_reported_as_it_is_decoded():
    batches = []
    translator = package.load("toy")
    with on_decoded(batches.append):
        translator.translate(PHRASES, NPAD(Greedy(), 2, Noise(0.3)), max_rows=4)
    assert batches == [2, 2]
    translator.translate(PHRASES)
    assert batches == [2, 2]


@pytest.fixture
def shown(monkeypatch):
    """What a command's bar has shown: (description, done, total)."""
    calls = []
    monkeypatch.setattr(Notes, "__call__", lambda self, *shown: calls.append(shown))
    return calls


def test_translate_and_evaluate_move_with_every_batch(shown, tmp_path, printed_here):
    (tmp_path / "in").write_text("\n".join(PHRASES) + "\n")
    options = ["-m", "toy", "-d", "greedy", "--max-rows", 2]
    printed_here("translate", "-i", tmp_path / "in", *options)
    assert shown == [("translating", done, 5) for done in (2, 4, 5)]
    shown.clear()
    printed_here("evaluate", tmp_path / "in", tmp_path / "in", *options)
    assert list(dict.fromkeys(shown)) == [("evaluating", done, 5) for done in (2, 4, 5)]


def test_progress_never_moves_back():
    shown = []
    write_outputs(
        package.load("toy"),
        ["", "", "danke", "", "na ja"],
        Decoding(Greedy()),
        lambda *_: None,
        Bar(lambda *state: shown.append(state[1]), "translating", 5),
        window=3,
    )
    assert shown == sorted(shown)
    assert shown[-1] == 5


def test_a_log_gets_a_line_a_minute_with_the_time_left(capsys):
    now = 0.0
    notes = Notes(lambda: now)
    for now in (1.0, 59.0, 60.0, 61.0, 120.0):
        notes("translating", int(10 * now), 6000)
    notes("scoring", 7, 0)
    assert capsys.readouterr().err.splitlines() == [
        "npad: translating: 600 of 6,000, 10.0/s, 9:00 left",
        "npad: translating: 1,200 of 6,000, 10.0/s, 8:00 left",
    ]
    now = 200.0
    notes("scoring", 7, 0)
    assert capsys.readouterr().err == "npad: scoring: 7\n"


def test_nothing_is_logged_while_lines_are_typed(monkeypatch):
    monkeypatch.setattr(terminal, "is_terminal", lambda path: True)
    with terminal.bar("translating", None, ["-"]) as progress:
        assert not isinstance(progress, Notes)


def test_an_interrupted_translation_of_a_file_says_how_to_continue(
    tmp_path, refused_here, monkeypatch
):
    def interrupted(*_, **named):
        raise KeyboardInterrupt

    (tmp_path / "in").write_text("danke\n")
    monkeypatch.setattr("npad.cli.translate.write_outputs", interrupted)
    files = ["-i", tmp_path / "in", "-o", tmp_path / "out"]
    line = refused_here("translate", "-m", "toy", *files, code=130)
    advice = "with --engine local, the same command continues after an interrupt"
    assert line == f"interrupted; {advice}"
    line = refused_here("translate", "-m", "toy", "danke", code=130)
    assert line == "interrupted"


def test_durations_are_read_as_clocks_show_them():
    times = {59.6: "1:00", 61: "1:01", 3600: "1:00:00", 90061: "1 days 1:01:01"}
    assert {seconds: clock_time(seconds) for seconds in times} == times
