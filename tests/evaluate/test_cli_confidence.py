"""The commands that fit, show and return a model's confidence, and the one that ships."""

from __future__ import annotations

import json
import shutil

import pytest

import npad
from npad import NPAD, Beam, Greedy, Noise
from npad.pipelines.names import SHIPPED
from npad.scale import Decoding, Local, ModelSpec
from npad.storage import checkpoint
from npad.storage.confidence import FILE
from runs import ROOT

TEXTS = ["How are you?", "She spends most of her money on books.", "It never rains but it pours."]


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    """A copy of the trained run, with 150 validation pairs, of which some references are wrong."""
    folder = tmp_path_factory.mktemp("confidence")
    shutil.copytree(corpus / "run", folder / "run")
    sources = (corpus / "valid.src").read_text().splitlines()[:150]
    references = (corpus / "valid.tgt").read_text().splitlines()[:150]
    references = [text if i % 3 else "bo" for i, text in enumerate(references)]
    (folder / "dev.src").write_text("\n".join(sources) + "\n")
    (folder / "dev.tgt").write_text("\n".join(references) + "\n")
    return folder


def test_fit_confidence_writes_a_confidence_that_translate_returns(run, printed_here):
    options = ["fit-confidence", run / "dev.src", run / "dev.tgt", "-m", run / "run"]
    shown = printed_here(*options)
    folder = checkpoint.resolve(run / "run")
    for part in ("rank correlation", "150 sentences, dev.src, dev.tgt", "beam|width:5", "constant"):
        assert part in shown
    assert str(folder / FILE) in shown
    record = json.loads(printed_here(*options, "--json"))
    translator = npad.load(run / "run")
    assert record["file"] == str(folder / FILE)
    assert tuple(record["plain"]["expected"]) == translator.confidence.plain.expected
    low, high = (record["figures"]["AUROC"]["confidence"][name] for name in ("low", "high"))
    assert low <= record["auroc"] <= high
    assert list(record["held_out_errors"]) == ["log-prob-per-token"]  # greedy and beams: no list
    text = (run / "dev.src").read_text().splitlines()[0]
    model = ["-m", run / "run"]
    output = json.loads(printed_here("translate", *model, "--json", text))
    assert output["confidence"] == translator.translate([text])[0].confidence
    assert 0 < output["confidence"] < 100
    printed_here(*options, "-d", "greedy")
    assert npad.load(run / "run").confidence.decoder.startswith("greedy|")
    info = printed_here("info", run / "run")
    assert "150 sentences, dev.src, dev.tgt; greedy|" in " ".join(info.split())


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (["--calls", 900], "No such option: --calls"),
        (["-m", "en-de"], "en-de ships with npad and has a confidence already; fit one for a copy"),
        (["-m", "toy"], "toy cannot keep a confidence; give en-de or a folder"),
        (["--chains", 3], "--chains does not go with --decoder beam"),
    ],
    ids=str,
)
def test_options_without_effect_on_a_confidence_are_refused(run, options, rule, refused_here):
    command = ["fit-confidence", run / "dev.src", run / "dev.tgt", *options]
    assert rule in refused_here(*command)


def test_the_shipped_model_knows_what_to_expect(printed_here):
    """An idiom that it cannot translate gets less than an everyday question."""
    translator = npad.load("en-de")
    known, _, unknown = (output.confidence for output in translator.translate(TEXTS))
    assert 0 <= unknown < known - 20 < known <= 100
    shown = printed_here("info", "en-de")
    assert "2,000 sentences, valid.en.xz, valid.de.xz; beam|width:5|" in " ".join(shown.split())
    record = json.loads(printed_here("info", "en-de", "--json"))
    assert record["confidence"]["sentences"] == 2000
    assert record["confidence"]["error"] < record["confidence"]["constant_error"]
    assert record["confidence"]["signal"] == "log-prob-per-token"
    assert "plain" not in record["confidence"]
    toy = json.loads(printed_here("info", "toy", "--json"))
    assert toy["confidence"] is None


def test_the_model_card_and_the_page_quote_the_log():
    log = (ROOT / "docs/results/confidence-en-de.log").read_text()
    lines = [line.strip("│").split("│") for line in log.splitlines() if line.startswith("│")]
    rows = {name: figures for name, *figures in ([c.strip() for c in line] for line in lines)}
    card = (SHIPPED["en-de"] / "README.md").read_text()
    assert all(figure in card for figure in rows["beam, 5"][1:6])
    page = (ROOT / "docs/decoding.md").read_text()
    quoted = [line.strip("| ").split(" | ") for line in page.splitlines() if " | 0." in line]
    quoted = [row for row in quoted if row[0] in rows]
    assert [row[1:] for row in quoted] == [rows[row[0]][3:6] for row in quoted]
    assert len(quoted) == 7
    assert all(figure in page for figure in rows["beam, 5"][6:])


def test_doubtful_lines_are_marked_listed_and_decoded_again(tmp_path, printed_here, refused_here):
    """Greedy search is sure of the first text alone."""
    lines, found = tmp_path / "in.txt", tmp_path / "doubts.jsonl"
    lines.write_text("\n".join(TEXTS) + "\n")
    command = ["translate", lines, "-d", "greedy", "--json", "--min-confidence", "50"]
    printed = printed_here(*command, "--doubtful", found)
    outputs = [json.loads(line) for line in printed.splitlines()]
    assert [output["doubtful"] for output in outputs] == [o["confidence"] < 50 for o in outputs]
    marked = [output["id"] for output in outputs if output["doubtful"]]
    assert 0 < len(marked) < len(TEXTS)
    listed = [json.loads(line) for line in found.read_text().splitlines()]
    assert [record["id"] for record in listed] == marked
    assert {record["signal"] for record in listed} == {"log-prob-per-token"}
    again = printed_here(*command, "--fallback-decoder", "beam(width=3)")
    signed = [json.loads(line)["signature"] for line in again.splitlines()]
    assert [i for i, text in enumerate(signed) if text.startswith("beam|width:3|")] == marked
    for options, rule in (
        (["--doubtful", found], "--doubtful needs --min-confidence"),
        (["--fallback-decoder", "beam"], "--fallback-decoder needs --min-confidence"),
    ):
        assert rule in refused_here("translate", "hello", *options)


def test_chains_on_several_workers_have_the_same_confidence():
    decoder = NPAD(Greedy(), 6, Noise(0.5))
    whole = npad.load("en-de").translate(TEXTS, decoder)
    with Local(ModelSpec("en-de", "cpu")) as workers:
        (result,) = workers.run(TEXTS, Decoding(decoder), 3, chain_parts=3)
    for expected, found in zip(whole, result.outcomes, strict=True):
        assert expected.confidence is not None
        assert found.confidence == pytest.approx(expected.confidence, abs=1e-2)
        assert len(found.alternatives) == len(expected.alternatives)
        assert all(other.confidence is None for other in found.alternatives)
    assert result.outcomes[1].alternatives
    blank = npad.load("en-de").translate([""], Beam(5))
    assert blank[0].confidence is None
