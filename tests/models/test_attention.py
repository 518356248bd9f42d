"""The translation model against its equations written in plain NumPy, and against the contract."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from attention_cases import SOURCE, build
from cases import assert_same
from npad import NPAD, Beam, InvalidInput, Noise, decode
from npad.models.cgru.fast import prepared
from npad.models.cgru.model import PRESETS, AttentionModel
from npad.models.encoders.recurrent import annotated, bidirectional
from npad.testing import check_model


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gru(p, prefix, x, h, suffix=""):
    """One step of a GRU for one sequence, its reset gate after the matrix product, as in torch."""
    a = p[f"{prefix}.weight_ih{suffix}"] @ x + p[f"{prefix}.bias_ih{suffix}"]
    b = p[f"{prefix}.weight_hh{suffix}"] @ h + p[f"{prefix}.bias_hh{suffix}"]
    (ar, az, an), (br, bz, bn) = np.split(a, 3), np.split(b, 3)
    z = sigmoid(az + bz)
    return (1 - z) * np.tanh(an + sigmoid(ar + br) * bn) + z * h


def plain(model, sentence, targets):
    """The logits and attention of each step for one sentence, alone and without padding."""
    p = {name: value.detach().double().numpy() for name, value in model.named_parameters()}
    xs = [p["source_embedding.weight"][token] for token in [*sentence, model.special.eos]]

    def states(xs, suffix):
        h = np.zeros(model.units)
        for x in xs:
            h = gru(p, "encoder", x, h, suffix)
            yield h

    backward = [*states(reversed(xs), "_l0_reverse")][::-1]
    annotations = [np.concatenate(both) for both in zip(states(xs, "_l0"), backward, strict=True)]
    mean = np.mean(annotations, 0)
    s = np.tanh(p["initial.weight"] @ mean + p["initial.bias"])
    logits, attention = [], []
    for j in range(len(targets)):
        embedding = p["target_embedding.weight"]
        y = embedding[targets[j]] if j > 0 else np.zeros(embedding.shape[1])
        middle = gru(p, "first", y, s)
        if model.attends:
            query = p["query.weight"] @ middle + p["key.bias"]
            keys = [np.tanh(query + p["key.weight"] @ h) for h in annotations]
            energy = [(p["energy.weight"] @ key).item() for key in keys]
            alpha = np.exp(energy) / np.exp(energy).sum()
            context = sum(a * h for a, h in zip(alpha, annotations, strict=True))
            attention.append(alpha)
        else:
            context = mean
        s = gru(p, "second", context, middle)
        read = np.tanh(p["readout.weight"] @ np.concatenate([s, y, context]) + p["readout.bias"])
        logits.append(p["logits.weight"] @ read + p["logits.bias"])
    return np.array(logits), np.array(attention)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("attention", [True, False], ids=["attention", "mean"])
def test_ten_steps_of_a_padded_batch_equal_the_equations(attention, dtype):
    model = build(dtype, attention=attention)
    tokens = torch.randint(1, 11, (len(SOURCE), 10), generator=torch.Generator().manual_seed(1))
    tokens[:, 0] = model.special.bos
    with torch.no_grad():
        forced = model.forced(model.start(SOURCE), tokens)
        state, steps, weights = model.start(SOURCE), [], []
        for t in range(10):
            logits, state = model.step(state, tokens[:, t])
            steps.append(logits)
            weights.append(model.attention(state))
    for i, sentence in enumerate(SOURCE):
        logits, alpha = plain(model, sentence, tokens[i].tolist())
        for computed in (forced[i], torch.stack(steps, 1)[i]):
            np.testing.assert_allclose(computed.double().numpy(), logits, atol=1e-5)
        if attention:
            seen = torch.stack(weights, 1)[i].double().numpy()
            np.testing.assert_allclose(seen[:, : len(sentence) + 1], alpha, atol=1e-5)
            assert (seen[:, len(sentence) + 1 :] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("attention", [True, False], ids=["attention", "mean"])
def test_attention_model_keeps_the_contract(cell, layers, attention, dtype):
    check_model(build(dtype, cell=cell, layers=layers, attention=attention), SOURCE)


def test_annotations_are_kept_once_per_sentence():
    model = build()
    state = model.start(SOURCE)
    many = model.select(state, torch.arange(len(SOURCE)).repeat_interleave(50))
    assert many.memory is state.memory
    assert many.keys is state.keys
    fewer = model.select(many, torch.arange(50, 150))
    assert len(fewer.memory) == 2
    torch.testing.assert_close(fewer.memory, state.memory[1:3])


def test_initial_weights_are_the_papers():
    torch.manual_seed(0)
    model = AttentionModel(50, 40, units=32, embedding=16)
    eye = torch.eye(32)
    for name, parameter in model.named_parameters():
        if "weight_hh" in name:
            for gate in parameter.chunk(3):
                torch.testing.assert_close(gate @ gate.T, eye, atol=1e-5, rtol=0)
        elif name == "key.weight":
            torch.testing.assert_close(parameter @ parameter.T, torch.eye(64), atol=1e-5, rtol=0)
        elif "bias" in name:
            assert (parameter == 0).all()
        else:
            assert parameter.std().item() == pytest.approx(0.01, rel=0.3)


@pytest.fixture
def padded(monkeypatch):
    """Sizes as small as 5 are held in 8."""
    monkeypatch.setattr("npad.models.cgru.model.MIN_PADDED_UNITS", 1)


KINDS = [
    {"units": 5, "cell": cell, "layers": n, "attention": a}
    for cell in ("gru", "lstm")
    for n, a in [(1, True), (3, False)]
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("initialisation", ["paper", "glorot"])
def test_units_held_in_a_multiple_of_eight_are_the_same_model(kind, initialisation, monkeypatch):
    def decoded():
        model = AttentionModel(12, 11, embedding=4, **kind).double().eval()
        torch.manual_seed(3)
        model.initialise(initialisation)
        return model, decode(model, SOURCE, NPAD(Beam(3), 4, Noise(3.0)), max_length=6)

    plain, expected = decoded()
    monkeypatch.setattr("npad.models.cgru.model.MIN_PADDED_UNITS", 1)
    model, found = decoded()
    assert (model.width, model.units, plain.width) == (8, 5, 5)
    assert model.sites == plain.sites
    assert model.size() == plain.size() == sum(weight.numel() for weight in plain.parameters())
    assert_same(found, expected)


@pytest.mark.parametrize("optimiser", [torch.optim.Adam, torch.optim.Adadelta])
def test_padding_stays_zero_whatever_is_learnt(padded, optimiser):
    torch.manual_seed(0)
    model = AttentionModel(12, 11, units=5, embedding=4, initialisation="glorot")
    learner = optimiser(model.parameters(), 0.1)
    tokens = torch.randint(0, 11, (len(SOURCE), 6))
    before = model.second.weight_ih.clone()
    for _ in range(5):
        learner.zero_grad()
        logits = model.forced(model.start(SOURCE), tokens).flatten(0, 1)
        torch.nn.functional.cross_entropy(logits, tokens.flatten()).backward()
        learner.step()
    assert (model.second.weight_ih - before).abs().max() > 1e-3
    gates = model.second.weight_ih.unflatten(0, (3, 8))
    for parameter in (gates, model.key.weight.unflatten(0, (2, 8))):
        assert (parameter[:, 5:] == 0).all()
        assert (parameter.unflatten(-1, (2, 8))[..., 5:] == 0).all()
    assert (model.readout.weight[:, 5:8] == 0).all()
    assert (model.encoder.weight_hh_l0[:, 5:] == 0).all()


def test_padding_adds_less_than_a_hundredth_to_the_papers_model():
    with torch.device("meta"):
        paper = AttentionModel(30_000, 30_000, **PRESETS["paper"])
    assert paper.sites["hidden"] == 1028
    assert paper.query.out_features == 2 * 1032
    assert paper.size() < sum(weight.numel() for weight in paper.parameters()) < 1.01 * paper.size()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: AttentionModel(9, 9, cell="rnn"), "cell must be one of 'gru', 'lstm', not 'rnn'"),
        (lambda: AttentionModel(9, 5, eos=7), "eos must be a token of both vocabularies, not 7"),
        (
            lambda: decode(build(), [[3], [99]], Beam(2)),
            r"sentence 1 must be a list of tokens from 0 to 11, not \[99\]",
        ),
        (
            lambda: decode(build(), ["ab"], Beam(2)),
            "sentence 0 must be a list of tokens from 0 to 11, not 'ab'",
        ),
    ],
)
def test_attention_models_mistakes_are_named(call, message):
    with pytest.raises(InvalidInput, match=message):
        call()


# The encoder step by step, as on a GPU


ENCODERS = {
    "gru": {},
    "lstm": {"cell": "lstm"},
    "two layers": {"layers": 2},
    "lstms": {"cell": "lstm", "layers": 2},
}
encoders = pytest.mark.parametrize("how", ENCODERS.values(), ids=ENCODERS)


@encoders
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    "source", [SOURCE, [[3, 4, 5], [5, 6, 7]], [[]]], ids=["padded", "as long", "one token"]
)
def test_the_encoder_step_by_step_is_torchs(how, dtype, source):
    model = build(dtype, **how)
    tokens, lengths = model.padded(source)
    embedded = model.source_embedding(tokens)
    expected = annotated(model.encoder, embedded, lengths)
    found = bidirectional(model.encoder, embedded, lengths)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    assert (found - expected).abs().max() < tolerance
    weights = [embedded, *model.encoder.parameters()]
    gradients = (torch.autograd.grad(x.square().sum(), weights) for x in (expected, found))
    torch.testing.assert_close(*gradients)


@encoders
def test_the_encoder_step_by_step_looks_at_no_values(how):
    """On the meta device there are none: nothing waits for a GPU."""
    model = build(**how).to("meta")
    embedded = torch.empty(3, 4, 5, dtype=torch.float64, device="meta")
    lengths = torch.empty(3, device="meta")
    assert bidirectional(model.encoder, embedded, lengths).shape == (3, 4, 12)


@pytest.mark.parametrize("make", [lambda model: model, prepared], ids=["plain", "prepared"])
def test_no_flag_of_the_process_changes_while_threads_start(make):
    model = make(build())
    before, seen = torch.backends.cudnn.enabled, []
    plain = getattr(model, "plain", model)
    plain.source_embedding.register_forward_hook(
        lambda *_: seen.append(torch.backends.cudnn.enabled)
    )
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: model.start(SOURCE), range(40)))
    assert (set(seen), torch.backends.cudnn.enabled) == ({before}, before)
