"""One rule for the arguments of all commands: a file if it names one, else a text."""

from __future__ import annotations

import json
import sys

import pytest

from npad import InvalidInput
from npad.text.files import Lines, read_pairs
from runs import npad

TOY = ("-m", "toy", "-d", "greedy")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with files of the toy's sentences, of every kind of name, and a folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "danke", "with space"):
        (tmp_path / name).write_text("na ja\ndanke\n")
    (tmp_path / "a.en").write_text("well yes\nthanks\n")
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.mark.parametrize("name", ["a.txt", "danke", "with space", "./danke", "folder/../a.txt"])
def test_a_file_that_exists_is_read_whatever_its_name(here, name):
    assert list(Lines.of(name)) == ["na ja", "danke"]
    assert Lines.of(name).count() == 2
    assert list(Lines.of(name, is_text=True)) == [name]


@pytest.mark.parametrize("name", ["no.txt", "test.de", "a.tar.gz", "no/file", "/no", ".x", "b.x7"])
def test_what_looks_like_a_file_must_exist(here, name):
    with pytest.raises(InvalidInput, match=r"there is no file .*; give a text with --text"):
        Lines.of(name)
    assert list(Lines.of(name, is_text=True)) == [name]


TEXTS = ["How are you?", "Hello.", "3.14", "a b.txt", "e.g.", "U.S.", "word", "folder", "x" * 9999]
TEXTS += ["", " ", "see a.txt", "\0", "no suffix.1", "Gut.", "你好。再见"]


@pytest.mark.parametrize("text", TEXTS)
def test_everything_else_is_a_text(here, text):
    assert Lines.of(text) == Lines(text, is_file=False)
    assert list(Lines.of(text)) == [text]


def test_a_mistyped_file_names_the_one_that_is_there(here):
    with pytest.raises(InvalidInput, match=r"no file b\.txt \(did you mean a\.txt\?\); give"):
        Lines.of("b.txt")
    with pytest.raises(InvalidInput, match=r"no file dank \(did you mean danke\?\)$"):
        Lines.of_file("dank")
    with pytest.raises(InvalidInput, match="folder/ is a folder"):
        Lines.of("folder/")


def test_pairs_are_files_or_texts(here):
    pairs = (["na ja", "danke"], ["well yes", "thanks"])
    assert read_pairs(Lines.of("a.txt"), here / "a.en") == pairs
    assert read_pairs(Lines.of("na ja"), Lines.of("well yes")) == (["na ja"], ["well yes"])
    with pytest.raises(InvalidInput, match=r"'na ja' has 1 line and a\.en has 2; line i of both"):
        read_pairs(Lines.of("na ja"), Lines.of("a.en"))
    with pytest.raises(InvalidInput, match="cannot both be standard input"):
        read_pairs(Lines.of("-"), Lines.of("-"))


def test_translate_takes_files_and_texts_in_order(here, printed_here, refused_here, npad_here):
    given = ("translate", *TOY, "a.txt", "das ist mir wurst", "-")
    done = npad_here(*given, stdin="na ja\n")
    assert done.stdout == "well yes\nthanks\nthat is sausage\nwell yes\n"
    assert done.stderr == ""
    assert printed_here("translate", *TOY, "--text", "danke") == "thanks\n"
    line = refused_here("translate", *TOY, "nofile.txt")
    assert line == "there is no file nofile.txt; give a text with --text"


def test_a_corpus_for_workers_is_an_argument(here, refused_here, npad_here):
    where = ("--engine", "local", "-o", "out.en")
    npad_here("translate", *TOY, "a.txt", *where)
    assert (here / "out.en").read_text() == "well yes\nthanks\n"
    for given in (["a.txt", "danke"], ["na ja"], ["-"]):
        line = refused_here("translate", *TOY, *given, *where)
        assert line == "--engine translates a file into a file: give one, and --output"


def test_score_takes_files_or_texts(here, printed_here, refused_here):
    scores = printed_here("score", "-m", "toy", "a.txt", "a.en").splitlines()
    assert printed_here("score", "-m", "toy", "na ja", "well yes") == (scores[0] + "\n")
    line = refused_here("score", "-m", "toy", "na ja", "a.en")
    assert "has 1 line and a.en has more" in line
    line = refused_here("score", "-m", "toy", "a.txt", "b.en")
    assert line == "there is no file b.en (did you mean a.en?); give a text with --text"


def test_evaluate_takes_files_or_texts(here, printed_here):
    for pair, size in ((("a.txt", "a.en"), 2), (("na ja", "well yes"), 1)):
        report = printed_here("evaluate", *TOY, *pair, "--json")
        assert json.loads(report)["sentences"] == size
        assert json.loads(report)["chrf"] == pytest.approx(100)


def test_calibrate_takes_files_alone(here, refused_here):
    line = refused_here("calibrate", "-m", "toy", "na ja", "well yes")
    assert line == "there is no file na ja"
    line = refused_here("calibrate", "-m", "toy", "a.txt", "b.en")
    assert line == "there is no file b.en (did you mean a.en?)"


def test_compare_shows_texts_and_measures_a_file(here, printed_here):
    options = (*TOY, "-d", "beam")
    assert "well yes" in printed_here("compare", *options, "na ja")
    records = printed_here("compare", *options, "--json", "na ja", "das ist mir wurst")
    rows = [json.loads(line) for line in records.splitlines()]
    assert [(row["strategy"], row["text"]) for row in rows[:2]] == [
        ("greedy", "well yes"),
        ("beam, 5", "well yes"),
    ]
    assert rows[0]["calls"] == 3


def test_a_file_without_references_is_measured_by_log_probability(here, printed_here, npad_here):
    options = (*TOY, "-d", "beam")
    table = printed_here("compare", *options, "a.txt")
    assert table.startswith("a.txt, 2 sentences, model toy")
    assert "BLEU" not in table
    assert "length" not in table
    asked = ("compare", *options, "--json")
    by_argument = printed_here(*asked, "a.txt")
    by_option = printed_here(*asked, "-i", "a.txt")
    by_pipe = npad_here(*asked, stdin="na ja\ndanke\n").stdout
    reports = [
        [json.loads(line) | {"seconds": 0} for line in shown.splitlines()]
        for shown in (by_argument, by_option, by_pipe)
    ]
    assert reports[0] == reports[1] == reports[2]
    (greedy, beam) = reports[0]
    assert greedy["length_ratio"] is None
    assert beam["nll_gain"]["value"] == pytest.approx(beam["nll"] - greedy["nll"])
    logprob = printed_here(*asked, "a.txt", "--metric", "logprob")
    assert json.loads(logprob.splitlines()[0])["logprob"] == pytest.approx(-greedy["nll"])


def test_compare_at_a_terminal_asks_for_texts(here, refused_here, monkeypatch):
    monkeypatch.setattr(sys, "stdin", type("Terminal", (), {"isatty": lambda self: True})())
    line = refused_here("compare", *TOY)
    assert line == "there is nothing to compare: give texts, or a file of lines"


def test_a_named_pipe_is_a_file():
    done = npad("translate", *TOY, "/dev/stdin", stdin="danke\n")
    assert done.stdout == "thanks\n"
