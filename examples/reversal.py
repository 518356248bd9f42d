"""Write a small parallel corpus: sentences of made-up words, and their reversals without fillers.

python examples/reversal.py FOLDER        writes train, valid and test, each .src and .tgt
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

SYLLABLES = [consonant + vowel for consonant in "bdgklmnprst" for vowel in "aeiou"]
# babe, bibo, …
WORDS = [head + tail for head, tail in zip(SYLLABLES[::2], SYLLABLES[1::2], strict=False)]
FILLERS = ["uh", "um", "hm", "er"]
SPLITS = {"train": 3000, "valid": 200, "test": 200}


def pair(generator: random.Random) -> tuple[str, str]:
    """Return a sentence of two to six words with fillers among them, and its reversal."""
    words = generator.choices(WORDS, k=generator.randint(2, 6))
    source = []
    for word in words:
        source += [*generator.choices(FILLERS, k=generator.random() < 0.25), word]
    return " ".join(source), " ".join(reversed(words))


def main(folder: Path) -> None:
    """Write the parallel text of each split into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = random.Random(1)
    for split, size in SPLITS.items():
        sources, targets = zip(*(pair(generator) for _ in range(size)), strict=True)
        (folder / f"{split}.src").write_text("\n".join(sources) + "\n")
        (folder / f"{split}.tgt").write_text("\n".join(targets) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "reversal"))
