"""Make a small parallel corpus: sentences of made-up words, and the same backwards without the noise words.

python examples/reversal.py FOLDER        writes train, valid and test, each .src and .tgt
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

SYLLABLES = [consonant + vowel for consonant in "bdgklmnprst" for vowel in "aeiou"]
WORDS = [
    first + second for first, second in zip(SYLLABLES[::2], SYLLABLES[1::2], strict=False)
]  # babe, bibo, …
NOISE = ["uh", "um", "hm", "er"]
SPLITS = {"train": 3000, "valid": 200, "test": 200}


def pair(chance: random.Random) -> tuple[str, str]:
    """A sentence of two to six words with noise among them, and its reversal."""
    words = chance.choices(WORDS, k=chance.randint(2, 6))
    noisy = [
        one for word in words for one in (*chance.choices(NOISE, k=chance.random() < 0.25), word)
    ]
    return " ".join(noisy), " ".join(reversed(words))


def main(folder: Path) -> None:
    """Write the parallel texts of every split into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = random.Random(1)
    for split, size in SPLITS.items():
        sources, targets = zip(*(pair(chance) for _ in range(size)), strict=True)
        (folder / f"{split}.src").write_text("\n".join(sources) + "\n")
        (folder / f"{split}.tgt").write_text("\n".join(targets) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "reversal"))
