"""Hints of the command line: what was probably meant, and what is shown of a model."""

from __future__ import annotations

import json

import pytest

from checkpoint_cases import SUBWORDS, tiny
from npad.cli.main import INSTEAD
from npad.storage import checkpoint

OTHER = "No such option: --beam; use --width, and --decoder beam"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["translate", "--beam", 5, "a"], OTHER),
        (["translate", "-m", "en-dee", "hi"], "there is no model en-dee; did you mean en-de?"),
        (["info", "tooy"], "there is no model tooy; did you mean toy?"),
        (["translate", "--chans", 3, "a"], "No such option: --chans; did you mean --chains?"),
        (["tranlate", "a"], "No such command 'tranlate'; did you mean translate?"),
        (["xyzzy"], "No such command 'xyzzy'; npad --help lists them"),
        (["plot", "los"], "No such command 'los'; did you mean loss?"),
        (["plot"], "npad plot needs the name of a command: attention, loss"),
        (["decoders", "baem"], "there is no decoder baem; did you mean beam?"),
        (["fetch", "whisper"], "cannot fetch 'whisper'; did you mean whisper-tiny.en?"),
        (
            ["translate", "--sigma", "0.5", "a"],
            "--sigma does not go with --decoder beam, which has --finish, --nbest, --selector, "
            "--width; it is an option of npad",
        ),
        (["pack", "en-de"], "Missing argument 'folder'; npad pack --help shows examples"),
    ],
    ids=str,
)
def test_a_slip_names_what_was_probably_meant(arguments, line, refused_here):
    assert refused_here(*arguments) == line


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (["-d", "baem"], "beam"),
        (["-d", "beem(width=3)"], "beam"),
        (["-d", "BEAM"], "beam"),
        (["-d", "beam(widht=3)"], "width"),
        (["-d", "npad", "--inner", "greedi"], "greedy"),
        (["-d", "npad", "--schedule", "powr"], "power"),
        (["-d", "npad", "--distribution", "gausian"], "gaussian"),
        (["--selector", "length-normalized"], "length-normalised"),
        (["--finish", "pol"], "pool"),
        (["--engine", "proceses", "-o", "b"], "processes"),
        (["--precision", "float23"], "float32"),
        (["-m", "run/en-sc"], "run/en-cs"),
    ],
    ids=" ".join,
)
def test_the_nearest_name_of_a_value_is_suggested(
    arguments, near, tmp_path, refused_here, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run/en-cs").mkdir(parents=True)
    line = refused_here("translate", *arguments, "hi")
    assert line.endswith(f"; did you mean {near}?")


@pytest.mark.parametrize(
    ("arguments", "option", "value"),
    [(["--width", "x"], "--width", "'x'"), (["--max-length=0"], "--max-length", "0")],
)
def test_an_invalid_value_is_named(arguments, option, value, refused_here):
    line = refused_here("translate", *arguments, "hi")
    assert line.startswith(f"Invalid value for '{option}': ")
    assert value in line
    assert "unable to parse" not in line


def test_a_folder_named_nearly_as_a_model_is_taken_for_itself(tmp_path, refused_here, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "en-dee").mkdir()
    assert "en-dee holds no model" in refused_here("info", "en-dee")


def test_hints_name_options_that_exist(printed_here):
    shown = printed_here("translate", "--help-all")
    for option, instead in INSTEAD.items():
        assert instead.partition(",")[0] in shown
        assert f" {option} " not in shown


@pytest.mark.parametrize(
    ("old", "new", "warning"),
    [
        (
            ["translate", "-d", "npad", "--noise", "laplace", "-M", "2"],
            ["translate", "-d", "npad", "--distribution", "laplace", "-M", "2"],
            "--noise is now --distribution",
        ),
        (
            ["translate", "-d", "npad", "--noise=laplace", "-M", "2"],
            ["translate", "-d", "npad", "--distribution=laplace", "-M", "2"],
            "--noise is now --distribution",
        ),
        (
            ["translate", "-d", "best-of", "--decoders", "greedy,beam"],
            ["translate", "-d", "best-of", "--inner", "greedy,beam"],
            "--decoders is now --inner",
        ),
    ],
    ids=" ".join,
)
def test_an_old_spelling_works_with_a_warning(old, new, warning, npad_here):
    rest = ["-m", "toy", "--json", "danke", "--", "na ja"]
    done, expected = npad_here(*old, *rest), npad_here(*new, *rest)
    assert done.stdout == expected.stdout
    assert expected.stderr == ""
    assert done.stderr.startswith(f"npad: warning: {warning}")


def test_calibrate_confidence_is_a_command_of_its_own(tmp_path, npad_here):
    for option in (["--confidence", tmp_path / "b"], [f"--confidence={tmp_path / 'b'}"]):
        done = npad_here("calibrate", *option, tmp_path / "a", "-m", "toy", code=2)
        warning, refusal = done.stderr.splitlines()
        assert "is now npad fit-confidence SOURCE REFERENCE" in warning
        assert "toy cannot keep a confidence" in refusal


def test_info_shows_the_default_model_its_languages_and_whom_to_credit(printed_here):
    shown = printed_here("info")
    assert all(part in shown for part in ("en-de", "English to German", "Tatoeba", "CC BY 2.0 FR"))
    record = json.loads(printed_here("info", "--json"))
    assert record["languages"].startswith("English to German")
    assert "Tatoeba" in record["credit"]


def test_info_shows_the_rate_of_an_optimiser_by_default(tmp_path, printed_here):
    folder, rate = tmp_path / "model", {"adam": 0.001, "adadelta": 1.0}
    for optimiser, default in rate.items():
        training = {"recipe": {"optimiser": optimiser, "learning_rate": None}, "update": 1}
        training |= {"data": {"train": {"kept": 2}}, "perplexity": 3.0}
        checkpoint.save(folder, tiny(), (SUBWORDS, SUBWORDS), {"training": training})
        shown = printed_here("info", folder)
        assert f"optimiser {optimiser}, learning_rate {default:g}" in shown
        record = json.loads(printed_here("info", folder, "--json"))
        assert record["training"]["recipe"]["learning_rate"] == default


def test_a_training_that_cannot_begin_leaves_no_folder(tmp_path, refused_here):
    (tmp_path / "a").write_text("a b\n" * 6)
    run, text, nowhere = tmp_path / "run", tmp_path / "a", tmp_path / "nowhere"
    for files in ([text, nowhere, "--valid", text, text], [text, text, "--valid", text, nowhere]):
        refused_here("train", run, "--train", *files)
        assert not run.exists()
