"""Write a synthetic parallel corpus: invented words with fillers, and the same words reversed.

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
FILLERS = ["uh", "um", "hm", "er"]
SPLITS = {"train": 3000, "valid": 200, "test": 200}


def sentence_pair(rng: random.Random) -> tuple[str, str]:
    """Return a sentence of two to six words with fillers, and the words reversed without them."""
    words = rng.choices(WORDS, k=rng.randint(2, 6))
    source = []
    for word in words:
        source += [*rng.choices(FILLERS, k=rng.random() < 0.25), word]
    return " ".join(source), " ".join(reversed(words))


def main(folder: Path) -> None:
    """Write the parallel text of every split into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(1)
    for split, size in SPLITS.items():
        sources, targets = zip(*(sentence_pair(rng) for _ in range(size)), strict=True)
        (folder / f"{split}.src").write_text("\n".join(sources) + "\n")
        (folder / f"{split}.tgt").write_text("\n".join(targets) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "reversal"))
