"""A Hugging Face model steered by an actor, through the hooks that noise uses."""

from __future__ import annotations

import pytest
import torch

from cases import assert_same, key, npad, tokens
from hf_cases import build, kinds, source
from npad import Actor, Beam, Greedy, Steered, decode
from npad.models.huggingface.adapter import HuggingFace
from npad.models.huggingface.constraints import Constrained, Forbidden

INPUTS = ["state", "embedding", "source"]


def pushing(model, kind="gru", sites=("hidden",), scale=0.5) -> Actor:
    torch.manual_seed(3)
    actor = Actor.for_model(model, sites, kind=kind, inputs=INPUTS, units=5)
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter.normal_(std=scale)
    return actor.double().eval()


def clean_log_probs(model, kind, hypotheses) -> list[float]:
    """Read the hypotheses by the model itself, step by step."""
    eos = model.special.eos
    written = [[*h.tokens, *([eos] if h.finished else [])] for h in hypotheses]
    state, read = model.start(source(kind)), torch.full((len(written),), model.special.bos)
    total = torch.zeros(len(written), dtype=torch.float64)
    for t in range(max(map(len, written))):
        logits, state = model.step(state, read)
        read = torch.tensor([tokens[t] if t < len(tokens) else eos for tokens in written])
        counts = torch.tensor([t < len(tokens) for tokens in written])
        gained = logits.detach().log_softmax(-1).gather(1, read[:, None]).squeeze(1)
        total += torch.where(counts, gained, 0.0)
    return total.tolist()


@kinds
@pytest.mark.parametrize("decoder", [Greedy(), Beam(3), npad(Greedy())], ids=repr)
def test_an_untrained_actor_changes_nothing(kind, decoder):
    model = HuggingFace(build(kind))
    actor = Actor.for_model(model, ["hidden", "output"], kind="gru", inputs=INPUTS).double()
    found = decode(Steered(model, actor), source(kind), decoder, 6)
    assert tokens(found) == tokens(decode(model, source(kind), decoder, 6))


@kinds
def test_pushes_change_the_search_and_not_the_scores(kind):
    model = HuggingFace(build(kind))
    steered = Steered(model, pushing(model, sites=("hidden", "output"), scale=3.0))
    plain, found = (decode(m, source(kind), Greedy(), 6) for m in (model, steered))
    assert tokens(found) != tokens(plain)
    best = [one[0] for one in found]
    assert [h.log_prob for h in best] == pytest.approx(clean_log_probs(model, kind, best))
    noisy = decode(steered, source(kind), npad(Greedy()), 6)
    for one, inner in zip(noisy, found, strict=True):
        assert key(one[0]) >= (inner[0].finished, inner[0].log_prob - 1e-9)


@kinds
def test_captured_steps_find_the_same(kind, monkeypatch):
    model = HuggingFace(build(kind))
    model.fixed_size = False
    actor = pushing(model)
    expected = decode(Steered(model, actor), source(kind), Greedy(), 6)
    fixed = property(lambda self: self.fixed_size is not False)
    monkeypatch.setattr(HuggingFace, "capturable", fixed)
    monkeypatch.setattr("npad.engine.cuda_graphs.EAGER_CALLS", 1)
    fast = HuggingFace(build(kind))
    for _ in range(3):
        assert_same(decode(Steered(fast, actor), source(kind), Greedy(), 6), expected)


def test_the_judge_of_a_model_that_forbids_tokens_is_the_model_itself():
    model = HuggingFace(build("gpt2"))
    forbidding = Constrained(model, Forbidden([3]))
    found = decode(Steered(forbidding, pushing(model)), source("gpt2"), Greedy(), 6)
    alone = decode(Steered(model, pushing(model)), source("gpt2"), Greedy(), 6)
    assert all(3 not in one[0].tokens for one in found)
    for one, other in zip(found, alone, strict=True):
        if one[0].tokens == other[0].tokens:
            assert one[0].log_prob == pytest.approx(other[0].log_prob)
