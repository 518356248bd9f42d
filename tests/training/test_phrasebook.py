"""The phrase book of examples/, but for the translations."""

from __future__ import annotations

import runpy
from types import SimpleNamespace

import npad
from runs import ROOT, lines


def test_the_phrase_book_is_aligned_and_its_test_sentences_are_new(tmp_path, monkeypatch):
    def translate(texts, decoder):
        return [SimpleNamespace(text=text.upper()) for text in texts]

    monkeypatch.setattr(npad, "load", lambda name: SimpleNamespace(translate=translate))
    book = runpy.run_path(str(ROOT / "examples/phrasebook.py"))
    assert len(set(book["sentences"]())) == len(book["sentences"]()) == 1336
    book["main"](tmp_path)
    english = {split: lines(tmp_path / f"{split}.en") for split in ("train", "valid", "test")}
    for split, texts in english.items():
        assert lines(tmp_path / f"{split}.de") == [text.upper() for text in texts]
    assert not set(english["train"]) & {*english["valid"], *english["test"]}
    assert set(book["PHRASES"]) <= set(english["train"])
    assert "He goes to school every day." in set().union(*english.values())
