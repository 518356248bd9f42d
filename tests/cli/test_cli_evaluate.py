"""npad evaluate: the figures of a test set."""

from __future__ import annotations

import json

import sacrebleu

from runs import lines


def test_evaluate_measures(corpus, trained, tmp_path, npad_here):
    files = corpus / "test.src", corpus / "test.tgt"
    common = ("--model", trained, "-d", "npad", "-M", 3, "--sigma", "0,0.1,0.2")
    done = npad_here("evaluate", *files, *common, "--json", "-o", tmp_path / "out")
    report = json.loads(done.stdout)
    assert report["bleu"] == sacrebleu.corpus_bleu(lines(tmp_path / "out"), [lines(files[1])]).score
    assert report["sentences"] == 200
    assert report["signature"].startswith("npad|inner:greedy|chains:3|sigma:0.0,0.1,0.2|")
    table = npad_here("evaluate", *files, "--model", trained).stdout
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
