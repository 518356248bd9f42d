"""npad in a Ray Data pipeline: python examples/ray_data.py FILE [MODEL] [DECODER].

Ray Data keeps no order by default, so the lines carry their numbers and are sorted at the end.
"""

from __future__ import annotations

import sys
from pathlib import Path

import ray
import ray.data

import npad


def main(file: str, model: str = "en-de", decoder: str = "npad(chains=10)") -> None:
    """Translate the lines of a file and print them in order."""
    lines = [
        {"line": number, "text": text}
        for number, text in enumerate(Path(file).read_text().splitlines())
    ]
    ray.init(ignore_reinit_error=True)
    # Actors must leave Ray Data a CPU: with all of them taken it waits forever.
    actors = max(1, int(ray.cluster_resources().get("CPU", 2)) - 1)
    translated = ray.data.from_items(lines).map_batches(
        npad.scale.Translate,
        fn_constructor_kwargs={"model": model, "decoder": decoder},
        concurrency=(1, actors),
        batch_size=64,
    )
    for row in sorted(translated.take_all(), key=lambda row: row["line"]):
        print(row["translation"])


if __name__ == "__main__":
    main(*sys.argv[1:])
