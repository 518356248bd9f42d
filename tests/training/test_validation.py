"""Validation: the measures of perplexity and of greedy search, and what is kept of the best."""

from __future__ import annotations

import json
import math

import pytest
import torch

from npad import Greedy, decode
from npad.errors import StorageError
from npad.training.validation import GreedySearch, Perplexity, Steering, perplexity_of
from runs import SHORT, tiny, updater
from steered_cases import actor_for, ending, random_sources


def perplexity(store, **options):
    return Perplexity(tiny(store, **options), store, SHORT, torch.device("cpu"))


def test_a_better_value_is_lower_or_higher(store):
    lower = perplexity(store)
    higher = Steering(ending(), actor_for(ending()), dict)
    for validation, better, worse in ((lower, 1.0, 2.0), (higher, 2.0, 1.0)):
        assert validation.is_better(better, worse)
        assert not validation.is_better(worse, better)
        assert not validation.is_better(worse, worse)
        assert validation.is_better(worse, validation.worst)
    assert lower.start() is None


def test_perplexity_is_measured_without_dropout(store):
    """By the loss of the pairs in one batch; the model trains on as before."""
    validation = perplexity(store, dropout=0.5)
    measures = validation.measure(1.0)
    assert validation.measure(1.0) == measures
    assert validation.model.training
    validation.model.eval()
    pairs = range(len(store.valid))
    alone = updater(store)
    alone.network = alone.model = validation.model
    alone.corpus, alone.batcher = store.valid, validation.batcher
    nats = sum(float(alone.loss(torch.tensor([pair]).numpy(), 1).detach()) for pair in pairs)
    tokens = int(store.valid.target.lengths.sum()) + len(pairs)
    assert measures["valid_nll"] == pytest.approx(nats / len(pairs), rel=1e-5)
    assert measures["valid_perplexity"] == pytest.approx(math.exp(nats / tokens), rel=1e-5)


def test_the_sum_over_many_batches_keeps_small_losses(store, monkeypatch):
    """In float32, 1 is lost beside 10⁹."""
    losses = iter([1e9, *[1.0] * 1000])
    monkeypatch.setattr("npad.training.validation.nll", lambda *_: torch.tensor(next(losses)))
    validation = perplexity(store)
    count = len(list(validation.batcher.in_order()))
    measures = validation.measure(1.0)
    assert count > 1
    assert measures["valid_nll"] * len(store.valid) == pytest.approx(1e9 + count - 1, rel=1e-12)


@pytest.mark.parametrize(
    ("nats", "tokens", "expected"),
    [(0.0, 0, 1.0), (3.0, 2, math.exp(1.5)), (1e9, 1, math.exp(700)), (2.0, 0.5, math.exp(2))],
)
def test_perplexity_is_per_token_and_finite(nats, tokens, expected):
    assert perplexity_of(nats, tokens) == pytest.approx(expected)


def test_greedy_search_is_measured_by_its_outputs_in_order(monkeypatch):
    """Whatever the batches; its criterion is the mean log-probability by default."""
    monkeypatch.setattr("npad.training.validation.ROWS", {"cpu": 4})
    model, sources = ending(), random_sources(11)
    best = [outputs[0] for outputs in decode(model, sources, Greedy(), 9)]
    mean = sum(hypothesis.log_prob for hypothesis in best) / len(best)
    found = GreedySearch(sources, max_length=9)(model)
    assert found["criterion"] == found["log_prob"] == pytest.approx(mean, abs=1e-4)
    outputs = []
    measured = GreedySearch(sources, lambda tokens: outputs.append(tokens) or 7.0, 9)(model)
    assert measured["criterion"] == 7.0
    assert outputs == [[hypothesis.tokens for hypothesis in best]]


def test_steering_measures_and_saves_an_actor(tmp_path):
    model, measured = ending(), []
    actor = actor_for(model).train()

    def search(decoded):
        measured.append((decoded, actor.training))
        return {"criterion": 1.0}

    steering = Steering(model, actor, search, "abc", {"by": "a test"})
    assert steering.start() == {"criterion": 1.0}
    assert steering.measure(3.0) == {"perplexity": 3.0, "criterion": 1.0}
    assert measured == [(steering.steered.model, True), (steering.steered, False)]
    assert actor.training
    progress = {"update": 5, "initial": 1.25, "best": 2.5}
    steering.save(tmp_path / "best-5", progress)
    steering.verify(tmp_path / "best-5")
    about = json.loads((tmp_path / "best-5/actor.json").read_text())["training"]
    assert about == {"by": "a test", "update": 5, "greedy": 1.25, "best": 2.5}
    with pytest.raises(StorageError, match="trained for other weights"):
        Steering(model, actor, search, "another").verify(tmp_path / "best-5")
    with pytest.raises(StorageError, match="has no actor any more; restore it"):
        steering.verify(tmp_path)
