"""Models of Firefox compute what an independent program computes, from the same file."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("sentencepiece")

from cases import assert_same
from firefox_cases import INNER, OPTIONS, WIDTH, marian_bytes, weights
from npad import NPAD, Beam, Greedy, Noise, Sampling, decode, score
from npad.errors import InvalidInput
from npad.model import Capabilities, Wrapper
from npad.models import ssru
from npad.models.low_precision import LowPrecision, in_precision
from npad.models.ssru import Shortlisted, SSRUTransformer
from npad.storage.marian import read_marian
from npad.testing import check_model

V = 11
SOURCE = [[3, 4, 5, 0], [6, 0], [7, 8, 9, 10, 2, 0]]
MATRICES = [name for name in weights(V) if "_W" in name[-4:] or name.endswith("Wemb")]


def load(path, made=None, options=OPTIONS, int8=(), dtype=torch.float64) -> SSRUTransformer:
    path.write_bytes(marian_bytes(weights(V) if made is None else made, options, int8))
    content = read_marian(path)
    return SSRUTransformer(content.weights, content.options).to(dtype).eval()


def reference_log_prob(w, source, target) -> float:
    """log p of a target with its end token, one position at a time, in NumPy and float64."""
    w = {name: values.astype(np.float64) for name, values in w.items()}

    def position(t):
        n = WIDTH // 2
        angles = [t * 10000.0 ** (-i / (n - 1)) for i in range(n)]
        return np.array([np.sin(a) for a in angles] + [np.cos(a) for a in angles])

    def norm(x, name):
        spread = np.sqrt(((x - x.mean()) ** 2).mean() + 1e-9)
        return (x - x.mean()) / spread * w[f"{name}_ln_scale"][0] + w[f"{name}_ln_bias"][0]

    def attend(x, memory, name):
        q = x @ w[f"{name}_Wq"] + w[f"{name}_bq"][0]
        k = memory @ w[f"{name}_Wk"] + w[f"{name}_bk"][0]
        v = memory @ w[f"{name}_Wv"] + w[f"{name}_bv"][0]
        half, heads = WIDTH // 2, []
        for head in (slice(0, half), slice(half, WIDTH)):
            energy = np.array([q[head] @ row[head] for row in k]) / np.sqrt(half)
            p = np.exp(energy - energy.max())
            heads.append((p / p.sum()) @ v[:, head])
        return norm(x + np.concatenate(heads) @ w[f"{name}_Wo"] + w[f"{name}_bo"][0], f"{name}_Wo")

    def feed_forward(x, name):
        inner = np.maximum(0, x @ w[f"{name}_W1"] + w[f"{name}_b1"][0])
        return norm(x + inner @ w[f"{name}_W2"] + w[f"{name}_b2"][0], f"{name}_ffn")

    embedding = {side: w[f"{side}_Wemb"] if f"{side}_Wemb" in w else w["Wemb"] for side in SIDES}
    xs = [embedding["encoder"][y] * np.sqrt(WIDTH) + position(t) for t, y in enumerate(source)]
    for layer in ("encoder_l1", "encoder_l2"):
        memory = np.stack(xs)
        xs = [feed_forward(attend(x, memory, f"{layer}_self"), f"{layer}_ffn") for x in xs]
    memory = np.stack(xs)
    cells, total = {"l1": np.zeros(WIDTH), "l2": np.zeros(WIDTH)}, 0.0
    for t, (read, predicted) in enumerate(zip([None, *target], [*target, 0], strict=True)):
        x = position(t)
        if read is not None:
            x = x + embedding["decoder"][read] * np.sqrt(WIDTH)
        for layer in cells:
            name = f"decoder_{layer}"
            forget = 1 / (1 + np.exp(-(x @ w[f"{name}_rnn_Wf"] + w[f"{name}_rnn_bf"][0])))
            cells[layer] = forget * cells[layer] + (1 - forget) * (x @ w[f"{name}_rnn_W"])
            x = norm(x + np.maximum(0, cells[layer]), f"{name}_rnn_ffn")
            x = feed_forward(attend(x, memory, f"{name}_context"), f"{name}_ffn")
        logits = x @ embedding["decoder"].T + w["decoder_ff_logit_out_b"][0]
        total += logits[predicted] - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    return total


SIDES = ("encoder", "decoder")


@pytest.mark.parametrize("source_vocabulary", [None, 14])
def test_scores_are_those_of_an_independent_program(tmp_path, source_vocabulary):
    made = weights(V, source_vocabulary)
    model = load(tmp_path / "model.bin", made)
    targets = [[[4, 5], []], [[9, 2, 2, 7]], [[1]]]
    scores = score(model, SOURCE, targets)
    for source, sentence, found in zip(SOURCE, targets, scores, strict=True):
        expected = [reference_log_prob(made, source, target) for target in sentence]
        assert found == pytest.approx(expected, abs=1e-6)  # the file holds float32


def allowed(source):
    """Tokens that each sentence allows: those below 4, and its own."""
    rows = torch.arange(V).repeat(len(source), 1) < 4
    for row, tokens in zip(rows, source, strict=True):
        row[tokens] = True
    return rows


def test_a_shortlisted_model_is_the_model_without_all_other_tokens(tmp_path):
    model = load(tmp_path / "model.bin")
    listed = Shortlisted(model, allowed)
    check_model(listed, SOURCE)
    read = torch.tensor([[model.special.bos, 3, 1]] * 3)
    full = model.forced(model.start(SOURCE), read)
    expected = full.masked_fill(~allowed(SOURCE)[:, None], -torch.inf)
    assert torch.allclose(listed.forced(listed.start(SOURCE), read), expected)
    kept = listed.select(listed.start(SOURCE), torch.tensor([2, 2]).unique())
    logits, _ = listed.step(kept, read[:1, 0])
    assert torch.allclose(logits, expected[2:, 0])
    decoder = NPAD(Beam(2), chains=4, noise=Noise(20.0))
    found = decode(listed, SOURCE, decoder, max_length=6)
    for i, (source, hypotheses) in enumerate(zip(SOURCE, found, strict=True)):
        assert all({*h.tokens} <= {0, 1, 2, 3, *source} for h in hypotheses)
        assert_same(decode(listed, [source], decoder, max_length=6, ids=[i]), [hypotheses])
    low = LowPrecision(Shortlisted(load(tmp_path / "low.bin", dtype=torch.float32), allowed))
    decode(low, SOURCE, decoder, max_length=6)
    whole = load(tmp_path / "whole.bin", dtype=torch.float32)
    whole = in_precision(Shortlisted(whole, allowed), "int8-all")
    assert whole.name.endswith("+shortlist+int8-all")
    check_model(whole, SOURCE)


class Unlisted(Wrapper):
    """A model whose steps return the logits of all tokens."""

    def __init__(self, model):
        self.model = model


@pytest.mark.parametrize("decoder", [Greedy(), Beam(3), Beam(12), Sampling(samples=3)])
def test_a_shortlist_leaves_out_impossible_tokens_alone(tmp_path, decoder):
    listed = Shortlisted(load(tmp_path / "model.bin"), allowed)
    assert Capabilities.of(listed).step_listed
    assert not Capabilities.of(Unlisted(listed)).step_listed
    for source in (SOURCE, SOURCE[:1]):
        found = decode(listed, source, decoder, max_length=6)
        assert_same(decode(Unlisted(listed), source, decoder, max_length=6), found)


def test_sentences_encoded_by_length_have_the_same_scores(tmp_path, monkeypatch):
    model, read = load(tmp_path / "model.bin"), torch.tensor([[V, 3, 1, 4]] * 3)
    expected = model.forced(model.start(SOURCE), read)
    monkeypatch.setattr(ssru, "GROUP_TOKENS", 5)
    assert ssru.by_length([4, 2, 6]) == [[1, 0], [2]]
    torch.testing.assert_close(model.forced(model.start(SOURCE), read), expected)


def test_positions_beyond_the_table_are_computed(tmp_path):
    model, read = load(tmp_path / "model.bin"), torch.tensor([[V, 3, 1, 4]] * 3)
    expected = model.forced(model.start(SOURCE), read)
    model.sinusoids = model.sinusoids[:2]
    torch.testing.assert_close(model.forced(model.start(SOURCE), read), expected)


def test_int8_weights_are_within_half_a_step_of_the_originals(tmp_path):
    exact = load(tmp_path / "float.bin")
    quantised = load(tmp_path / "int8.bin", int8=MATRICES)
    for (name, a), b in zip(exact.named_parameters(), quantised.parameters(), strict=True):
        step = max(values.max() for values in map(np.abs, weights(V).values())) / 127
        assert (a - b).abs().max() <= step / 2 + 1e-6, name
    assert not torch.equal(exact.logits.weight, quantised.logits.weight)


def test_the_contract_of_a_model_is_kept(tmp_path):
    check_model(load(tmp_path / "model.bin"), SOURCE)


def test_noise_reaches_the_cell_it_names(tmp_path):
    model = load(tmp_path / "model.bin")
    state, calls = model.start(SOURCE), []

    def perturb(site, x):
        calls.append(site)
        return x + 1 if site == "hidden.1" else x

    tokens = torch.full((3,), model.special.bos)
    changed, after = model.step(state, tokens, perturb)
    plain, before = model.step(state, tokens)
    assert calls == ["embedding", "hidden.0", "hidden.1", "output"]
    assert torch.equal(before.cells[0], after.cells[0])
    assert not torch.allclose(before.cells[1], after.cells[1])
    assert not torch.allclose(plain, changed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"transformer-decoder-autoreg": "self-attention"}, "autoreg: self-attention, not rnn"),
        ({"dec-cell": "gru"}, "dec-cell: gru, not ssru"),
        ({"type": "s2s"}, "type: s2s, not transformer"),
        ({"transformer-heads": "3"}, "the heads do not divide the width"),
        ({"dec-depth": "3"}, "decoder_l3"),
        ({"enc-depth": "many"}, "many"),
    ],
)
def test_other_architectures_are_refused_by_name(tmp_path, change, message):
    with pytest.raises(InvalidInput, match=message):
        load(tmp_path / "model.bin", options=OPTIONS | change)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("decoder_l1_ffn_W2", (INNER, WIDTH + 1)),
        ("decoder_l2_rnn_bf", (1, WIDTH - 1)),
        ("decoder_ff_logit_out_b", (1, V + 1)),
        ("encoder_l1_ffn_b1", (1, INNER + 1)),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(tmp_path, name, shape):
    made = weights(V) | {name: np.ones(shape, np.float32)}
    with pytest.raises(InvalidInput, match=f"{name} has the shape"):
        load(tmp_path / "model.bin", made)
