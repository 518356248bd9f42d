"""Noise in a model: how much, where, and when."""

from __future__ import annotations

import pytest
import torch

from cases import Stateless, recurrent, summaries, watched
from npad import NPAD, Beam, Greedy, Noise, Noisy, Special, decode
from npad.distributions import Gaussian, Orthogonal
from npad.noise.random import Keys, draw, normal
from npad.rows import Problems, repeat
from npad.schedules import Annealed, Constant, Power
from npad.testing import check_model


class Still(Stateless):
    """A model that returns what perturb returned; its hidden state is zero before every step."""

    def __init__(self):
        super().__init__(Special(0, 1, 0), lambda tokens: torch.eye(5)[torch.full_like(tokens, 2)])
        self.sites, self.seen = {"hidden": 64}, []

    def step(self, state, tokens, perturb=None):
        x = torch.zeros(len(tokens), 64)
        self.seen.append(x if perturb is None else perturb("hidden", x))
        return super().step(state, tokens)


@pytest.mark.parametrize("schedule", [Annealed(), Constant(), Power(0.5)], ids=repr)
def test_the_noise_at_step_t_has_the_stated_standard_deviation(schedule):
    model = Still()
    decode(
        model,
        range(40),
        NPAD(Greedy(), 26, Noise(0.3, schedule), selector=lambda found: found.log_prob),
        max_length=6,
    )
    for t, x in enumerate(model.seen[:6], start=1):
        sigma = 0.3 * schedule(torch.tensor([t]), torch.ones(1)).item()
        chains = x.view(40, 26, 64)
        assert (chains[:, 0] == 0).all()  # the clean chain
        assert chains[:, 1:].std().item() == pytest.approx(sigma, rel=0.02)
        assert chains[:, 1:].mean().item() == pytest.approx(
            0, abs=4 * sigma / (40 * 25 * 64) ** 0.5
        )


def epsilon(step, rows=3, seed=0, site="hidden.0", width=8):
    """What chain 1 of sentences 0, 1, … meets."""
    ids = torch.arange(rows)
    one = torch.ones_like(ids)
    return Gaussian().unit(Keys(seed, ids, one, step * one, 0 * one, site), width).double()


def test_noise_reaches_the_transition_before_it_happens():
    """tanh(W x + U (h + ε) + b), step by step; noise after the step would give other numbers."""
    model, source = recurrent("rnn", summary=0), range(3)
    cell, tokens = model.cells[0], torch.tensor([[0, 0, 0], [4, 5, 6], [7, 2, 3]])
    noisy = Noisy(model, Noise(0.7))
    state, h = noisy.start(source), torch.zeros(3, 8, dtype=torch.float64)
    with torch.no_grad():
        for t in range(3):
            logits, state = noisy.step(state, tokens[t])
            moved = h + 0.7 / (t + 1) * epsilon(t + 1)
            x = model.embedding(tokens[t])
            h = torch.tanh(
                x @ cell.weight_ih.T + cell.bias_ih + moved @ cell.weight_hh.T + cell.bias_hh
            )
            torch.testing.assert_close(state.inner.hidden[0], h, atol=1e-6, rtol=0)
            torch.testing.assert_close(
                logits, model.logits(torch.tanh(model.readout(h))), atol=1e-5, rtol=0
            )


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_each_site_is_reached_alone_and_layers_apart(cell):
    """Noise at a site changes just the calls it covers; all layers get noise of their own."""
    model, source = recurrent(cell, layers=2), summaries(4)
    touched = {}
    for site in model.sites:
        noisy = Noisy(model, Noise(0.5, site=site))
        seen = {}

        class Watch:
            special, sites, start, select = model.special, model.sites, model.start, model.select

            def step(self, state, tokens, perturb=None, seen=seen):
                def note(call, x):
                    seen[call] = perturb(call, x) - x
                    return x + seen[call]

                return model.step(state, tokens, note)

        watched = Noisy(Watch(), noisy.noise)
        watched.step(watched.start(source), torch.zeros(4, dtype=torch.long))
        touched[site] = {name for name, change in seen.items() if change.abs().sum() > 0}
        if site in ("hidden", "cell"):
            assert not torch.allclose(seen[f"{site}.0"], seen[f"{site}.1"])
    for site in ("hidden", "cell") if cell == "lstm" else ("hidden",):
        assert touched[site] == {f"{site}.0", f"{site}.1"}
        assert touched[f"{site}.0"] == {f"{site}.0"}
    assert touched["embedding"] == {"embedding"}
    assert touched["output"] == {"output"}


def test_slots_rank_the_live_hypotheses_of_a_chain_from_zero():
    model = recurrent()
    noisy = Noisy(model, Noise(0.5))
    problems = Problems(torch.tensor([5, 5, 9]), torch.tensor([1, 2, 1]), 9)
    rows = model.select(model.start(summaries(2)), torch.tensor([0, 0, 1]))
    state = noisy.attach(rows, problems.ids, problems.chains, torch.ones(3))
    assert state.slots.tolist() == [0, 0, 0]
    wide = noisy.select(state, repeat(3, 4, torch.device("cpu")))
    assert wide.slots.tolist() == [0, 1, 2, 3] * 3
    assert wide.chains.tolist() == [1] * 4 + [2] * 4 + [1] * 4
    reordered = noisy.select(wide, torch.tensor([2, 2, 0, 5, 7, 4, 8, 11, 11]))
    assert reordered.slots.tolist() == [0, 1, 2] * 3
    assert noisy.select(reordered, torch.tensor([6, 7, 8])).slots.tolist() == [0, 1, 2]


@pytest.mark.parametrize("share", [False, True])
def test_rows_of_a_beam_share_their_noise_if_told_to(share):
    noisy = Noisy(recurrent(), Noise(0.5), share_noise=share)
    state = noisy.select(noisy.start(summaries(2)), repeat(2, 3, torch.device("cpu")))
    logits, _ = noisy.step(state, torch.zeros(6, dtype=torch.long))
    first, *others = logits.view(2, 3, -1).unbind(1)
    assert [torch.allclose(first, other) for other in others] == [share, share]


def test_noise_around_noise_comes_on_top():
    model, source = recurrent(), summaries(3)
    both = Noisy(Noisy(model, Noise(0.5)), Noise(0.5, site="embedding"), seed=4)
    one, other = Noisy(model, Noise(0.5)), Noisy(model, Noise(0.5, site="embedding"), seed=4)
    bos = torch.zeros(3, dtype=torch.long)
    results = [noisy.step(noisy.start(source), bos)[0] for noisy in (both, one, other)]
    assert not any(torch.allclose(results[i], results[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


def test_noise_reaches_its_own_site_and_those_of_the_noise_around_it():
    """A model may skip the sites that no noise reaches."""
    model, reached = recurrent(layers=2), set()

    def note(state, tokens, perturb):
        reached.update(site for site in model.sites if perturb.reaches(site))

    inner = Noisy(watched(model, note), Noise(0.5, site="hidden.1"))
    for noisy, sites in (
        (inner, {"hidden.1"}),
        (Noisy(inner, Noise(0.5, site="embedding")), {"hidden.1", "embedding"}),
        (Noisy(inner, Noise(0.5, site="hidden")), {"hidden", "hidden.0", "hidden.1"}),
    ):
        reached.clear()
        noisy.step(noisy.start(summaries(2)), torch.zeros(2, dtype=torch.long))
        assert reached == sites


def test_a_noisy_model_by_itself_is_keyed_by_ids():
    model = recurrent(vocabulary=30)
    noisy, source = (
        Noisy(Noisy(model, Noise(1.0, Constant())), Noise(0.5, site="embedding")),
        summaries(1).expand(4, -1),
    )
    batch = decode(noisy, source, Greedy(), 8, ids=[5, 6, 7, 8])
    assert len({one[0].tokens for one in batch}) > 1
    for i in range(4):
        assert (
            decode(noisy, source[:1], Greedy(), 8, ids=[5 + i])[0][0].tokens == batch[i][0].tokens
        )


def test_the_noise_is_float32_whatever_the_default(monkeypatch):
    x = epsilon(1)
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert torch.equal(epsilon(1), x)
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_noisy_model_is_captured_if_its_model_and_its_noise_may_be():
    for capturable in (True, False):
        model = recurrent()
        model.capturable = capturable
        for kind in (Gaussian(), Orthogonal()):
            noisy = Noisy(model, Noise(0.3, distribution=kind))
            assert noisy.capabilities.noisy
            assert noisy.capabilities.capturable == (capturable and kind == Gaussian())


def test_a_noisy_model_is_a_model():
    model = recurrent()
    found = decode(Noisy(model, Noise(0.0)), summaries(3), Beam(3), max_length=9)
    assert found == decode(model, summaries(3), Beam(3), max_length=9)
    check_model(Noisy(model, Noise(0.0)), summaries(3))


def test_perturb_tells_its_keys_and_scales():
    """Enough for a model to draw the same noise by itself."""

    def compare(state, tokens, perturb):
        x = state.hidden[0]
        own = x + perturb.scales[:, None] * draw(perturb.keys("hidden.0"), 8, normal)
        torch.testing.assert_close(own, perturb("hidden.0", x))
        compared.append(tokens)

    compared = []
    noisy = Noisy(watched(recurrent(), compare), Noise(0.4))
    noisy.step(noisy.start(summaries(3)), torch.zeros(3, dtype=torch.long))
    assert compared
