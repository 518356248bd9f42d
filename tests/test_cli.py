"""The command line as a process: every command works; every mistake is one line and a code."""

from __future__ import annotations

import importlib
import io
import json
import lzma
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest
import sacrebleu
import torch

import npad as package
import npad.cli as npad_cli
from cases import Small, counting_tokeniser
from npad.cli import outputs
from npad.cli.commands import COMMANDS, build
from npad.cli.decoder_options import make_decoder
from npad.cli.main import main
from npad.engine.devices import PRECISIONS
from npad.noise.registry import DISTRIBUTIONS, SCHEDULES
from npad.search.registry import DECODERS, SELECTORS
from runs import SMALL_RUN, npad, once, printed_here, refused, refused_here, reversal


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """The reversal corpus, and a model that `npad train` made of it."""

    def make(folder):
        reversal(folder)
        files = [
            folder / f"{split}.{side}" for split in ("train", "valid") for side in ("src", "tgt")
        ]
        done = npad(
            "train", folder / "run", "--train", *files[:2], "--valid", *files[2:], *SMALL_RUN
        )
        assert "Stopped after" in done.stdout
        assert "best so far" in done.stderr

    return once(tmp_path_factory, "reversal", make)


@pytest.fixture(scope="module")
def trained(corpus):
    return corpus / "run"


def lines(path):
    return path.read_text().splitlines()


def test_a_trained_model_reverses(corpus, trained):
    done = npad(
        "translate",
        "--model",
        trained,
        "--input",
        corpus / "test.src",
        "--decoder",
        "beam",
        "--width",
        5,
    )
    outputs, references = done.stdout.splitlines(), lines(corpus / "test.tgt")
    right = sum(output == reference for output, reference in zip(outputs, references, strict=True))
    assert right > 0.95 * len(references)
    assert done.stderr == ""


def test_training_leaves_a_log_and_a_picture(trained):
    records = [json.loads(line) for line in lines(trained / "log.jsonl")]
    assert {
        "update",
        "epoch",
        "seconds",
        "nll",
        "perplexity",
        "gradient_norm",
        "tokens_per_second",
    } <= set(records[0])
    assert any("valid_perplexity" in record for record in records)
    assert (trained / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_translate_writes_files_reads_packed_ones_and_keeps_the_order(corpus, trained, tmp_path):
    texts = [*lines(corpus / "test.src")[:30], "", *lines(corpus / "test.src")[:3]]
    (tmp_path / "in.xz").write_bytes(lzma.compress("\n".join(texts).encode()))
    npad(
        "translate",
        "-m",
        trained,
        "-i",
        tmp_path / "in.xz",
        "-o",
        tmp_path / "out",
        "-d",
        "npad",
        "-M",
        4,
    )
    outputs = lines(tmp_path / "out")
    assert outputs[30] == ""
    assert outputs[31:] == outputs[:3]
    piped = npad(
        "translate", "-m", trained, "-d", "npad", "-M", 4, "--max-rows", 5, stdin="\n".join(texts)
    )
    assert piped.stdout.splitlines() == outputs


@pytest.mark.parametrize("source", ["out.part", "out"])
def test_the_input_may_be_named_as_the_output_is(source, tmp_path, capsys, monkeypatch):
    (tmp_path / source).write_text("danke\nna ja\n")
    printed_here(
        capsys,
        monkeypatch,
        "translate",
        "-m",
        "toy",
        "-i",
        tmp_path / source,
        "-o",
        tmp_path / "out",
    )
    assert lines(tmp_path / "out") == ["thanks", "well yes"]
    if source != "out":
        assert lines(tmp_path / source) == ["danke", "na ja"]


def test_with_a_window_of_one_each_line_is_answered_as_it_comes():
    command = [sys.executable, "-m", "npad", "translate", "-m", "toy", "--window", "1"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        for text, answer in [("danke", "thanks"), ("", ""), ("na ja", "well yes")]:
            process.stdin.write(f"{text}\n")
            process.stdin.flush()
            assert process.stdout.readline() == f"{answer}\n"
        process.stdin.close()
        assert process.wait(60) == 0


@pytest.mark.parametrize("asked", [[], ["-i", "-"], ["-i", "/dev/stdin"]], ids=" ".join)
def test_nothing_is_drawn_over_what_is_typed(asked):
    terminal, child = pty.openpty()
    command = [sys.executable, "-m", "npad", "translate", "-m", "toy", *asked]
    environment = {**os.environ, "TERM": "xterm", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdin=child, stdout=child, stderr=child, env=environment)
    os.close(child)
    try:
        seen = read_until(terminal, b"Ctrl-D ends\r\n")
        os.write(terminal, b"da")
        time.sleep(0.5)  # five frames of a bar, were there one
        os.write(terminal, b"nke\n")
        seen += read_until(terminal, b"thanks\r\n")
        os.write(terminal, b"\x04")
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
    assert b"\x1b" not in seen
    assert seen.endswith(b"danke\r\nthanks\r\n")


def read_until(terminal, end, seconds=20):
    """What a terminal shows, up to `end`."""
    seen, deadline = b"", time.monotonic() + seconds
    while end not in seen:
        ready, _, _ = select.select([terminal], [], [], max(0, deadline - time.monotonic()))
        assert ready, f"no {end!r} in {seen!r}"
        seen += os.read(terminal, 4096)
    return seen


def test_out_of_memory_is_one_line_however_often(corpus, trained, tmp_path, capsys, monkeypatch):
    whole = package.load(trained)
    monkeypatch.setattr(
        "npad.cli.translate.load", lambda *_: replace(whole, model=Small(whole.model, 40))
    )
    arguments = [
        "npad",
        "translate",
        "-i",
        str(corpus / "test.src"),
        "-d",
        "greedy",
        "--max-rows",
        "100",
    ]
    monkeypatch.setattr(sys, "argv", [*arguments, "-o", str(tmp_path / "out")])
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        with pytest.raises(SystemExit, match="0"):
            main()
    expected = whole.translate(lines(corpus / "test.src"), package.Greedy())
    assert lines(tmp_path / "out") == [one.text for one in expected]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("npad: warning: out of memory: continuing with half the rows at a time")


def test_translate_says_all_as_json():
    done = npad(
        "translate",
        "-m",
        "toy",
        "-d",
        "npad",
        "--chains",
        10,
        "--nbest",
        3,
        "--json",
        "na ja",
        "danke",
    )
    first, second = map(json.loads, done.stdout.splitlines())
    decoder = package.NPAD(chains=10, noise=package.Noise(0.3))
    expected = package.load("toy").translate(["na ja"], decoder)[0]
    assert first["text"] == expected.text
    assert first["log_prob"] == expected.log_prob
    assert first["noisy_log_prob"] == expected.hypothesis.noisy_log_prob
    assert first["chain"] == expected.hypothesis.chain
    assert first["finished"] is True
    assert first["signature"] == expected.signature
    assert [one["text"] for one in first["alternatives"]] == [
        one.text for one in expected.alternatives[:2]
    ]
    assert (second["id"], second["source"]) == (1, "danke")


def test_nbest_is_moses():
    done = npad("translate", "-m", "toy", "--nbest", 3, stdin="danke\n\nna ja\n")
    rows = [line.split(" ||| ") for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == ["0", "0", "0", "1", "2", "2", "2"]
    assert rows[0] == ["0", "thanks", "logp= -0.13582 length= 1", "-0.135820"]
    scores = [float(row[3]) for row in rows[:3]]
    assert scores == sorted(scores, reverse=True)


def segmentations(*found):
    """A translation whose alternatives spell some of its texts again, in other tokens."""
    made = [
        package.Translation(text, score, package.Hypothesis((), score, True), "")
        for text, score in found
    ]
    return replace(made[0], alternatives=tuple(made[1:]))


def test_of_two_segmentations_of_a_text_the_better_is_written_at_its_rank():
    best = segmentations(
        ("a", -1.0), ("b", -2.0), ("a", -3.0), ("b", -4.0), ("c", -5.0), ("a", -6.0)
    )
    moses, records = io.StringIO(), io.StringIO()
    outputs.as_moses(moses, 0, "source", best, 2)
    assert [line.split(" ||| ")[1:4:2] for line in moses.getvalue().splitlines()] == [
        ["a", "-1.000000"],
        ["b", "-2.000000"],
    ]
    outputs.as_json(records, 0, "source", best, 9)
    record = json.loads(records.getvalue())
    assert [(one["text"], one["log_prob"]) for one in (record, *record["alternatives"])] == [
        ("a", -1),
        ("b", -2),
        ("c", -5),
    ]
    records = io.StringIO()
    outputs.as_json(records, 0, "source", best, 1)
    assert json.loads(records.getvalue())["log_prob"] == -1


@pytest.mark.parametrize(
    ("text", "decoding", "nbest"),
    [
        ("I have to paint it.", "--width 10", 10),
        (
            "Tom is studying at Harvard.",
            "-d npad --inner beam --width 10 -M 10 --candidates all",
            1,
        ),
    ],
)
def test_json_has_the_text_that_plain_output_has(text, decoding, nbest, capsys, monkeypatch):
    command = ("translate", text, *decoding.split())
    plain = printed_here(capsys, monkeypatch, *command)
    record = json.loads(printed_here(capsys, monkeypatch, *command, "--json", "--nbest", nbest))
    assert f"{record['text']}\n" == plain
    scores = [one["log_prob"] for one in (record, *record.get("alternatives", ()))]
    assert scores == sorted(scores, reverse=True)


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


def test_score_is_the_log_probability_of_pairs(corpus, trained, tmp_path):
    done = npad("score", corpus / "test.src", corpus / "test.tgt", "--model", trained)
    scores = [float(line) for line in done.stdout.splitlines()]
    translator = package.load(trained)
    expected = translator.score(lines(corpus / "test.src"), lines(corpus / "test.tgt"))
    assert scores == pytest.approx(expected, abs=1e-4)
    toy = json.loads(npad("score", "-m", "toy", "--text", "--json", "danke", "thanks").stdout)
    assert toy["log_prob"] == pytest.approx(-0.13582, abs=1e-5)


def test_score_tokenises_every_source_once(tmp_path, capsys, monkeypatch):
    translator, read = counting_tokeniser(package.load("toy"))
    monkeypatch.setattr("npad.cli.score.load", lambda *_: translator)
    (tmp_path / "a").write_text("danke\nna ja\n")
    (tmp_path / "b").write_text("thanks\nwell yes\n")
    printed_here(capsys, monkeypatch, "score", tmp_path / "a", tmp_path / "b")
    assert sorted(read) == ["danke", "na ja"]


def test_evaluate_measures(corpus, trained, tmp_path):
    files = corpus / "test.src", corpus / "test.tgt"
    common = ("--model", trained, "-d", "npad", "-M", 3, "--sigma", "0,0.1,0.2")
    done = npad("evaluate", *files, *common, "--json", "-o", tmp_path / "out")
    report = json.loads(done.stdout)
    assert report["bleu"] == sacrebleu.corpus_bleu(lines(tmp_path / "out"), [lines(files[1])]).score
    assert report["sentences"] == 200
    assert report["signature"].startswith("npad|inner:greedy|chains:3|sigma:0.0,0.1,0.2|")
    table = npad("evaluate", *files, "--model", trained).stdout
    for name in (
        "NLL",
        "BLEU",
        "chrF",
        "length ratio",
        "distinct-1",
        "unique",
        "model calls",
        "time",
    ):
        assert name in table


def test_prepare_makes_a_store_that_train_takes(corpus, tmp_path):
    files = [corpus / f"{split}.{side}" for split in ("train", "valid") for side in ("src", "tgt")]
    done = npad(
        "prepare",
        tmp_path / "store",
        *files[:2],
        "--valid",
        *files[2:],
        "--vocabulary",
        "300,280",
        "--longest",
        20,
    )
    assert "3,000" in done.stdout
    tiny = ("--units", 8, "--embedding", 8, "--updates", 3)
    npad("train", tmp_path / "run", "--data", tmp_path / "store", *tiny)
    info = json.loads(npad("info", tmp_path / "run", "--json").stdout)
    assert info["model"]["target_vocabulary"] <= 280
    assert info["training"]["update"] == 3
    assert info["training"]["recipe"]["optimiser"] == "adam"


def test_a_shipped_model_is_packed_by_its_name(tmp_path, capsys, monkeypatch):
    folder = tmp_path / "small"
    assert f"{folder}: " in printed_here(capsys, monkeypatch, "pack", "en-de", folder)
    assert package.load(folder).translate(["Where is the library?"])


@pytest.mark.parametrize("name", ["toy", "hf:some/model"])
@pytest.mark.parametrize(
    ("command", "use"),
    [
        (["pack", "MODEL", "folder"], "be packed"),
        (["plot", "attention", "danke", "-m", "MODEL"], "be plotted"),
        (["reproduce", "run", "--data", ".", "-m", "MODEL"], "be used by npad reproduce"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_commands_for_trained_models_refuse_others(
    name, command, use, tmp_path, capsys, monkeypatch
):
    for file in ("test.en", "test.de", "valid.en", "valid.de"):
        (tmp_path / file).write_text("danke\n")
    monkeypatch.chdir(tmp_path)
    arguments = [name if argument == "MODEL" else argument for argument in command]
    expected = f"{name} cannot {use}; give en-de or a folder that npad train wrote"
    assert refused_here(capsys, monkeypatch, *arguments) == expected
    assert len(list(tmp_path.iterdir())) == 4


def test_info_tells_what_a_model_is(trained):
    shown = npad("info", trained).stdout
    for part in ("AttentionModel", "96", "hidden (96)", "3,000 pairs", "validation perplexity"):
        assert part in shown
    assert "hidden" in npad("info", "toy").stdout


@pytest.mark.parametrize("more", [[], ["--target", "babe bibo"]], ids=["own", "given"])
def test_plot_attention_draws(trained, tmp_path, more):
    done = npad(
        "plot", "attention", "babe um bibo", "--model", trained, "-o", tmp_path / "a.png", *more
    )
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert str(tmp_path / "a.png") in done.stdout
    npad("plot", "loss", trained, "-o", tmp_path / "l.svg")
    assert "<svg" in (tmp_path / "l.svg").read_text()


HELPS = [[name] for name in COMMANDS if name != "plot"]
HELPS += [["plot", "attention"], ["plot", "loss"]]


@pytest.mark.parametrize("command", HELPS, ids=" ".join)
def test_help_has_examples(command, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["npad", *command, "--help"])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert f"npad {' '.join(command)} " in capsys.readouterr().out.split("Example")[1]


def test_the_command_lists_its_commands_and_knows_its_version():
    shown = npad().stdout
    assert all(name in shown for name in COMMANDS)
    assert npad("--version").stdout.strip() == package.__version__


def test_the_help_needs_no_torch():
    code = (
        "import sys; sys.argv = ['npad', '--help']\n"
        "from npad.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as exit: assert not exit.code\n"
        "heavy = {'torch', 'tokenizers', 'transformers', 'numpy'}\n"
        "print(heavy & sys.modules.keys(), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "translate" in done.stdout
    assert done.stderr == "set()\n"


def test_every_module_with_a_command_is_listed():
    modules = {path.stem for path in Path(npad_cli.__file__).parent.glob("*.py")} - {"__init__"}
    runnable = {
        name
        for name in modules
        if {"command", "app"} & vars(importlib.import_module(f"npad.cli.{name}")).keys()
    }
    assert runnable - {"main", "commands"} == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_listed_with_the_first_line_of_its_docstring(name):
    assert build(name).help.splitlines()[0] == COMMANDS[name]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tranlate"], "No such command 'tranlate'"),
        (
            ["translate", "-m", "toy", "hallo"],
            "toy has no table for 'hallo'; it has 'das ist mir wurst'",
        ),
        (["translate", "--model", "nowhere", "danke"], "there is no model nowhere"),
        (["translate", "--width", "five", "danke"], "--width"),
        (
            ["translate", "--width", "0", "danke"],
            "width must be a whole number of at least 1, not 0",
        ),
        (
            ["translate", "--chains", "5", "danke"],
            "--chains does not go with --decoder beam, which has --finish, --nbest, --width",
        ),
        (
            ["translate", "-d", "npad", "--width", "5", "danke"],
            "--width does not go with --inner greedy",
        ),
        (
            ["translate", "-d", "npad", "--inner", "npad", "danke"],
            "NPAD cannot be its own inner decoder",
        ),
        (["translate", "-d", "npad", "--sigma", "much", "danke"], "--sigma must be a number"),
        (["translate", "-d", "npad", "--site", "cell", "danke"], "no noise site 'cell'"),
        (
            ["translate", "-d", "npad", "--schedule", "soon", "danke"],
            "schedule must be one of 1/t, constant",
        ),
        (["translate", "--input", "nowhere", "danke"], "give texts or --input, not both"),
        (["translate", "--input", "nowhere"], "cannot read nowhere: No such file or directory"),
        (["translate", "--json", "--moses", "danke"], "choose one of --json and --moses"),
        (
            ["translate", "-d", "npad", "--noise", "dropout", "danke"],
            "--noise dropout is a share of what it perturbs",
        ),
        (
            ["translate", "-d", "npad", "--schedule", f"linear(steps={10**30})", "danke"],
            "Linear's steps must be a whole number of at most",
        ),
        (["translate", "d\udcffnke"], "holds half a surrogate pair"),
        (["translate", "--output", ".", "danke"], "it is a folder"),
        (["translate", "-m", "toy", "--output", "n" * 256, "danke"], "File name too long"),
        (["translate", "-m", "toy", "--input", "n" * 256], "File name too long"),
        (["info", "n" * 256], "File name too long"),
        (["compare", " "], "the text is blank"),
        (["compare", "--decoders", "greedy", "danke"], "--decoders does not go with npad compare"),
        (
            ["translate", "-m", "toy", "-d", "greedy()", "--nbest", "5", "danke"],
            "--nbest does not go with --decoder greedy()",
        ),
        (
            ["translate", "-m", "toy", "-d", "beam(width=3,width=4)", "danke"],
            "beam has its field 'width' twice",
        ),
        (
            ["train", "run", "--resume", "--preset", "paper"],
            "--preset is fixed for a run and cannot change",
        ),
        (
            ["train", "run", "--data", "nowhere", "--units", "0"],
            "units must be a whole number of at least 1",
        ),
        (["score", "-", "-"], "cannot both be standard input"),
        (["train", "run"], "training needs --data STORE, or --train SOURCE TARGET"),
        (["train", "run", "--train", "a", "b"], "training needs validation pairs"),
        (["train", "run", "--data", "s", "--joint"], "--joint does not go with --data"),
        (
            ["train", "run", "--data", "s", "--schedule", "constant"],
            "noise in training needs its --sigma",
        ),
        (
            ["train", "run", "--data", "s", "--preset", "huge"],
            "preset must be one of 'paper', 'small', not 'huge'",
        ),
        (["train", "run", "--resume"], "run holds no run to resume"),
        (
            ["train", "run", "--resume", "--units", "5"],
            "--units is fixed for a run and cannot change",
        ),
        (
            ["prepare", "s", "a", "b", "--vocabulary", "many"],
            "--vocabulary must be one or two whole numbers",
        ),
        (["info", "nowhere"], "there is no model nowhere"),
        (
            ["plot", "attention", "danke", "--model", "toy"],
            "toy cannot be plotted; give en-de",
        ),
        (["plot", "loss", "."], "has no training log"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_gets_one_line_and_code_2(tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert message in refused_here(capsys, monkeypatch, *arguments)
    assert list(tmp_path.iterdir()) == []


COMPUTING = {
    "translate": ["danke"],
    "compare": ["danke"],
    "score": ["--text", "danke", "thanks"],
    "evaluate": ["test.en", "test.de"],
    "calibrate": ["test.en"],
    "train": ["run", "--train", "test.en", "test.de", "--valid", "test.en", "test.de"],
    "reproduce": ["report", "--data", ".", "--model", "en-de"],
    "transcribe": ["--model", "hf:nowhere", "test.en"],
}
PRECISE = ("translate", "evaluate", "calibrate", "train", "reproduce")


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """A folder to work in, with enough in it for every command."""
    for name in ("test.en", "test.de", "valid.en", "valid.de"):
        (tmp_path / name).write_text("danke\n")
    monkeypatch.chdir(tmp_path)
    yield
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "test.de",
        "test.en",
        "valid.de",
        "valid.en",
    ]


@pytest.mark.parametrize("command", COMPUTING)
@pytest.mark.parametrize("device", ["abacus", "meta", "", "cuda:", "cuda:99", "cuda"])
@pytest.mark.usefixtures("texts")
def test_a_device_that_is_not_there_is_one_line(command, device, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    rule = f"--device must be cpu, cuda or auto, not {device!r}"
    if device in ("cuda", "cuda:99"):
        rule = f"--device {device}: torch can use 0 GPUs on this machine; use another, or cpu"
    assert (
        refused_here(capsys, monkeypatch, command, *COMPUTING[command], "--device", device) == rule
    )


@pytest.mark.parametrize("command", PRECISE)
@pytest.mark.usefixtures("texts")
def test_a_precision_that_there_is_not_is_one_line(command, capsys, monkeypatch):
    line = refused_here(capsys, monkeypatch, command, *COMPUTING[command], "--precision", "int4")
    assert line.startswith("precision must be one of 'float32', 'bfloat16'")
    assert line.endswith(", not 'int4'")


@pytest.mark.parametrize("command", [one for one in PRECISE if one != "train"])
@pytest.mark.usefixtures("texts")
def test_a_precision_that_the_device_cannot_do_is_one_line(command, capsys, monkeypatch):
    monkeypatch.setitem(PRECISIONS, "bfloat16", torch.uint16)  # in which no CPU multiplies
    line = refused_here(
        capsys,
        monkeypatch,
        command,
        *COMPUTING[command],
        "--precision",
        "bfloat16",
        "--device",
        "cpu",
    )
    assert line.startswith("cpu cannot compute in bfloat16; use another precision (")


def test_training_in_a_precision_that_the_device_cannot_do_is_one_line(
    corpus, tmp_path, capsys, monkeypatch
):
    monkeypatch.setitem(PRECISIONS, "bfloat16", torch.uint16)
    files = [corpus / f"{split}.{side}" for split in ("train", "valid") for side in ("src", "tgt")]
    pairs = [
        "--train",
        *files[:2],
        "--valid",
        *files[2:],
        "--device",
        "cpu",
        "--precision",
        "bfloat16",
    ]
    line = refused_here(capsys, monkeypatch, "train", tmp_path / "run", *pairs)
    assert line.startswith("cpu cannot compute in bfloat16; use another precision (")


def test_bad_files_are_named_with_their_line(trained, tmp_path, capsys, monkeypatch):
    here = partial(refused_here, capsys, monkeypatch)
    (tmp_path / "bytes").write_bytes(b"fine\nb\xffd\n")
    assert "bytes, line 2: byte 0xff at column 2 is not UTF-8" in refused(
        "translate", "-m", trained, "-i", tmp_path / "bytes"
    )
    (tmp_path / "binary").write_bytes(b"\x00\x01")
    assert "binary, line 1: a zero byte" in here(
        "translate", "-m", trained, "-i", tmp_path / "binary"
    )
    (tmp_path / "a").write_text("one\ntwo\n")
    (tmp_path / "b").write_text("one\n")
    files = (tmp_path / "a", tmp_path / "b")
    assert "a has 2 lines and" in here("prepare", tmp_path / "store", *files)
    assert "b has 1" in here("evaluate", *files, "-m", trained)
    assert "b has 1 lines and" in here("score", *files, "-m", trained)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "binary", "bytes"]


def test_a_sentence_of_ten_thousand_words_is_left_out_and_said(trained, tmp_path):
    texts = ["babe bibo", "babe " * 10_000, "bibo babe"]
    done = npad("translate", "-m", trained, "-o", tmp_path / "out", stdin="\n".join(texts), code=1)
    (line,) = done.stderr.splitlines()
    assert "npad: line 2 has 10,00" in line
    assert "tokens, more than --max-source 1,000; it is left empty" in line
    first, second, third = lines(tmp_path / "out")
    assert (first, second, third) == ("bibo babe", "", "babe bibo")


def test_a_limit_on_sources_can_be_raised_and_names_its_line(
    trained, tmp_path, capsys, monkeypatch
):
    (tmp_path / "a").write_text("babe\n" * 1004 + "babe " * 1100 + "\n")
    (tmp_path / "b").write_text("babe\n" * 1005)
    here = partial(refused_here, capsys, monkeypatch)
    assert "line 1005 has 1,10" in here(
        "score", tmp_path / "a", tmp_path / "b", "-m", trained, "-o", tmp_path / "out"
    )
    assert "source 1005 has 1,10" in here("evaluate", tmp_path / "a", tmp_path / "b", "-m", trained)
    long = npad(
        "translate",
        "-m",
        trained,
        "babe " * 1100,
        "--max-source",
        2000,
        "--max-length",
        5,
        "--json",
    )
    assert json.loads(long.stdout)["log_prob"] < 0


def test_a_line_that_is_left_out_is_no_empty_line_in_json(trained):
    done = npad("translate", "-m", trained, "", "babe " * 30, "--max-source", 5, "--json", code=1)
    empty, long = map(json.loads, done.stdout.splitlines())
    assert (empty["log_prob"], empty["source"]) == (0.0, "")
    assert (long["log_prob"], long["source"]) == (None, "babe " * 30)


def test_brackets_in_a_text_are_text(trained):
    assert "[/a] [bold]" in npad("compare", "-m", trained, "[/a] [bold]", "--max-length", 5).stdout


@pytest.mark.parametrize(
    ("redirect", "message"),
    [
        ("exec <&-", "standard input: it is closed"),
        ("exec >&-", "output is closed"),
        ("exec > /dev/full", "No space left"),
    ],
)
def test_streams_that_fail_are_named(redirect, message):
    done = npad(
        "translate", "-m", "toy", *([] if "<" in redirect else ["danke"]), limit=redirect, code=None
    )
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert message in done.stderr


def heed_interrupts():
    """Undo the SIG_IGN that a shell gives its background jobs, and their children inherit."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("delay", [0.05, 0.1, 0.2, 0.4, 0.7, 1.0, 1.3, 1.7, 2.2, 3.0])
def test_an_interrupt_is_one_line_at_any_time(delay):
    """From the first line of npad on; the interpreter's own start is beyond it."""
    code = (
        "import sys; sys.argv = 'npad translate -m toy'.split(); "
        "from npad.cli import startup; startup.begin(); print('begun', flush=True); "
        "from npad.cli.main import main; main()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        preexec_fn=heed_interrupts,
    ) as process:
        assert process.stdout.readline() == b"begun\n"
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read() == b"npad: interrupted\n"


def test_an_interrupt_names_what_was_written_so_far(tmp_path):
    command = [
        sys.executable,
        "-m",
        "npad",
        "translate",
        "-m",
        "toy",
        "--window",
        "1",
        "-o",
        tmp_path / "out",
    ]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stderr=pipe, preexec_fn=heed_interrupts) as process:
        process.stdin.write(b"danke\n")
        process.stdin.flush()
        while not any(path.stat().st_size for path in tmp_path.iterdir()):
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        (part,) = tmp_path.iterdir()
        assert (
            process.stderr.read().decode()
            == f"npad: interrupted; what was written so far is in {part}\n"
        )
    assert lines(part) == ["thanks"]


def test_an_interrupted_training_says_how_it_continues(tmp_path, capsys, monkeypatch):
    def interrupted(folder, *_):
        folder.mkdir()
        (folder / "run.json").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr("npad.training.run.train", interrupted)
    run = tmp_path / "run"
    line = refused_here(capsys, monkeypatch, "train", run, "--data", "store", code=130)
    assert line == f"interrupted; npad train {run} --resume continues"


class Panic(BaseException):
    """As a library in Rust raises it."""


@pytest.mark.parametrize(
    "error", [TypeError("no\nnumber"), Panic("no\nnumber"), RuntimeError("no\nnumber")]
)
def test_a_bug_is_one_line_and_shows_its_traceback_where_asked(error, capsys, monkeypatch):
    def fail(*_):
        raise error

    monkeypatch.setattr("npad.cli.translate.load", fail)
    line = refused_here(capsys, monkeypatch, "translate", "danke", code=70)
    assert line.startswith(
        "this is a bug in npad, please report it with the traceback that NPAD_TRACEBACK=1 shows: "
    )
    assert line.endswith(f": {type(error).__name__}: no number")
    monkeypatch.setenv("NPAD_TRACEBACK", "1")
    with pytest.raises(SystemExit, match="70"):
        main()
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("closed", ["2>&-", "<&- 2>&-"])
def test_notes_never_land_in_the_output(closed, tmp_path):
    command = ("translate", "-m", "toy", "danke", "na ja", "--max-source", 4)
    assert npad(*command, code=1).stderr.count("it is left empty") == 2
    assert npad(*command, code=1, limit=f"exec {closed}").stdout == "\n\n"
    npad(*command, "-o", tmp_path / "out", code=1, limit=f"exec {closed}")
    assert (tmp_path / "out").read_text() == "\n\n"


def test_output_is_utf_8_whatever_the_locale():
    done = npad(
        "translate",
        "-m",
        "toy",
        "--json",
        "danke",
        env={"PYTHONIOENCODING": "latin-1", "LC_ALL": "C"},
    )
    assert "thanks" in done.stdout
    assert "σ" in npad("compare", "--help", env={"PYTHONIOENCODING": "ascii"}).stdout


def test_a_damaged_model_is_named(trained, tmp_path):
    (best,) = trained.glob("best-*")
    shutil.copytree(best, tmp_path / "model")
    weights = tmp_path / "model/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    assert "model.safetensors is damaged" in refused(
        "translate", "-m", tmp_path / "model", "bade", code=1
    )


def test_json_nested_too_deeply_is_damaged(tmp_path, capsys, monkeypatch):
    (tmp_path / "log.jsonl").write_text("[" * 100_000 + "\n")
    assert "damaged" in refused_here(capsys, monkeypatch, "plot", "loss", tmp_path, code=1)


def test_a_reader_that_leaves_is_no_error(trained):
    done = npad("translate", "-m", "toy", *["danke"] * 5, code=None, limit="exec > >(head -1)")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("strategy", "options", "expected"),
    [
        ("greedy", {}, package.Greedy()),
        ("beam", {"width": 3, "finish": "pool", "nbest": 2}, package.Beam(3, "pool", 2)),
        (
            "sampling",
            {"samples": 4, "temperature": 0.5, "top_k": 3, "seed": 2},
            package.Sampling(4, 0.5, 3, seed=2),
        ),
        ("diverse", {"width": 3, "eta": 0.5}, package.Diverse(3, 0.5)),
        ("exact", {"budget": 10}, package.Exact(10)),
        ("npad", {"inner": "beam", "width": 3, "nbest": 10}, package.NPAD(package.Beam(3))),
        (
            "npad",
            {
                "inner": "beam",
                "width": 3,
                "chains": 4,
                "sigma": "0.2",
                "schedule": "power(p=1)",
                "noise": "laplace",
                "site": "output",
                "relative": True,
                "clean_chain": False,
                "selector": "gnmt-length(alpha=1)",
                "candidates": "all",
                "share_noise": True,
                "seed": 5,
            },
            package.NPAD(
                package.Beam(3),
                4,
                package.Noise(0.2, package.Power(1.0), package.Laplace(), "output", True),
                False,
                5,
                package.GNMTLength(1.0),
                "all",
                True,
            ),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_options_make_the_decoder_they_describe(strategy, options, expected):
    assert make_decoder(strategy, options) == expected


@pytest.fixture
def registered():
    """Register parts for the time of a test."""
    added = []

    def register(registry, kind):
        registry.add(kind)
        added.append((registry, kind))
        return kind

    yield register
    for registry, kind in added:
        registry.remove(kind)


@dataclass(frozen=True)
class Widest(package.Decoder):
    """A beam by another name."""

    breadth: int = field(default=2, metadata={"help": "prefixes kept", "title": "{}"})

    def search(self, model, state, problems):
        return package.Beam(self.breadth).search(model, state, problems)

    @property
    def rows(self):
        return self.breadth


def test_a_decoder_added_at_run_time_has_its_options(registered, capsys, monkeypatch):
    registered(DECODERS, Widest)
    printed = partial(printed_here, capsys, monkeypatch)
    shown = " ".join(printed("translate", "--help").split())
    assert "widest: prefixes kept. [2]" in shown
    assert "--breadth" in shown
    record = json.loads(
        printed("translate", "-m", "toy", "-d", "widest", "--breadth", 3, "--json", "danke")
    )
    assert record["signature"].startswith("widest|breadth:3|")
    assert "widest, 4" in printed("compare", "-m", "toy", "--breadth", 4, "danke")
    inner = ("translate", "-m", "toy", "-d", "npad", "--inner", "widest", "--breadth", 3, "--json")
    assert "inner:widest(breadth=3)" in printed(*inner, "danke")


@dataclass(frozen=True)
class Early:
    """A schedule that is 1 at the first step and then `floor`."""

    floor: float = 0.0

    def __call__(self, step, entropy):
        return torch.where(step <= 1, 1.0, self.floor)


@dataclass(frozen=True)
class Coin(package.Distribution):
    """Plus or minus `size`."""

    size: float = 1.0

    def unit(self, keys, width):
        return self.size * package.Gaussian().unit(keys, width).sign()


@dataclass(frozen=True)
class Shortest:
    """A selector by length."""

    weight: float = 1.0

    def __call__(self, found):
        return -self.weight * found.lengths.double()


@pytest.mark.parametrize(
    ("registry", "kind", "flag", "spec"),
    [
        (SCHEDULES, Early, "--schedule", "early(floor=0.5)"),
        (DISTRIBUTIONS, Coin, "--noise", "coin(size=2.0)"),
        (SELECTORS, Shortest, "--selector", "shortest(weight=3.0)"),
    ],
    ids=["schedule", "distribution", "selector"],
)
def test_a_part_of_npad_added_at_run_time_is_an_option(
    registry, kind, flag, spec, registered, capsys, monkeypatch
):
    command = ("translate", "-m", "toy", "-d", "npad", "-M", 4, flag, spec, "--json", "danke")
    assert "must be one of" in refused_here(capsys, monkeypatch, *command)
    registered(registry, kind)
    assert f":{spec}" in json.loads(printed_here(capsys, monkeypatch, *command))["signature"]
    shown = printed_here(capsys, monkeypatch, "translate", "--help")
    assert spec.partition("(")[0] in shown


def test_several_decoders_are_named_with_commas(capsys, monkeypatch):
    command = ("translate", "-m", "toy", "-d", "best-of", "--decoders", "greedy,beam(width=3)")
    record = json.loads(printed_here(capsys, monkeypatch, *command, "--json", "danke"))
    decoder = package.BestOf((package.Greedy(), package.Beam(3)))
    expected = package.load("toy").translate(["danke"], decoder)[0]
    assert (record["text"], record["signature"]) == (expected.text, expected.signature)


def test_training_options_reach_the_model_and_the_recipe(monkeypatch, tmp_path):
    """Every option of `npad train` is set, and arrives under its own name."""
    received = {}
    monkeypatch.setattr("npad.cli.train._print_summary", lambda *_: None)
    monkeypatch.setattr(
        "npad.training.run.train",
        lambda folder, data, model, recipe, *_: (
            received.update(data=data, model=model, recipe=recipe) or (None, "")
        ),
    )
    model = {"units": 8, "embedding": 6, "cell": "lstm", "layers": 2, "dropout": 0.5}
    model |= {"initialisation": "paper", "attention": True, "tied": True}
    recipe = {"optimiser": "sgd", "learning_rate": 0.5, "decay": 0.9, "clip": 2.0, "batch": 64}
    recipe |= {"epochs": 3, "updates": 7, "patience": 2, "validate": 5, "checkpoint": 6}
    recipe |= {"precision": "float32", "seed": 4, "anneal": False}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in (model | recipe).items()]
    flags = [flag.removesuffix("=True") for flag in flags if not flag.endswith("=False")]
    noise = ["--sigma", "0.2", "--schedule", "power(p=1)", "--noise", "laplace", "--site", "output"]
    monkeypatch.setattr(
        "sys.argv", ["npad", "train", str(tmp_path), "--data", "s", *flags, *noise, "--relative"]
    )
    with pytest.raises(SystemExit, match="0"):
        main()
    assert received["model"] == model
    assert {name: getattr(received["recipe"], name) for name in recipe} == recipe
    assert received["recipe"].noise == package.Noise(
        0.2, package.Power(1.0), package.Laplace(), "output", True
    )
