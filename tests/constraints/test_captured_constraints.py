"""Steps under constraints are captured, and ask the host nothing."""

from __future__ import annotations

import pytest
import torch

import npad
from attention_cases import SOURCE, build
from cases import assert_same, recurrent
from npad import NPAD, Beam, Greedy, Noise, decode
from npad.constraints import Choices, Constrained, Without
from npad.constraints.automata import Automaton
from npad.constraints.kinds import Context, constrained, prefix_rule
from npad.engine.cuda_graphs import Graph
from npad.model import Capabilities
from npad.models.cgru.fast import Prepared
from npad.rows import Problems
from npad.search.loop import Steps

GPU = torch.cuda.is_available()
PREFIXES = [
    [(3,), (4, 5), (), (6, 3), ()],
    [(8,), (), (9,), (2, 2), (1,)],
    [(), (5,), (7, 7), (4,), (5,)],
]
DECODERS = [Greedy(), Beam(3), NPAD(Beam(2), 3, Noise(0.4))]
CHOICES = Choices(((3, 4), (3, 5, 6), (7,), (8, 8, 8)))


@pytest.fixture
def fast(monkeypatch):
    """A model whose steps are captured: on a GPU, or as on one, after one eager call."""
    monkeypatch.setattr(Prepared, "capturable", property(lambda self: True))
    monkeypatch.setattr("npad.engine.cuda_graphs.EAGER_CALLS", 1)
    return Prepared(build()).to("cuda" if GPU else "cpu")


def graphs(model):
    return [entry for entry in model._graphs.entries.values() if isinstance(entry, Graph)]


@pytest.mark.parametrize("decoder", DECODERS, ids=repr)
def test_other_prefixes_replay_the_same_graphs(fast, decoder, monkeypatch):
    """They are a part of the state of a search."""
    monkeypatch.setattr("npad.search.loop.steps_between_checks", lambda device: 3)
    captured = set()
    for round in range(4):
        for prefixes in PREFIXES:
            rule, other = (prefix_rule(prefixes, None) for _ in range(2))
            assert Capabilities.of(Constrained(fast, rule)).capturable
            found = decode(Constrained(fast, rule), SOURCE, decoder, 8)
            expected = decode(Constrained(build(), other), SOURCE, decoder, 8)
            assert_same(found, expected)
            for prefix, (best, *_) in zip(prefixes, found, strict=True):
                assert best.tokens[: len(prefix)] == prefix
        if round == 1:
            captured = set(map(id, graphs(fast)))
            assert any(graph.key[0] is Steps for graph in graphs(fast))
    assert set(map(id, graphs(fast))) == captured


@pytest.mark.parametrize("constraint", [CHOICES, Without(((3,), (4, 5)))], ids=str)
@pytest.mark.parametrize("decoder", DECODERS, ids=repr)
def test_captured_steps_find_the_same_under_a_constraint(fast, decoder, constraint):
    expected = decode(Constrained(build(), constraint), SOURCE, decoder, 8)
    for _ in range(4):
        assert_same(decode(Constrained(fast, constraint), SOURCE, decoder, 8), expected)
    assert any(graph.key[0] is Steps for graph in graphs(fast))


LISTED = [[(3, 4)], PREFIXES[0], [(1,) * n for n in range(40)]]


@pytest.mark.parametrize("prefixes", LISTED, ids=len)
@pytest.mark.parametrize("few", [0, 1 << 21], ids=["lists", "masks"])
@pytest.mark.parametrize("decoder", DECODERS[:2], ids=repr)
def test_steps_under_a_constraint_never_ask_the_host(decoder, few, prefixes, monkeypatch):
    """Tensors on the meta device have no values, so .item() or bool() would raise."""
    monkeypatch.setattr("npad.constraints.automata.FEW_DENSE", few)
    device, sentences = torch.device("meta"), len(prefixes)
    without = Without(((3,), (4, 5)))
    model = Constrained(
        recurrent(dtype=torch.float32).to(device), prefix_rule(prefixes, None), CHOICES, without
    )
    seen = []

    def iterate(searched, state, frontier, problems, rows):
        idle = torch.zeros(sentences, dtype=torch.bool, device=device)
        status = torch.zeros(2, device=device)
        _, frontier, *_ = Steps(searched, sentences * rows, 1)(3, state, frontier, idle, status)
        seen.append(frontier.tokens.shape)
        raise StopIteration

    for module in ("independent", "beam"):
        monkeypatch.setattr(f"npad.search.{module}.run", iterate)
    ids = torch.zeros(sentences, dtype=torch.long, device=device)
    state = model.start(torch.zeros(sentences, 4, device=device))
    with pytest.raises(StopIteration):
        decoder.search(model, state, Problems(ids, ids, 5))
    assert seen == [(sentences, decoder.rows)]


def test_lists_and_masks_allow_the_same(monkeypatch):
    prefixes = ["Der Rech", "", "D", "Ich weiß nicht, w"]
    translator = npad.load("en-de")
    context = Context(translator.vocabulary, (), prefixes)
    texts = ["The computer is broken.", "How are you?", "She left.", "I do not know what to do."]
    source, found = translator.encode(texts), []
    for few, narrow in ((1 << 24, 16), (0, 16), (0, 1)):
        monkeypatch.setattr("npad.constraints.automata.FEW_DENSE", few)
        monkeypatch.setattr("npad.constraints.automata.NARROW", narrow)
        model = constrained(translator.model, None, context)
        (rule,) = model.rules
        assert isinstance(rule, Automaton)
        assert len(rule.tables.places) == (0 if few else narrow)
        found.append(decode(model, source, Beam(3), 30))
    assert_same(found[1], found[0])
    assert_same(found[2], found[0])


@pytest.mark.skipif(not GPU, reason="needs a GPU to capture on")
@pytest.mark.parametrize("decoder", DECODERS, ids=repr)
def test_prefixes_of_texts_are_captured_on_a_gpu(decoder):
    """And outputs are those of the CPU."""
    texts = ["The computer is broken.", "How are you?", "She left.", "I do not know what to do."]
    prefixes = ["Der Rech", "", "Sie ", "Ich wei"]
    there, here = npad.load("en-de", "cuda"), npad.load("en-de", "cpu")
    expected = here.translate(texts, decoder, prefixes=prefixes)
    for _ in range(6):
        found = there.translate(texts, decoder, prefixes=prefixes)
        assert [output.text for output in found] == [output.text for output in expected]
    keys = [key[0][0] for key, entry in there.model._graphs.entries.items() if type(entry) is Graph]
    assert Steps in keys
