"""Milliseconds for one sentence on Hugging Face models: transformers' `generate` beside npad.

    python benchmarks/huggingface_speed.py                      on a GPU, every model
    python benchmarks/huggingface_speed.py --models marian --compile
    python benchmarks/huggingface_speed.py --small --repeats 2  tiny models: a rehearsal on a CPU
    npad fetch whisper-tiny.en && python benchmarks/huggingface_speed.py --models whisper \
        --whisper whisper-tiny.en --recording SPEECH.wav        30 seconds of speech

Weights are random, in float32, but Whisper's; 16 tokens in (or a prompt of 2,000) and 20 out.
Medians over rounds in which all take turns, after warm-up rounds. "unprepared" is npad on a model
as transformers loads it, "npad" on one that npad loads, with its products prepared. "NPAD-50,
bfloat16" runs its noisy chains in that precision. `--compile` adds `generate` with a static cache
and its compiled step. NPAD's scores are included; `generate` returns none. "MiB" is the memory that
a strategy takes at its peak beyond the model: its captured graphs, and what it allocates.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

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
    WhisperForConditionalGeneration,
)

from npad import NPAD, Beam, Greedy, Noise, decode
from npad.models.huggingface.adapter import HuggingFace, Inputs
from npad.models.huggingface.loading import constrained
from npad.models.linear import prepare
from npad.models.low_precision import LowPrecision
from npad.pipelines import sound as audio
from npad.pipelines.loading import load_as
from npad.pipelines.transcription import Transcriber

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


class Case(NamedTuple):
    """A model and what it reads."""

    model: Any
    inputs: dict[str, torch.Tensor]
    size: str  # of what it reads, in words
    chains: int = CHAINS
    prefix: list[int] | None = None  # tokens that its decoder reads first, where not the default
    max_tokens: int = TOKENS


def strategies(case: Case, compiled: bool) -> dict[str, Callable[[], Any]]:
    """Return what is timed, by name."""
    model, inputs, chains, length = case.model, case.inputs, case.chains, case.max_tokens
    generate = partial(model.generate, **inputs)
    if case.prefix is None:  # Whisper's own generate knows when it is done
        generate = partial(generate, max_new_tokens=length)
    loaded = copy.deepcopy(model)
    prepare(loaded)
    npad = HuggingFace(loaded, decoder_prefix=case.prefix)
    unprepared = HuggingFace(copy.deepcopy(model), decoder_prefix=case.prefix)
    source = Inputs(**inputs)
    timed: dict[str, Callable[[], Any]] = {
        "generate, greedy": partial(generate, do_sample=False),
        "generate, beam 5": partial(generate, do_sample=False, num_beams=5),
    }
    if compiled:
        timed["generate, static cache, compiled"] = partial(
            generate, do_sample=False, cache_implementation="static"
        )
    chosen = NPAD(Greedy(), chains, NOISE)
    for name, adapter in (("unprepared", unprepared), ("npad", npad)):
        steered_model = constrained(adapter)
        timed |= {
            f"{name}, greedy": partial(decode, steered_model, source, Greedy(), length),
            f"{name}, beam 5": partial(decode, steered_model, source, Beam(5), length),
            f"{name}, NPAD-{chains}": partial(decode, steered_model, source, chosen, length),
        }
    low = LowPrecision(constrained(npad), "bfloat16")
    timed[f"npad, NPAD-{chains}, bfloat16"] = partial(decode, low, source, chosen, length)
    return timed


def milliseconds(work: Callable[[], Any]) -> float:
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    wait()
    start = time.perf_counter()
    work()
    wait()
    return 1e3 * (time.perf_counter() - start)


def peak_memory(work: Callable[[], Any]) -> str:
    """Call it until its graphs are captured; return the MiB that it takes, graphs included."""
    on_gpu = torch.cuda.is_available()
    before = torch.cuda.memory_allocated() if on_gpu else 0
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    for _ in range(WARMUPS):
        work()
    return f"{(torch.cuda.max_memory_allocated() - before) / 2**20:,.0f}" if on_gpu else "–"


def text_case(name: str, small: bool, device: str) -> Case:
    """Return a model of random weights, and one source of random tokens."""
    build, length = MODELS[name]
    tokens = torch.randint(3, 100, (1, length), device=device)
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    return Case(build(small).to(device).eval(), inputs, f"{length:,} in")


def speech_case(folder: str, recording: str, device: str) -> Case:
    """Return a real Whisper, and the features of a recording."""
    transcriber = load_as(Transcriber, f"hf:{folder}", device)
    samples = audio.read(recording, transcriber.rate)
    features = transcriber.hear([samples]).tensors["input_features"].to(device)
    seconds = f"{len(samples) / transcriber.rate:.0f} s in"
    adapter: Any = transcriber.model
    while not isinstance(adapter, HuggingFace):
        adapter = adapter.model
    model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    inputs = {"input_features": features}
    return Case(model.to(device).eval(), inputs, seconds, 10, adapter.decoder_prefix, 200)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=[*MODELS, "whisper"], default=list(MODELS))
    parser.add_argument("--repeats", type=int, default=20, help="rounds; default 20")
    parser.add_argument("--compile", action="store_true", help="generate's compiled step as well")
    parser.add_argument("--small", action="store_true", help="tiny models")
    parser.add_argument("--whisper", help="a folder that npad fetch wrote")
    parser.add_argument("--recording", help="30 seconds of speech, 16 kHz")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    console = Console(width=110)
    machine = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    console.print(f"{machine}; torch {torch.__version__}, transformers {transformers.__version__}")
    for name in arguments.models:
        torch.manual_seed(0)
        if name == "whisper":
            case = speech_case(arguments.whisper, arguments.recording, device)
        else:
            case = text_case(name, arguments.small, device)
        timed = strategies(case, arguments.compile)
        memory = {strategy: peak_memory(work) for strategy, work in timed.items()}
        rounds = [[milliseconds(work) for work in timed.values()] for _ in range(arguments.repeats)]
        medians = dict(zip(timed, map(statistics.median, zip(*rounds, strict=True)), strict=True))
        parameters = sum(weight.numel() for weight in case.model.parameters()) / 1e6
        table = Table(
            "", "ms", "÷ generate's", "÷ npad greedy", "MiB",
            title=f"{name}, {parameters:.0f} M, {case.size}",
        )  # fmt: skip
        for strategy, median in medians.items():
            peer = medians["generate, beam 5" if "beam" in strategy else "generate, greedy"]
            shares = f"{median / peer:.2f}", f"{median / medians['npad, greedy']:.2f}"
            table.add_row(strategy, f"{median:.1f}", *shares, memory[strategy])
        console.print(table)


if __name__ == "__main__":
    main()
