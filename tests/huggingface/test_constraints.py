"""The logits processors that a model's generation configuration asks for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import npad
from cases import assert_clean_scores
from hf_cases import beams, searcher
from hf_cases import saved as saved
from npad import NPAD, Beam, Greedy, Noise, Noisy, Sampling, decode
from npad.constraints import Constrained
from npad.model import Capabilities
from npad.models.huggingface import loading as pretrained
from npad.models.huggingface.constraints import Processed
from npad.models.table import TableModel


def test_a_model_is_steered_as_its_configuration_says(saved):
    translator: Any = npad.load(f"hf:{saved / 'bart'}")
    (free,) = translator.translate(["w5 w6 w7"], Greedy(), max_length=6)
    forbidden = free.hypothesis.tokens[0]
    translator.model.model.generation_config.bad_words_ids = [[forbidden]]
    steered = pretrained.constrained(translator.model)
    source = translator.encode(["w5 w6 w7"])
    for decoder in (Greedy(), Beam(3), Sampling(4), NPAD(Greedy(), 1, Noise(0.0))):
        found = decode(steered, source, decoder, 6)
        assert not any(forbidden in hypothesis.tokens for hypothesis in found[0])
        assert_clean_scores(translator.model, source, found, tolerance=1e-4)


@pytest.mark.parametrize(
    "decoder",
    [Greedy(), Beam(3, nbest=3), Sampling(4), NPAD(Beam(2), 4, Noise(0.5))],
    ids=["greedy", "beam", "sampling", "npad"],
)
def test_a_model_without_teacher_forcing_judges_what_its_steered_self_writes(decoder):
    model, forbidden = TableModel.random(4, 3, sentences=2), 2
    assert Capabilities.of(model).forced is None

    def forbid(written, scores):
        return scores.index_fill(1, torch.tensor([forbidden]), -torch.inf)

    prefix = torch.full((2, 1), model.special.bos)
    rule = Processed(forbid, prefix=prefix)
    steered = Constrained(model, rule, normalised=isinstance(decoder, Beam))
    for key, hypotheses in enumerate(decode(steered, [0, 1], decoder, 4)):
        own = {output.tokens: output.log_prob for output in model.outputs(key, 4)}
        for hypothesis in hypotheses:
            assert forbidden not in hypothesis.tokens
            assert hypothesis.log_prob == pytest.approx(own[hypothesis.tokens], abs=1e-5)


def test_a_noisy_steered_model_returns_its_own_scores():
    """A model that wraps a steered one is not steered itself: no judge takes its states."""
    model = TableModel.random(4, 3, sentences=2)
    rule = Processed(lambda written, s: s / 2, prefix=torch.full((2, 1), model.special.bos))
    steered = Constrained(model, rule, normalised=False)
    noisy = Noisy(steered, Noise(0.0))
    assert not Capabilities.of(noisy).modified_scores
    for (own,), (halved,) in zip(
        decode(model, [0, 1], Greedy(), 4), decode(noisy, [0, 1], Greedy(), 4), strict=True
    ):
        assert own.tokens == halved.tokens
        assert own.log_prob > halved.log_prob


@pytest.mark.parametrize("width", [1, 4])
def test_a_steered_model_decodes_as_generate_does(saved, width):
    translator: Any = npad.load(f"hf:{saved / 'bart'}")
    model = translator.model.model
    model.generation_config.no_repeat_ngram_size = 1
    model.generation_config.min_length = 4
    eos = model.generation_config.eos_token_id
    steered = pretrained.constrained(translator.model)
    options = {"max_new_tokens": 8, "do_sample": False} | beams(width)
    for source in translator.encode(["w5 w6 w7", "w9", "w10 w11", "w30 w31 w12 w13"]):
        written = model.generate(torch.tensor([source]), **options)[0, 1:].tolist()
        ((best, *_),) = decode(steered, [source], searcher(width), 8)
        assert list(best.tokens) == (written[: written.index(eos)] if eos in written else written)
