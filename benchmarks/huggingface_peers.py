"""Models of Hugging Face on a CPU: npad beside transformers' `generate` and CTranslate2, in turn.

    python -m pip install ctranslate2==4.8.4     here, or where there are torch and transformers
    python benchmarks/huggingface_peers.py --json peers.json                 one thread, all models
    python benchmarks/huggingface_peers.py --models marian --threads 2
    npad fetch whisper-tiny.en && python benchmarks/huggingface_peers.py --models whisper \
        --whisper whisper-tiny.en --recording SPEECH.wav

Weights are random but Whisper's, which CTranslate2 reads as faster-whisper does. All search for 20
tokens per source, and nothing ends before. "npad int8" is the model in int8 (int8-all), "chains in
int8" is NPAD whose noisy chains alone are. Loading, converting and packing are not timed.

In each round all engines take turns. Seconds are medians of the rounds, with --threads 1 of CPU
time, which a busy machine changes little. A ratio is the median over rounds of CTranslate2's
seconds by npad's: above 1 npad is faster. Greedy tokens are compared with those of `generate`.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from rich.console import Console
from rich.table import Table
from transformers import BartConfig, BartForConditionalGeneration

from huggingface_speed import llama, marian, speech_case, t5
from npad import NPAD, Beam, Decoder, Greedy, Noise, Sampling, decode
from npad.models.huggingface.adapter import HuggingFace, Inputs
from npad.models.huggingface.loading import constrained
from npad.models.low_precision import in_precision
from peers import RemoteEngine

LENGTH = 20
NEVER = -1e4  # the end token's bias, where the model has one
NOISE = Noise(0.1, relative=True)
# decoder of npad, hypotheses of `generate`'s beam or samples, or None
SEARCHES: dict[str, tuple[Decoder, int, int]] = {
    "greedy": (Greedy(), 1, 1),
    "beam 5": (Beam(5, "pool"), 5, 1),
    "10 samples": (Sampling(10), 1, 10),
    "NPAD-10": (NPAD(Greedy(), 10, NOISE), 0, 0),
}


def bart(small: bool) -> Any:
    """The size of bart-base, or a tiny model."""
    width, layers, vocabulary = (32, 2, 100) if small else (768, 6, 50_265)
    parts = {
        f"{side}_{part}": value
        for side in ("encoder", "decoder")
        for part, value in {"layers": layers, "ffn_dim": 4 * width, "attention_heads": 8}.items()
    }
    return BartForConditionalGeneration(BartConfig(vocab_size=vocabulary, d_model=width, **parts))


MODELS = {"marian": marian, "t5": t5, "bart": bart, "llama": llama}


@dataclass(frozen=True)
class Case:
    """A model, what it reads, and the engines that run it."""

    name: str
    model: Any
    sources: list[list[int]]
    engines: dict[str, RemoteEngine]
    adapters: dict[str, Any]
    features: str = ""  # a file, instead of sources
    prompt: list[int] | None = None

    def inputs(self, count: int) -> Inputs:
        """Return the first sources as npad and transformers read them."""
        if self.features:
            return Inputs(input_features=torch.from_numpy(np.load(self.features))[:count])
        adapter = self.adapters["npad"]
        inputs: Inputs = getattr(adapter, "plain", adapter).inputs(self.sources[:count])
        return inputs

    def work(self, engine: str, search: str, count: int, clock: Callable[[], float]) -> Any:
        """Return the seconds of a search and the tokens found; None if the engine has no such."""
        decoder, beam, samples = SEARCHES[search]
        length = 200 if self.features else LENGTH
        if engine in self.engines:
            if beam == 0:
                return None
            sources = self.sources[:count]
            request = {"sources": sources, "beam": beam, "samples": samples, "length": length}
            if self.features:
                request |= {"features": self.features, "prompt": self.prompt}
            reply = self.engines[engine].request(request)
            return reply["seconds"], reply["tokens"]
        if engine == "generate":
            if beam == 0:
                return None
            run = partial(self._generate, count, beam, samples, length)
        elif engine == "npad, chains in int8" and not decoder.chains:
            return None
        else:
            run = partial(self._decode, engine, decoder, count, length)
        start = clock()
        tokens = run()
        return clock() - start, tokens

    def _decode(self, engine: str, decoder: Decoder, count: int, length: int) -> Any:
        inputs = self.inputs(count)
        return [found[0].tokens for found in decode(self.adapters[engine], inputs, decoder, length)]

    def _generate(self, count: int, beam: int, samples: int, length: int) -> Any:
        inputs = self.inputs(count).tensors
        options: dict[str, Any] = {"num_beams": beam, "do_sample": samples > 1}
        if not self.features:
            options |= {"min_new_tokens": length, "max_new_tokens": length}
        if samples > 1:
            options |= {"num_return_sequences": samples, "top_k": 0}
        with torch.inference_mode():
            rows = self.model.generate(**inputs, **options)
        prompt = 1 if self.model.config.is_encoder_decoder else inputs["input_ids"].shape[1]
        return rows[:, prompt:].tolist()


def engines_of(folder: str, arguments: argparse.Namespace) -> dict[str, RemoteEngine]:
    return {
        f"CTranslate2 {kind}": RemoteEngine(
            arguments.ctranslate2,
            "peers_ctranslate2.py",
            {"folder": folder, "compute_type": kind, "threads": arguments.threads},
        )
        for kind in ("float32", "int8")
    }


def adapters_of(adapter: Any) -> dict[str, Any]:
    return {
        "npad": adapter,
        "npad int8": in_precision(adapter, "int8-all", owned=False),
        "npad, chains in int8": in_precision(adapter, "int8"),
    }


def text_case(name: str, folder: str, arguments: argparse.Namespace) -> Case:
    """Return a model of random weights, and sources of 10 to 21 random tokens."""
    torch.manual_seed(0)
    model = MODELS[name](arguments.small).eval()
    generation = model.generation_config
    generation.forced_bos_token_id = generation.forced_eos_token_id = None
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias[0, model.config.eos_token_id] = NEVER
    model.save_pretrained(folder)
    draw, vocabulary = random.Random(0), model.config.vocab_size
    end = [model.config.eos_token_id] * bool(model.config.is_encoder_decoder)
    sources = [
        [draw.randrange(3, vocabulary - 1) for _ in range(draw.randrange(10, 22))] + end
        for _ in range(max(arguments.sentences))
    ]
    return Case(
        name, model, sources, engines_of(folder, arguments), adapters_of(HuggingFace(model))
    )


def whisper_case(folder: str, arguments: argparse.Namespace) -> Case:
    """Return a real Whisper, and the features of a recording."""
    speech = speech_case(arguments.whisper, arguments.recording, "cpu")
    features = str(Path(folder, "features.npy"))
    np.save(features, speech.inputs["input_features"].numpy())
    adapter = constrained(HuggingFace(speech.model, decoder_prefix=speech.prefix))
    engines = engines_of(arguments.whisper, arguments)
    return Case(
        "whisper", speech.model, [[]], engines, adapters_of(adapter), features, speech.prefix
    )


def measure(case: Case, search: str, count: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return each engine's seconds in every round, and whether greedy tokens are the same."""
    clock = time.process_time if arguments.threads == 1 else time.perf_counter
    names = ["generate", *case.engines, *case.adapters]
    seconds: dict[str, list[float]] = {}
    tokens: dict[str, Any] = {}
    for name in names:
        case.work(name, search, 1, clock)  # packs weights and warms up
    for _ in range(arguments.repeats):
        for name in names:
            result = case.work(name, search, count, clock)
            if result is not None:
                seconds.setdefault(name, []).append(result[0])
                tokens[name] = result[1]
    equal = None
    if search == "greedy" and not case.features:
        pairs = zip(tokens["generate"], tokens["npad"], strict=True)
        equal = sum(tuple(a) == tuple(b) for a, b in pairs)
    return {"seconds": seconds, "equal": equal}


def ratio(seconds: dict[str, list[float]], peer: str, name: str) -> float | None:
    """Return how many times as fast as a peer an engine is: the median of the rounds."""
    if peer not in seconds or name not in seconds:
        return None
    rounds = zip(seconds[peer], seconds[name], strict=True)
    return statistics.median(theirs / ours for theirs, ours in rounds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=[*MODELS, "whisper"], default=list(MODELS))
    parser.add_argument("--sentences", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--searches", nargs="+", choices=SEARCHES, default=list(SEARCHES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3, help="rounds; default 3")
    parser.add_argument("--small", action="store_true", help="tiny models: a rehearsal")
    parser.add_argument(
        "--ctranslate2",
        metavar="PYTHON",
        default=sys.executable,
        help="interpreter that has it",
    )
    parser.add_argument("--whisper", help="a folder that npad fetch wrote")
    parser.add_argument("--recording", help="speech, 16 kHz")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    transformers.utils.logging.set_verbosity_error()
    console, results = Console(width=150), []
    unit = "CPU seconds" if arguments.threads == 1 else "seconds"
    for name in arguments.models:
        with tempfile.TemporaryDirectory() as folder:
            make = whisper_case if name == "whisper" else partial(text_case, name)
            case = make(folder, arguments)
            peers = {"CTranslate2 float32": "npad", "CTranslate2 int8": "npad int8"}
            parameters = sum(weight.numel() for weight in case.model.parameters()) / 1e6
            columns = ["generate", *case.engines, *case.adapters]
            title = f"{name}, {parameters:.0f} M, {arguments.threads} threads, {unit}"
            table = Table("", *columns, "÷ float32", "÷ int8", "equal to generate", title=title)
            for count in [1] if case.features else arguments.sentences:
                for search in arguments.searches:
                    measured = measure(case, search, count, arguments)
                    seconds = measured["seconds"]
                    cells = [
                        f"{statistics.median(seconds[x]):.3f}" if x in seconds else "–"
                        for x in columns
                    ]
                    ratios = [ratio(seconds, *pair) for pair in peers.items()]
                    shown = ["–" if r is None else f"{r:.2f}" for r in ratios]
                    equal = "" if measured["equal"] is None else f"{measured['equal']} of {count}"
                    table.add_row(f"{count}: {search}", *cells, *shown, equal)
                    print(name, count, search, *cells, *shown, equal, file=sys.stderr, flush=True)
                    row = {"model": name, "sentences": count, "search": search, **measured}
                    results.append(row | {"threads": arguments.threads})
                    if arguments.json:
                        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
            console.print(table)
            versions = next(iter(case.engines.values())).started["version"]
            console.print(
                f"npad beside CTranslate2 {versions}, transformers {transformers.__version__}, "
                f"torch {torch.__version__}"
            )


if __name__ == "__main__":
    main()
