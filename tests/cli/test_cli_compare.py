"""npad compare: every decoder, side by side."""

from __future__ import annotations

import json

import npad as library
from npad.cli import compare
from npad.cli.terminal import console


def test_brackets_in_a_text_are_text(trained, npad_here):
    done = npad_here("compare", "-m", trained, "[/a] [bold]", "--max-length", 5)
    assert "[/a] [bold]" in done.stdout


def rows_of(shown: str) -> dict[str, str]:
    """The log p of each strategy, as the table shows it."""
    rows = [line.split("│") for line in shown.splitlines() if line.startswith("│")]
    return {row[1].strip(): row[3].strip() for row in rows if row[1].strip()}


def test_the_best_has_a_star_where_there_are_no_colours(printed_here):
    options = ["--exact", "--width", 2, "--samples", 5, "--eta", 1]
    text = "ich verstehe nur bahnhof"
    shown = printed_here("compare", "-m", "toy", *options, text)
    best = {name for name, log_prob in rows_of(shown).items() if log_prob == "*-2.007"}
    assert best == {"NPAD-10 + greedy", "NPAD-10 + beam 2", "exact, proven"}
    assert sum("*" in log_prob for log_prob in rows_of(shown).values()) == 3
    assert "*          the best, also in green: finished outputs first, then log p" in shown


def test_the_best_is_so_in_the_models_order(capsys):
    """Within two tokens "well yes" is cut, and more probable than the empty output is."""
    strategies = {"greedy": library.Greedy(), "beam": library.Beam(3)}
    decodings = {name: library.Decoding(each, 2) for name, each in strategies.items()}
    stars = []
    for open_ended in (False, True):
        toy = library.load("toy")
        vars(toy.model)["open_ended"] = open_ended
        rows = dict(compare._translated(toy, "na ja", decodings))
        console().print(compare._table(toy, "na ja", rows))
        shown = rows_of(capsys.readouterr().out)
        stars.append([name for name, log_prob in shown.items() if "*" in log_prob])
    assert stars == [["beam"], ["greedy, cut"]]


def test_the_best_has_all_required_phrases(printed_here):
    options = ["-d", "greedy", "-d", "beam", "--constraint", "with(Rechner)"]
    lines = printed_here("compare", "The computer is broken.", *options).splitlines()
    greedy, beam = (next(line for line in lines if name in line) for name in ("greedy", "beam"))
    assert "lacks a phrase" in " ".join(lines[lines.index(greedy) : lines.index(beam)])
    assert ("*" in greedy, "*" in beam) == (False, True)


def test_a_constraint_holds_for_every_strategy(printed_here, tmp_path):
    (tmp_path / "in.txt").write_text("The computer is broken.\n")
    options = ["-d", "greedy", "-d", "beam", "--constraint", "choices(Ja.|Nein.)", "--json"]
    for given in ("The computer is broken.", tmp_path / "in.txt"):
        records = list(map(json.loads, printed_here("compare", *options, given).splitlines()))
        assert len(records) == 2
        for record in records:
            assert record.get("text", "Ja.") in ("Ja.", "Nein.")
            assert "|constraint:choices(Ja.|Nein.)" in record["signature"]
