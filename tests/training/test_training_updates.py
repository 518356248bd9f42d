"""One update: its gradient is of the mean NLL, alone, in parts and captured, and deterministic."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import distributed

from npad import Noise, Noisy
from npad.distributions import StudentT
from npad.schedules import Constant
from npad.training.batches import Batcher
from npad.training.likelihood import nll
from npad.training.noise import TrainingNoise
from npad.training.processes import Processes
from npad.training.recipe import Recipe
from npad.training.update import Updater
from runs import ROOT, SHORT, tiny, updater


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
        moved = math.sqrt(
            sum(
                float((a - b.detach()).square().sum())
                for a, b in zip(before, one.model.parameters(), strict=True)
            )
        )
        assert norm > 1
        assert moved == pytest.approx(expected or norm, rel=1e-3)


def test_dropout_is_of_the_update_alone(store):
    one = updater(store, dropout=0.5)
    pairs = np.arange(20)
    assert (
        float(one.gradient(pairs, 7))
        == float(one.gradient(pairs, 7))
        != float(one.gradient(pairs, 8))
    )


class WholeBatch(Processes):
    """A process of some rank that is given all pairs, and has no others to add to."""

    def share(self, pairs):
        return pairs


def test_dropout_differs_between_processes(store):
    """Else the shares of a batch would all drop the same units."""
    pairs = np.arange(20)

    def losses(dropout):
        model, device = tiny(store, dropout=dropout), torch.device("cpu")
        updaters = [Updater(model, store.train, SHORT, device, WholeBatch(rank)) for rank in (0, 1)]
        return [float(one.gradient(pairs, 7)) for one in updaters]

    first, second = losses(dropout=0.5)
    assert first != second
    first, second = losses(dropout=0.0)
    assert first == second


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


TWO = """
import sys
import numpy as np, torch
sys.path.insert(0, "tests")
from npad.training.processes import joined
from npad.training.recipe import Recipe
from npad.training.store import Store
from npad.training.update import Updater
from npad.models.cgru.model import AttentionModel
from runs import TINY

torch.set_num_threads(1)
store = Store.open(sys.argv[1])
with joined(torch.device("cpu")) as processes:
    torch.manual_seed(0)
    source, target = store.subwords
    model = AttentionModel(source.size, target.size, **TINY)
    updater = Updater(model, store.train, Recipe(), torch.device("cpu"), processes)
    sums = []
    for pairs in (np.arange(31), np.arange(1)):  # the second leaves one process without any
        updater.optimiser.zero_grad()
        sums.append(float(updater.gradient(pairs, 1)))
        sums += [float(p.grad.double().square().sum()) for p in model.parameters()]
        sums += [float(p.grad.double().flatten()[::7].sum()) for p in model.parameters()]
    if processes.first:
        print(processes.world, *sums)
"""


def test_two_processes_find_the_gradient_of_one(tmp_path, store):
    """One alone and two together, all at once.

    The two meet at a port that the system chooses, held by this process from the start.
    """
    (tmp_path / "two.py").write_text(TWO)
    command = [sys.executable, str(tmp_path / "two.py"), str(store.folder)]
    meeting = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    two = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(meeting.port)}
    two |= {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    changes = [{"WORLD_SIZE": "1"}, two | {"RANK": "0"}, two | {"RANK": "1"}]
    started = []
    for change in changes:
        environment = os.environ | {"OMP_NUM_THREADS": "1"} | change
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(process)
    try:
        printed = [process.communicate(timeout=600) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0, 0], printed
    # The last line: gloo may print above it.
    last_lines = [out.splitlines()[-1] for out, _ in printed[:2]]
    numbers = [[float(number) for number in line.split()] for line in last_lines]
    (world, *single), (worlds, *together) = numbers
    assert (world, worlds) == (1, 2)
    np.testing.assert_allclose(together, single, rtol=1e-4, atol=1e-7)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "noise", [None, Noise(0.3), Noise(0.3, site="embedding")], ids=["clean", "hidden", "embedding"]
)
@pytest.mark.parametrize("options", [{}, {"cell": "lstm", "layers": 2}], ids=["gru", "lstm"])
def test_a_captured_recurrence_has_the_gradient_of_the_plain_one(store, options, noise):
    gradients = []
    for capture in (True, False):
        one = Updater(
            tiny(store, **options), store.train, Recipe(noise=noise), torch.device("cuda")
        )
        one.features = one.features if capture else None
        for number, pairs in enumerate(
            (np.arange(30), np.arange(30, 60), np.arange(30)), start=1
        ):  # replayed, too
            one.optimiser.zero_grad()
            one.gradient(pairs, number)
        gradients.append(
            torch.cat([parameter.grad.flatten() for parameter in one.model.parameters()])
        )
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)
