"""Constraints on texts: what tokens may write, whatever tokens those are."""

from __future__ import annotations

import random
import re
import tracemalloc
from dataclasses import replace
from unicodedata import normalize

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import npad
from constraint_cases import EOS, LETTERS, Start, allowed, pieces, vocabulary_of
from npad import Beam, Exact, Greedy, InvalidInput
from npad.constraints import Choices, Prefix, Terms, With, Without
from npad.constraints.kinds import CONSTRAINTS, Context, constraint_named
from npad.constraints.vocabulary import Vocabulary
from npad.pipelines.pipeline import Prefixed

texts = st.text(LETTERS, min_size=1, max_size=4)


def is_free(text, phrase, exact):
    """Whether a text is without a phrase, by a regular expression."""
    if exact:
        return phrase not in text
    before, after = (r"(?<!\w)", r"(?!\w)")
    begins, ends = (letter.isalnum() or letter == "_" for letter in (phrase[0], phrase[-1]))
    pattern = before * begins + re.escape(phrase) + after * ends
    return re.search(pattern, text, re.IGNORECASE) is None


phrases = st.lists(texts.filter(str.strip), min_size=1, max_size=3)


@given(pieces=pieces, phrases=phrases, exact=st.booleans(), seed=st.integers(0, 99))
def test_no_token_writes_a_forbidden_phrase(pieces, phrases, exact, seed):
    """After random tokens, those are forbidden with which the text would have a phrase."""
    vocabulary = vocabulary_of(pieces)
    (rule,) = Without(tuple(phrases), exact).rules(EOS, Context(vocabulary))
    memory, text, draw = rule.start(Start(), [0]), "", random.Random(seed)
    for _ in range(6):
        found = allowed(rule, memory, len(vocabulary))
        assert (EOS in found) == all(is_free(text, phrase, exact) for phrase in phrases)
        for number, piece in enumerate(pieces, 257):
            # What follows may complete a word: the phrase is not there until the word has ended.
            longer = f"{text}{piece}" if exact else f"{text}{piece}x"
            assert (number in found) == all(is_free(longer, phrase, exact) for phrase in phrases)
        choices = sorted(found - set(range(257)))
        if not choices:
            return
        token = draw.choice(choices)
        text += pieces[token - 257]
        memory = rule.read(memory, torch.tensor([token]))


@given(pieces=pieces, text=texts, seed=st.integers(0, 99))
def test_outputs_begin_with_a_prefix_whatever_tokens_write_it(pieces, text, seed):
    vocabulary = vocabulary_of(pieces)
    (rule,) = Prefix(text).rules(EOS, Context(vocabulary))
    memory, draw, written = rule.start(Start(), [0]), random.Random(seed), b""
    while not rule.met(memory).all():
        found = allowed(rule, memory, len(vocabulary))
        assert found - {EOS} == found != set()
        token = draw.choice(sorted(found))
        written += vocabulary.pieces[token]
        memory = rule.read(memory, torch.tensor([token]))
    assert written.startswith(text.encode())
    assert len(allowed(rule, memory, len(vocabulary))) == len(vocabulary)


@pytest.fixture(scope="module")
def translator():
    return npad.load("en-de")


SOURCE = ["The computer is broken.", "How are you?"]


@pytest.mark.parametrize("decoder", [Greedy(), Beam(5)], ids=["greedy", "beam"])
def test_each_text_has_its_own_prefix(translator, decoder):
    prefixes = ["Der Rech", ""]
    found = translator.translate(SOURCE, decoder, prefixes=prefixes)
    assert found[0].text == "Der Rechner ist kaputt."
    assert found[1].text == translator.translate(SOURCE[1:], decoder)[0].text
    scores = translator.score(SOURCE, [output.text for output in found])
    assert [output.log_prob for output in found] == pytest.approx(scores, abs=1e-4)
    assert "constraint:prefix(Der Rech)" in found[0].signature


def test_a_prefix_that_the_model_would_write_changes_nothing(translator):
    (free,) = translator.translate(SOURCE[:1], Greedy())
    for end in range(len(free.text) + 1):
        (output,) = translator.translate(SOURCE[:1], Greedy(), prefixes=[free.text[:end]])
        assert output.text == free.text, free.text[:end]


def test_a_choice_is_scored_as_any_output(translator):
    menu = ("Ja.", "Nein.", "Wie geht es Ihnen?")
    (output,) = translator.translate(SOURCE[1:], Exact(500), constraint=Choices(menu))
    scores = translator.score(SOURCE[1:] * len(menu), list(menu))
    assert output.text == menu[max(range(len(menu)), key=scores.__getitem__)]
    assert output.log_prob == pytest.approx(max(scores), abs=1e-4)


def test_terms_are_required_where_the_source_has_them(translator):
    terms = Terms((("computer", "Rechner"), ("phone", "Handy")))
    found = translator.translate(SOURCE, Beam(5), constraint=terms)
    assert [output.text for output in found] == ["Der Rechner ist kaputt.", "Wie geht es dir?"]


@pytest.mark.parametrize(
    ("source", "required"),
    [
        ("A cell  PHONE.", ["Mobiltelefon"]),
        ("A phone, a cell phone.", ["Telefon", "Mobiltelefon"]),
        ("The phones of a cell", ["Zelle", "Knastzelle"]),
    ],
)
def test_a_term_within_a_longer_one_is_not_required(source, required):
    pairs = [("phone", "Telefon"), ("cell", "Zelle"), ("cell", "Knastzelle")]
    terms = Terms((*pairs, ("Cell Phone", "Mobiltelefon")))
    assert sorted(terms.required(source)) == sorted(required)


def test_all_terms_of_a_long_text_are_required(translator):
    names = [f"{first}{second}" for first in "BDFGK" for second in ("alo", "ime", "ura", "eno")]
    terms = Terms(tuple((name, name) for name in names))
    text = ", ".join(names)
    (output,) = translator.translate([text], Beam(4), constraint=terms)
    assert all(name in output.text for name in names)


def test_spaces_around_a_phrase_do_not_count(translator):
    for constraint in (Without((" Computer ",)), With((" Rechner",))):
        (output,) = translator.translate(SOURCE[:1], constraint=constraint)
        assert output.text == "Der Rechner ist kaputt."


def test_a_word_is_forbidden_in_both_forms_of_unicode(translator):
    decomposed = normalize("NFD", "schön")
    for word in ("schön", decomposed):
        constraint = Without((word,))
        (output,) = translator.translate(["That is beautiful."], constraint=constraint)
        assert output.text == "Das ist wunderschön."
        for text in ("Das ist schön", f"Das ist {decomposed}"):
            only = constraint & Choices((text,))
            with pytest.raises(InvalidInput, match="finds no output"):
                translator.translate(["That is beautiful."], constraint=only)


def test_letters_without_a_token_are_refused():
    """Their token writes nothing, so an output would lack them."""
    names = [b"", b" ", b"a", b"b", b""]
    encode = lambda texts: [[1, *("  ab".find(x) % 5 for x in text)] for text in texts]  # noqa: E731
    context = Context(Vocabulary(names, encode))
    for kind in (Prefix, lambda text: Choices(("a", text)), lambda text: With((text,))):
        assert kind("ab").rules(EOS, context)
        with pytest.raises(InvalidInput, match="no tokens for some letters of 'aéb'"):
            kind("aéb").rules(EOS, context)


def test_a_prefix_that_cannot_be_written_refuses_its_text_alone(translator):
    sources = [
        Prefixed(text, prefix) for text, prefix in zip(SOURCE, ["\ud800", "Wie "], strict=True)
    ]
    refused, output = translator.stream_or_skip(sources, Greedy())
    assert "half a surrogate pair" in str(refused)
    assert output.text == "Wie geht es dir?"


def test_one_text_that_cannot_be_satisfied_fails_alone(translator):
    outcomes = translator.stream_or_skip(SOURCE, Beam(3), 4, constraint=With(("Wie geht",)))
    refused, output = outcomes
    assert isinstance(refused, InvalidInput) or "Wie geht" in refused.text
    assert "Wie geht" in output.text


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_a_spec_names_its_constraint(name):
    values = ["Handy\tHandy"] if name == "terms" else ["Handy"]
    constraint = constraint_named(name, values)
    assert str(constraint).startswith(name)
    assert {constraint} == {constraint_named(name, values)}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Choices(()), "choices must be"),
        (lambda: Without(("",)), "not empty"),
        (lambda: With(("a",) * 20), "16 phrases at most, not 20"),
        (lambda: Terms.of(["no tab"]), "a tab"),
        (lambda: Prefix("a").rules(0, None), "give tuples of tokens"),
        (lambda: Prefix(3), "a prefix must be a text or a tuple of tokens, not 3"),
        (lambda: npad.load("en-de").translate(["a"], prefixes=[None]), "one text per text"),
    ],
)
def test_a_wrong_constraint_says_what_is_wrong(make, message):
    with pytest.raises(InvalidInput, match=message):
        make()


@pytest.mark.parametrize("letters", [["ss", "ß"], "abcdefgh"], ids=["casings", "letters"])
def test_too_many_forbidden_phrases_are_refused_at_once(translator, letters):
    """The first ones would need as many states as there are sets of phrases."""
    draw = random.Random(0)
    phrases = ["".join(draw.choices(letters, k=180)) for _ in range(64)]
    context = Context(translator.vocabulary)
    with pytest.raises(InvalidInput, match="forbids too much: its phrases need more than 9,586"):
        Without((*phrases,)).rules(0, context)


def test_a_long_list_takes_little_memory_and_its_best_text_is_found(translator):
    """Tokenizers take a kilobyte for each text, so a list is encoded in parts."""
    pieces = translator.vocabulary.pieces
    words = [piece[1:].decode() for piece in pieces if piece[:1] == b" " and piece[1:].isalpha()]
    draw = random.Random(0)
    texts = {" ".join(draw.choices(words, k=draw.randint(4, 8))) for _ in range(20_000)}
    menu = Choices((*sorted(texts), "Wie geht es Ihnen?", "Der Rechner ist kaputt."))
    most, encode = [0], translator.vocabulary.encode
    parted = replace(
        translator.vocabulary, encode=lambda part: most.append(len(part)) or encode(part)
    )
    tracemalloc.start()
    try:
        menu.rules(translator.model.special.eos, Context(parted))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert max(most) < len(texts)
    assert peak < 64 << 20  # of which masks may take half
    found = translator.translate(SOURCE, Exact(2000), constraint=menu)
    assert [output.text for output in found] == ["Der Rechner ist kaputt.", "Wie geht es Ihnen?"]
