"""Tokens a second of `npad translate -m hf:… -i FILE -o FILE`.

    python benchmarks/pipeline_speed.py                      on a GPU, about 60 million parameters
    python benchmarks/pipeline_speed.py --small --rounds 1   a tiny model: a rehearsal on a CPU

A Marian of random weights and a BPE tokenizer learnt from generated words are saved to a folder,
loaded as `npad translate` does, and translate a file of random words, whose number per sentence is
log-normal (median 12). Outputs hardly ever end by themselves: they have --length tokens.

The first run is for warm-up; medians over the others. Start-up and loading are not included. Tokens
are those of the outputs. "decoding" is the share of the time in which a batch is being decoded, not
tokenised or written. "GPU busy" is the share in which a kernel or copy runs: the union of their
intervals, by torch.profiler, in a further run of two windows, which the profiler slows down a
little.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import transformers
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch.profiler import ProfilerActivity, profile
from transformers import MarianConfig, MarianMTModel, PreTrainedTokenizerFast

from npad import NPAD, Beam, Greedy, InvalidInput, Noise, Output, Translator, load
from npad.cli.outputs import write_outputs
from npad.cli.terminal import Bar
from npad.pipelines import pipeline as pipelines
from npad.pipelines.pipeline import WINDOW_BATCHES
from npad.pipelines.writers import as_text
from npad.search.decoder import Decoder
from npad.search.request import Decoding
from npad.text.files import open_output, read_lines

ENDS, UNKNOWN, PADDING = SPECIAL = ("</s>", "<unk>", "<pad>")
DECODERS: dict[str, Decoder] = {
    "greedy": Greedy(),
    "beam 5": Beam(5),
    "NPAD-10": NPAD(Greedy(), 10, Noise(0.1, relative=True)),
}
PROFILED = 2  # windows in the profiled run


def words(count: int) -> list[str]:
    """Made-up words of one to five syllables."""
    generator = random.Random(0)
    letters = ("bdfghjklmnprstvwz", "aeiou", ("", "", "n", "r", "s"))
    return [
        "".join(generator.choice(kind) for kind in letters * generator.randint(1, 5))
        for _ in range(count)
    ]


def sentences(vocabulary: list[str]) -> Iterator[str]:
    """Endless sentences; the frequency of words is Zipf's."""
    generator = random.Random(1)
    weights = list(accumulate(1 / (rank + 10) for rank in range(len(vocabulary))))
    while True:
        length = min(max(1, round(generator.lognormvariate(2.5, 0.6))), 80)
        yield " ".join(generator.choices(vocabulary, cum_weights=weights, k=length))


def save_model(folder: Path, vocabulary: list[str], small: bool) -> None:
    """Save a model of random weights with a tokenizer of these words' parts."""
    width, layers, size = (32, 2, 500) if small else (512, 6, 32_000)
    core = Tokenizer(models.BPE(unk_token=UNKNOWN))
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(SPECIAL), show_progress=False
    )
    core.train_from_iterator(vocabulary, trainer)
    end = core.token_to_id(ENDS)
    core.post_processor = processors.TemplateProcessing(
        single=f"$A {ENDS}", special_tokens=[(ENDS, end)]
    )
    names = {"eos_token": ENDS, "unk_token": UNKNOWN, "pad_token": PADDING}
    PreTrainedTokenizerFast(tokenizer_object=core, **names).save_pretrained(folder)
    parts = {
        f"{side}_{part}": value
        for side in ("encoder", "decoder")
        for part, value in {"layers": layers, "ffn_dim": 4 * width, "attention_heads": 8}.items()
    }
    padding = core.token_to_id(PADDING)
    config = MarianConfig(
        vocab_size=core.get_vocab_size(),
        d_model=width,
        eos_token_id=end,
        forced_eos_token_id=None,
        pad_token_id=padding,
        decoder_start_token_id=padding,
        **parts,
    )
    torch.manual_seed(0)
    MarianMTModel(config).save_pretrained(folder)


@dataclass
class Run:
    """One translation of a file."""

    seconds: float
    tokens: int  # of the outputs
    decoding: float  # seconds in `decode`


class Pipeline(NamedTuple):
    """What translates a file."""

    translator: Translator
    decoder: Decoder
    length: int  # of outputs, in tokens
    max_rows: int

    @property
    def window(self) -> int:
        """Sentences of a window."""
        return WINDOW_BATCHES * max(1, self.max_rows // self.decoder.rows)


def translate_file(pipeline: Pipeline, text: Path, out: Path) -> Run:
    """Translate a file to a file as `npad translate` does."""
    run = Run(0.0, 0, 0.0)

    decode = pipelines.search

    def timed_decode(*arguments: Any) -> Any:
        start = time.perf_counter()
        try:
            return decode(*arguments)
        finally:
            run.decoding += time.perf_counter() - start

    def refuse(line: int, error: InvalidInput) -> None:
        raise SystemExit(f"line {line}: {error}")

    with patch.object(pipelines, "search", timed_decode):
        start = time.perf_counter()
        with open_output(out) as file:

            def write(number: int, line: str, output: Output) -> None:
                run.tokens += len(output.hypothesis.tokens)
                file.write(as_text(number, line, output, 1))

            write_outputs(
                pipeline.translator,
                read_lines(text),
                Decoding(pipeline.decoder, pipeline.length, pipeline.max_rows),
                write,
                Bar(lambda *state: None),
                flush=file.flush,
                refuse=refuse,
            )
        run.seconds = time.perf_counter() - start
    return run


def busy_share(work: Callable[[], Run]) -> float | None:
    """Return the share of the time in which the GPU works; None without a GPU or its events."""
    if not torch.cuda.is_available():
        return None
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        seconds = work().seconds
        torch.cuda.synchronize()
    events = profiler.profiler.kineto_results.events()
    intervals = sorted(
        (event.start_ns(), event.start_ns() + event.duration_ns())
        for event in events
        if str(event.device_type()).endswith("CUDA")
    )
    busy = end = 0
    for begun, ended in intervals:
        busy += max(0, ended - max(begun, end))
        end = max(end, ended)
    return busy / 1e9 / seconds if busy else None


def measure(pipeline: Pipeline, folder: Path, texts: list[str], rounds: int) -> list[str]:
    """Return the figures of a decoder."""
    text, part, out = folder / "text", folder / "part", folder / "out"
    text.write_text("".join(f"{line}\n" for line in texts))
    part.write_text("".join(f"{line}\n" for line in texts[: PROFILED * pipeline.window]))
    _, *timed = (translate_file(pipeline, text, out) for _ in range(1 + rounds))
    seconds = [run.seconds for run in timed]
    median = statistics.median(seconds)
    decoding = statistics.median(run.decoding / run.seconds for run in timed)
    busy = busy_share(partial(translate_file, pipeline, part, out))
    return [
        f"{len(texts):,}",
        f"{median:.2f}",
        f"{min(seconds):.2f}–{max(seconds):.2f}",
        f"{timed[0].tokens / median:,.0f}",
        f"{decoding:.1%}",
        "–" if busy is None else f"{busy:.1%}",
    ]


def stages(translator: Translator, texts: list[str]) -> str:
    """Return microseconds a sentence to tokenise, and to detokenise."""
    translator.encode(texts)
    start = time.perf_counter()
    encoded = translator.encode(texts)
    middle = time.perf_counter()
    for tokens in encoded:
        translator.detokenise(tuple(tokens))
    end = time.perf_counter()
    per_text = 1e6 / len(texts)
    tokens_each = sum(map(len, encoded)) / len(texts)
    return (
        f"{tokens_each:.1f} tokens a source; µs a sentence: tokenising "
        f"{(middle - start) * per_text:.0f}, detokenising {(end - middle) * per_text:.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--decoders", nargs="+", choices=DECODERS, default=list(DECODERS))
    parser.add_argument("--windows", type=int, default=4, help="of the file; default 4")
    parser.add_argument("--rounds", type=int, default=3, help="default 3")
    parser.add_argument("--length", type=int, default=30, help="of outputs; default 30")
    parser.add_argument("--max-rows", type=int, default=1024, help="default 1024")
    parser.add_argument("--small", action="store_true", help="a tiny model, 60 rows, 8 tokens")
    arguments = parser.parse_args()
    rows, length = (60, 8) if arguments.small else (arguments.max_rows, arguments.length)
    console = Console(width=110)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    machine = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    console.print(f"{machine}; torch {torch.__version__}, transformers {transformers.__version__}")
    table = Table(
        *["decoder", "sentences", "seconds", "from–to", "tokens/s", "decoding", "GPU busy"],
        title=f"file to file, {length} tokens per sentence, medians of {arguments.rounds} rounds",
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        vocabulary = words(400 if arguments.small else 60_000)
        save_model(folder / "model", vocabulary, arguments.small)
        translator = load(f"hf:{folder / 'model'}", device)
        endless = sentences(vocabulary)
        console.print(stages(translator, list(islice(endless, 1000))))
        for decoder in arguments.decoders:
            pipeline = Pipeline(translator, DECODERS[decoder], length, rows)
            texts = list(islice(endless, arguments.windows * pipeline.window))
            figures = measure(pipeline, folder, texts, arguments.rounds)
            print(decoder, *figures, sep="\t", file=sys.stderr, flush=True)
            table.add_row(decoder, *figures)
    console.print(table)


if __name__ == "__main__":
    main()
