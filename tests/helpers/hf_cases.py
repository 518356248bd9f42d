"""Tiny random Hugging Face models, and `generate` as the reference."""

from __future__ import annotations

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

from npad import Beam, Decoder, Greedy, decode
from npad.models.huggingface.adapter import HuggingFace, Inputs

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
        {"vocab_size": V, "d_model": 16, "d_kv": 12, "d_ff": 32, "num_layers": 2, "num_heads": 2}
        | {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1},
    ),
    "bart": (BartForConditionalGeneration, BartConfig, BART),
    "whisper": (
        WhisperForConditionalGeneration,
        WhisperConfig,
        BART
        | {"max_source_positions": 20, "num_mel_bins": 8, "decoder_start_token_id": 3}
        | {"begin_suppress_tokens": None, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "llama": (
        LlamaForCausalLM,
        LlamaConfig,
        {"vocab_size": V, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
        | {"num_attention_heads": 2}
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
kinds = pytest.mark.parametrize("kind", [*CONFIGS])
CONFIGS["gated t5"] = (*CONFIGS["t5"][:2], CONFIGS["t5"][2] | {"feed_forward_proj": "gated-gelu"})


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
        features = torch.randn(4, 8, 40, generator=torch.Generator().manual_seed(1))
        return Inputs(input_features=features.to(dtype))
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


def hooks(model) -> int:
    return sum(
        len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()
    )


def growing(model, **options) -> HuggingFace:
    """An adapter with the growing cache."""
    adapter = HuggingFace(model, **options)
    adapter.fixed_size = False
    return adapter


def plain(model, source, decoder, length):
    """Decode with the growing cache."""
    return decode(growing(model), source, decoder, length)


def beams(width: int) -> dict[str, object]:
    """How `generate` searches as `searcher(width)` does."""
    pooled = {"num_beams": width, "length_penalty": 0.0, "early_stopping": "never"}
    return pooled if width > 1 else {}


def searcher(width: int) -> Decoder:
    """A pooled beam, or greedy search for a width of 1."""
    return Beam(width, "pool") if width > 1 else Greedy()


@pytest.fixture
def captured(monkeypatch):
    """Capture steps on a CPU, at the second time they are met; a replay is a second call."""
    fixed = property(lambda self: self.fixed_size is not False)
    monkeypatch.setattr(HuggingFace, "capturable", fixed)
    monkeypatch.setattr("npad.engine.cuda_graphs.EAGER_CALLS", 1)
    monkeypatch.setattr("npad.models.huggingface.states.CPU_CAPACITY", 4)
