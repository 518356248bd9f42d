"""A Hugging Face model steered by an actor, through the hooks that noise uses."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from cases import assert_clean_scores, assert_same, key, npad, tokens
from hf_cases import build, growing, kinds, source
from hf_cases import captured as captured
from npad import Actor, Beam, Greedy, Steered, decode
from npad.constraints import Constrained, Forbidden
from npad.models.actors import INPUTS
from npad.models.huggingface.adapter import HuggingFace
from steered_cases import actor_for

pushing = partial(actor_for, dtype=torch.float64, scale=0.5, seed=3)


@kinds
@pytest.mark.parametrize("decoder", [Greedy(), Beam(3), npad(Greedy())], ids=repr)
def test_an_untrained_actor_changes_nothing(kind, decoder):
    model = HuggingFace(build(kind))
    actor = Actor.for_model(model, ["hidden", "output"], inputs=INPUTS).double()
    found = decode(Steered(model, actor), source(kind), decoder, 6)
    assert tokens(found) == tokens(decode(model, source(kind), decoder, 6))


@kinds
def test_pushes_change_the_search_and_not_the_scores(kind):
    model = HuggingFace(build(kind))
    steered = Steered(model, pushing(model, sites=("hidden", "output"), scale=3.0))
    noisy = npad(Greedy())
    plain, found, perturbed = (
        decode(searched, source(kind), decoder, 6)
        for searched, decoder in ((model, Greedy()), (steered, Greedy()), (steered, noisy))
    )
    assert tokens(found) != tokens(plain)
    assert_clean_scores(model, source(kind), found)
    for nbest, (greedy, *_) in zip(perturbed, found, strict=True):
        assert key(nbest[0]) >= (greedy.finished, greedy.log_prob - 1e-9)


@kinds
def test_captured_steps_find_the_same(kind, captured):
    model = build(kind)
    actor = pushing(HuggingFace(model))
    expected = decode(Steered(growing(model), actor), source(kind), Greedy(), 6)
    fast = HuggingFace(build(kind))
    for _ in range(3):
        assert_same(decode(Steered(fast, actor), source(kind), Greedy(), 6), expected)


def test_the_judge_of_a_model_that_forbids_tokens_is_the_model_itself():
    model = HuggingFace(build("gpt2"))
    forbidding = Constrained(model, Forbidden([3]))
    found = decode(Steered(forbidding, pushing(model)), source("gpt2"), Greedy(), 6)
    alone = decode(Steered(model, pushing(model)), source("gpt2"), Greedy(), 6)
    assert all(3 not in best.tokens for (best,) in found)
    for (best,), (free,) in zip(found, alone, strict=True):
        if best.tokens == free.tokens:
            assert best.log_prob == pytest.approx(free.log_prob)
