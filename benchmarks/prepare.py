"""Speed and memory of preparing a token store, at several sizes of generated text.

python benchmarks/prepare.py [--pairs 1000000,4000000]

Words follow Zipf's law, with the faster fall of rare words that text has, over half a million
spellings. Memory is the process's peak anonymous memory (RssAnon in /proc): pages of mapped files
do not count, since the system reclaims them when it needs to. The vocabularies have 30,000 tokens.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

SPELLINGS, WORDS, BLOCK = 500_000, 16, 50_000
CHILD = """
import sys
from npad.training.prepare import prepare
prepare(sys.argv[1], sys.argv[2:4], vocabulary=(30000, 30000))
"""


def spellings(letters: str) -> np.ndarray:
    """Return made-up words, the frequent ones short."""
    random = np.random.default_rng(len(letters))
    syllables = np.array([consonant + vowel for consonant in letters for vowel in "aeiouy"])
    lengths = 1 + np.log2(1 + np.arange(SPELLINGS)).astype(int) // 4
    drawn = random.choice(syllables, (SPELLINGS, lengths.max())).tolist()
    return np.array(["".join(row[:n]) for row, n in zip(drawn, lengths, strict=True)], dtype=object)


def write(path: Path, words: np.ndarray, pairs: int, seed: int) -> None:
    """Write sentences of words drawn by rank."""
    random = np.random.default_rng(seed)
    rank = np.arange(1, SPELLINGS + 1)
    share = 1 / rank / (1 + rank / 5000) ** 0.6
    edges = np.cumsum(share / share.sum())
    with open(path, "w") as file:
        for start in range(0, pairs, BLOCK):
            count = min(BLOCK, pairs - start)
            lengths = random.integers(WORDS // 2, WORDS * 3 // 2, count)
            drawn = words[
                np.searchsorted(edges, random.random(lengths.sum())).clip(max=SPELLINGS - 1)
            ]
            ends = np.cumsum(lengths)
            file.write("\n".join(map(" ".join, np.split(drawn, ends[:-1]))) + "\n")


def measure(folder: Path, files: list[Path]) -> tuple[float, float]:
    """Return the seconds of `prepare` and its peak anonymous memory in MiB."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", CHILD, str(folder), *map(str, files)])
    peak = 0
    while process.poll() is None:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            sizes = (int(line.split()[1]) for line in status if line.startswith("RssAnon"))
            peak = max(peak, *sizes)
        except (OSError, TypeError, ValueError):
            pass  # the process is about to end
        time.sleep(0.05)
    if process.returncode:
        raise SystemExit("prepare failed")
    return time.perf_counter() - start, peak / 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", default="1000000,4000000")
    table = Table("pairs", "seconds", "pairs/s", "peak anonymous memory", "store on disk")
    for pairs in map(int, parser.parse_args().pairs.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            files = [Path(folder) / name for name in ("source", "target")]
            for file, letters in zip(files, ("bdgklmnprstvz", "bcdfghjklmnprstvwxz"), strict=True):
                write(file, spellings(letters), pairs, seed=len(letters))
            store = Path(folder) / "store"
            seconds, peak = measure(store, files)
            disk = sum(path.stat().st_size for path in store.rglob("*") if path.is_file())
        table.add_row(
            f"{pairs:,}",
            f"{seconds:.0f}",
            f"{pairs / seconds:,.0f}",
            f"{peak:,.0f} MiB",
            f"{disk / 2**20:,.0f} MiB",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
