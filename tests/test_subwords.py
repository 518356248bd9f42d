"""Subwords lose nothing: any text comes back, known or not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npad import InvalidInput
from npad.text.subwords import END, Subwords

LEARNT = Subwords.learn(["ein kleines Haus", "ein großes Haus, ein kleiner Hund"] * 5, 300)
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@given(st.lists(ANY_TEXT, max_size=4))
def test_any_text_comes_back(texts):
    encoded = LEARNT.encode(texts)
    assert [LEARNT.decode(symbols) for symbols in encoded] == texts
    assert all(END < symbol < LEARNT.size for symbols in encoded for symbol in symbols)


@pytest.mark.parametrize(
    "text", ["", " ", "  two  spaces ", "</s>", "Ġ▁", "\n\t\r\x00", "日本語 🎉", "e\u0301 é", "\u2028"]
)
def test_the_odd_ones_too(text):
    assert LEARNT.decode(LEARNT.encode([text])[0]) == text


def test_a_word_is_spelt_alike_at_the_start_and_within():
    (alone,), (twice,) = LEARNT.encode(["Haus"]), LEARNT.encode(["Haus Haus"])
    assert twice == alone + alone
    assert LEARNT.pieces([*alone, END]) == ["Haus", "⏎"]


def test_a_vocabulary_is_as_large_as_asked_and_saves_and_loads(tmp_path):
    assert LEARNT.size <= 300
    LEARNT.save(tmp_path / "tokenizer.json")
    again = Subwords.load(tmp_path / "tokenizer.json")
    assert again.encode(["ein kleiner Hund"]) == LEARNT.encode(["ein kleiner Hund"])
    assert again.size == LEARNT.size


def test_mistakes_are_named(tmp_path):
    with pytest.raises(
        InvalidInput, match=r"vocabulary must be at least 257, the 256 bytes and the end symbol, not 100"
    ):
        Subwords.learn(["a"], 100)
    with pytest.raises(InvalidInput, match=r"holds half a surrogate pair"):
        LEARNT.encode(["fine", "not \ud800"])
    with pytest.raises(InvalidInput, match=r"cannot read the tokenizer .*: there is no such file"):
        Subwords.load(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(InvalidInput, match=r"bad.json is no tokenizer.json"):
        Subwords.load(tmp_path / "bad.json")
