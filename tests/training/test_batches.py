"""Batches: every pair once an epoch, within bounds, in an order that only (seed, epoch) decides."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from npad import score
from npad.training.batches import Batcher, Buckets, nll
from runs import small_store, tiny


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return small_store(tmp_path_factory.mktemp("batches"), train=300)


@pytest.fixture(scope="module")
def model(store):
    return tiny(store).double().eval()


@pytest.mark.parametrize("max_tokens", [1, 40, 500, 10**6])
@pytest.mark.parametrize("grid", [(1, 1), (4, 8)])
def test_an_epoch_has_every_pair_once_and_no_batch_is_too_large(store, model, max_tokens, grid):
    batcher = Batcher(store.train, model.special, max_tokens, grid)
    for batches in (batcher.epoch(0, 0), batcher.in_order()):
        assert sorted(np.concatenate(batches).tolist()) == list(range(300))
        for pairs in batches:
            assert len(pairs) == 1 or len(pairs) * batcher.sizes(pairs).max() <= max_tokens


def test_the_order_is_of_the_seed_and_the_epoch_alone(store, model):
    batcher = Batcher(store.train, model.special, 200)

    def order(seed, epoch):
        return [pairs.tolist() for pairs in batcher.epoch(seed, epoch)]

    assert order(0, 3) == order(0, 3)
    assert order(0, 3) != order(0, 4) != order(1, 4)


def test_pairs_of_like_length_are_together(store, model):
    batcher = Batcher(store.train, model.special, 400)
    padded = sum(batcher.batch(pairs).inputs.numel() for pairs in batcher.epoch(0, 0))
    assert padded < 1.2 * (store.train.target.lengths + 1).sum()


def test_a_batch_says_what_is_read_and_what_is_predicted(store, model):
    pairs = np.array([3, 0, 7])
    batch = Batcher(store.train, model.special, 400).batch(pairs)
    bos, eos, _ = model.special
    text = [store.subwords[1].encode([line])[0] for line in _lines(store, "tgt", pairs)]
    source = [store.subwords[0].encode([line])[0] for line in _lines(store, "src", pairs)]
    assert [row[:n].tolist() for row, n in zip(batch.source, batch.lengths, strict=True)] == [
        [*s, eos] for s in source
    ]
    assert [row[: len(t) + 1].tolist() for row, t in zip(batch.inputs, text, strict=True)] == [
        [bos, *t] for t in text
    ]
    assert batch.outputs.tolist() == [token for t in text for token in (*t, eos)]


def _lines(store, side, pairs):
    lines = (store.folder.parent / f"text/train.{side}").read_text().splitlines()
    return [lines[i] for i in pairs]


def test_filling_up_to_a_grid_changes_no_likelihood(store, model):
    pairs = np.arange(5)
    plain, padded = (
        nll(model, Batcher(store.train, model.special, 9999, grid).batch(pairs)).item()
        for grid in ((1, 1), (8, 16))
    )
    assert padded == pytest.approx(plain, rel=1e-12)


def test_the_likelihood_is_that_of_the_judge(store, model):
    pairs = np.arange(6)
    with torch.no_grad():
        summed = float(nll(model, Batcher(store.train, model.special, 9999).batch(pairs)))
    sources = store.subwords[0].encode(_lines(store, "src", pairs))
    targets = [[tokens] for tokens in store.subwords[1].encode(_lines(store, "tgt", pairs))]
    assert summed == pytest.approx(
        -sum(log_prob for (log_prob,) in score(model, sources, targets)), rel=1e-9
    )


def test_buckets_hold_every_pair_once_and_have_few_shapes(store, model):
    pairs = store.train
    buckets = Buckets(pairs, model.special, 200)
    for number in range(2):
        batches = buckets.epoch(0, number)
        assert sorted(np.concatenate(batches).tolist()) == list(range(len(pairs)))
        shapes = {}
        for index in batches:
            batch = buckets.batch(index)
            shapes.setdefault(batch.inputs.shape[1], set()).add(
                (batch.source.shape, batch.inputs.shape)
            )
            plain = Batcher(pairs, model.special, 200).batch(index)
            assert batch.outputs.tolist() == plain.outputs.tolist()
        assert all(len(seen) == 1 for seen in shapes.values())
    assert [b.tolist() for b in buckets.epoch(0, 0)] != [b.tolist() for b in buckets.epoch(0, 1)]


@pytest.mark.parametrize("max_tokens", [50, 333])
@pytest.mark.parametrize("grid", [(1, 1), (4, 8)])
def test_batches_in_order_are_sorted_and_as_large_as_the_limit_allows(
    store, model, max_tokens, grid
):
    batcher = Batcher(store.train, model.special, max_tokens, grid)
    batches = batcher.in_order()
    pairs = np.concatenate(batches)
    source, target = (side.positions[pairs].tolist() for side in batcher.sides)
    keys = list(zip(batcher.sizes(pairs).tolist(), target, source, strict=True))
    assert keys == sorted(keys)
    for batch, following in pairwise(batches):
        assert (len(batch) + 1) * batcher.sizes(following[:1])[0] > max_tokens


def test_sizes_are_of_the_longer_side_in_steps(store, model):
    pairs = np.arange(300)
    source, target = (side.lengths + 1 for side in (store.train.source, store.train.target))
    longer = np.maximum(source, target)
    plain = Batcher(store.train, model.special, 100)
    assert plain.sizes(pairs).tolist() == longer.tolist()
    stepped = Batcher(store.train, model.special, 100, (1, 8))
    assert stepped.sizes(pairs).tolist() == [math.ceil(size / 8) * 8 for size in longer]


def test_a_grid_adds_sentences_that_predict_nothing(store, model):
    batch = Batcher(store.train, model.special, 9999, (8, 16)).batch(np.array([5, 2, 9]))
    assert batch.ids.tolist() == [5, 2, 9, 5, 5, 5, 5, 5]
    assert batch.inputs.shape[0] == 8
    assert batch.inputs.shape[1] % 16 == 0
    assert batch.positions.max() < 3 * batch.inputs.shape[1]
    exact = Batcher(store.train, model.special, 9999, (3, 1)).batch(np.array([5, 2, 9]))
    assert exact.ids.tolist() == [5, 2, 9]


@pytest.mark.parametrize("max_tokens", [1, 200, 1000])
def test_buckets_are_as_large_as_the_limit_allows_in_steps(store, model, max_tokens):
    buckets = Buckets(store.train, model.special, max_tokens, (4, 8))
    for index in buckets.epoch(0, 0):
        rows, size = buckets.batch(index).inputs.shape
        assert size == buckets.sizes(index).max() == buckets.sizes(index).min()
        assert len(index) <= rows
        assert rows % 4 == 0
        assert rows == 4 or rows * size <= max_tokens < (rows + 4) * size
