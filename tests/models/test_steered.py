"""A model steered by an actor: pushes at its sites, clean scores, and every decoder's theorems."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from attention_cases import SOURCE, build
from cases import (
    EVERY,
    NOISY,
    PLAIN,
    assert_clean_scores,
    assert_lower_precision,
    assert_same,
    by_name,
    recurrent,
    summaries,
    tokens,
    with_decoders,
)
from npad import (
    NPAD,
    Actor,
    Beam,
    Greedy,
    InvalidInput,
    LengthNormalised,
    Noise,
    Noisy,
    Selected,
    Steered,
    SteeredSearch,
    decode,
    signature,
)
from npad.engine.cuda_graphs import Graph, GraphCache
from npad.model import Capabilities
from npad.models.actors import INPUTS, Trajectory
from npad.models.cgru.fast import Prepared
from npad.models.low_precision import LowPrecision
from npad.search.loop import Steps
from npad.testing import check_model
from steered_cases import actor_for, steered

READ = {"state": ["state"], "all": INPUTS}
reading = pytest.mark.parametrize("inputs", READ.values(), ids=READ)
# One that reads the source remembers the first state, which a decoder may mix up.
reading_with_decoders = with_decoders("inputs", READ, fully=["all"])


@reading_with_decoders
def test_an_untrained_actor_changes_nothing(decoder, inputs):
    model = build()
    actor = Actor.for_model(model, ["hidden", "output"], inputs=inputs).double()
    found = decode(Steered(model, actor), SOURCE, decoder, 8)
    assert tokens(found) == tokens(decode(model, SOURCE, decoder, 8))


@reading
def test_an_actor_changes_what_greedy_search_finds(inputs):
    model = build()
    found = decode(steered(model, inputs=inputs), SOURCE, Greedy(), 8)
    assert tokens(found) != tokens(decode(model, SOURCE, Greedy(), 8))


@pytest.mark.parametrize("decoder", **by_name(EVERY))
def test_scores_are_the_clean_models(decoder):
    model = build()
    assert_clean_scores(model, SOURCE, decode(steered(model), SOURCE, decoder, 12))


@reading_with_decoders
def test_a_sentence_alone_is_decoded_as_in_a_batch(decoder, inputs):
    model = steered(inputs=inputs)
    together = decode(model, SOURCE, decoder, 8)
    alone = [decode(model, SOURCE[i : i + 1], decoder, 8, ids=[i])[0] for i in range(len(SOURCE))]
    assert_same(together, alone)


def test_noise_is_on_top_of_the_push():
    """The order is push, then noise: relative noise is in units of what the actor returns."""
    model, seen = build(), []
    actor = actor_for(model, ["state"])

    class Spy:
        scales = torch.ones(len(SOURCE), dtype=torch.float64)

        def keys(self, site):
            raise AssertionError

        def __call__(self, site, x):
            seen.append((site, x))
            return x

    state = Steered(model, actor).start(SOURCE)
    hidden = state.inner.hidden[0].clone()
    Steered(model, actor).step(state, torch.full((len(SOURCE),), model.special.bos), Spy())
    pushed = dict(seen)["hidden.0"]
    expected, _ = actor.parts[0](hidden, None, actor.start(len(SOURCE))[0])
    assert torch.allclose(pushed, expected)
    assert not torch.allclose(pushed, hidden)


@reading_with_decoders
def test_a_prepared_model_is_steered_alike(decoder, inputs):
    model = build()
    actor = actor_for(model, inputs, ("hidden", "output"))
    expected = decode(Steered(model, actor), SOURCE, decoder, 8)
    assert_same(decode(Steered(Prepared(model), actor), SOURCE, decoder, 8), expected)


@pytest.fixture
def captured(monkeypatch):
    """Prepared models whose steps may be captured, at the second time they are met."""
    monkeypatch.setattr(Prepared, "capturable", property(lambda self: True))
    monkeypatch.setattr("npad.engine.cuda_graphs.EAGER_CALLS", 1)


@pytest.mark.usefixtures("captured")
@with_decoders("steps", {"1": 1, "3": 3}, fully=["3"])
def test_captured_steps_find_the_same(decoder, steps, monkeypatch):
    monkeypatch.setattr("npad.search.loop.steps_between_checks", lambda device: steps)
    model = build()
    actor = actor_for(model)
    expected = decode(Steered(model, actor), SOURCE, decoder, 8)
    fast = Prepared(model)
    for _ in range(3):
        assert_same(decode(Steered(fast, actor), SOURCE, decoder, 8), expected)
    if isinstance(decoder, Greedy):
        assert any(not isinstance(entry, int) for entry in fast._graphs.entries.values())


@pytest.mark.usefixtures("captured")
def test_two_actors_never_share_a_graph():
    model = build()
    fast, both = Prepared(model), [actor_for(model), actor_for(model, seed=6)]
    for _ in range(3):
        for actor in both:
            expected = decode(Steered(model, actor), SOURCE, Greedy(), 8)
            assert_same(decode(Steered(fast, actor), SOURCE, Greedy(), 8), expected)


@reading
@pytest.mark.parametrize("sites", [("hidden",), ("hidden", "output"), ("cell",), ("hidden.1",)])
def test_teacher_forcing_with_pushes_is_the_steered_models_steps(inputs, sites):
    model = build(cell="lstm", layers=2)
    actor = actor_for(model, inputs, sites)
    read = torch.tensor([[11, 3, 4], [11, 5, 6], [11, 7, 1], [11, 2, 2], [11, 9, 8]])
    with torch.no_grad():
        forced = model.logits(model.features(model.start(SOURCE), read, Trajectory(actor)))
        wrapped = Steered(model, actor)
        state, logits = wrapped.start(SOURCE), []
        for t in range(read.shape[1]):
            step, state = wrapped.step(state, read[:, t])
            logits.append(step)
    assert torch.allclose(forced, torch.stack(logits, 1))


def test_a_steered_model_keeps_the_contract():
    check_model(steered(build()), SOURCE)
    check_model(steered(Prepared(build())), SOURCE)
    check_model(steered(recurrent()), summaries(3))


@pytest.mark.parametrize("decoder", **by_name(PLAIN))
def test_steered_search_is_the_search_over_the_steered_model(decoder):
    model = build()
    model.actor = actor_for(model)
    expected = decode(Steered(model, model.actor), SOURCE, decoder, 8)
    found = decode(model, SOURCE, SteeredSearch(decoder), 8)
    assert list(map(set, tokens(found))) == list(map(set, tokens(expected)))
    assert_clean_scores(model, SOURCE, found)


@pytest.mark.parametrize("name", NOISY)
def test_npad_over_the_steered_search_is_npad_over_the_steered_model(name):
    decoder = NOISY[name]
    model = Prepared(build())
    model.actor = actor_for(model)
    over = replace(decoder, inner=SteeredSearch(decoder.inner))
    expected = decode(Steered(model, model.actor), SOURCE, decoder, 8)
    assert_same(decode(model, SOURCE, over, 8), expected)


STEERED = {name: SteeredSearch(decoder) for name, decoder in PLAIN.items()}
STEERED |= {name: replace(npad, inner=SteeredSearch(npad.inner)) for name, npad in NOISY.items()}


@pytest.mark.usefixtures("captured")
@pytest.mark.parametrize("decoder", **by_name(STEERED))
def test_captured_steered_search_finds_the_same(decoder):
    """Where steps are captured, each steered and noisy row has a clean pair."""
    model = build()
    model.actor = actor_for(model, sites=("hidden", "output"))
    expected, fast = decode(model, SOURCE, decoder, 8), Prepared(model)
    for _ in range(3):
        assert_same(decode(fast, SOURCE, decoder, 8), expected)


@pytest.mark.usefixtures("captured")
def test_steered_search_runs_as_graphs_alone_and_is_not_re_scored(monkeypatch):
    model = build()
    model.actor = actor_for(model)
    fast, called = Prepared(model), []
    for _ in range(2):
        decode(fast, SOURCE[:4], SteeredSearch(), 8)
    call = GraphCache.call

    def spied(self, *arguments, **options):
        found = call(self, *arguments, **options)
        called.append((arguments[2], isinstance(self.last, Graph)))
        return found

    monkeypatch.setattr(GraphCache, "call", spied)
    monkeypatch.setattr("npad.rescoring.strategies.read_rectangle", None)
    decode(fast, SOURCE[:4], SteeredSearch(), 8)
    assert {key if key == "begin" else key[0] for key, _ in called} == {
        "begin",
        "start steered",
        Steps,
    }
    assert all(replayed for _, replayed in called)


def test_chains_of_lower_precision_are_steered_too():
    model = Prepared(build(torch.float32))
    model.actor = actor_for(model)
    assert LowPrecision(model, "bfloat16").low.actor.weight.dtype == torch.bfloat16
    assert_lower_precision(model, SOURCE, "bfloat16", SteeredSearch())


def test_a_copy_of_a_model_has_a_copy_of_its_actor():
    model = Prepared(build())
    model.actor = actor_for(model)
    assert Capabilities.of(model).steer is not None
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.actor.parameters():
            parameter.zero_()
    steering, _ = Capabilities.of(twin).steer(twin.start(SOURCE), len(SOURCE))
    assert steering.model is twin
    assert steering.actor is twin.actor is not model.actor


def test_a_selector_ranks_a_steered_beam():
    model = build()
    model.actor = actor_for(model)
    decoder = Selected(SteeredSearch(Beam(4)), LengthNormalised())
    expected = decode(Steered(model, model.actor), SOURCE, Selected(Beam(4), LengthNormalised()), 8)
    assert_same(decode(model, SOURCE, decoder, 8), expected)


def test_a_noisy_model_may_be_steered_and_a_steered_one_noisy():
    model = build()
    actor = actor_for(model)
    for both in (
        Noisy(Steered(model, actor), Noise(0.3)),
        Steered(Noisy(model, Noise(0.3)), actor),
    ):
        assert len(decode(both, SOURCE, Greedy(), 6)) == len(SOURCE)


def test_the_signature_names_the_decoder():
    assert signature(SteeredSearch(), build()).startswith("steered|inner:greedy|model:")
    assert "Steered(" in signature(Greedy(), steered())
    assert SteeredSearch(Beam(3)).title == "steered beam, 3"


MISTAKES = {
    "AttentionModel has no actor; train one with npad train-actor": lambda: decode(
        build(), SOURCE, SteeredSearch(), 8
    ),
    "actor must be an Actor, not 3": lambda: Steered(build(), 3),
    "it pushes 6 units at 'hidden.0', where AttentionModel has 9": lambda: Steered(
        build(units=9), actor_for(build())
    ),
    "has no noise site 'cell.0'": lambda: Steered(
        build(), actor_for(build(cell="lstm"), sites=("cell",))
    ),
    "it reads embeddings of 5 units, and AttentionModel has 4": lambda: Steered(
        build(embedding=4), actor_for(build())
    ),
    "has no noise site 'nowhere'": lambda: Actor.for_model(build(), ["nowhere"]),
    "SteeredSearch cannot hold NPAD": lambda: SteeredSearch(NPAD()),
    "kind must be": lambda: Actor({"hidden.0": 4}, kind="gru"),
    "each of inputs must be": lambda: Actor({"hidden.0": 4}, inputs=["state", "weather"]),
    "calls must name at least one call": lambda: Actor({}),
    "inner must be a decoder: write Beam()": lambda: SteeredSearch(Beam),
}


@pytest.mark.parametrize("rule", MISTAKES)
def test_a_mistake_is_named(rule):
    with pytest.raises(InvalidInput) as error:
        MISTAKES[rule]()
    assert rule in str(error.value)
    assert "\n" not in str(error.value)
