"""Models of Hugging Face on a CPU: packed and int8 products, and decoders without transformers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import npad
from cases import assert_clean_scores, assert_same, counted
from hf_cases import build, growing, hooks, kinds, plain, saved, source, tensors  # noqa: F401
from npad import NPAD, Beam, Greedy, InvalidInput, Noise, Sampling, decode, signature
from npad.models import linear
from npad.models.huggingface.adapter import DIRECT, HuggingFace
from npad.models.huggingface.direct import DirectState
from npad.models.int8 import Int8Linear
from npad.models.linear import product_of, products_of

ENCODERS = ("marian", "bart", "whisper", "t5", "gated t5")
direct = pytest.mark.parametrize("kind", [*ENCODERS, "llama"])
NOISY = NPAD(Beam(2), 4, Noise(0.3, relative=True))
DECODERS = {
    "greedy": Greedy(),
    "beam": Beam(3, "pool"),
    "sampling": Sampling(4),
    "hidden": NOISY,
    **{site: NPAD(Greedy(), 4, Noise(0.3, site=site)) for site in ("embedding", "output")},
}


@pytest.fixture
def packed(monkeypatch):
    """Pack weights of any size."""
    if not linear.can_pack():
        pytest.skip("this torch packs no weights")
    monkeypatch.setattr(linear, "MIN_PACKED_NUMBERS", 0)
    monkeypatch.setattr(linear, "MIN_PACKED_NUMBERS_OF_A_ROW", 0)


@direct
@pytest.mark.parametrize("decoder", DECODERS.values(), ids=DECODERS)
@pytest.mark.parametrize("persist", [True, False], ids=["persists", "fades"])
def test_a_direct_decoder_finds_what_transformers_finds(kind, decoder, persist):
    model = build(kind)
    adapter = HuggingFace(model, persist)
    expected = decode(growing(model, persist=persist), source(kind), decoder, 8)
    assert_same(decode(adapter, source(kind), decoder, 8), expected)
    assert model.__dict__[DIRECT]
    assert isinstance(adapter.start_search(source(kind)), DirectState) == (kind != "llama")


@pytest.mark.parametrize("kind", ENCODERS)
def test_teacher_forcing_after_a_longer_prefix_reads_as_transformers_does(kind):
    model = build(kind)
    prefix = [*HuggingFace(model).decoder_prefix, 7, 9]
    adapter, tokens = HuggingFace(model, decoder_prefix=prefix), torch.randint(3, 39, (4, 11))
    expected = adapter.forced(adapter.start(source(kind)), tokens)
    state = adapter.start_search(source(kind))
    assert isinstance(state, DirectState)
    torch.testing.assert_close(adapter.forced(state, tokens), expected)


@kinds
def test_the_clean_chain_is_not_read_again(kind):
    adapter, given = HuggingFace(build(kind)), source(kind)
    _, calls = counted(decode, adapter, given, NPAD(Greedy(), 3, Noise(0.0)), 6)
    assert calls.rescoring == 0
    for decoder in (Greedy(), Beam(2), Sampling(2)):
        found = decode(adapter, given, NPAD(decoder, 4, Noise(0.5)), 6)
        assert any(len({h.chain for h in row}) > 1 for row in found)
        assert_clean_scores(adapter, given, found, 1e-4)


@kinds
@pytest.mark.parametrize("precision", ["float32", "int8-all"])
def test_the_users_model_stays_as_it_is(kind, precision, packed):
    model = build(kind, torch.float32)
    before, parts = model.state_dict(), [*map(id, model.modules())]
    weights = {name: weight.clone() for name, weight in before.items()}
    options = {"decoder": NOISY, "max_new_tokens": 5, "precision": precision}
    given = {name: x.float() if x.is_floating_point() else x for name, x in tensors(kind).items()}
    found = npad.hf.generate(model, **given, **options)
    assert ("+int8-all" in found.signature) == (precision == "int8-all")
    assert [*map(id, model.modules())] == parts
    assert hooks(model) == 0
    assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())


CHANGES = {
    "in place": lambda weight, model: weight.mul_(-1),
    "through data": lambda weight, model: weight.data.mul_(-1),
    "by assignment": lambda weight, model: setattr(
        model.model.decoder.layers[0].fc1, "weight", nn.Parameter(-weight)
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_weights_that_change_are_packed_again(change, packed):
    model = build("marian", torch.float32)
    adapter = HuggingFace(model)
    before = decode(adapter, source("marian"), Beam(2), 6)
    with torch.no_grad():
        change(model.model.decoder.layers[0].fc1.weight, model)
    after = decode(adapter, source("marian"), Beam(2), 6)
    assert after != before
    assert [[h.tokens for h in row] for row in after] == [
        [h.tokens for h in row] for row in plain(model, source("marian"), Beam(2), 6)
    ]


def test_layers_that_somebody_listens_to_are_run_by_transformers(packed):
    model, heard = build("marian", torch.float32), []
    model.model.decoder.layers[0].fc1.register_forward_hook(lambda *given: heard.append(given))
    adapter = HuggingFace(model)
    decode(adapter, source("marian"), Greedy(), 4)
    assert adapter.direct is None
    assert heard


@pytest.mark.parametrize("kind", ["marian", "llama"])
def test_a_decoder_that_differs_is_run_by_transformers(kind, monkeypatch):
    """As one whose layers compute something else."""
    model = build(kind)
    expected = plain(model, source(kind), Greedy(), 6)
    layer = type(model.get_decoder().layers[0])
    call = layer.forward

    def changed(layer, hidden_states, *given, **options):
        return call(layer, hidden_states**2, *given, **options)

    monkeypatch.setattr(layer, "forward", changed)
    found = decode(HuggingFace(model), source(kind), Greedy(), 6)
    assert model.__dict__[DIRECT] is False
    assert_same(found, plain(model, source(kind), Greedy(), 6))
    assert found != expected


def test_a_large_prompted_model_is_not_held_twice(monkeypatch):
    adapter = HuggingFace(build("llama"))
    assert adapter.direct is not None
    monkeypatch.setattr(linear, "MAX_PREPARED_BYTES", 1)
    assert HuggingFace(build("llama")).direct is None


def test_tied_weights_are_packed_once(packed):
    first, second = nn.Linear(32, 64), nn.Linear(32, 64)
    second.weight, second.bias = first.weight, first.bias
    products = products_of(nn.ModuleList([first, second]), product_of)
    assert products.of(first) is products.of(second)


def test_weights_of_a_prepared_model_are_held_once(packed):
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU())
    weight, x = model[0].weight.detach().clone(), torch.randn(5, 32)
    expected = model(x)
    linear.prepare(model)
    torch.testing.assert_close(model(x), expected)
    assert "weight" not in model[0]._parameters
    assert torch.equal(model[0].weight, weight)
    assert torch.equal(model.double()[0].weight, weight.double())


@kinds
def test_a_model_in_int8_gives_each_sentence_its_own_result(kind):
    model = HuggingFace(build(kind, torch.float32), int8=True)
    given = source(kind, torch.float32)
    together = decode(model, given, NOISY, 6)
    for i, expected in enumerate(together):
        (alone,) = decode(model, given[i : i + 1], NOISY, 6, ids=[i])
        assert alone[0].tokens == expected[0].tokens
        assert alone[0].log_prob == pytest.approx(expected[0].log_prob, abs=1e-3)


@kinds
def test_a_model_in_int8_says_so_and_is_close(kind):
    exact = HuggingFace(build(kind, torch.float32))
    model = exact.quantised(owned=False)
    assert "+int8-all|" in signature(Greedy(), model)
    given = source(kind, torch.float32)
    tokens = torch.full((4,), exact.special.bos)
    started = [(x, x.reserve(x.start_search(given), 1)) for x in (model, exact)]
    (found, _), (expected, _) = (x.step(state, tokens) for x, state in started)
    assert not torch.equal(found, expected)
    assert (found - expected).norm() < 0.1 * expected.norm()


@pytest.mark.parametrize("name", ["hf:bart", "hf:llama", "en-de"])
def test_a_model_is_loaded_in_int8(name, saved):  # noqa: F811
    path = name.replace("hf:", f"hf:{saved}/")
    translator = npad.load(path, precision="int8-all")
    network = getattr(translator.model, "model", translator.model)
    network = getattr(network, "model", network)
    assert Int8Linear in {type(part) for part in network.modules()}
    (output,) = translator.translate(["w5 w6"], NPAD(Greedy(), 3, Noise(0.1)), max_length=5)
    assert "+int8-all|" in output.signature


def test_only_modules_run_in_int8():
    with pytest.raises(InvalidInput, match="is not a torch module: it has no weights"):
        npad.load("toy", precision="int8-all")
