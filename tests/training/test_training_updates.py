"""One update: its gradient is of the mean NLL, alone, in parts and captured, and deterministic."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import distributed

from npad import InvalidInput, Noise, Noisy
from npad.distributions import StudentT
from npad.schedules import Constant
from npad.training import update
from npad.training.batches import Batcher, nll
from npad.training.randomness import TrainingNoise
from npad.training.recipe import Recipe
from npad.training.update import (
    ActorUpdater,
    ModelUpdater,
    Replicas,
    begin_with_frequencies,
    joined,
    mixed_precision,
)
from runs import SHORT, tiny, updater
from steered_cases import actor_for


def test_the_gradient_is_of_the_mean_over_sentences(store):
    """The mean of the summed NLL of each sentence, end token included, computed one by one."""
    one = updater(store)
    pairs = np.array([0, 5, 9, 11])
    summed = one.gradient(pairs, 1)
    together = [parameter.grad.clone() for parameter in one.model.parameters()]
    one.optimiser.zero_grad()
    batcher = Batcher(store.train, one.model.special, 10**6)
    alone = [nll(one.model, batcher.batch(np.array([pair]))) for pair in pairs]
    (sum(alone) / 4).backward()
    assert float(summed) == pytest.approx(float(sum(alone).detach()), rel=1e-5)
    for gradient, parameter in zip(together, one.model.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("optimiser", ["sgd", "adadelta", "adam"])
def test_every_optimiser_lowers_the_loss(store, optimiser):
    one = updater(store, Recipe(optimiser=optimiser))
    pairs = np.arange(40)
    losses = [float(one.update(pairs, 1 + i)[0]) for i in range(12)]
    assert losses[-1] < 0.995 * losses[0]


def test_adadelta_is_the_papers(store):
    one = updater(store, Recipe(optimiser="adadelta")).optimiser
    assert one.defaults["rho"] == 0.95
    assert one.defaults["eps"] == 1e-6


def test_a_long_gradient_is_brought_down_and_a_short_one_left(store):
    for clip, expected in ((1.0, 1.0), (1e6, None)):
        one = updater(store, Recipe(optimiser="sgd", learning_rate=1.0, clip=clip))
        before = [parameter.detach().clone() for parameter in one.model.parameters()]
        _, norm = one.update(np.arange(30), 1).tolist()
        steps = [a - b for a, b in zip(before, one.model.parameters(), strict=True)]
        moved = math.sqrt(sum(float(step.detach().square().sum()) for step in steps))
        assert norm > 1
        assert moved == pytest.approx(expected or norm, rel=1e-3)


class WholeBatch(Replicas):
    """A process of some rank that is given all pairs, and has no others to add to."""

    def share(self, pairs):
        return pairs


def test_dropout_is_keyed_by_update_and_rank(store):
    """Otherwise the shares of a batch would all drop the same units."""

    def loss(rank, number, dropout=0.5):
        model, device = tiny(store, dropout=dropout), torch.device("cpu")
        replica = ModelUpdater(model, store.train, SHORT, device, WholeBatch(rank))
        return float(replica.gradient(np.arange(20), number))

    assert loss(0, 1) == loss(0, 1)
    assert len({loss(0, 1), loss(1, 1), loss(0, 2)}) == 3
    assert loss(0, 1, dropout=0.0) == loss(1, 2, dropout=0.0)


def test_training_noise_is_decoding_noise(store):
    """The same `Noise` with the same keys gives the logits of a noisy model on the same tokens."""
    model = tiny(store).double().eval()
    noise, ids = Noise(0.4, Constant(), StudentT(4)), torch.tensor([4, 2])
    batch = Batcher(store.train, model.special, 10**6).batch(ids.numpy())
    state = model.begin(batch.source, batch.lengths)
    given = TrainingNoise(noise, 3, ids, torch.tensor([5, 5]))
    learnt = model.logits(model.features(state, batch.inputs, given))
    noisy = Noisy(model, noise, seed=3)
    here = noisy.attach(state, ids, torch.tensor([5, 5]), torch.full((2,), 0.4))
    for t in range(batch.inputs.shape[1]):
        logits, here = noisy.step(here, batch.inputs[:, t])
        torch.testing.assert_close(learnt[:, t], logits)


def test_noise_reaches_training_and_none_of_it_nothing(store):
    pairs = np.arange(20)
    clean, zero, some, more = (
        float(updater(store, Recipe(noise=noise)).gradient(pairs, 1))
        for noise in (None, Noise(0.0), Noise(0.5), Noise(0.5, site="embedding"))
    )
    assert clean == zero
    assert len({clean, some, more}) == 3


class Share(Replicas):
    """A process of some rank whose sums stay its own, so that gradients accumulate in turn."""

    def add(self, tensor):
        return tensor

    def add_gradients(self, parameters):
        pass


def test_shares_of_a_batch_add_up_to_its_gradient(store):
    """Also where a process has no pairs."""
    for pairs in (np.arange(31), np.arange(1)):
        alone, shared = updater(store), updater(store)
        alone_loss = float(alone.gradient(pairs, 1))
        shared_loss = 0.0
        for rank in range(2):
            shared.replicas = Share(rank, 2)
            shared_loss += float(shared.gradient(pairs, 1))
        assert shared_loss == pytest.approx(alone_loss, rel=1e-6)
        for one, two in zip(alone.model.parameters(), shared.model.parameters(), strict=True):
            torch.testing.assert_close(one.grad, two.grad, rtol=1e-4, atol=1e-7)


def test_updates_are_numbered_as_in_the_runs_of_earlier_versions():
    """The numbers key what is random, so that such a run resumes bit for bit."""
    assert (ModelUpdater.first_number, ActorUpdater.first_number) == (1, 0)


def test_replicas_share_a_batch():
    pairs = np.arange(7)
    shares = [Replicas(rank, 3).share(pairs).tolist() for rank in range(3)]
    assert shares == [[0, 3, 6], [1, 4], [2, 5]]
    assert Replicas(2, 3).share(pairs[:1]).tolist() == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "noise", [None, Noise(0.3), Noise(0.3, site="embedding")], ids=["clean", "hidden", "embedding"]
)
@pytest.mark.parametrize("options", [{}, {"cell": "lstm", "layers": 2}], ids=["gru", "lstm"])
def test_a_captured_recurrence_has_the_gradient_of_the_plain_one(store, options, noise):
    gradients = []
    for capture in (True, False):
        model, device = tiny(store, **options), torch.device("cuda")
        captured = ModelUpdater(model, store.train, Recipe(noise=noise), device)
        captured.features = captured.features if capture else None
        for number, first in enumerate((0, 30, 0), start=1):  # also replayed
            captured.optimiser.zero_grad()
            captured.gradient(np.arange(first, first + 30), number)
        gradients.append(torch.cat([weight.grad.flatten() for weight in model.parameters()]))
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)


class Twice(Replicas):
    """One of two processes whose gradients are equal."""

    def add(self, tensor):
        return tensor.mul_(2)


def test_gradients_are_those_of_all_processes(store):
    pairs = np.arange(6)
    alone, one = updater(store), updater(store)
    one.replicas = Twice(rank=1, world=2)
    alone.gradient(pairs[1::2], 1)
    summed = one.gradient(pairs, 1)
    for half, both in zip(alone.model.parameters(), one.model.parameters(), strict=True):
        torch.testing.assert_close(both.grad, half.grad, rtol=1e-5, atol=1e-7)  # 2 × 3 of 6 pairs
    none = updater(store)
    none.replicas = Twice(rank=5, world=8)  # has no pair of four
    none.gradient(pairs[:4], 1)
    assert all(not parameter.grad.any() for parameter in none.model.parameters())
    assert float(summed) > 0


def test_noise_falls_with_its_schedule(store):
    rows = torch.tensor([0, 1])
    for step, sigma in ((1, 0.4), (2, 0.2), (4, 0.1)):
        scales = TrainingNoise(Noise(0.4), 3, rows, rows)(step).scales
        torch.testing.assert_close(scales, torch.full((2,), sigma))


def test_shapes_are_rounded_up_for_captured_graphs_alone(store):
    assert updater(store).batcher.grid == (1, 1)


def test_processes_wait_while_the_first_prepares_the_data():
    assert update.TIMEOUT.total_seconds() > 12 * 3600


@pytest.mark.parametrize("world", [None, 1, 2])
def test_processes_join_and_leave(monkeypatch, world):
    """Without torchrun, a process is alone."""
    called = []
    names = ("init_process_group", "destroy_process_group", "all_reduce")
    for name in names:
        monkeypatch.setattr(distributed, name, lambda *a, name=name, **_: called.append((name, *a)))
    monkeypatch.setattr(distributed, "get_rank", lambda: 1)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if world is not None:
        monkeypatch.setenv("WORLD_SIZE", str(world))
    with joined(torch.device("cpu")) as replicas:
        assert replicas == (Replicas(1, 2) if world == 2 else Replicas(0, 1))
        assert replicas.first == (world != 2)
        tensor = replicas.add(torch.ones(()))
    joining = [(names[0], "gloo"), (names[2], tensor), (names[1],)]
    assert called == (joining if world == 2 else [])


@pytest.mark.parametrize(("device", "gpus", "number"), [("cuda:0", 0, 1), ("cuda:3", 3, 4)])
def test_a_process_without_a_gpu_is_refused(monkeypatch, device, gpus, number):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with (
        pytest.raises(InvalidInput, match=f"process {number} has no GPU: there are {gpus}; start"),
        joined(torch.device(device)),
    ):
        pass


def test_an_actor_learns_and_its_model_does_not(store):
    """The model drops units in the loss alone; its own dropout is kept."""
    model = tiny(store, dropout=0.25)
    actor = actor_for(model, scale=0.1)
    one = ActorUpdater(model, actor, store.train, SHORT, dropout=0.5)
    frozen = [weight.clone() for weight in model.parameters()]
    learnt = [weight.clone() for weight in actor.parameters()]
    pairs, number = np.arange(20), ActorUpdater.first_number
    losses = [float(one.gradient(pairs, key)) for key in (number, number, number + 1)]
    assert losses[0] == losses[1] != losses[2]
    one.update(pairs, number)
    assert (model.training, model.drop.training, model.drop.p) == (False, False, 0.25)
    assert actor.training
    assert not any(weight.requires_grad for weight in model.parameters())
    assert all(map(torch.equal, frozen, model.parameters()))
    assert not all(map(torch.equal, learnt, actor.parameters()))
    assert all(weight.grad is None for weight in actor.parameters())
    assert ActorUpdater(model, actor, store.train, SHORT).dropout == 0


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_matrix_products_have_the_precision_of_the_recipe(precision):
    with mixed_precision(Recipe(precision=precision), torch.device("cpu")):
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    assert product.dtype == getattr(torch, precision)


def test_a_model_begins_with_the_frequencies_of_tokens(store):
    """Smoothed by one count; the last token of the vocabulary never occurs."""
    model, side = tiny(store), store.train.target
    begin_with_frequencies(model, side)
    size = model.logits.out_features
    counts = np.array([1 + int((side.tokens == token).sum()) for token in range(size)])
    counts[model.special.eos] += len(side.ends)
    expected = torch.from_numpy(np.log(counts / counts.sum())).float()
    torch.testing.assert_close(model.logits.bias.detach(), expected)
