"""Tiny random Hugging Face models: the contract, and `generate` as the reference."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from npad import NPAD, Beam, Greedy, Noise, decode, score
from npad.models.huggingface.adapter import HuggingFace, Inputs
from npad.testing import check_model

V = 40
LAYERS = {"encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
BART = {"vocab_size": V, "d_model": 16, **LAYERS, **HEADS}
CONFIGS = {
    "marian": (
        MarianMTModel,
        MarianConfig,
        BART | {"pad_token_id": 39, "eos_token_id": 0, "decoder_start_token_id": 39},
    ),
    "t5": (
        T5ForConditionalGeneration,
        T5Config,
        {"vocab_size": V, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
        | {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1},
    ),
    "bart": (BartForConditionalGeneration, BartConfig, BART),
    "whisper": (
        WhisperForConditionalGeneration,
        WhisperConfig,
        BART
        | {
            "max_source_positions": 20,
            "num_mel_bins": 8,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        }
        | {"decoder_start_token_id": 3, "begin_suppress_tokens": None},
    ),
    "llama": (
        LlamaForCausalLM,
        LlamaConfig,
        {
            "vocab_size": V,
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
        }
        | {"num_key_value_heads": 1, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "gpt2": (
        GPT2LMHeadModel,
        GPT2Config,
        {"vocab_size": V, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}
        | {"eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0},
    ),
}
PROMPTS = [[5, 6, 7, 8, 9], [10, 11], [12], [13, 14, 15]]
kinds = pytest.mark.parametrize("kind", CONFIGS)


def build(kind: str, dtype=torch.float64):
    """A model whose distributions are not flat, in float64 so that nothing is a near-tie."""
    torch.manual_seed(0)
    model, config, options = CONFIGS[kind]
    made = model(config(**options)).eval()
    made.generation_config.forced_eos_token_id = None
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if parameter.dim() == 2 and ("position" not in name or kind == "whisper"):
                parameter.normal_(std=0.4)
    return made.to(dtype)


def save(folder: Path, kind: str) -> None:
    """Save a model with a tokenizer of words, w3, w4, …, as people save them."""
    words = {f"w{i}": i for i in range(3, V)} | {"<pad>": 0, "<s>": 1, "</s>": 2}
    core = Tokenizer(models.WordLevel(words, unk_token="w3"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=core, **special).save_pretrained(folder)
    build(kind, torch.float32).save_pretrained(folder)


def source(kind: str, dtype=torch.float64):
    if kind == "whisper":
        return Inputs(
            input_features=torch.randn(4, 8, 40, generator=torch.Generator().manual_seed(1)).to(
                dtype
            )
        )
    return PROMPTS


def tensors(kind: str):
    """The source as `generate` takes it."""
    given = source(kind)
    return given.tensors if kind == "whisper" else HuggingFace(build(kind)).inputs(given).tensors


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Two tiny random models with a tokenizer of words, saved as people save them."""
    folder = tmp_path_factory.mktemp("models")
    for kind in ("bart", "llama"):
        save(folder / kind, kind)
    return folder


@kinds
def test_it_keeps_the_contract(kind):
    check_model(HuggingFace(build(kind)), source(kind))


def generated(model, kind, inputs, **how):
    """Return the new tokens of `generate`, without end token and padding, and its output."""
    given = HuggingFace(model).inputs(inputs) if kind != "whisper" else inputs
    done = model.generate(
        **{name: tensor.to(model.device) for name, tensor in given.tensors.items()},
        max_new_tokens=12,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        **how,
    )
    skip = 1 if model.config.is_encoder_decoder else given.tensors["input_ids"].shape[1]
    eos = model.generation_config.eos_token_id
    rows = [row[skip:].tolist() for row in done.sequences]
    return [tuple(row[: row.index(eos)] if eos in row else row) for row in rows], done


@kinds
def test_greedy_search_is_generates(kind):
    model = build(kind)
    expected, _ = generated(model, kind, source(kind))
    found = decode(HuggingFace(model), source(kind), Greedy(), 12)
    assert [one[0].tokens for one in found] == expected
    assert len(set(expected)) > 1


@kinds
@pytest.mark.parametrize("width", [2, 4])
def test_a_pooled_beam_is_generates(kind, width):
    model = build(kind)
    expected, done = generated(
        model, kind, source(kind), num_beams=width, length_penalty=0.0, early_stopping="never"
    )
    found = decode(HuggingFace(model), source(kind), Beam(width, "pool"), 12)
    assert [one[0].tokens for one in found] == expected
    assert [one[0].log_prob for one in found] == pytest.approx(
        done.sequences_scores.tolist(), abs=1e-4
    )


@kinds
@pytest.mark.parametrize("inner", [Greedy(), Beam(3)], ids=["greedy", "beam"])
def test_npad_keeps_its_theorems(kind, inner):
    model, inputs = HuggingFace(build(kind)), source(kind)
    plain = decode(model, inputs, inner, 10)
    assert [one[0].tokens for one in decode(model, inputs, NPAD(inner, 4, Noise(0.0)), 10)] == [
        one[0].tokens for one in plain
    ]
    for site in ("hidden", "hidden.1", "embedding", "output"):
        noisy = NPAD(inner, 6, Noise(0.5, site=site, relative=True))
        found = decode(model, inputs, noisy, 10)
        for one, other in zip(found, plain, strict=True):
            assert (one[0].finished, one[0].log_prob) >= (
                other[0].finished,
                other[0].log_prob - 1e-9,
            )
        assert any(len(one) > 1 for one in found), site
        clean = score(
            model, inputs, [[each.tokens for each in one if each.finished] for one in found]
        )
        for one, scores in zip(found, clean, strict=True):
            assert [each.log_prob for each in one if each.finished] == pytest.approx(
                scores, abs=1e-9
            )


@kinds
def test_a_prompt_decodes_alike_alone_and_in_a_batch(kind):
    model, inputs = HuggingFace(build(kind)), source(kind)
    decoder = NPAD(Beam(2), 3, Noise(0.3, relative=True))
    together = decode(model, inputs, decoder, 8)
    for i in range(4):
        alone = decode(model, inputs[i : i + 1], decoder, 8, ids=[i])
        assert [(one.tokens, one.chain) for one in alone[0]] == [
            (one.tokens, one.chain) for one in together[i]
        ]
        assert [one.log_prob for one in alone[0]] == pytest.approx(
            [one.log_prob for one in together[i]], abs=1e-9
        )


def hooks(model) -> int:
    return sum(
        len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()
    )


@kinds
def test_hooks_are_gone_after_an_exception(kind):
    model = build(kind)
    before, seen = hooks(model), []

    def break_off(site, x):
        seen.append(hooks(model))
        raise ZeroDivisionError

    adapter = HuggingFace(model)
    state = adapter.start(source(kind))
    with pytest.raises(ZeroDivisionError):
        adapter.step(state, torch.full((4,), adapter.special.bos), break_off)
    assert seen[0] > before == hooks(model)


@pytest.mark.parametrize("kind", ["marian", "llama"])
def test_threads_do_not_see_each_others_noise(kind):
    model, inputs = HuggingFace(build(kind)), source(kind)
    decoders = [
        Greedy(),
        NPAD(Greedy(), 4, Noise(0.7, relative=True)),
        NPAD(Greedy(), 4, Noise(0.7, relative=True), seed=5),
    ]
    expected = [decode(model, inputs, decoder, 10) for decoder in decoders]
    with ThreadPoolExecutor(3) as pool:
        for _ in range(5):
            assert (
                list(pool.map(lambda decoder: decode(model, inputs, decoder, 10), decoders))
                == expected
            )


@pytest.mark.parametrize("kind", ["marian", "llama"])
def test_noise_stays_in_the_cache_unless_told_otherwise(kind):
    """After a noisy first step, the next clean prediction differs if and only if noise persists."""
    model, inputs = build(kind), source(kind)
    first, second = torch.full((4,), V), torch.full((4,), 7)

    def after(persist, perturb):
        adapter = HuggingFace(model, persist)
        with torch.no_grad():
            noisy, state = adapter.step(adapter.start(inputs), first, perturb)
            return noisy, adapter.step(state, second)[0]

    clean = after(True, None)
    for persist in (True, False):
        noisy, later = after(persist, lambda site, x: x + 1 if site == "hidden.0" else x)
        assert (noisy - clean[0]).abs().max() > 1e-3
        assert ((later - clean[1]).abs().max() > 1e-6) == persist
