"""English as it is spoken: texts normalised so that word errors are errors of hearing."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
FILLERS = {"hmm", "mm", "mhm", "mmm", "uh", "um"}
SPELLINGS = {"mr": "mister", "mrs": "missus", "dr": "doctor", "st": "saint", "ok": "okay"}
CONTRACTIONS = (
    (r"\bwon't\b", "will not"),
    (r"\bcan't\b", "can not"),
    (r"\bcannot\b", "can not"),
    (r"n't\b", " not"),
    (r"'re\b", " are"),
    (r"'ll\b", " will"),
    (r"'ve\b", " have"),
    (r"'m\b", " am"),
)


def spoken_words(text: str) -> list[str]:
    """Return the words of an English text as they are compared for word error rates.

    - Case, accents, punctuation and what is in brackets, such as [music], do not count.
    - Digits are spelt out one by one: "427" and "4-2-7" are "four two seven". A number that is
      written in words stays as it is: "forty" is not "four zero".
    - Contractions are written out ("won't": "will not"), but for "'s", which has two meanings.
    - Titles are written out ("Mr.": "mister"); fillers ("um") are left out.
    """
    return list(_spoken_words(text))


@lru_cache(maxsize=1 << 16)  # the same few texts are compared many times
def _spoken_words(text: str) -> tuple[str, ...]:
    text = unicodedata.normalize("NFKD", text.replace("’", "'")).lower()
    text = "".join(c for c in text if not unicodedata.combining(c))
    text = re.sub(r"\[[^\]]*\]|\([^)]*\)|<[^>]*>", " ", text)
    for pattern, words in CONTRACTIONS:
        text = re.sub(pattern, words, text)
    text = re.sub(r"[0-9]", lambda digit: f" {DIGITS[int(digit[0])]} ", text)
    plain = [word.strip("'") for word in re.sub(r"[^\w']|_", " ", text).split()]
    return tuple(SPELLINGS.get(word, word) for word in plain if word and word not in FILLERS)


def spoken(text: str) -> str:
    """Return `spoken_words` with spaces between them."""
    return " ".join(spoken_words(text))
