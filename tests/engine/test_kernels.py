"""Each kernel equals torch: on a GPU if there is one, else in Triton's interpreter."""

from __future__ import annotations

from itertools import chain

import pytest
import torch

GPU = torch.cuda.is_available()
pytest.importorskip("triton")

import npad.kernels
from attention_cases import SOURCE, build
from cases import EVERY, NOISY, PLAIN, by_name, tokens
from npad import NPAD, Beam, Greedy, Noise, decode, score
from npad.distributions import Distribution, Gaussian
from npad.engine.cuda_graphs import Graph
from npad.engine.next_token import Prediction
from npad.engine.pytree import tree_leaves
from npad.kernels.attention import attend_one_query, contexts, energies
from npad.kernels.gaussian import add_gaussian
from npad.kernels.layers import gates, input_parts, weight_parts
from npad.kernels.tokens import normaliser, top
from npad.models.cgru.fast import Prepared, gru
from npad.models.low_precision import LowPrecision
from npad.noise.random import Keys
from npad.search.history import History
from npad.search.independent import IndependentRows

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's, of log 0
DEVICE = "cuda" if GPU else "cpu"
# The interpreter runs one program at a time, and a row is a program.
DECODERS = EVERY if GPU else PLAIN | {"npad-greedy": NOISY["npad-greedy"]}
DECODED = SOURCE if GPU else [SOURCE[0], SOURCE[3]]  # the longest and the empty one
LENGTH = 8 if GPU else 4
PRECISIONS = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
precisions = pytest.mark.parametrize(
    ("dtype", "near"), PRECISIONS.items(), ids=map(str, PRECISIONS)
)


def random(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(DEVICE, dtype)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("vocabulary", [1, 3, 301, 5000, 40_000])
def test_the_normaliser_is_logsumexp_and_the_first_of_the_largest(dtype, vocabulary):
    x = random(9, vocabulary, dtype=dtype) * 3
    x[1, 0] = x[1, -1] = 50
    x[2, : vocabulary // 2] = -torch.inf
    norm, best, peaks = normaliser(x)
    torch.testing.assert_close(norm, x.float().logsumexp(-1), atol=1e-5, rtol=1e-5)
    assert torch.equal(best.cpu(), x.cpu().argmax(-1))
    chunks = torch.nn.functional.pad(x, (0, -vocabulary % 64), value=-torch.inf).view(9, -1, 64)
    assert torch.equal(peaks, chunks.amax(-1))


def test_rows_that_are_no_distribution_have_no_normaliser():
    x = random(4, 300)
    x[0, 7], x[1, 299], x[2] = torch.nan, torch.inf, -torch.inf
    assert normaliser(x)[0].isnan().tolist() == [True, True, True, False]


@pytest.mark.parametrize("vocabulary", [301, 1300])
def test_logits_may_lie_as_they_like(vocabulary, monkeypatch):
    monkeypatch.setattr("npad.engine.next_token.fused", lambda x: True)
    x = random(vocabulary, 5).t()
    one, other = (Prediction.of(build(), each, 5) for each in (x, x.contiguous()))
    assert torch.equal(one.best(), other.best())
    for a, b in zip(one.top(7), other.top(7), strict=True):
        assert torch.equal(a, b)


@precisions
@pytest.mark.parametrize("width", [1, 2, 101, 1028])
@pytest.mark.parametrize("seed", [0, 1, 16, 2**63])
def test_noise_is_what_the_keys_say(dtype, near, width, seed):
    rows = torch.arange(6, device=DEVICE)
    ids = torch.tensor([5, 5, -3, 2**62, 1, 0], device=DEVICE)
    keys = Keys(seed, ids, rows % 3, rows + 1, rows.new_zeros(1).expand(6), "hidden.0")
    x, scales = random(6, width + 3, dtype=dtype)[:, :width], torch.rand(6, device=DEVICE)
    plain = Distribution.added(Gaussian(), x.float(), scales, keys)
    torch.testing.assert_close(
        add_gaussian(x, scales, *keys.parts()).float(), plain, atol=near, rtol=near
    )


# Beyond one block of rows, of places and of columns in either shape of blocks, and in the last of
# them not full.
ATTENDED = [(1, 1, False), (1, 19, False), (5, 17, False), (5, 17, True)]
ATTENDED += [(50, 40, False)] if GPU else []


@precisions
@pytest.mark.parametrize(("each", "length", "large"), ATTENDED)
def test_energies_are_those_of_the_attention(dtype, near, each, length, large, monkeypatch):
    if large:  # the blocks of a large batch, for a small one
        monkeypatch.setattr("npad.kernels.attention.SMALL_BATCH", 0)
    query, keys = random(3, each, 330, dtype=dtype)[..., :300], random(3, length, 300, dtype=dtype)
    energy, ends = (
        random(300, dtype=dtype),
        torch.tensor([length, 1, (length + 1) // 2], device=DEVICE),
    )
    mask = torch.arange(length, device=DEVICE) >= ends[:, None]
    plain = (
        (query[:, :, None].float() + keys[:, None].float()).sigmoid() @ energy.float()
    ).masked_fill(mask[:, None], -torch.inf)
    found = energies(query, keys, energy, mask)
    assert torch.equal(found.isinf(), plain.isinf())
    torch.testing.assert_close(found.softmax(-1), plain.softmax(-1), atol=10 * near, rtol=0)
    owner, values = (
        torch.tensor([2, 0, 2, 1], device=DEVICE),
        random(3, length, 310, dtype=dtype)[..., :300],
    )
    owned = energies(query[owner], keys, energy, mask, owner)
    torch.testing.assert_close(owned, found[owner], equal_nan=True)
    weights = owned.softmax(-1).to(dtype)
    torch.testing.assert_close(
        contexts(weights, values, owner), weights @ values[owner], atol=3 * near, rtol=3 * near
    )


@precisions
@pytest.mark.parametrize("units", [1, 100, 1032])
def test_gates_are_those_of_a_gru(dtype, near, units):
    inputs = random(4, 3 * units + 5, dtype=dtype)[:, : 3 * units]
    recurrent, old = random(4, 3 * units + 7, dtype=dtype)[:, 7:], random(4, units, dtype=dtype)
    plain = gru(*(x.cpu().float() for x in (inputs, recurrent, old)))
    torch.testing.assert_close(
        gates(inputs, recurrent, old).cpu().float(), plain, atol=near, rtol=near
    )


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize(("vocabulary", "k"), [(1100, 1), (1100, 11), (1025, 16), (5000, 7)])
def test_the_top_is_the_top(dtype, vocabulary, k):
    x = random(3, 2, vocabulary, dtype=dtype)
    x[0, 0, 5:] = -torch.inf
    x[1, 1, 64:200] = 9  # of several largest, the first
    values, chosen = top(x, normaliser(x.view(6, -1))[2].view(3, 2, -1), k)
    expected, places = (
        each[..., :k] for each in x.float().cpu().sort(dim=-1, descending=True, stable=True)
    )
    torch.testing.assert_close(values.cpu(), expected)
    assert torch.equal(chosen.cpu(), places)


@pytest.mark.parametrize("groups", [1, 7, 300])
@pytest.mark.parametrize("paired", [False, True])
def test_greedy_step_equals_torch(groups, paired):
    def predicted():
        logits = random(groups, 1 + paired, 11)
        logits[:, :, 3] += 1  # the end
        both = Prediction(logits, logits.logsumexp(-1), logits.argmax(-1))
        return both.map(lambda x: x[:, :1])  # of pairs, every other row

    def begun():
        zeros = torch.zeros(groups, 1, device=DEVICE)
        history = History.empty(groups, 1, 4, -1, zeros.device, independent=True)
        last, lengths = zeros.long(), zeros.long()
        return IndependentRows(None, 1, 3, -1, last, zeros, lengths, zeros.bool(), history)

    fast, plain = begun(), begun()
    for _ in range(4):
        noisy = predicted()
        fast, _ = fast.advance(noisy)
        plain, _ = plain.advance(Prediction(noisy.logits, noisy.norm))
        for a, b in zip(tree_leaves(fast), tree_leaves(plain), strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("before", [1, 3])
@pytest.mark.parametrize("independent", [False, True])
def test_recorded_gains_equal_those_of_torch(width, before, independent, monkeypatch):
    if before > width:
        width = before
    logits = random(5, 2, before, 11)
    pairs = Prediction(logits, logits.logsumexp(-1))
    predicted = pairs.map(lambda x: x[:, 1])  # of pairs, the clean rows
    read = torch.randint(0, 11, (5, width), device=DEVICE)
    rows = torch.randint(0, 5 * before, (5 * width,), device=DEVICE)
    histories = []
    for kernels in (True, False):
        monkeypatch.setattr("npad.search.history.fused", lambda x, kernels=kernels: kernels)
        history = History.empty(5, width, 4, -1, logits.device, independent).with_clean_gains()
        for _ in range(2):
            history = history.append(read, torch.zeros_like(read))
        history.record_clean(predicted, read, None if width == before else rows, 3)
        histories.append(history)
    for a, b in zip(*map(tree_leaves, histories), strict=True):
        torch.testing.assert_close(a, b)


def test_a_product_in_parts_is_nearly_that_of_float32():
    x, weight = random(50, 303)[:, :300], random(70, 300)
    for bias in (None, random(70) * 100):
        made = input_parts(x).float() @ weight_parts(weight, bias).float()
        exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
        assert float((made - exact).norm() / exact.norm()) < 3e-5


def assert_near(found, expected):
    """The same tokens, and log-probabilities to the last digits of float32."""
    assert tokens(found) == tokens(expected)
    for a, b in zip(chain(*found), chain(*expected), strict=True):
        assert a.log_prob == pytest.approx(b.log_prob, abs=1e-4)


@pytest.fixture
def _everywhere(monkeypatch):
    """The kernels in use on this device, and of them all."""
    for module in ("engine.next_token", "models.cgru.fast", "distributions"):
        monkeypatch.setattr(f"npad.{module}.fused", lambda x: x.dtype != torch.float64)
    assert npad.kernels.fused(torch.zeros(1, device=DEVICE)) == GPU


@pytest.mark.usefixtures("_everywhere")
@pytest.mark.parametrize("decoder", **by_name(DECODERS))
def test_decoding_with_kernels_is_decoding(decoder):
    plain = build()
    fast = Prepared(build().float()).to(DEVICE)
    found, expected = (decode(model, DECODED, decoder, LENGTH) for model in (fast, plain))
    assert_near(found, expected)


@pytest.mark.usefixtures("_everywhere")
def test_low_precision_chains_are_judged_in_float32(monkeypatch):
    if not GPU:  # prefixes are filled up to as many rows
        monkeypatch.setattr("npad.rescoring.teacher_forcing.LEAST_ROWS", 16)
    plain = build().float()
    fast = Prepared(plain).to(DEVICE)
    for inner in (Greedy(), Beam(3)):
        decoder = NPAD(inner, 5 if GPU else 2, Noise(0.5))
        found = decode(LowPrecision(fast), DECODED, decoder, LENGTH)
        ended = [[h for h in hypotheses if h.finished] for hypotheses in found]
        for hypotheses, expected in zip(ended, score(plain, DECODED, tokens(ended)), strict=True):
            assert [h.log_prob for h in hypotheses] == pytest.approx(expected, abs=1e-4)


needs_gpu = pytest.mark.skipif(not GPU, reason="needs a GPU: an interpreter captures no graphs")


@needs_gpu
@pytest.mark.parametrize("decoder", **by_name(EVERY))
def test_captured_steps_give_what_plain_ones_give(decoder):
    fast = Prepared(build().float()).cuda()
    first = decode(fast, SOURCE, decoder, 8)
    for _ in range(6):
        assert_near(decode(fast, SOURCE, decoder, 8), first)
    if decoder == Beam(3):
        assert any(isinstance(entry, Graph) for entry in fast._graphs.entries.values())


@precisions
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    ("length", "width", "group"), [(0, 8, 1), (3, 8, 2), (31, 5, 1), (40, 8, 3)]
)
def test_one_query_reads_the_columns_written(dtype, near, biased, length, width, group):
    rows, heads, capacity = 3, 2, 64
    query = random(rows, 1, heads * group, width, dtype=dtype).transpose(1, 2)
    keys, values = (
        random(heads, rows, capacity, width, dtype=dtype).transpose(0, 1) for _ in range(2)
    )
    bias = random(1, capacity, heads * group, dtype=dtype).mT[:, :, None] if biased else None
    found = attend_one_query(query, keys, values, torch.tensor(length, device=DEVICE), 0.7, bias)
    read = [x[:, :, : length + 1].float().repeat_interleave(group, 1) for x in (keys, values)]
    mask = None if bias is None else bias[..., : length + 1].float()
    expected = torch.nn.functional.scaled_dot_product_attention(
        query.float(), *read, attn_mask=mask, scale=0.7
    )
    torch.testing.assert_close(found.float(), expected.transpose(1, 2), atol=near, rtol=near)
