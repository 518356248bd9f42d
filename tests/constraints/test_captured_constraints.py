"""Steps under constraints are captured, and ask the host nothing."""

from __future__ import annotations

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import npad
from attention_cases import SOURCE, build
from cases import assert_same, recurrent
from npad import NPAD, Beam, Greedy, Noise, Sampling, decode
from npad.constraints import Choices, Constrained, Required, With, Without
from npad.constraints.automata import Automaton
from npad.constraints.kinds import Context, constrained, prefix_rule
from npad.engine.cuda_graphs import Graph
from npad.engine.pytree import tree_leaves
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
REQUIRED, WITHOUT = With(((7, 8), (7, 9))), Without(((3,), (4, 5)))


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


@pytest.mark.parametrize("constraint", [CHOICES, WITHOUT, REQUIRED], ids=str)
@pytest.mark.parametrize("decoder", DECODERS, ids=repr)
def test_captured_steps_find_the_same_under_a_constraint(fast, decoder, constraint):
    expected = decode(Constrained(build(), constraint), SOURCE, decoder, 8)
    for _ in range(4):
        assert_same(decode(Constrained(fast, constraint), SOURCE, decoder, 8), expected)
    assert any(graph.key[0] is Steps for graph in graphs(fast))


class OnTheDevice(TorchDispatchMode):
    """Refuses what a CUDA graph cannot capture: results of the host, and copies to and from it."""

    VALUES = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "item")

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        results = function(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves((args, kwargs, results)) if isinstance(x, torch.Tensor)]
        masks = name.startswith("index") and any(x.dtype == torch.bool for x in tensors[1:-1])
        if masks or any(part in name for part in self.VALUES):
            raise AssertionError(f"{name} asks the host")
        if len({x.device for x in tensors}) > 1 or any(x.is_cpu for x in tensors):
            raise AssertionError(f"{name} has tensors of the host")
        return results


class WithoutNewTensors(TorchFunctionMode):
    """Refuses tensors of Python's numbers, which a step would copy from the host."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        assert function not in (torch.tensor, torch.as_tensor, torch.from_numpy)
        return function(*args, **(kwargs or {}))


X = torch.zeros(3, device="meta")


@pytest.mark.parametrize(
    "ask",
    [
        lambda: X.sum().item(),
        lambda: bool(X.any()),
        lambda: X.tolist(),
        lambda: X.nonzero(),
        lambda: X[X > 0],
        lambda: X.index_put((X > 0,), X[0]),
        lambda: X.masked_select(X > 0),
        lambda: X.unique(),
        lambda: X.cpu(),
        lambda: torch.tensor([1, 2, 3], device="meta"),
        lambda: torch.zeros(3).to("meta"),
        lambda: X + torch.zeros(3),
    ],
)
def test_a_step_that_asks_the_host_is_noticed(ask):
    with (
        OnTheDevice(),
        WithoutNewTensors(),
        pytest.raises((AssertionError, RuntimeError, NotImplementedError)),
    ):
        ask()


LISTED = {
    "prefix": [prefix_rule([(3, 4)], None)],
    "prefixes": [prefix_rule(PREFIXES[0], None)],
    "long prefixes": [prefix_rule([(1,) * n for n in range(5)], None)],
    "choices": [CHOICES],
    "without": [WITHOUT],
    "with": [REQUIRED],
    "terms": [Required([[(7, 8)], [], [(3,), (4,)], [], [(5,)]], "terms")],
    "all": [prefix_rule(PREFIXES[0], None), CHOICES, WITHOUT, REQUIRED],
}


@pytest.mark.parametrize("constraint", LISTED)
@pytest.mark.parametrize("decoder", [*DECODERS, Sampling(3), NPAD(Greedy(), 3)], ids=repr)
def test_steps_under_a_constraint_never_ask_the_host(decoder, constraint, monkeypatch):
    """On the meta device, where tensors have no values, and none may come from the host."""
    model = recurrent(dtype=torch.float32).to("meta")
    model = Constrained(model, *LISTED[constraint])
    seen = []

    def iterate(searched, state, frontier, problems, rows):
        sentences = len(problems) // problems.per_sentence
        idle = torch.zeros(sentences, dtype=torch.bool, device="meta")
        arguments = state, frontier, idle, torch.zeros(2, device="meta")
        steps = Steps(searched, len(problems) * rows, problems.per_sentence)
        arguments = steps(3, *arguments)  # eager: makes what is kept
        with OnTheDevice(), WithoutNewTensors():
            _, frontier, *_ = steps(3, *arguments)
        seen.append(frontier.tokens.numel())
        raise StopIteration

    for module in ("independent", "beam"):
        monkeypatch.setattr(f"npad.search.{module}.run", iterate)
    monkeypatch.setattr("npad.search.chains.to_device", torch.Tensor.to)
    sentences = len(PREFIXES[0])
    ids = torch.zeros(sentences, dtype=torch.long, device="meta")
    state = model.start(torch.zeros(sentences, 4, device="meta"))
    with pytest.raises(StopIteration):
        decoder.search(model, state, Problems(ids, ids, 5))
    assert seen == [sentences * decoder.rows]


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
