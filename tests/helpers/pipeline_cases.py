"""Shared by the tests of pipelines: an untrained model of texts, and models that are watched."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter

import pytest
import torch

from npad import NPAD, Beam, Greedy, Noise, Sampling, Translator
from npad.models.cgru.model import AttentionModel


class Spied:
    """A model that calls `spy` with the number of sentences whenever it starts."""

    def __init__(self, model, spy):
        self.model, self.spy = model, spy
        self.special, self.sites = model.special, model.sites
        self.step, self.select = model.step, model.select

    def start(self, source):
        self.spy(len(source))
        return self.model.start(source)


def spied(translator, spy):
    return replace(translator, model=Spied(translator.model, spy))


DECODERS = {
    "greedy": Greedy(),
    "beam": Beam(3),
    "npad": NPAD(Beam(2), 5, Noise(0.5)),
    "sampling": Sampling(4),
}
decoders = pytest.mark.parametrize("decoder", DECODERS.values(), ids=DECODERS)


def untrained() -> Translator:
    """A model that reads letters and writes numbers."""
    torch.manual_seed(0)
    model = AttentionModel(30, 12, units=8, embedding=6, initialisation="glorot").double().eval()

    def encode(texts):
        return [[1 + ord(letter) % 29 for letter in text] for text in texts]

    return Translator(model, encode, lambda tokens: " ".join(map(str, tokens)))


def sentences(n: int) -> list[str]:
    """Different texts of many lengths, a blank one now and then."""
    return ["" if i % 50 == 7 else f"{i}" * (1 + i * 7 % 11) for i in range(n)]


def assert_alike(outputs, expected):
    for output, same in zip(outputs, expected, strict=True):
        for value in attrgetter("text", "hypothesis.chain", "signature"), alternatives:
            assert value(output) == value(same)
        assert output.log_prob == pytest.approx(same.log_prob, abs=1e-9)


def alternatives(output):
    return [alternative.text for alternative in output.alternatives]
