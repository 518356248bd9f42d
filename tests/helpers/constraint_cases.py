"""Vocabularies of random pieces, and what rules allow after them."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from npad import Special
from npad.constraints.vocabulary import Vocabulary

EOS = 0
LETTERS = "abAB é„_ 1ß"
pieces = st.lists(st.text(LETTERS, min_size=1, max_size=3), min_size=1, max_size=12)


def vocabulary_of(pieces):
    """Tokens that write these texts and each byte, and a tokenizer that writes bytes."""
    single = [bytes([byte]) for byte in range(256)]
    names = [b"", *single, *(piece.encode() for piece in pieces)]
    return Vocabulary(names, lambda texts: [[1 + b for b in t.encode()] for t in texts], False)


def allowed(rule, memory, size):
    """The tokens that a rule allows after what it remembers."""
    scores = rule.apply(torch.zeros(1, size), memory, EOS, False)
    return {token for token in range(size) if scores[0, token] == 0}


class Start:
    """A model that has only a device."""

    special, sites = Special(0, 0, 0), {}
    device = torch.device("cpu")
