"""Milliseconds for one sentence on Hugging Face models: transformers' `generate` beside npad.

    python benchmarks/huggingface_speed.py                      on a GPU, every model
    python benchmarks/huggingface_speed.py --models marian --compile
    python benchmarks/huggingface_speed.py --small --repeats 2  tiny models: a rehearsal on a CPU

Weights are random, in float32; 16 tokens in (or a prompt of 2,000) and 20 out. Medians over rounds
in which all take turns, after warm-up rounds. "growing" is npad without CUDA graphs, on the cache
that `generate` uses. `--compile` adds `generate` with a static cache and its compiled step. NPAD's
scores are included; `generate` returns none.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.table import Table
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
    T5Config,
    T5ForConditionalGeneration,
)

from npad import NPAD, Beam, Greedy, Noise, decode
from npad.models.huggingface.adapter import HuggingFace

TOKENS = 20
CHAINS = 50
LONG_PROMPT = 2000
WARMUPS = 6  # graphs are captured at the fourth call
NOISE = Noise(0.1, relative=True)


def marian(small: bool) -> Any:
    """60 million parameters, or a tiny model."""
    width, layers, vocabulary = (32, 2, 100) if small else (512, 6, 32_000)
    parts = {
        f"{side}_{part}": value
        for side in ("encoder", "decoder")
        for part, value in {"layers": layers, "ffn_dim": 4 * width, "attention_heads": 8}.items()
    }
    ids = {"pad_token_id": vocabulary - 1, "decoder_start_token_id": vocabulary - 1}
    config = MarianConfig(vocab_size=vocabulary, d_model=width, eos_token_id=0, **parts, **ids)
    return MarianMTModel(config)


def t5(small: bool) -> Any:
    """The size of t5-small, or a tiny model."""
    width, layers, vocabulary = (32, 2, 100) if small else (512, 6, 32_128)
    config = T5Config(
        vocab_size=vocabulary,
        d_model=width,
        d_kv=width // 8,
        d_ff=4 * width,
        num_layers=layers,
        num_heads=8,
        decoder_start_token_id=0,
    )
    return T5ForConditionalGeneration(config)


def llama(small: bool) -> Any:
    """The size of SmolLM2-135M, or a tiny model."""
    width, layers, vocabulary = (36, 2, 100) if small else (576, 30, 49_152)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=width * 8 // 3,
        num_hidden_layers=layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
    )
    return LlamaForCausalLM(config)


MODELS: dict[str, tuple[Callable[[bool], Any], int]] = {
    "marian": (marian, 16),
    "t5": (t5, 16),
    "llama": (llama, 16),
    "llama, long prompt": (llama, LONG_PROMPT),
}


def strategies(model: Any, source: torch.Tensor, compiled: bool) -> dict[str, Callable[[], Any]]:
    """Return what is timed, by name."""
    generate = partial(
        model.generate, source, attention_mask=torch.ones_like(source), max_new_tokens=TOKENS
    )
    npad, growing = HuggingFace(model), HuggingFace(model)
    growing.fixed_size = False
    ids = source.tolist()
    timed: dict[str, Callable[[], Any]] = {
        "generate, greedy": partial(generate, do_sample=False),
        "generate, beam 5": partial(generate, do_sample=False, num_beams=5),
    }
    if compiled:
        timed["generate, static cache, compiled"] = partial(
            generate, do_sample=False, cache_implementation="static"
        )
    for name, adapter in (("growing", growing), ("npad", npad)):
        timed |= {
            f"{name}, greedy": partial(decode, adapter, ids, Greedy(), TOKENS),
            f"{name}, beam 5": partial(decode, adapter, ids, Beam(5), TOKENS),
            f"{name}, NPAD-{CHAINS}": partial(
                decode, adapter, ids, NPAD(Greedy(), CHAINS, NOISE), TOKENS
            ),
        }
    return timed


def milliseconds(work: Callable[[], Any]) -> float:
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    wait()
    start = time.perf_counter()
    work()
    wait()
    return 1e3 * (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--repeats", type=int, default=20, help="rounds; default 20")
    parser.add_argument("--compile", action="store_true", help="generate's compiled step as well")
    parser.add_argument("--small", action="store_true", help="tiny models")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    console = Console(width=110)
    machine = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    console.print(f"{machine}; torch {torch.__version__}, transformers {transformers.__version__}")
    for name in arguments.models:
        build, length = MODELS[name]
        torch.manual_seed(0)
        model = build(arguments.small).to(device).eval()
        source = torch.randint(3, 100, (1, length), device=device)
        timed = strategies(model, source, arguments.compile)
        for work in timed.values():
            for _ in range(WARMUPS):
                work()
        rounds = [[milliseconds(work) for work in timed.values()] for _ in range(arguments.repeats)]
        medians = dict(zip(timed, map(statistics.median, zip(*rounds, strict=True)), strict=True))
        parameters = sum(weight.numel() for weight in model.parameters()) / 1e6
        table = Table("", "ms", "÷ generate's", title=f"{name}, {parameters:.0f} M, {length} in")
        for strategy, median in medians.items():
            peer = "generate, beam 5" if "beam" in strategy else "generate, greedy"
            table.add_row(strategy, f"{median:.1f}", f"{median / medians[peer]:.2f}")
        console.print(table)


if __name__ == "__main__":
    main()
