"""Hugging Face models in tensors of fixed size, captured: the results of the growing cache."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    MistralConfig,
    MistralForCausalLM,
    RepetitionPenaltyLogitsProcessor,
)

from cases import assert_same, with_decoders
from hf_cases import (
    CONFIGS,
    PROMPTS,
    V,
    beams,
    build,
    generated,
    growing,
    kinds,
    plain,
    searcher,
    source,
)
from hf_cases import captured as captured
from npad import NPAD, Beam, Greedy, InvalidInput, Noise, decode
from npad.constraints import Constrained, Forbidden
from npad.engine.cuda_graphs import Graph
from npad.model import Capabilities
from npad.models.huggingface.adapter import HuggingFace
from npad.models.huggingface.constraints import Processed
from npad.models.huggingface.inputs import rounded_length
from npad.models.huggingface.states import FixedState, capacity_for
from npad.search.loop import Steps


@with_decoders("kind", {kind: kind for kind in CONFIGS}, fully=["llama"])
def test_captured_steps_find_the_same(captured, kind, decoder, monkeypatch):
    monkeypatch.setattr("npad.search.loop.steps_between_checks", lambda device: 3)
    model = build(kind)
    expected = plain(model, source(kind), decoder, 8)
    adapter = HuggingFace(model)
    for _ in range(3):
        assert_same(decode(adapter, source(kind), decoder, 8), expected)
    assert adapter.fixed_size
    assert any(isinstance(entry, Graph) for entry in model._graphs.entries.values())


ONE_TOKEN = [("llama", [[5], [7]]), ("gpt2", [[5]])]


@pytest.mark.parametrize(("kind", "prompts"), [*((kind, None) for kind in CONFIGS), *ONE_TOKEN])
def test_captured_steps_find_the_same_where_noise_does_not_persist(captured, kind, prompts):
    """And with prompts of one token."""
    model, decoder, given = build(kind), NPAD(Beam(2), 4, Noise(0.5)), prompts or source(kind)
    expected = decode(growing(model, persist=False), given, decoder, 6)
    for _ in range(3):
        assert_same(decode(HuggingFace(model, False), given, decoder, 6), expected)


@kinds
def test_a_state_of_fixed_size_reads_as_a_growing_one(captured, kind):
    """Steps, reordered rows and teacher forcing."""
    model, tokens = HuggingFace(build(kind)), torch.tensor([4, 9, 9, 5] * 2)
    grown = model.select(model.start(source(kind)), torch.arange(4).repeat_interleave(2))
    fixed = model.reserve(model.start(source(kind)), 5)
    assert isinstance(fixed, FixedState)
    fixed = model.select(fixed, torch.arange(4).repeat_interleave(2))
    for _ in range(5):
        expected, grown = model.step(grown, tokens)
        found, fixed = model.step(fixed, tokens)
        torch.testing.assert_close(found, expected)
        swapped = torch.arange(8).view(4, 2).flip(1).flatten()
        grown, fixed = model.select(grown, swapped), model.select(fixed, swapped)
    targets = torch.randint(3, V, (4, 7))
    expected = model.forced(model.start(source(kind)), targets)
    found = model.forced(model.reserve(model.start(source(kind)), 0), targets)
    torch.testing.assert_close(found, expected)


def test_a_model_with_a_sliding_window_keeps_its_growing_cache(captured):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    config = MistralConfig(vocab_size=V, sliding_window=3, eos_token_id=2, **sizes, **heads)
    model = MistralForCausalLM(config).eval()
    adapter = HuggingFace(model)
    expected = plain(model, PROMPTS, Beam(2), 6)
    with pytest.warns(UserWarning, match="a cache that grows .* fixed size"):
        assert_same(decode(adapter, PROMPTS, Beam(2), 6), expected)
    assert adapter.fixed_size is False
    assert_same(decode(HuggingFace(model), PROMPTS, Beam(2), 6), expected)  # warned about once


def test_a_model_that_a_fixed_size_changes_keeps_its_growing_cache(captured, monkeypatch):
    """As one whose positions do not come from the cache."""
    model = build("gpt2")
    expected = plain(model, PROMPTS, Greedy(), 6)
    positions = FixedState.positions
    monkeypatch.setattr(FixedState, "positions", lambda *given: positions(*given) * 0)
    adapter = HuggingFace(model)
    with pytest.warns(UserWarning, match="a cache of fixed size gives other logits"):
        assert_same(decode(adapter, PROMPTS, Greedy(), 6), expected)
    assert adapter.fixed_size is False


def test_layers_that_the_configuration_does_not_count_are_warned_about():
    model = build("llama")
    model.config.num_hidden_layers = 3
    with pytest.warns(UserWarning, match="has 3 decoder layers .* the longest list, of 2"):
        assert "hidden.1" in HuggingFace(model).sites


def test_an_output_that_fills_the_context_is_refused(captured):
    model = build("gpt2")
    model.config.n_positions = model.config.max_position_embeddings = 12
    with pytest.raises(InvalidInput, match=r"an output with its prefix has \d+ tokens .* at most"):
        decode(HuggingFace(model), [[5] * 8], NPAD(Greedy(), 2, Noise(0.1)), 20)


@pytest.mark.parametrize("kind", ["marian", "t5", "bart", "llama", "gpt2"])
def test_sources_of_similar_length_share_their_graphs(captured, kind):
    model = build(kind)
    adapter, decoder = HuggingFace(model), NPAD(Greedy(), 3, Noise(0.3))
    sources = [[[5] * 3], [[6] * 4], [[7] * 5], [[4] * 6]]
    for given in sources:
        assert_same(decode(adapter, given, decoder, 6), plain(model, given, decoder, 6))
    starts = [key for key in model._graphs.entries if key[0] == "start"]
    assert len(starts) == 1


def test_another_adapter_of_the_same_model_shares_its_graphs(captured):
    """As `npad.hf.generate` makes one for every call."""
    model, decoder = build("marian"), NPAD(Greedy(), 3, Noise(0.3))
    for _ in range(4):
        decode(HuggingFace(model), PROMPTS, decoder, 6)
    keys = len(model._graphs.entries)
    decode(HuggingFace(model), PROMPTS, decoder, 6)
    assert len(model._graphs.entries) == keys
    assert any(isinstance(entry, Graph) for entry in model._graphs.entries.values())


def steps_captured(model) -> bool:
    return any(
        isinstance(entry, Graph) and isinstance(key[0], tuple) and key[0][0] is Steps
        for key, entry in model._graphs.entries.items()
    )


FORBIDDEN, NEVER_FIRST = [4, 9], [5]


@with_decoders("kind", {"marian": "marian", "llama": "llama"}, fully=[])
def test_a_model_that_forbids_tokens_is_captured(captured, kind, decoder):
    """It writes what a model with the processors of transformers writes."""
    model = build(kind)
    adapter = growing(model)

    def forbid(written, scores):
        first = written.shape[1] == adapter.prefix(PROMPTS).shape[1]
        tokens = FORBIDDEN + NEVER_FIRST if first else FORBIDDEN
        return scores.index_fill(1, torch.tensor(tokens), -torch.inf)

    expected = decode(Constrained(adapter, Processed(forbid)), PROMPTS, decoder, 6)
    suppressed = Constrained(HuggingFace(model), Forbidden(FORBIDDEN, NEVER_FIRST))
    for _ in range(3):
        assert_same(decode(suppressed, PROMPTS, decoder, 6), expected)
    assert steps_captured(model)


def processed(model, *processors):
    """Steer as `generate` does, with new processors for every call."""
    return Constrained(HuggingFace(model), Processed(LogitsProcessorList(processors)))


def test_models_steered_alike_share_their_graphs(captured):
    model, decoder = build("bart"), NPAD(Beam(2), 3, Noise(0.3))

    def steered(length):
        penalty = RepetitionPenaltyLogitsProcessor(1.3)
        return processed(model, penalty, MinLengthLogitsProcessor(length, 2))

    uncaptured = steered(4)
    uncaptured.model.fixed_size = False
    expected = decode(uncaptured, PROMPTS, decoder, 6)
    for _ in range(4):
        assert_same(decode(steered(4), PROMPTS, decoder, 6), expected)
    assert steps_captured(model)
    count = len(model._graphs.entries)
    decode(steered(4), PROMPTS, decoder, 6)
    assert len(model._graphs.entries) == count
    assert steered(4) != steered(5)


def test_a_model_steered_by_an_unknown_function_is_not_captured(captured):
    """It may depend on more than the tokens so far."""
    model = build("bart")
    steered = Constrained(
        HuggingFace(model), Processed(lambda written, scores: scores), normalised=False
    )
    assert not Capabilities.of(steered).capturable
    expected = plain(model, PROMPTS, Beam(2), 6)
    for _ in range(3):
        assert_same(decode(steered, PROMPTS, Beam(2), 6), expected)
    assert not steps_captured(model)


def test_lengths_are_few():
    assert {rounded_length(tokens) for tokens in range(200)} == {16, 32, 64, 128, 192, 256}
    assert all(rounded_length(tokens) >= tokens for tokens in range(1000))


def test_capacities_are_few_where_each_is_captured():
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    sizes = {capacity_for(tokens, gpu) for tokens in range(1, 1000)}
    assert sizes == {32, 64, 128, 256, 512, 1024}
    for device in (gpu, cpu):
        assert all(capacity_for(tokens, device) >= tokens for tokens in range(1, 1000))
    assert all(capacity_for(tokens, cpu) < tokens + 8 for tokens in range(1, 1000))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@kinds
@pytest.mark.parametrize("width", [1, 4])
def test_on_a_gpu_the_tokens_are_those_of_generate(kind, width):
    """By CUDA graphs, in float32."""
    model = build(kind, torch.float32).cuda()
    given = source(kind, torch.float32)
    expected, _ = generated(model, kind, given, **beams(width))
    adapter = HuggingFace(model)
    for _ in range(6):
        found = decode(adapter, given, searcher(width), 12)
        assert [hypotheses[0].tokens for hypotheses in found] == expected
    assert any(isinstance(entry, Graph) for entry in model._graphs.entries.values())
