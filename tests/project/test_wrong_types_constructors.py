"""Every public constructor with arguments of wrong types works, or says why not."""

from __future__ import annotations

import pytest
import torch

import npad
from cases import best
from npad import (
    MBR,
    NPAD,
    Beam,
    BestOf,
    Diverse,
    Exact,
    Fallback,
    Greedy,
    Hypothesis,
    LengthNormalised,
    MBRDecoding,
    MostProbable,
    Noise,
    Noisy,
    Sampling,
    Special,
    Translation,
    Translator,
)
from npad.distributions import Antithetic, Fixed, Gaussian, Laplace, Orthogonal, StudentT, Uniform
from npad.engine.cost import Counted
from npad.models.cgru.model import AttentionModel
from npad.models.recurrent import RecurrentLM
from npad.models.table import TableModel
from npad.pipelines.transcription import Transcriber
from npad.schedules import Adaptive, Annealed, Cosine, Exponential, FirstSteps, Linear, Power
from npad.selectors import GNMTLength, Rerank
from npad.training.recipe import Recipe
from wrong_types import faults

TABLE = TableModel.random(3, 3, seed=5)
TOY = npad.load("toy")
HYPOTHESIS = Hypothesis((1,), -1.0, True)


def used(make):
    """A constructor whose result is then decoded with: a mistake may not hide until then."""

    def call(**arguments):
        return TRIED[make](make(**arguments))

    return call


def with_decoder(decoder):
    return best(TABLE, decoder, max_length=3)


def with_noise(noise):
    return with_decoder(NPAD(Greedy(), 2, noise))


def with_schedule(schedule):
    return with_noise(Noise(0.3, schedule))


def with_distribution(distribution):
    return with_noise(Noise(0.3, distribution=distribution, relative=distribution.relative_only))


def with_selector(selector):
    return with_decoder(NPAD(Sampling(3), 2, selector=selector))


class Blind:
    """A model that ignores the tokens it reads, so that any begin token will do."""

    def __init__(self, special):
        self.special, self.sites = special, {}

    def start(self, source):
        return torch.zeros(len(source))

    def step(self, state, tokens, perturb=None):
        return torch.zeros(len(tokens), 3), state

    def select(self, state, rows):
        return state[rows]


def with_special(special):
    return best(Blind(special), Beam(2), max_length=3)


def with_translator(translator):
    scores = translator.score(["danke"], ["thanks"])
    return translator.translate(["danke", "na ja"], Beam(2), 5), scores


def with_transcriber(transcriber):
    return transcriber.transcribe([torch.ones(40)], Greedy(), 5)


DECODERS = {
    NPAD: {
        "inner": Beam(2),
        "chains": 2,
        "noise": Noise(0.3),
        "clean_chain": True,
        "seed": 1,
        "selector": MostProbable(),
        "candidates": "best",
        "share_noise": False,
    },
    Beam: {"width": 3, "finish": "shrink", "nbest": 2},
    Sampling: {"samples": 3, "temperature": 0.7, "top_k": 2, "top_p": 0.9, "seed": 1},
    Diverse: {"width": 3, "eta": 0.1, "nbest": 2},
    Exact: {"budget": 50, "beam": Beam(2)},
    BestOf: {"decoders": (Greedy(), Beam(2))},
    MBRDecoding: {"inner": Beam(2), "pseudo_references": Sampling(2), "selector": MBR()},
    Fallback: {
        "first": Greedy(),
        "samples": 2,
        "temperatures": (0.5, 1.0),
        "min_log_prob": -0.1,
        "max_compression": 2.0,
        "seed": 1,
        "text": str,
    },
}
NOISES = {
    Noise: {
        "sigma": 0.3,
        "schedule": Annealed(),
        "distribution": Gaussian(),
        "site": "hidden",
        "relative": False,
    }
}
SCHEDULES = {
    Power: {"p": 0.5},
    Linear: {"steps": 3},
    Cosine: {"steps": 3},
    Exponential: {"decay": 0.5},
    FirstSteps: {"n": 2},
    Adaptive: {"power": 1.0},
}
DISTRIBUTIONS = {
    StudentT: {"nu": 5.0},
    Fixed: {"base": Laplace()},
    Antithetic: {"base": Uniform()},
    Orthogonal: {"block": 4},
}
SELECTORS = {
    LengthNormalised: {"alpha": 1.0},
    GNMTLength: {"alpha": 0.6, "beta": 0.0},
    MBR: {"utility": lambda one, other: 1.0, "text": str},
    Rerank: {"key": lambda one: 0.5},
}
TEXTS = {
    "model": TOY.model,
    "encode": list,
    "detokenise": TOY.detokenise,
    "tokenise": TOY.tokenise,
    "longest": 50,
}
SOUNDS = {
    "model": TABLE,
    "hear": lambda sounds: [0] * len(sounds),
    "detokenise": str,
    "rate": 10,
    "longest": 2.0,
}
TRIED = {
    **dict.fromkeys(DECODERS, with_decoder),
    **dict.fromkeys(NOISES, with_noise),
    **dict.fromkeys(SCHEDULES, with_schedule),
    **dict.fromkeys(DISTRIBUTIONS, with_distribution),
    **dict.fromkeys(SELECTORS, with_selector),
    Special: with_special,
    Translator: with_translator,
    Transcriber: with_transcriber,
    Noisy: lambda model: best(model, Greedy()),
    Counted: lambda model: best(model, Greedy()),
    **dict.fromkeys((Hypothesis, Translation), lambda result: result),
}
CONSTRUCTED = {
    **DECODERS,
    **NOISES,
    **SCHEDULES,
    **DISTRIBUTIONS,
    **SELECTORS,
    Special: {"bos": 3, "eos": 0, "pad": 3},
    Hypothesis: {"tokens": (1,), "log_prob": -1.0, "finished": True, "chain": 0},
    Translation: {
        "text": "x",
        "log_prob": -1.0,
        "hypothesis": HYPOTHESIS,
        "signature": "",
        "alternatives": (),
    },
    Noisy: {"model": TABLE, "noise": Noise(0.3), "seed": 1, "share_noise": False},
    Counted: {"model": TABLE},
    Translator: TEXTS,
    Transcriber: SOUNDS,
}


def on_meta(kind):
    """A model's constructor, without memory for its weights."""

    def call(**arguments):
        with torch.device("meta"):
            return kind(**arguments)

    return call


TABLES = {0: {(): [0.5, 0.5]}}
CALLS = {kind.__name__: (used(kind), valid) for kind, valid in CONSTRUCTED.items()}
CALLS |= {
    "TableModel": (
        lambda **given: best(TableModel(**given), Greedy()),
        {"tables": TABLES, "eos": 0, "dtype": torch.float32, "name": "table"},
    ),
    "TableModel.random": (
        TableModel.random,
        {"vocabulary": 3, "depth": 2, "seed": 1, "sentences": 1, "dtype": torch.float32},
    ),
    "AttentionModel": (
        on_meta(AttentionModel),
        {
            "source_vocabulary": 5,
            "target_vocabulary": 6,
            "units": 8,
            "embedding": 4,
            "cell": "gru",
            "layers": 1,
            "attention": True,
            "dropout": 0.1,
            "initialisation": "glorot",
            "tied": False,
            "eos": 0,
        },
    ),
    "RecurrentLM": (
        on_meta(RecurrentLM),
        {
            "vocabulary": 5,
            "embedding": 4,
            "hidden": 8,
            "cell": "gru",
            "layers": 1,
            "summary": 2,
            "condition": ("input",),
            "special": Special(0, 1, 0),
        },
    ),
    "Recipe": (
        lambda **given: Recipe.from_json(Recipe(**given).to_json()),
        {
            "optimiser": "adam",
            "learning_rate": 0.1,
            "decay": 0.5,
            "anneal": False,
            "clip": 1.0,
            "batch": 64,
            "epochs": 2,
            "updates": 3,
            "patience": 2,
            "validate": 5,
            "checkpoint": 7,
            "precision": "float32",
            "seed": 1,
            "noise": Noise(0.3),
        },
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_gets_one_line(name):
    assert list(faults(name, *CALLS[name])) == []
