"""npad translate: files, pipes, terminals and output formats."""

from __future__ import annotations

import json
import lzma
import os
import pty
import select
import subprocess
import sys
import time
import warnings
from dataclasses import replace

import pytest

import npad as package
from cases import Small
from npad.cli.main import main
from npad.pipelines.writers import as_json, as_moses
from runs import lines, npad


def test_a_trained_model_reverses(corpus, trained):
    done = npad("translate", "--model", trained, "--input", corpus / "test.src", "--width", 5)
    outputs, references = done.stdout.splitlines(), lines(corpus / "test.tgt")
    right = sum(output == reference for output, reference in zip(outputs, references, strict=True))
    assert right > 0.95 * len(references)
    assert done.stderr == ""


def test_translate_writes_files_reads_packed_ones_and_keeps_the_order(
    corpus, trained, tmp_path, npad_here
):
    texts = [*lines(corpus / "test.src")[:30], "", *lines(corpus / "test.src")[:3]]
    (tmp_path / "in.xz").write_bytes(lzma.compress("\n".join(texts).encode()))
    base = ("translate", "-m", trained, "-d", "npad", "-M", 4)
    npad_here(*base, "-i", tmp_path / "in.xz", "-o", tmp_path / "out")
    outputs = lines(tmp_path / "out")
    assert outputs[30] == ""
    assert outputs[31:] == outputs[:3]
    piped = npad_here(*base, "--max-rows", 5, stdin="\n".join(texts))
    assert piped.stdout.splitlines() == outputs


@pytest.mark.parametrize("source", ["out.part", "out"])
def test_the_input_may_be_named_as_the_output_is(source, tmp_path, printed_here):
    (tmp_path / source).write_text("danke\nna ja\n")
    files = ("-i", tmp_path / source, "-o", tmp_path / "out")
    printed_here("translate", "-m", "toy", *files)
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


@pytest.mark.parametrize("asked", [[], ["-i", "/dev/stdin"]], ids=" ".join)
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
        "npad.cli.translate.load_as", lambda *_: replace(whole, model=Small(whole.model, 40))
    )
    arguments = f"npad translate -i {corpus}/test.src -o {tmp_path}/out -d greedy --max-rows 100"
    monkeypatch.setattr(sys, "argv", arguments.split())
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        with pytest.raises(SystemExit, match="0"):
            main()
    expected = whole.translate(lines(corpus / "test.src"), package.Greedy())
    assert lines(tmp_path / "out") == [output.text for output in expected]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("npad: warning: out of memory: continuing with half the rows at a time")


def test_translate_says_all_as_json(npad_here):
    options = ["translate", "-m", "toy", "-d", "npad", "--chains", "10", "--nbest", "3", "--json"]
    done = npad_here(*options, "na ja", "danke")
    first, second = map(json.loads, done.stdout.splitlines())
    decoder = package.NPAD(chains=10, noise=package.Noise(0.3))
    expected = package.load("toy").translate(["na ja"], decoder)[0]
    assert first["text"] == expected.text
    assert first["log_prob"] == expected.log_prob
    assert first["noisy_log_prob"] == expected.hypothesis.noisy_log_prob
    assert first["chain"] == expected.hypothesis.chain
    assert first["finished"] is True
    assert first["signature"] == expected.signature
    assert [record["text"] for record in first["alternatives"]] == [
        output.text for output in expected.alternatives[:2]
    ]
    assert (second["id"], second["source"]) == (1, "danke")


def test_nbest_is_moses(npad_here):
    done = npad_here("translate", "-m", "toy", "--nbest", 3, stdin="danke\n\nna ja\n")
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
    moses = as_moses(0, "source", best, 2).splitlines()
    assert [line.split(" ||| ")[1:4:2] for line in moses] == [
        ["a", "-1.000000"],
        ["b", "-2.000000"],
    ]
    record = json.loads(as_json(0, "source", best, 9))
    candidates = [(c["text"], c["log_prob"]) for c in (record, *record["alternatives"])]
    assert candidates == [("a", -1), ("b", -2), ("c", -5)]
    assert json.loads(as_json(0, "source", best, 1))["log_prob"] == -1


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
def test_json_has_the_text_that_plain_output_has(text, decoding, nbest, printed_here):
    command = ("translate", text, *decoding.split())
    plain = printed_here(*command)
    record = json.loads(printed_here(*command, "--json", "--nbest", nbest))
    assert f"{record['text']}\n" == plain
    scores = [candidate["log_prob"] for candidate in (record, *record.get("alternatives", ()))]
    assert scores == sorted(scores, reverse=True)


def test_a_sentence_of_ten_thousand_words_is_left_out_and_said(trained, tmp_path, npad_here):
    texts = ["babe bibo", "babe " * 10_000, "bibo babe"]
    done = npad_here(
        "translate", "-m", trained, "-o", tmp_path / "out", stdin="\n".join(texts), code=1
    )
    (line,) = done.stderr.splitlines()
    assert "npad: line 2 has 10,00" in line
    assert "tokens, more than --max-source 1,000; it is left empty" in line
    first, second, third = lines(tmp_path / "out")
    assert (first, second, third) == ("bibo babe", "", "babe bibo")


def test_a_line_that_is_left_out_is_no_empty_line_in_json(trained, npad_here):
    done = npad_here(
        "translate", "-m", trained, "", "babe " * 30, "--max-source", 5, "--json", code=1
    )
    empty, long = map(json.loads, done.stdout.splitlines())
    assert (empty["log_prob"], empty["source"]) == (0.0, "")
    assert (long["log_prob"], long["source"]) == (None, "babe " * 30)


def test_notes_never_land_in_the_output(tmp_path, npad_here):
    command = ("translate", "-m", "toy", "danke", "na ja", "--max-source", 4)
    assert npad_here(*command, code=1).stderr.count("it is left empty") == 2
    assert npad(*command, code=1, limit="exec 2>&-").stdout == "\n\n"
    npad(*command, "-o", tmp_path / "out", code=1, limit="exec <&- 2>&-")
    assert (tmp_path / "out").read_text() == "\n\n"


def test_output_is_utf_8_whatever_the_locale():
    latin = {"PYTHONIOENCODING": "latin-1", "LC_ALL": "C"}
    done = npad("translate", "-m", "toy", "--json", "danke", env=latin)
    assert "thanks" in done.stdout
    assert "σ" in npad("compare", "--help", env={"PYTHONIOENCODING": "ascii"}).stdout


def test_a_text_without_an_output_says_which_constraint_is_not_satisfied(npad_here):
    options = ["--constraint", "prefix(Der )", "--constraint", "choices(Ja.|Nein.)"]
    found = npad_here("translate", "How are you?", *options, code=1)
    assert found.stdout == "\n"
    assert "line 1 is left empty: beam, 5 finds no output" in found.stderr
    assert "satisfies prefix(Der )&choices(Ja.|Nein.)" in found.stderr


def test_outputs_that_lack_a_required_phrase_are_marked(npad_here):
    """Greedy search only ranks by them."""
    texts = ["The computer is broken.", "How are you?"]
    options = ["-d", "greedy", "--constraint", "with(Computer)", "--json"]
    found = npad_here("translate", *texts, *options)
    assert [json.loads(line).get("met", True) for line in found.stdout.splitlines()] == [
        True,
        False,
    ]
    assert "1 of 2 outputs lack a phrase that a constraint requires: 2" in found.stderr
