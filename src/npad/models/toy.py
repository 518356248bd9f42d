"""A toy translator from German to English for demos: every probability is written in this file."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from npad.errors import InvalidInput
from npad.models.table import Table, TableModel

END = "."

# Phrase -> words written so far -> probability of each next word. A history not listed ends.
PHRASES: dict[str, dict[str, dict[str, float]]] = {
    # A garden path: the likeliest first word leads away from the likeliest sentence.
    "das ist mir wurst": {
        "": {"that": 0.42, "i": 0.38, "it": 0.20},
        "that": {"is": 1.0},
        "that is": {"sausage": 0.34, "my": 0.30, "fine": 0.20, "all": 0.16},
        "that is sausage": {END: 0.60, "to": 0.40},
        "that is sausage to": {"me": 1.0},
        "that is my": {"sausage": 0.55, "problem": 0.45},
        "that is fine": {END: 0.70, "by": 0.30},
        "that is fine by": {"me": 1.0},
        "i": {"do": 0.54, "could": 0.46},
        "i do": {"not": 1.0},
        "i do not": {"care": 0.82, "mind": 0.18},
        "i could": {"not": 1.0},
        "i could not": {"care": 1.0},
        "i could not care": {"less": 0.97, END: 0.03},
        "it": {"is": 0.60, "does": 0.40},
        "it is": {"sausage": 0.50, "nothing": 0.50},
        "it does": {"not": 1.0},
        "it does not": {"matter": 1.0},
    },
    # The best sentence starts with the fourth-best word: narrow beams never see it.
    "ich verstehe nur bahnhof": {
        "": {"i": 0.44, "me": 0.16, "we": 0.15, "it": 0.14, "only": 0.11},
        "i": {"understand": 0.52, "get": 0.26, "see": 0.22},
        "i understand": {"only": 0.60, "nothing": 0.25, "the": 0.15},
        "i understand only": {"station": 0.40, "trains": 0.32, "the": 0.28},
        "i understand only the": {"station": 0.70, "trains": 0.30},
        "i understand the": {"station": 0.60, "trains": 0.40},
        "i get": {"nothing": 0.55, "it": 0.45},
        "i see": {"nothing": 0.50, "the": 0.50},
        "i see the": {"station": 0.60, "trains": 0.40},
        "me": {"understand": 0.50, "see": 0.50},
        "me understand": {"only": 0.50, "trains": 0.50},
        "we": {"understand": 0.60, "see": 0.40},
        "we understand": {"only": 0.55, "nothing": 0.45},
        "we see": {"trains": 0.50, "nothing": 0.50},
        "it": {"is": 1.0},
        "it is": {"all": 0.98, "nothing": 0.02},
        "it is all": {"greek": 0.98, "trains": 0.02},
        "it is all greek": {"to": 1.0},
        "it is all greek to": {"me": 1.0},
        "only": {"station": 0.50, "trains": 0.50},
    },
    # The empty output ends first and others catch up: the finishing rules of a beam of 3 disagree.
    "na ja": {
        "": {"well": 0.45, "oh": 0.35, END: 0.20},
        "well": {"yes": 0.50, "but": 0.48, END: 0.02},
        "well yes": {END: 0.99, "but": 0.01},
        "well but": {END: 0.98, "yes": 0.02},
        "oh": {"well": 0.88, END: 0.10, "yes": 0.02},
        "oh well": {END: 0.60, "i": 0.20, "yes": 0.20},
        "oh well i": {"see": 1.0},
    },
    # Nearly deterministic.
    "danke": {
        "": {"thanks": 0.90, "i": 0.10},
        "thanks": {END: 0.97, "to": 0.03},
        "thanks to": {"me": 1.0},
        "i": {"see": 1.0},
    },
}

WORDS = (
    END,
    *sorted({word for table in PHRASES.values() for row in table.values() for word in row} - {END}),
)


def model() -> TableModel:
    """Return the toy model; its sources are the German phrases."""
    token_of = {word: token for token, word in enumerate(WORDS)}
    tables: dict[Hashable, Table] = {
        phrase: {
            tuple(token_of[word] for word in history.split()): [
                row.get(word, 0.0) for word in WORDS
            ]
            for history, row in table.items()
        }
        for phrase, table in PHRASES.items()
    }
    return TableModel(tables, eos=token_of[END], name="toy")


def detokenise(tokens: tuple[int, ...]) -> str:
    """Return the words of tokens as a text."""
    return " ".join(WORDS[token] for token in tokens)


def tokenise(texts: Sequence[str]) -> list[list[int]]:
    """Return the tokens of each text.

    Raises:
        InvalidInput: a word is not in the vocabulary.
    """
    for word in (word for text in texts for word in text.split()):
        if word not in WORDS[1:]:
            raise InvalidInput(f"toy does not know the word {word!r}")
    return [[WORDS.index(word) for word in text.split()] for text in texts]
