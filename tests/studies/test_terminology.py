"""The report on terminology is what its figures say, and its glossary what the pairs say."""

from __future__ import annotations

from npad.reproduce.record import Record
from runs import ROOT
from studies.terminology.__main__ import RARE, TermShare, render, translations

FOLDER = ROOT / "docs/results/terminology"


def test_the_committed_report_is_what_its_figures_say():
    record = Record(FOLDER / "figures.jsonl")
    assert render(lambda *key: record.row(key)) == (FOLDER / "README.md").read_text()


def test_terms_count_as_whole_words():
    texts, required = ["Das Auto, ein Wagen", "Autos"], [("Auto", "Wagen"), ("Auto",)]
    assert TermShare().statistics(texts, required).tolist() == [[2, 2], [0, 1]]
    assert TermShare().score(TermShare().statistics(texts, required)) == 100 * 2 / 3


def test_words_of_a_glossary_have_several_nouns_that_occur_with_them():
    pairs = [("the car", "das Auto"), ("a car", "ein Wagen"), ("a dog", "ein Hund")] * RARE
    english, german = zip(*pairs, strict=True)
    assert translations(english, german)["car"] == ["Wagen", "Auto"]
    assert "dog" not in translations(english, german)
