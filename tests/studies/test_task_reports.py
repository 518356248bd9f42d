"""Captions and speech, from decoding to the rendered report."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from media import SMALL as SIZES
from media import write_flickr
from npad.decoding import decode as decode_all
from npad.evaluate.bootstrap import Difference
from npad.metrics.chrf import Chrf
from npad.models.cgru.model import AttentionModel
from npad.reproduce import report
from npad.reproduce.claims import verdict
from npad.reproduce.record import Record
from npad.search.beam import Beam
from npad.search.greedy import Greedy
from npad.storage import checkpoint
from npad.text.subwords import Subwords
from npad.training import run
from npad.training.prepare import prepare
from npad.training.recipe import Recipe
from runs import ROOT, TINY
from speech_cases import corpus as corpus  # a fixture
from studies.confidence import decoding as confidence
from studies.confidence.tasks import decoded_tasks
from studies.tasks import experiment as tasks
from studies.tasks import sets as task_sets
from studies.tasks.decoded_bench import DecodedBench
from studies.tasks.sections import OUTLINES, overall, unbeaten

CAPTION, SPEECH = (OUTLINES[task].measures for task in ("caption", "speech"))

COLOURS = ["red", "blue"]
SMALL = ["--device", "cpu", "--seeds", "2", "--budget", "20", "--max-rows", "512"]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A corpus like Flickr8k: squares of two colours, two captions each."""
    folder = tmp_path_factory.mktemp("pictures")

    def captions(name: str, colour: str) -> str:
        return f"{name}\ta {colour} square on paper .\n{name}\tit is {colour}\n"

    counts = {"train": (36, 100), "valid": (6, 200), "test": (6, 300)}
    write_flickr(folder, counts, captions)
    return folder


def untrained(folder, source, texts, **options):
    """The folder of a model of pictures or sounds whose outputs end soon."""
    torch.manual_seed(0)
    target = Subwords.learn(texts, 300)
    model = AttentionModel(1, target.size, **TINY, source=source, source_options=options)
    with torch.no_grad():
        model.logits.bias[0] = 4.0
    checkpoint.save(folder, model, (None, target), {})
    return folder


def decode(task, model, data, out, *more):
    arguments = ["decode", task, "--model", model, "--data", data, "--out", out, *SMALL, *more]
    tasks.main([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def captioned(pictures, tmp_path_factory):
    """Hypotheses and the report of captions; decoding was stopped on the way, and a line cut."""
    folder = tmp_path_factory.mktemp("captioned")
    texts = ["a red square .", "it is green", "a blue square ."]
    blind = untrained(folder / "blind", "picture", texts, size=16, channels=[4, 4])
    archive = str(pictures / "images-80px.tar")
    recipe = Recipe(batch=60, epochs=30, learning_rate=0.01, anneal=True, validate=100)
    splits = {s: (archive, str(pictures / f"{s}.tsv.xz")) for s in ("train", "valid")}
    prepare(folder / "s", **splits, task="caption", vocabulary=280, features={"size": 16})
    options = SIZES | {"source_options": {"channels": [4, 8]}}
    run.train(folder / "model", folder / "s", options, recipe, torch.device("cpu"))
    file = folder / "h.jsonl.gz"
    stopped = ["--brief", "--minutes", "0.02"]
    decode("caption", folder / "model", pictures, file, "--blind", blind, *stopped)
    (folder / "stopped").write_text(str(len(Record(file).results)))
    file.write_bytes(file.read_bytes()[:-50])
    decode("caption", folder / "model", pictures, file, "--blind", blind)
    tasks.main(["report", str(file), str(folder / "report")])
    return folder


@pytest.fixture(scope="module")
def transcribed(corpus, tmp_path_factory):
    """Hypotheses and the report of speech."""
    folder = tmp_path_factory.mktemp("transcribed")
    texts = ["one two three", "four five six", "seven eight nine zero"]
    model = untrained(folder / "model", "sound", texts, channels=4, bins=8)
    decode("speech", model, corpus, folder / "h.jsonl.gz", "--valid", 1, "--test", 3)
    tasks.main(["report", str(folder / "h.jsonl.gz"), str(folder / "report")])
    return folder


def text_of(folder):
    return (folder / "report/README.md").read_text()


def test_a_run_that_is_stopped_or_killed_continues(captioned):
    record = Record(captioned / "h.jsonl.gz").results
    assert 2 < int((captioned / "stopped").read_text()) < len(record)
    assert [value["brief"] for key, value in record.items() if key[0] == "about"] == [True, False]


def test_the_study_of_confidence_decodes_pictures(captioned, pictures, tmp_path, monkeypatch):
    model, file = captioned / "model", tmp_path / "h.jsonl.gz"
    command = ["decoding", str(file), "--data", str(pictures), "--model", str(model)]
    monkeypatch.setattr(sys, "argv", command)
    confidence.main()
    (task,) = decoded_tasks([file])
    pipeline, (valid, test) = confidence.load(str(model), pictures, "cpu")
    assert (task.name, task.valid.references) == ("captions", valid.references)
    first = confidence.Part("captions", "test", test.sources[:1], test.references[:1])
    alone = confidence.decoded(pipeline, first, Beam(5))
    assert alone["calls"] == [task.test.outputs["beam 5"].calls[0]]
    texts = task.test.texts("beam 5")
    assert alone["candidates"][0][0].text == texts[0]
    scores = [
        max(Chrf().sentence_scores(Chrf().statistics([text, text], both)))
        for text, both in zip(texts, test.references, strict=True)
    ]
    assert task.test.quality(texts).tolist() == scores


@pytest.mark.parametrize("task", ["captioned", "transcribed"])
def test_a_report_has_all_its_parts_and_renders_without_hypotheses(task, request):
    folder = request.getfixturevalue(task)
    outline = OUTLINES["caption" if task == "captioned" else "speech"]
    text = text_of(folder)
    headings = ["How often is greedy search beaten?", "Do the paper's claims carry over?"]
    for heading in [*headings, *(f"Table {number}" for number in range(1, 5))]:
        assert f"## {heading}" in text
    for part in ("Equal compute", "Which candidate to return", "Search errors", "diverse decoding"):
        assert part in text
    assert report.render(folder / "report", outline) == text
    for picture in ("sigma", "chains", "calls", "entropy"):
        assert (folder / "report" / f"{picture}.png").stat().st_size > 10_000


def test_a_caption_is_shown_beside_its_picture_in_words(captioned):
    text = text_of(captioned)
    assert text.count("In words: a red square on paper . / it is red") == 3
    assert text.count("- NPAD-50 + greedy: **") == 6
    assert "| test: NLL | CIDEr-D | BLEU-4 | length |" in text
    for control in ("other pictures", "blind model"):
        assert f"| test, {control}, greedy |" in text
        assert f"- greedy, against test, {control}: clearly better by every metric." in text


def test_descriptions_are_shown_instead_of_references(captioned, tmp_path):
    words, file, folder = tmp_path / "words.txt", captioned / "h.jsonl.gz", tmp_path / "r"
    shutil.copytree(captioned / "report", folder)
    results = (folder / "results.jsonl").read_text().splitlines(keepends=True)
    measured = [line for line in results if '["references"' not in line]
    assert len(measured) == len(results) - 1
    (folder / "results.jsonl").write_text("".join(measured))
    words.write_text("".join(f"a square, number {i}\n" for i in range(6)))
    tasks.main(["report", str(file), str(folder), "--descriptions", str(words)])
    text = (folder / "README.md").read_text()
    assert "6. In words: a square, number 5\n" in text
    for name in ("README.md", "results.jsonl"):
        assert "it is red" not in (folder / name).read_text()
    assert report.render(folder, OUTLINES["caption"]) == text
    words.write_text("only one\n")
    with pytest.raises(SystemExit, match="error: 1 descriptions were given for 6 pictures"):
        tasks.main(["report", str(file), str(folder), "--descriptions", str(words)])


def test_captions_of_other_pictures_are_those_of_their_pictures(captioned):
    bench = bench_of(captioned, CAPTION)
    texts = {s: [entry[1] for entry in bench.entries(s, Greedy())] for s in bench.sets}
    assert texts["test, other pictures"] == [*texts["test"][1:], texts["test"][0]]
    zero = Difference(0.0, 0.0, 0.0)
    assert bench.compare_runs(("same",), [("test", Greedy())] * 2) == (zero,) * 3
    seen = [next(name for name in COLOURS if name in text) for text in texts["test"]]
    assert seen == [*COLOURS] * 3


def test_words_are_measured_by_noise(transcribed):
    text = text_of(transcribed)
    assert "| WER | 0 dB | 10 dB | 20 dB | clean |" in text
    assert "; the bar of 5 % is missed." in text
    assert "valid (4 recordings), 0 dB (3 recordings)" in text
    sets = bench_of(transcribed, SPEECH).sets
    assert sets["0 dB"].references == sets["clean"].references


def bench_of(folder, task):
    setup = report.Setup.load(folder / "report")
    return DecodedBench(
        folder / "report", folder / "h.jsonl.gz", list(setup.sets), task, setup.seeds
    )


def test_the_best_of_all_is_unbeaten(captioned):
    bench = bench_of(captioned, CAPTION)
    greedy, wide = Greedy(), Beam(10)
    scores = [[e[0] for e in bench.entries("test", decoder)] for decoder in (greedy, wide)]
    best = [max(pair) for pair in zip(*scores, strict=True)]
    expected = np.mean([a >= b - 1e-3 for a, b in zip(scores[0], best, strict=True)])
    assert unbeaten(bench, "test", greedy, [greedy, wide]) == expected
    assert unbeaten(bench, "test", wide, [wide]) == 1.0


def test_selected_outputs_are_among_the_candidates(captioned):
    lines = (captioned / "report/results.jsonl").read_text().splitlines()
    rows = {tuple(e["key"]): e["value"] for e in map(json.loads, lines) if e["key"][0] == "row"}
    chosen = {key: row for key, row in rows.items() if "|selector:mbr" in key[2]}
    assert chosen
    for (_, set_name, signature), row in chosen.items():
        plain = rows["row", set_name, re.sub(r"\|selector:[^|]*", "", signature)]
        assert row["nll"] >= plain["nll"] or row["finished"] > plain["finished"]
        assert (row["calls"], row["seconds"]) == (plain["calls"], plain["seconds"])


def test_decoding_needs_few_packages():
    """None of those that a machine with a GPU may not have."""
    blocked = ["typer", "rich", "sacrebleu", "transformers", "matplotlib"]
    code = f"import sys; sys.modules.update(dict.fromkeys({blocked}))\n"
    code += "import studies.tasks.experiment, npad.metrics.captions"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


# Metrics and verdicts


def test_a_lower_word_error_rate_is_better():
    less, more = Difference(-1.0, -2.0, -0.5), Difference(1.0, 0.5, 2.0)
    none = Difference(0.0, -1.0, 1.0)
    assert verdict((less, less), SPEECH) == "confirmed"
    assert verdict((less, more), SPEECH) == "NLL only; WER is worse"
    assert verdict((none, less), SPEECH) == "WER only"
    assert verdict((less, more, more), CAPTION) == "confirmed"
    assert verdict((less, more, none), CAPTION) == "NLL and CIDEr-D only"


@pytest.mark.parametrize(
    ("verdicts", "words"),
    [
        (["confirmed", "confirmed"], "yes"),
        (["confirmed", "NLL only"], "in NLL"),
        (["NLL and CIDEr-D only"], "in NLL"),
        (["not confirmed", "not confirmed; WER is worse"], "no"),
        (["confirmed", "not confirmed"], "in part"),
        (["NLL at 3, WER at 1 of 4"], "in part"),
        (["too few sentences"], "–"),
    ],
)
def test_a_claim_carries_over_if_it_is_confirmed_everywhere(verdicts, words):
    assert overall(verdicts) == words


def test_a_frozen_network_sees_each_picture_once(tmp_path):
    target = Subwords.learn(["a dog runs"], 300)
    network = {"size": 32, "network": "efficientnet-lite1"}
    model = AttentionModel(1, target.size, **TINY, source="picture", source_options=network)
    checkpoint.save(tmp_path / "model", model, (None, target), {})
    plain = checkpoint.load(tmp_path / "model").model
    loaded, _ = task_sets._loaded(tmp_path / "model", "picture", torch.device("cpu"))
    pictures = torch.randint(0, 255, (3, 3, 32, 32), dtype=torch.uint8)
    encoder: Any = loaded.source_encoder
    for source in (pictures, pictures.flip(0)):
        expected = decode_all(plain, source, Greedy(), 5)
        assert decode_all(loaded, source, Greedy(), 5) == expected
        assert len(encoder.network.features) == 3
