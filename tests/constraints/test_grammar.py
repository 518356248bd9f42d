"""Grammars: a token may follow if an allowed text begins with what is then written."""

from __future__ import annotations

import json
import random
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import npad
from cases import EVERY as DECODERS
from cases import WAYS, assert_clean_scores
from constraint_cases import EOS, Start, allowed, pieces, vocabulary_of
from npad import InvalidInput
from npad.constraints import Grammar, Without
from npad.constraints.kinds import Context, constrained
from npad.engine.cost import count_calls

pytest.importorskip("llguidance")
WORDS = ["ab", "aab", "bAa", "A", "ab ab", "1_"]


@given(pieces=pieces, words=st.sets(st.sampled_from(WORDS), min_size=1), seed=st.integers(0, 99))
def test_a_grammar_allows_what_a_text_of_its_language_begins_with(pieces, words, seed):
    vocabulary = vocabulary_of(pieces)
    language = "|".join(map(re.escape, sorted(words)))
    (rule,) = Grammar(language).rules(EOS, Context(vocabulary))
    memory, text, draw = rule.start(Start(), [0]), b"", random.Random(seed)
    while True:
        found = allowed(rule, memory, len(vocabulary) + 3)  # logits beyond the vocabulary
        expected = {
            token
            for token, piece in enumerate(vocabulary.pieces)
            if piece and any(word.encode().startswith(text + piece) for word in words)
        }
        assert found == expected | ({EOS} if text.decode() in words else set())
        if not expected:
            return
        token = draw.choice(sorted(expected))
        text += vocabulary.pieces[token]
        memory = rule.read(memory, torch.tensor([token]))


DATE = Grammar(r"[12]\d{3}-(0[1-9]|1[0-2])-[0-3]\d")


@pytest.mark.parametrize("way", WAYS)
def test_every_decoder_writes_the_language_with_the_models_scores(way):
    translator = npad.load("en-de")
    text = ["I was born on 5 May 1990."]
    model = constrained(translator.model, DATE, Context(translator.vocabulary, text))
    found = npad.decode(model, translator.encode(text), DECODERS[way], 30)
    for hypothesis in found[0]:
        assert re.fullmatch(DATE.text, translator.detokenise(hypothesis.tokens))
    assert_clean_scores(translator.model, translator.encode(text), found, 1e-3)


def test_schemas_and_grammars_of_lark():
    translator = npad.load("en-de")
    properties = {"n": {"enum": [1, 22]}}
    schema = {"type": "object", "properties": properties, "required": ["n"]}
    schema["additionalProperties"] = False
    (output,) = translator.translate(
        ["One."], constraint=Grammar(json.dumps(schema), "json-schema")
    )
    assert json.loads(output.text)["n"] in (1, 22)
    rules = ('start: greeting " " NAME', 'greeting: "Hallo" | "Servus"', "NAME: /[A-Z][a-z]+/")
    lark = Grammar("\n".join(rules), "lark")
    both = lark & Without(("Hallo",))
    (output,) = translator.translate(["Hello, Tom."], constraint=both)
    assert re.fullmatch("Servus [A-Z][a-z]+", output.text)


@pytest.mark.parametrize(
    ("kind", "text", "output"),
    [
        ("regex", r"Ja\\/Nein", r"Ja\/Nein"),
        ("regex", r"Ja/Nein\/", "Ja/Nein/"),
        ("regex", "Ja\nNein", "Ja\nNein"),
        ("lark", '?start: body\nbody: "Ja"', "Ja"),
        ("lark", '  start[capture]: "Ja"', "Ja"),
        ("lark", '%llguidance {}\nstart: "Ja"', "Ja"),
        ("lark", 'start: "x" | "(" start ")" "!!"', "x"),
        ("json-schema", '{"const": "Ja"}', '"Ja"'),
    ],
)
def test_the_text_of_a_grammar_is_read_as_it_is(kind, text, output):
    (found,) = npad.load("en-de").translate(["Yes."], constraint=Grammar(text, kind))
    assert found.text == output


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        (Grammar("\\"), "half an escape"),
        (Grammar("[" * 100_000, "json-schema"), "is not JSON"),
        (Grammar('{"$ref": "#"}', "json-schema"), r"finds no output .* json-schema"),
        (Grammar("(("), r"regex\(\(\(\) is not a grammar that llguidance reads"),
        (Grammar("no json", "json-schema"), "is not JSON"),
    ],
)
def test_a_wrong_grammar_says_what_is_wrong(constraint, message):
    with pytest.raises(InvalidInput, match=message):
        npad.load("en-de").translate(["Hello."], constraint=constraint)


@pytest.mark.parametrize("decoder", [npad.Greedy(), npad.Beam(3)], ids=repr)
def test_the_masks_of_all_rows_are_computed_in_one_call(decoder, monkeypatch):
    from llguidance import numpy

    rows, fill = [], numpy.fill_next_token_bitmask_par
    counted = lambda *given: rows.append(len(given[1])) or fill(*given)  # noqa: E731
    monkeypatch.setattr(numpy, "fill_next_token_bitmask_par", counted)
    translator, texts = npad.load("en-de"), ["One.", "It was in 1990.", "He left on 5 May 1987."]
    with count_calls() as calls:
        translator.translate(texts, decoder, constraint=DATE)
    assert max(rows) > 1
    assert sum(rows) <= calls.search
    assert len(rows) <= 12  # steps: a space, the ten letters of a date, and the end
