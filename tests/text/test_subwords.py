"""Subwords lose nothing: any text comes back, known or not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, normalizers
from tokenizers.models import WordLevel

from npad import InvalidInput
from npad.text.subwords import END, Subwords

LEARNT = Subwords.learn(["ein kleines Haus", "ein großes Haus, ein kleiner Hund"] * 5, 300)
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@given(st.lists(ANY_TEXT, max_size=4))
def test_any_text_comes_back(texts):
    encoded = LEARNT.encode(texts)
    assert [LEARNT.decode(tokens) for tokens in encoded] == texts
    assert all(END < token < LEARNT.size for tokens in encoded for token in tokens)


@pytest.mark.parametrize(
    "text",
    ["", " ", "  two  spaces ", "</s>", "Ġ▁", "\n\t\r\x00", "日本語 🎉", "e\u0301 é", "\u2028"],
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


def test_anothers_padding_and_truncation_are_left_out(tmp_path):
    LEARNT.save(tmp_path / "tokenizer.json")
    other = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    other.enable_padding()
    other.enable_truncation(2)
    other.save(str(tmp_path / "other.json"))
    texts = ["ein Haus", "ein kleiner Hund, ein kleines Haus"]
    assert Subwords.load(tmp_path / "other.json").encode(texts) == LEARNT.encode(texts)


def test_mistakes_are_named(tmp_path, monkeypatch):
    with pytest.raises(
        InvalidInput,
        match=r"vocabulary must be at least 257, the 256 bytes and the end token, not 100",
    ):
        Subwords.learn(["a"], 100)
    with pytest.raises(InvalidInput, match=r"holds half a surrogate pair"):
        LEARNT.encode(["fine", "not \ud800"])
    with pytest.raises(InvalidInput, match=r"cannot read the tokenizer .*: there is no such file"):
        Subwords.load(tmp_path / "none.json")
    gap = Tokenizer(WordLevel({"a": 0, "b": 2}, unk_token="a"))
    gap.save(str(tmp_path / "gap.json"))
    with pytest.raises(
        InvalidInput, match=r"gap.json must number its 2 tokens from 0 without a gap"
    ):
        Subwords.load(tmp_path / "gap.json")
    monkeypatch.setattr("npad.text.subwords.MAX_TOKENIZER_BYTES", 9)
    with pytest.raises(InvalidInput, match=r"it has \d+ bytes, more than 9"):
        Subwords.load(tmp_path / "gap.json")
    monkeypatch.undo()
    known = Tokenizer(WordLevel({"a": 0}))
    known.save(str(tmp_path / "known.json"))
    with pytest.raises(InvalidInput, match=r"the tokenizer cannot read a text"):
        Subwords.load(tmp_path / "known.json").encode(["b"])
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(InvalidInput, match=r"bad.json is not a tokenizer.json"):
        Subwords.load(tmp_path / "bad.json")


DOUBLE = normalizers.Replace("a", "aa")
EVERYWHERE = normalizers.Replace(Regex(""), "xyz")
GROWING = {
    "doubled": ("normalizer", normalizers.Sequence([DOUBLE] * 30)),
    "nested": ("normalizer", normalizers.Sequence([normalizers.Sequence([DOUBLE] * 6)] * 5)),
    "everywhere": ("normalizer", normalizers.Sequence([EVERYWHERE] * 15)),
    "at once": ("normalizer", normalizers.Replace("a", "a" * 2000)),
    "decoded": ("decoder", decoders.Sequence([decoders.Replace("a", "aa")] * 30)),
}


@pytest.mark.parametrize("how", GROWING)
def test_a_tokenizer_that_multiplies_text_is_refused(tmp_path, how):
    part, growing = GROWING[how]
    LEARNT.save(tmp_path / "tokenizer.json")
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    setattr(tokenizer, part, growing)
    tokenizer.save(str(tmp_path / "growing.json"))
    with pytest.raises(
        InvalidInput, match=r"replacements can lengthen a text more than 1,024 times"
    ):
        Subwords.load(tmp_path / "growing.json")


def test_replacements_of_tokenizers_in_use_are_fine(tmp_path):
    """As Llama's, XLNet's and T5's have them."""
    tokenizer = Tokenizer(WordLevel({"a": 0}, unk_token="a"))
    spaces = [normalizers.Replace(" ", "▁"), normalizers.Replace(Regex(" {2,}"), " ")]
    quotes = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), *spaces, *quotes])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert Subwords.load(tmp_path / "tokenizer.json").encode(["a"]) == [[1]]


def test_a_tokenizer_nested_too_deeply_is_one_line(tmp_path):
    (tmp_path / "deep.json").write_text("[" * 200_000)
    with pytest.raises(InvalidInput, match=r"deep.json is not a tokenizer.json: [^\n]*$"):
        Subwords.load(tmp_path / "deep.json")
