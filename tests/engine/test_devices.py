"""The same results on a GPU as on a CPU, and without waiting for it."""

from __future__ import annotations

import warnings

import pytest
import torch

from attention_cases import SOURCE, build
from cases import EVERY, by_name, recurrent, summaries, tokens
from npad import NPAD, Beam, Greedy, Noise, Sampling, SteeredSearch, Translator, decode, score
from npad.distributions import Dropout, Gaussian, Laplace, Orthogonal, StudentT
from npad.engine.cuda_graphs import Graph
from npad.errors import MemoryWarning
from npad.models.cgru.fast import Prepared
from npad.models.cgru.model import AttentionModel
from npad.noise.random import Keys
from npad.search.loop import Steps
from steered_cases import actor_for

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU to compare the CPU with"
)


@pytest.mark.parametrize("decoder", **by_name(EVERY))
def test_decoding_gives_the_same_tokens_as_on_the_cpu(decoder):
    model, source = recurrent(vocabulary=12), summaries(4)
    expected = decode(model, source, decoder, max_length=20)
    found = decode(model.cuda(), source.cuda(), decoder, max_length=20)
    assert tokens(found) == tokens(expected)
    targets = [[one.tokens for one in hypotheses] for hypotheses in found]
    on_gpu, on_cpu = (score(model.to(d), source.to(d), targets) for d in ("cuda", "cpu"))
    for a, b in zip(on_gpu, on_cpu, strict=True):
        assert a == pytest.approx(b, abs=1e-9)


@pytest.mark.parametrize(
    "decoder",
    [SteeredSearch(), SteeredSearch(Beam(3)), NPAD(SteeredSearch(), 4, Noise(0.4))],
    ids=repr,
)
def test_steered_search_is_captured_and_gives_the_same_tokens_as_on_the_cpu(decoder):
    model = build(torch.float32)
    model.actor = actor_for(model)
    expected = tokens(decode(model, SOURCE, decoder, 8))
    fast = Prepared(model).cuda()
    for _ in range(6):
        assert tokens(decode(fast, SOURCE, decoder, 8)) == expected
    graphs = [key for key, entry in fast._graphs.entries.items() if isinstance(entry, Graph)]
    assert any(key[0][0] is Steps for key in graphs)


@pytest.mark.parametrize(
    "distribution", [Gaussian(), Laplace(), StudentT(), Dropout(), Orthogonal()], ids=repr
)
def test_noise_is_the_same(distribution):
    ids, chains = torch.arange(60) // 20, torch.arange(60) % 20
    keys = Keys(5, ids, chains, ids + 1, 0 * ids, "hidden")
    there = Keys(5, *(x.cuda() for x in (ids, chains, ids + 1, 0 * ids)), site="hidden")
    assert torch.equal(keys.streams(), there.streams().cpu())
    x, sigma = torch.randn(60, 101), torch.full((60,), 0.4)
    a, b = (
        distribution.perturb(x, sigma, keys, True),
        distribution.perturb(x.cuda(), sigma.cuda(), there, True),
    )
    torch.testing.assert_close(a, b.cpu(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("how", [{}, {"layers": 2}, {"cell": "lstm"}], ids=str)
def test_sources_are_encoded_to_all_digits_of_float32(how):
    model = build(torch.float32, units=64, **how)
    expected = model.double().start(SOURCE).memory
    found = model.float().cuda().start(SOURCE).memory
    torch.testing.assert_close(found.double().cpu(), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    "decoder",
    [
        Greedy(),
        Beam(4),
        Sampling(5),
        NPAD(chains=5, noise=Noise(0.4)),
        NPAD(Beam(3), 5, Noise(0.4)),
    ],
    ids=repr,
)
def test_a_gpu_is_waited_for_every_eighth_step_at_most(decoder):
    model, source = recurrent(dtype=torch.float32).cuda(), summaries(4, torch.float32).cuda()
    with torch.no_grad():
        model.logits.bias[model.special.eos] = -1e4  # never ends

    def waits(max_length):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                decode(model, source, decoder, max_length)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        return sum("synchronizing" in str(one.message) for one in caught)

    waits(10)
    assert waits(72) - waits(40) <= 3 * 32 / 8  # NaN? all done? any done?


@pytest.mark.parametrize(
    "decoder", [NPAD(Greedy(), 64, Noise(0.3)), NPAD(Beam(4), 16, Noise(0.3)), Beam(64)], ids=repr
)
def test_a_batch_that_does_not_fit_runs_in_halves_with_the_same_result(decoder):
    device, source = torch.device("cuda"), [[3, 1, 4], [1, 5], [9, 2, 6, 5], [3]] * 16
    torch.manual_seed(0)
    plain = AttentionModel(30_000, 30_000, 32, 32, initialisation="glorot").eval()
    model = Prepared(plain.to(device)).eval()
    translator = Translator(model, lambda texts: [source[int(text)] for text in texts], str)
    texts = [str(i) for i in range(len(source))]

    def translated(max_rows):
        found = translator.translate(texts, decoder, 6, max_rows)
        return [(one.hypothesis.tokens, one.log_prob) for one in found]

    expected = translated(256)
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(device).total_memory
    room = torch.cuda.memory_reserved() + (300 << 20)  # all rows want 470 MiB of logits
    torch.cuda.set_per_process_memory_fraction(room / total)
    try:
        with pytest.warns(MemoryWarning, match="half the rows"):
            found = translated(4096)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    for (one, log_prob), (other, expected_log_prob) in zip(found, expected, strict=True):
        assert one == other or log_prob == pytest.approx(expected_log_prob, abs=1e-4)
