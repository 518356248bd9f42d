"""Experiments measure what they say, measure it once, and report what they found."""

from __future__ import annotations

import json
import math
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sacrebleu

import npad
from cases import counting_tokeniser
from npad import NPAD, Beam, BestOf, Greedy, InvalidInput, LengthNormalised, Noise, Sampling
from npad.errors import StorageError
from npad.evaluate.bleu import Bleu
from npad.evaluate.bootstrap import paired
from npad.evaluate.entropy import entropy_by_step
from npad.evaluate.report import evaluate
from npad.experiments import report, reproduce, tables
from npad.experiments.bench import Bench, Pairs, decoder_signature, with_seed
from npad.experiments.claims import verdict
from npad.experiments.data import ParallelText, concatenate
from npad.experiments.paper import PAPER
from npad.experiments.record import NotMeasured, Record
from npad.models import toy
from runs import ROOT, once, printed_here, refused_here, reversal
from runs import npad as command

TOY: Any = npad.load("toy")
PHRASES = ["das ist mir wurst", "danke", "na ja", "ich verstehe nur bahnhof"]
REFERENCES = ["i could not care less", "thanks", "oh well", "it is all greek"]
SETS = {"valid": Pairs(PHRASES, REFERENCES), "test": Pairs(PHRASES[::-1], REFERENCES[::-1])}


def bench(folder, **more) -> Bench:
    return Bench(folder, SETS, **({"translator": lambda trained: TOY} | more))


# BLEU and the bootstrap


def texts(seed: int, n: int = 40) -> list[str]:
    chance = random.Random(seed)
    words = ["the", "a", "man,", "dog", "(runs)", "isn't", "3.5", "home"]
    return [" ".join(chance.choices(words, k=chance.randrange(9))) for _ in range(n)]


def test_bleu_from_counts_is_sacrebleus():
    references = texts(0)
    bleu = Bleu(references)
    for seed in (1, 2, 0):
        counts = bleu.counts(texts(seed))
        expected = sacrebleu.corpus_bleu(texts(seed), [references])
        assert bleu.score(counts.sum(0)) == pytest.approx(expected.score, abs=1e-12)
        assert counts[:, 8].sum() == expected.sys_len


def test_the_bootstrap_knows_better_from_no_different():
    references = texts(0, 200)
    chance = random.Random(5)
    good = [text if chance.random() < 0.7 else "dog" for text in references]
    bad = [text if chance.random() < 0.3 else "dog" for text in references]
    bleu = Bleu(references)
    counts = [bleu.counts(outputs) for outputs in (good, bad)]
    nll = np.linspace(1, 2, 200), np.linspace(3, 4, 200)
    less, more = paired(nll, (counts[0], counts[1]))
    assert (less.value, less.low, less.high) == (pytest.approx(-2),) * 3
    assert more.value == pytest.approx(bleu.score(counts[0].sum(0)) - bleu.score(counts[1].sum(0)))
    assert 0 < more.low < more.value < more.high
    assert verdict((less, more)) == "confirmed"
    same = paired((nll[0], nll[0]), (counts[0], counts[0]))
    assert all((one.value, one.low, one.high) == (0, 0, 0) for one in same)
    assert verdict(same) == "not confirmed"
    back = paired((nll[1], nll[0]), (counts[1], counts[0]))
    assert verdict(back) == "not confirmed; NLL is worse; BLEU is worse"
    assert verdict((less, same[1])) == "NLL only"


def test_the_bootstraps_interval_is_as_wide_as_chance():
    """Of a mean of n values with standard deviation s, the 95 % interval is about ± 1.96 s/√n."""
    values = np.random.default_rng(0).normal(size=400)
    zeros = np.zeros((400, 10), dtype=np.int64)
    zeros[:, 8:] = 1
    difference, _ = paired((values, np.zeros(400)), (zeros, zeros))
    assert difference.high - difference.low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.1)


def test_entropy_is_that_of_the_distribution_met_along_the_greedy_output():
    def entropy(row):
        left = 1 - sum(row.values())
        return -sum(p * math.log(p) for p in [*row.values(), *([left] if left > 1e-9 else [])])

    along = ["", "that", "that is", "that is sausage"]
    expected = [entropy(toy.PHRASES["das ist mir wurst"][history]) for history in along]
    found = entropy_by_step(TOY, ["das ist mir wurst", "das ist mir wurst", " "])
    assert found == [(pytest.approx(value, abs=1e-6), 2) for value in expected]


# The record and the bench


def test_what_is_recorded_is_not_measured_again_and_a_cut_line_is(tmp_path):
    path = tmp_path / "results.jsonl"
    Record(path).get_or_measure(("a", 1), lambda: [1.5])
    Record(path).get_or_measure(("b",), lambda: {"x": 2})
    assert Record(path).get_or_measure(("a", 1), lambda: pytest.fail("measured twice")) == [1.5]
    whole = path.read_bytes()
    path.write_bytes(whole[:-4])  # as a kill leaves it
    assert Record(path).results.keys() == {("a", 1)}
    Record(path).get_or_measure(("b",), lambda: {"x": 2})
    assert path.read_bytes() == whole
    path.write_bytes(b"{" + whole)
    with pytest.raises(StorageError, match=r"results.jsonl, line 1, is damaged"):
        Record(path)
    assert path.read_bytes() == b"{" + whole


@pytest.mark.parametrize(
    "decoder",
    [Beam(3), NPAD(chains=4, noise=Noise(0.5)), BestOf((Greedy(), Sampling(5, 0.5)))],
    ids=["beam", "npad", "best-of"],
)
def test_a_row_has_the_figures_of_evaluate(decoder, tmp_path):
    row = bench(tmp_path).row("test", decoder)
    expected, outputs = evaluate(TOY, PHRASES[::-1], REFERENCES[::-1], decoder)
    for name in (
        "sentences",
        "nll",
        "bleu",
        "length_ratio",
        "finished",
        "calls",
        "rescored",
        "signature",
    ):
        assert row[name] == pytest.approx(getattr(expected, name))
    assert row.distinct == expected.unique
    assert row.won == sum(one.hypothesis.chain > 0 for one in outputs) / 4
    without = Bench(tmp_path, list(SETS))
    assert without.row("test", decoder) == row
    with pytest.raises(NotMeasured, match="measuring it needs a model"):
        without.row("valid", decoder)


def test_every_source_is_tokenised_once(tmp_path, monkeypatch):
    """However many decoders translate it."""
    translator, read = counting_tokeniser(TOY)
    monkeypatch.setattr(reproduce, "load", lambda *_: translator)
    plan: Any = SimpleNamespace(device="cpu", precision="float32", place=lambda there, _: there)
    here = bench(tmp_path, translator=lambda _: reproduce._translator(plan, tmp_path, SETS))
    for decoder in (Greedy(), Beam(2)):
        here.row("valid", decoder)
        here.row("test", decoder)
    here.entropy("test")
    assert sorted(read) == sorted(PHRASES)


def test_seeds_are_where_chance_is():
    for sure in (
        Greedy(),
        Beam(5),
        NPAD(Beam(5), 1, Noise(0.0)),
        NPAD(Beam(5), 3, Noise(0.0), selector=LengthNormalised()),
    ):
        assert with_seed(sure, 7) == sure
    assert with_seed(Sampling(5), 7) == Sampling(5, seed=7)
    assert with_seed(NPAD(Sampling(1), 3), 7) == NPAD(Sampling(1, seed=7), 3, seed=7)
    noiseless: Any = with_seed(NPAD(Sampling(9), 1, Noise(0.0)), 7)
    assert noiseless.inner == Sampling(9, seed=7)
    assert with_seed(BestOf((Greedy(), Sampling(4))), 7) == BestOf((Greedy(), Sampling(4, seed=7)))
    assert "model" not in decoder_signature(NPAD(selector=LengthNormalised()))


def test_figures_are_means_over_seeds(tmp_path):
    here = bench(tmp_path, seeds=4)
    rows = [here.row("test", Sampling(2, seed=seed)) for seed in range(4)]
    found = here.figures("test", Sampling(2))
    values = [row.nll for row in rows]
    assert (found["nll"], found.spread("nll")) == (
        pytest.approx(np.mean(values)),
        pytest.approx(np.std(values, ddof=1)),
    )
    assert found.format("nll", 3) == f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"
    assert here.figures("test", Beam(2)).format("nll") == f"{here.row('test', Beam(2)).nll:.2f}"


def test_an_output_that_never_ended_is_a_search_error(tmp_path):
    here = bench(tmp_path, max_length=3)
    best = here.exact("test", 4, 10_000)
    outputs = TOY.translate(PHRASES[::-1], Greedy(), 3)
    cut = [not one.hypothesis.finished for one in outputs]
    assert any(cut)
    missed = [
        ended is False or one.log_prob < score - 1e-3
        for one, ended, (score, _) in zip(outputs, [not c for c in cut], best, strict=True)
    ]
    assert all(proven for _, proven in best)
    assert here.search_errors("test", Greedy(), 4, 10_000) == sum(missed) / 4
    assert here.search_errors("test", Greedy(), 4, 1) is None


def test_search_errors_are_what_exact_search_says(tmp_path):
    here = bench(tmp_path)
    best = [max(one.log_prob for one in TOY.model.outputs(phrase, 200)) for phrase in PHRASES[::-1]]
    assert here.exact("test", 4, 10_000) == [(pytest.approx(score), True) for score in best]
    for decoder in (Greedy(), Beam(2), Beam(20)):
        missed = [
            one.log_prob < b - 1e-3
            for one, b in zip(TOY.translate(PHRASES[::-1], decoder), best, strict=True)
        ]
        assert here.search_errors("test", decoder, 4, 10_000) == sum(missed) / 4
    assert (
        here.search_errors("test", Beam(20), 4, 10_000)
        == 0
        < here.search_errors("test", Greedy(), 4, 10_000)
    )


# Data


def test_texts_are_found_by_name(tmp_path):
    for name in ("news", "books", "valid-2013", "test-a", "test-b"):
        for language in ("en", "cs"):
            (tmp_path / f"{name}.{language}").write_text(f"{name} {language}\n")
    found = ParallelText.find(tmp_path, "en")
    assert list(found.train) == ["books", "news"]
    assert list(found.sets()) == ["2013", "a", "b"]
    assert found.sets()["b"] == Pairs(["test-b en"], ["test-b cs"])
    assert [path.read_text() for path in concatenate(found.train, tmp_path / "new")] == [
        "books en\nnews en\n",
        "books cs\nnews cs\n",
    ]
    (tmp_path / "news.de").write_text("x")
    with pytest.raises(InvalidInput, match="has texts in cs, de; say which: --to"):
        ParallelText.find(tmp_path, "en")
    with pytest.raises(InvalidInput, match="has books in one of en and de only"):
        ParallelText.find(tmp_path, "en", "de")
    for languages in (("fr",), ("en", "fr")):
        with pytest.raises(
            InvalidInput, match=r"has no texts NAME.fr; it has cs, en, de: see --from"
        ):
            ParallelText.find(tmp_path, *languages)
    with pytest.raises(InvalidInput, match="the source and the target language are both en"):
        ParallelText.find(tmp_path, "en", "en")
    (tmp_path / "news.de.gz").touch()
    with pytest.raises(InvalidInput, match=r"has news.de and news.de.gz; which of them is news\?"):
        ParallelText.find(tmp_path, "en", "cs")


def test_sets_of_one_name_keep_their_own(tmp_path):
    """Or a test set would take the validation set's place, and every choice would be made on it."""
    for name in ("valid-2013", "test-2013", "test-2014"):
        for language in ("en", "cs"):
            (tmp_path / f"{name}.{language}").write_text(f"{name}\n")
    sets = ParallelText.find(tmp_path, "en").sets()
    assert {name: pairs.sources for name, pairs in sets.items()} == {name: [name] for name in sets}
    assert list(sets) == ["valid-2013", "test-2013", "test-2014"]
    (tmp_path / "test-2014.en").write_text("\n \n")
    (tmp_path / "test-2014.cs").write_text("\n \n")
    with pytest.raises(InvalidInput, match=r"test-2014.en has no text in it"):
        ParallelText.find(tmp_path, "en").sets()


def test_texts_that_are_no_pairs_are_not_concatenate(tmp_path):
    for name, lines in (("aa.en", 3), ("aa.cs", 2), ("bb.en", 2), ("bb.cs", 3)):
        (tmp_path / name).write_text("x\n" * lines)
    files = {name: (tmp_path / f"{name}.en", tmp_path / f"{name}.cs") for name in ("aa", "bb")}
    with pytest.raises(InvalidInput, match=r"aa.en has 3 lines and .*aa.cs has 2"):
        concatenate(files, tmp_path / "new")


# The command, from text to report


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A report on a tiny model, interrupted on the way."""

    def make(folder: Path) -> None:
        reversal(folder / "data", train=60, valid=4, test=3)
        killed_after(20, folder)
        shutil.copy(folder / "run/results.jsonl", folder / "before.jsonl")
        (folder / "out").write_text(command(*arguments(folder)).stdout)

    return once(tmp_path_factory, "experiment", make)


def killed_after(rows: int, folder: Path) -> None:
    """Start the command and kill it once it has measured some rows."""
    results = folder / "run/results.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-m", "npad", *map(str, arguments(folder))], stderr=subprocess.DEVNULL
    )
    while not results.exists() or len(results.read_bytes().splitlines()) < rows:
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.05)
    process.kill()
    process.wait()


def arguments(folder: Path) -> list[object]:
    small = [
        *[
            "--units",
            8,
            "--embedding",
            6,
            "--vocabulary",
            300,
            "--epochs",
            1,
            "--train-sigmas",
            "0.3",
        ]
    ]
    short = [*["--seeds", 2, "--max-length", 6, "--exact", 3, "--budget", 50, "--device", "cpu"]]
    return ["reproduce", folder / "run", "--data", folder / "data", "--from", "src", *small, *short]


def test_a_report_that_was_killed_goes_on_where_it_was(finished):
    before = (finished / "before.jsonl").read_text().splitlines()[:-1]  # the last line may be cut
    assert len(before) >= 19
    assert (finished / "run/results.jsonl").read_text().splitlines()[: len(before)] == before


def test_the_report_has_all_its_parts(finished):
    text = (finished / "run/README.md").read_text()
    for part in (
        "Table 1",
        "Table 2",
        "Table 3",
        "Table 4",
        "claims",
        "Equal compute",
        "Schedules",
        "Distributions",
    ):
        assert part in text
    for part in ("Search errors", "Noise in training", "lower temperatures", "candidate to return"):
        assert part in text
    for picture in ("sigma", "chains", "calls", "entropy"):
        assert f"({picture}.png)" in text
        assert (finished / "run" / f"{picture}.png").stat().st_size > 10_000
    assert "greedy" in (finished / "out").read_text()
    assert "cut at 6 tokens" in text
    assert "the first tokens are the least certain" in text
    assert report.render(finished / "run") == text


def test_each_row_tells_how_it_was_made(finished):
    lines = [json.loads(line) for line in (finished / "run/results.jsonl").read_text().splitlines()]
    rows = [one for one in lines if one["key"][0] == "row"]
    assert len(rows) > 200
    assert all(
        one["value"]["signature"].startswith(one["key"][2] + "|model:model/best-") for one in rows
    )


def test_an_engine_measures_the_same_rows(finished, tmp_path, capsys, monkeypatch):
    rows = []
    options = [*["--data", finished / "data", "--from", "src", "--model", finished / "run/model"]]
    options += [*["--brief", "--seeds", 1, "--max-length", 4, "--device", "cpu"]]
    for name, engine in (("here", []), ("there", ["--engine", "local"])):
        printed_here(capsys, monkeypatch, "reproduce", tmp_path / name, *options, *engine)
        lines = (tmp_path / name / "results.jsonl").read_text().splitlines()
        entries = [json.loads(line) for line in lines if '"row"' in line]
        rows.append({str(one["key"]): one["value"]["bleu"] for one in entries})
    assert rows[0] == rows[1]
    assert (
        "engine local"
        in json.loads((tmp_path / "there/setup.json").read_text())["about"]["machine"]
    )
    refusal = refused_here(capsys, monkeypatch, *arguments(finished), "--engine", "local")
    assert refusal == "--engine measures one model; leave out --train-sigmas"


def test_a_folder_holds_the_results_of_one_model(finished, capsys, monkeypatch):
    other = [
        finished / "run",
        "--data",
        finished / "data",
        "--from",
        "src",
        "--model",
        "en-de",
        "--max-length",
        6,
    ]
    assert "holds results with the model model/best-" in refused_here(
        capsys, monkeypatch, "reproduce", *other
    )
    changed = [*arguments(finished), "--max-rows", 99]
    assert "holds results with the machine" in refused_here(capsys, monkeypatch, *changed)
    changed = [*arguments(finished), "--embedding", 7]
    assert "was trained with other options; choose another folder" in refused_here(
        capsys, monkeypatch, *changed
    )
    text = finished / "data/test.src"
    kept = text.read_text()
    text.write_text(kept.replace("\n", " nane\n", 1))
    assert "holds results with the weights or the text" in refused_here(
        capsys, monkeypatch, *arguments(finished)
    )
    text.write_text(kept)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--data", "nowhere"], "there is no folder nowhere"),
        (["--data", ".", "--recipe", "sgd"], "recipe must be one of 'paper', 'adam', not 'sgd'"),
        (["--model", "en-de", "--train-sigmas", "0.1"], "leave out --model"),
        (
            ["--train-sigmas", "a,b"],
            "--train-sigmas must be numbers separated by commas, not 'a,b'",
        ),
        (
            ["--train-sigmas", "-1"],
            "the σ₀ to train with must be a finite number above 0, not -1.0",
        ),
        (
            ["--precision", "int4"],
            "precision must be one of 'float32', 'bfloat16', 'float16', 'int8', not 'int4'",
        ),
        (["--vocabulary", "many"], "--vocabulary must be one or two whole numbers"),
    ],
)
def test_mistakes_get_one_line(finished, wrong, message, capsys, monkeypatch, tmp_path):
    data = [] if "--data" in wrong else ["--data", finished / "data", "--from", "src"]
    assert message in refused_here(capsys, monkeypatch, "reproduce", tmp_path / "r", *data, *wrong)


# What is committed


RESULTS = sorted(path.parent for path in (ROOT / "docs/results").glob("*/results.jsonl"))


def test_every_interval_of_the_summary_is_a_reports():
    pages = "".join(page.read_text() for page in (ROOT / "docs/results").glob("*/README.md"))
    given = (ROOT / "docs/results/README.md").read_text().replace("−", "-")
    intervals = re.findall(r"[+-]\d+\.\d+ \[[+-][\d.]+, [+-][\d.]+\]", given)
    assert len(intervals) > 20
    assert [one for one in intervals if one not in pages] == []


@pytest.mark.parametrize("folder", RESULTS, ids=lambda folder: folder.name)
def test_a_committed_report_is_what_its_results_say(folder):
    assert report.render(folder) == (folder / "README.md").read_text()


def test_the_readmes_table_is_that_of_its_results():
    folder = ROOT / "docs/results/multi30k-adam"
    setup = report.Setup.load(folder)
    table = tables.beside_paper(Bench(folder, list(setup.sets), seeds=setup.seeds))
    assert (
        f"<!-- the first table of docs/results/multi30k-adam -->\n{table}"
        in (ROOT / "README.md").read_text()
    )


def test_the_papers_numbers_have_a_row_each():
    assert len(PAPER) == 11
    assert all(0 < value < 30 for row in PAPER.values() for value in row)
