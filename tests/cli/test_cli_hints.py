"""Hints of the command line: what was probably meant, and what is shown of a model."""

from __future__ import annotations

import json

import pytest

from checkpoint_cases import SUBWORDS, tiny
from npad.cli.main import INSTEAD
from npad.storage import checkpoint
from runs import printed_here, refused_here

OTHER = "No such option: --beam; use --width, and --decoder beam"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["translate", "--beam", 5, "a"], OTHER),
        (["translate", "-m", "en-dee", "hi"], "there is no model en-dee; did you mean en-de?"),
        (["info", "tooy"], "there is no model tooy; did you mean toy?"),
        (["pack", "en-de"], "Missing argument 'folder'; npad pack --help shows examples"),
    ],
    ids=str,
)
def test_a_slip_names_what_was_probably_meant(arguments, line, capsys, monkeypatch):
    assert refused_here(capsys, monkeypatch, *arguments) == line


@pytest.mark.parametrize(
    ("arguments", "option", "value"),
    [(["--width", "x"], "--width", "'x'"), (["--max-length=0"], "--max-length", "0")],
)
def test_an_invalid_value_is_named(arguments, option, value, capsys, monkeypatch):
    line = refused_here(capsys, monkeypatch, "translate", *arguments, "hi")
    assert line.startswith(f"Invalid value for '{option}': ")
    assert value in line
    assert "unable to parse" not in line


def test_a_folder_named_nearly_as_a_model_is_taken_for_itself(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "en-dee").mkdir()
    assert "en-dee holds no model" in refused_here(capsys, monkeypatch, "info", "en-dee")


def test_hints_name_options_that_exist(capsys, monkeypatch):
    shown = printed_here(capsys, monkeypatch, "translate", "--help")
    for option, instead in INSTEAD.items():
        assert instead.partition(",")[0] in shown
        assert f" {option} " not in shown


def test_info_shows_the_default_model_its_languages_and_whom_to_credit(capsys, monkeypatch):
    shown = printed_here(capsys, monkeypatch, "info")
    assert all(part in shown for part in ("en-de", "English to German", "Tatoeba", "CC BY 2.0 FR"))
    record = json.loads(printed_here(capsys, monkeypatch, "info", "--json"))
    assert record["languages"].startswith("English to German")
    assert "Tatoeba" in record["credit"]


def test_info_shows_the_rate_of_an_optimiser_by_default(tmp_path, capsys, monkeypatch):
    folder, rate = tmp_path / "model", {"adam": 0.001, "adadelta": 1.0}
    for optimiser, default in rate.items():
        training = {"recipe": {"optimiser": optimiser, "learning_rate": None}, "update": 1}
        training |= {"data": {"train": {"kept": 2}}, "perplexity": 3.0}
        checkpoint.save(folder, tiny(), (SUBWORDS, SUBWORDS), {"training": training})
        shown = printed_here(capsys, monkeypatch, "info", folder)
        assert f"optimiser {optimiser}, learning_rate {default:g}" in shown
        record = json.loads(printed_here(capsys, monkeypatch, "info", folder, "--json"))
        assert record["training"]["recipe"]["learning_rate"] == default


def test_a_training_that_cannot_begin_leaves_no_folder(tmp_path, capsys, monkeypatch):
    (tmp_path / "a").write_text("a b\n" * 6)
    run, text, nowhere = tmp_path / "run", tmp_path / "a", tmp_path / "nowhere"
    for files in ([text, nowhere, "--valid", text, text], [text, text, "--valid", text, nowhere]):
        refused_here(capsys, monkeypatch, "train", run, "--train", *files)
        assert not run.exists()
