"""What constraints cost: CPU time of a search with and without, in rounds that take turns.

python benchmarks/constraints.py [--rounds N]
python benchmarks/constraints.py --list 1000000

With --list, a closed set of so many texts: the seconds and the memory to compile it, and to
decode. Otherwise, the shipped model translates ten sentences by greedy search; a random Llama of
135 M parameters continues one prompt of 16 tokens. Both run in one thread, for so few steps that no
output ends, so that all searches have as many rows. A cost is the median over rounds of the ratio
to the search without, with its quartiles; starting the model counts.
"""

from __future__ import annotations

import argparse
import random
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import npad
from npad import Beam, Greedy
from npad.constraints import Choices, Constraint, Grammar, Prefix, Without
from npad.constraints.kinds import Context, constrained
from npad.constraints.vocabulary import Vocabulary
from npad.models.huggingface.adapter import HuggingFace

NOUNS = ("book", "pen", "cat", "dog", "cup", "key", "map", "hat", "box", "bag")
TEXTS = [f"The {noun} is on the table." for noun in NOUNS]
PREFIXES = ("Das", "Der", "Die Ka", "", "Die Tas", "D", "Die Karte ", "Der Hut", "", "Die T")
LETTERS = 'etaoinshrdlu ETAOIN0123456789-,.:{}"'
STEPS = 6  # before any output ends, so that all searches have as many rows
LLAMA = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 0,
    "pad_token_id": 0,
}


def seconds_per_step(model: Any, source: Any, steps: int) -> float:
    """Return the CPU time of a step of greedy search, without what comes before the first one."""
    counted = 0
    step = model.step

    def counting(*arguments: Any) -> Any:
        nonlocal counted
        counted += 1
        return step(*arguments)

    model.step = counting
    try:
        start = time.process_time()
        npad.decoding.search(model, source, Greedy(), steps, None, None)
        return (time.process_time() - start) / counted
    finally:
        del model.step


WORDS = ["der", "die", "das", "ein", "Haus", "Buch", "Tisch", "ist", "rot", "neu", "alt", "Weg"]


def choices(count: int, words: Sequence[str] = WORDS) -> Choices:
    """Return random texts of a few words."""
    draw = random.Random(0)
    texts = {" ".join(draw.choices(words, k=draw.randint(5, 9))) for _ in range(2 * count)}
    return Choices(tuple(sorted(texts)[:count]))


def measure(
    name: str, cases: dict[str, Callable[[], Any]], source: Any, steps: int, rounds: int
) -> None:
    """Print the cost of each case as a multiple of the first one."""
    models = {case: make() for case, make in cases.items()}
    times: dict[str, list[float]] = {case: [] for case in models}
    for number in range(rounds + 1):  # the first round builds what is kept
        for case, model in models.items():
            spent = seconds_per_step(model, source, steps)
            if number:
                times[case].append(spent)
    first, *others = times
    print(f"{name}: {1e3 * statistics.median(times[first]):.2f} ms of CPU per step")
    for case in others:
        ratios = [own / free for own, free in zip(times[case], times[first], strict=True)]
        low, middle, high = (statistics.quantiles(ratios, n=4)[i] for i in range(3))
        print(f"  {case:<42} {middle:.3f} × [{low:.3f}, {high:.3f}]")


def measure_list(count: int) -> None:
    """Print what a closed set of so many texts costs: to compile it, and each sentence."""
    translator = npad.load("en-de")
    pieces = translator.vocabulary.pieces
    words = sorted(
        {piece[1:].decode() for piece in pieces if piece[:1] == b" " and piece[1:].isalpha()}
    )
    texts = choices(count, words)
    before, start = peak(), time.process_time()
    texts.rules(translator.model.special.eos, Context(translator.vocabulary))
    seconds = time.process_time() - start
    print(f"{len(texts.choices):,} texts of {len(words):,} words: {seconds:.1f} s to compile them")
    print(f"  {peak() - before:,.0f} MiB at the peak, beside {before:,.0f} before")
    for name, decoder in (("greedy", Greedy()), ("beam 5", Beam(5))):
        for constraint in (None, texts):
            spent = []
            for _ in range(5):
                start = time.process_time()
                translator.translate(TEXTS, decoder, constraint=constraint)
                spent.append((time.process_time() - start) / len(TEXTS))
            kind = "free" if constraint is None else "from the list"
            print(f"  {name}, {kind}: {1e3 * statistics.median(spent):.1f} ms per sentence")
    print(f"  {peak() - before:,.0f} MiB at the peak after decoding")


def peak() -> float:
    """Return the most memory that this process has had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description="What constraints cost.")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--list", type=int, help="texts of a closed set; then nothing else")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.list is not None:
        measure_list(arguments.list)
        return
    translator = npad.load("en-de")
    source, vocabulary = translator.encode(TEXTS), translator.vocabulary

    def on_shipped(constraint: Constraint) -> Callable[[], Any]:
        return lambda: constrained(translator.model, constraint, Context(vocabulary, TEXTS))

    words = Without(("Handy", "Mobiltelefon", "kaputt"))
    cases = {
        "none": lambda: translator.model,
        "prefix, one word": on_shipped(Prefix("Das")),
        "prefixes, one per text": lambda: constrained(
            translator.model, None, Context(vocabulary, TEXTS, PREFIXES)
        ),
        "without, three words": on_shipped(words),
        "choices, 100,000 texts": on_shipped(choices(100_000)),
        "regex": on_shipped(Grammar(r"(\w+ ){6,20}\w+\.")),
    }
    measure(f"en-de, {len(TEXTS)} rows", cases, source, STEPS, arguments.rounds)

    torch.manual_seed(0)
    llama = HuggingFace(LlamaForCausalLM(LlamaConfig(**LLAMA)).eval())
    pieces = [b"", b"", *(bytes([byte]) for byte in range(256))]
    draw = random.Random(0)
    while len(pieces) < LLAMA["vocab_size"]:
        letters = "".join(
            draw.choices('etaoinshrdlu ETAOIN0123456789-,.:{}"', k=draw.randint(2, 7))
        )
        pieces.append(letters.encode())
    spelled = Vocabulary(pieces, lambda texts: [[2 + b for b in t.encode()] for t in texts], False)
    schema = '{"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}'

    def on_llama(constraint: Constraint) -> Callable[[], Any]:
        return lambda: constrained(llama, constraint, Context(spelled))

    cases = {
        "none": lambda: llama,
        "prefix, one word": on_llama(Prefix("The rain")),
        "without, three words": on_llama(words),
        "regex, digits": on_llama(Grammar(r"[0-9]{200,300}")),
        "json-schema": on_llama(Grammar(schema, "json-schema")),
    }
    prompt = [[draw.randrange(300, 40_000) for _ in range(16)]]
    measure("random Llama of 135 M, 1 row", cases, prompt, STEPS, max(3, arguments.rounds // 4))


if __name__ == "__main__":
    main()
