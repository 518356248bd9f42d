"""Constraints on models of Hugging Face agree with transformers' prefix-constrained processor."""

from __future__ import annotations

import pytest

import npad
from cases import by_name
from hf_cases import PROMPTS, build, generated, searcher
from hf_cases import saved as saved
from npad import Greedy, decode
from npad.constraints import Choices, Constrained, Prefix, With, Without
from npad.models.huggingface.adapter import HuggingFace

CHOICES = ((5, 6, 7), (5, 6), (5, 9, 3, 4), (8,), (11, 5, 30, 31, 32), (12, 12))
PREFIX = (7, 3, 19)


def allowing(constraint, skip, eos):
    """The function that transformers' processor takes for a constraint."""

    def allowed(sentence, tokens):
        written = tuple(tokens[skip:].tolist())
        if isinstance(constraint, Prefix):
            prefix = constraint.text
            return [prefix[len(written)]] if len(written) < len(prefix) else list(range(40))
        longer = [c for c in constraint.choices if c[: len(written)] == written]
        return sorted({c[len(written)] if len(c) > len(written) else eos for c in longer}) or [eos]

    return allowed


CASES = {"prefix": Prefix(PREFIX), "choices": Choices(CHOICES)}


@pytest.mark.parametrize("constraint", **by_name(CASES))
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("kind", ["marian", "t5", "llama"])
def test_tokens_are_those_of_the_prefix_constrained_processor(kind, width, constraint):
    model, adapter = build(kind), HuggingFace(build(kind))
    encodes = model.config.is_encoder_decoder
    for prompt in PROMPTS:
        skip = 1 if encodes else len(prompt)
        allowed = allowing(constraint, skip, adapter.special.eos)
        how = {"prefix_allowed_tokens_fn": allowed, "num_beams": width, "length_penalty": 0.0}
        how |= {"early_stopping": False} if width > 1 else {}
        theirs, _ = generated(model, kind, [prompt], **how)
        ((best, *_),) = decode(Constrained(adapter, constraint), [prompt], searcher(width), 12)
        assert best.tokens == theirs[0]


@pytest.mark.parametrize("kind", ["bart", "llama"])
def test_texts_of_a_tokenizer_of_others(saved, kind):
    translator = npad.load(f"hf:{saved / kind}")
    for constraint, keeps in {
        Prefix("w7 w8"): lambda words: words[:2] == ["w7", "w8"],
        Choices(("w5 w6", "w9")): lambda words: words in (["w5", "w6"], ["w9"]),
        With(("w21",)): lambda words: "w21" in words,
    }.items():
        (output,) = translator.translate(["w5 w6 w7"], constraint=constraint, max_length=12)
        assert keeps(output.text.split()), output.text
    (free,) = translator.translate(["w5 w6 w7"], Greedy(), max_length=6)
    word = free.text.split()[0]
    without = Without((word,), exact=True)
    (output,) = translator.translate(["w5 w6 w7"], Greedy(), max_length=6, constraint=without)
    assert word not in output.text
