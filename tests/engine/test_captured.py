"""Captured searches return what eager ones do; on a CPU a replay is a second call."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from attention_cases import SOURCE, build
from cases import EVERY, assert_same, counted, tokens, with_decoders
from npad import NPAD, Beam, BestOf, Exact, Greedy, Noise, Sampling, SteeredSearch, decode
from npad.distributions import Antithetic, Fixed, Orthogonal
from npad.engine.cuda_graphs import Graph, GraphCache, bucket, copy_all
from npad.engine.pytree import tree_leaves
from npad.models.cgru.fast import Prepared
from npad.search.loop import Steps
from steered_cases import actor_for, ending, random_sources


@pytest.fixture
def fast(monkeypatch):
    """A model whose steps may be captured, at the second time they are met."""
    monkeypatch.setattr(Prepared, "capturable", property(lambda self: True))
    monkeypatch.setattr("npad.engine.cuda_graphs.EAGER_CALLS", 1)
    return Prepared(build())


def decode_to_capture(model, decoder, **options):
    """What a decoding finds once its steps have been captured."""
    return [decode(model, SOURCE, decoder, 8, **options) for _ in range(3)][-1]


def assert_captured_steps_find_the_same(model, decoder, **options):
    expected = decode(build(), SOURCE, decoder, 8)
    for _ in range(4):
        assert_same(decode(model, SOURCE, decoder, 8, **options), expected)


def graphs(model):
    return [one for one in model._graphs.entries.values() if isinstance(one, Graph)]


@with_decoders("steps", {"1": 1, "3": 3}, fully=["3"])
def test_replayed_steps_find_the_same(fast, decoder, steps, monkeypatch):
    monkeypatch.setattr("npad.search.loop.steps_between_checks", lambda device: steps)
    assert_captured_steps_find_the_same(fast, decoder)
    other = [[7, 2], [1], [5, 5, 5]]
    assert_same(decode(fast, other, decoder, 8), decode(build(), other, decoder, 8))


OTHERS = [NPAD(BestOf((Greedy(), Sampling(2))), 3, Noise(0.4)), NPAD(Exact(50), 3, Noise(0.4))]


@pytest.mark.parametrize("decoder", [*EVERY.values(), *OTHERS], ids=repr)
def test_results_survive_a_replay_of_earlier_graphs(fast, decoder, monkeypatch):
    """Graphs share a memory pool, so an earlier one may overwrite a later one's results."""
    made, replay = [], Graph.replay

    def spoil(graph):
        kept = {id(x) for x in graph.inputs}
        for x in tree_leaves(getattr(graph, "result", ())):
            if id(x) not in kept:
                x.copy_(x == 0)  # anything else

    def replayed(self, leaves=None):
        if leaves is not None:
            copy_all(self.inputs, leaves)
        spoil(self)
        found = replay(self)
        made.extend([self] if self not in made else [])
        for other in made[made.index(self) + 1 :]:
            if other.key != "begin" and other.key[0] != "start chains":  # private
                spoil(other)
        return found

    monkeypatch.setattr(Graph, "replay", replayed)
    assert_captured_steps_find_the_same(fast, decoder)


@pytest.mark.parametrize(
    "decoder", [Greedy(), Beam(3), Sampling(3), NPAD(Beam(2), 4, Noise(0.4))], ids=repr
)
def test_there_are_graphs_to_replay(fast, decoder):
    decode_to_capture(fast, decoder)
    assert any(one.loops for one in graphs(fast))


def test_the_last_steps_which_are_fewer_go_on_in_place(fast, monkeypatch):
    monkeypatch.setattr("npad.search.loop.steps_between_checks", lambda device: 3)
    decode_to_capture(fast, Sampling(3))
    one, other = (each for each in graphs(fast) if each.loops)
    assert [each.key[1] for each in (one, other)] == [3, 2]
    assert all(a is b for a, b in zip(one.inputs, other.inputs, strict=True))


def test_a_seed_has_graphs_of_its_own(fast):
    for seed in (0, 1, 0, 1):
        decoder = NPAD(Greedy(), 4, Noise(2.0), seed=seed)
        assert_same(decode(fast, SOURCE, decoder, 8), decode(build(), SOURCE, decoder, 8))


def test_returned_hypotheses_survive_the_next_search(fast):
    first = decode_to_capture(fast, Beam(3, nbest=3))
    kept = copy.deepcopy(first)
    decode(fast, [[9, 9]] * len(SOURCE), Beam(3, nbest=3), 8)
    assert first == kept


def test_one_half_of_the_chains_leaves_what_the_other_found(fast):
    decoder = NPAD(Greedy(), 8, Noise(2.0))
    assert_captured_steps_find_the_same(fast, decoder, max_rows=2 * len(SOURCE))


def test_needed_memory_is_counted_once(fast, monkeypatch):
    vocabulary, rows = 11, 50 * len(SOURCE)
    monkeypatch.setattr(
        "npad.engine.memory.total_memory", lambda device: 5 * rows * 8 * 8 * vocabulary
    )
    for _ in range(4):
        decode(fast, SOURCE, Sampling(50), 8)


def test_a_copied_or_moved_model_has_no_graphs(fast):
    decode_to_capture(fast, Greedy())
    assert graphs(fast)
    assert graphs(pickle.loads(pickle.dumps(fast))) == []
    assert graphs(copy.deepcopy(fast)) == []
    fast.to(torch.float64)
    assert "_graphs" not in fast.__dict__


def test_other_weights_are_other_graphs(fast):
    decode_to_capture(fast, Greedy())
    fast.to(torch.float32)
    assert tokens(decode(fast, SOURCE, Greedy(), 8)) == tokens(
        decode(build().float(), SOURCE, Greedy(), 8)
    )


def test_sizes_that_are_captured_are_few_and_rise():
    sizes = sorted({bucket(size) for size in range(1, 1025)})
    assert sizes[:8] == [1, 2, 4, 8, 12, 16, 24, 32]
    assert len(sizes) == 18
    assert all(size <= bucket(size) == bucket(bucket(size)) for size in range(1, 1025))


@pytest.mark.parametrize(
    "decoder",
    [
        Greedy(),
        Beam(3),
        Sampling(2),
        NPAD(Greedy(), 4, Noise(0.4)),
        NPAD(Beam(2), 3, Noise(0.4)),
        SteeredSearch(),
        NPAD(SteeredSearch(), 3, Noise(0.4)),
    ],
    ids=repr,
)
@pytest.mark.parametrize("pairs", [0, 256])
def test_batches_of_all_sizes_and_lengths_find_the_same_by_few_graphs(decoder, pairs, monkeypatch):
    """Sources and sentences are padded, and done sentences kept, up to sizes that are few."""
    monkeypatch.setattr(Prepared, "capturable", property(lambda self: True))
    monkeypatch.setattr("npad.engine.cuda_graphs.EAGER_CALLS", 0)
    monkeypatch.setattr("npad.search.loop.steps_between_checks", lambda device: 4)
    monkeypatch.setattr("npad.search.paired.MAX_PAIRED_ROWS", pairs)
    captures, capture = [], GraphCache._capture
    monkeypatch.setattr(
        GraphCache, "_capture", lambda *given: captures.append(given[2]) or capture(*given)
    )
    plain = ending().double()
    plain.actor = actor_for(plain)
    fast = Prepared(plain)
    sources, counts = random_sources(400), [5, 7, 2, 8, 3, 6, 1, 4, 8]
    with_calls = []
    for request in range(2):
        captures.clear()
        for i, count in enumerate(counts):
            part = sources[8 * i : 8 * i + count]
            expected, calls = counted(decode, plain, part, decoder, 12)
            found, captured_calls = counted(decode, fast, part, decoder, 12)
            assert_same(found, expected)
            with_calls.append((calls.search, captured_calls.search))
        steps = [key for key in captures if key[0] is Steps]
        # Of 1, 2, 4 or 8 sentences, the first window apart, and once in place of other windows.
        assert len(steps) <= (12 if request == 0 else 0), steps
    assert all(few <= many for few, many in with_calls)


@pytest.mark.parametrize("decoder", [Greedy(), Beam(3), NPAD(Beam(2), 3, Noise(0.4))], ids=repr)
def test_other_lengths_of_outputs_need_no_other_graphs(fast, decoder, monkeypatch):
    """Steps are captured by eights, fours, twos and ones, the first of a search apart."""
    monkeypatch.setattr("npad.engine.cuda_graphs.EAGER_CALLS", 0)
    monkeypatch.setattr("npad.search.loop.steps_between_checks", lambda device: 8)
    captured, capture = [], GraphCache._capture
    monkeypatch.setattr(
        GraphCache, "_capture", lambda *given: captured.append(given[2]) or capture(*given)
    )
    plain = build()
    for length in (1, 2, 3, 7, 15, 31):
        decode(fast, SOURCE, decoder, length)
    assert {key[1] for key in captured if key[0] is Steps} == {1, 2, 4, 8}
    captured.clear()
    for length in (4, 6, 13, 16, 22, 40):
        assert_same(decode(fast, SOURCE, decoder, length), decode(plain, SOURCE, decoder, length))
    assert [key for key in captured if key[0] is Steps] == []


def test_only_so_many_are_kept(fast, monkeypatch):
    monkeypatch.setattr("npad.engine.cuda_graphs.MAX_GRAPHS", 3)
    for length in range(1, 9):
        decode(fast, [[1] * length], Greedy(), 8)
    assert len(fast._graphs.entries) <= 3


def test_many_rows_are_stepped_as_they_are(fast, monkeypatch):
    monkeypatch.setattr("npad.search.loop.CAPTURED_ROWS", 2)
    decode_to_capture(fast, Beam(3))
    assert all(graph.key == "begin" for graph in graphs(fast))


@pytest.mark.parametrize(
    "kind", [Orthogonal(), Fixed(Orthogonal()), Antithetic(Orthogonal())], ids=repr
)
def test_noise_that_asks_the_host_is_not_captured(fast, kind):
    decode_to_capture(fast, NPAD(Greedy(), 4, Noise(0.3, distribution=kind)))
    assert all(graph.key == "begin" for graph in graphs(fast))


def test_a_step_that_cannot_be_captured_runs_eagerly(fast, monkeypatch):
    def fails(*given):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr("npad.engine.cuda_graphs.Graph", fails)
    assert_captured_steps_find_the_same(fast, Beam(3))


def test_two_threads_do_not_share_a_graph(fast):
    expected = decode(build(), SOURCE, Beam(3), 8)
    decode_to_capture(fast, Beam(3))
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(lambda _: decode(fast, SOURCE, Beam(3), 8), range(20)))
    for found in results:
        assert_same(found, expected)
