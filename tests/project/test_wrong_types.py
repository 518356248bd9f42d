"""Every public function and constructor with an argument of a wrong type works, or says why not.

The arguments come from signatures and from the fields of registered parts, so that a new parameter
or part inherits the theorem.
"""

from __future__ import annotations

import inspect
from dataclasses import fields, replace
from functools import partial
from itertools import islice

import pytest
import torch

import npad
from cases import best
from npad import NPAD, Beam, Greedy, Hypothesis, Noise, Sampling, Special
from npad.calibrate.calibrate import Options, Pairs
from npad.distributions import DISTRIBUTIONS
from npad.models.cgru.model import AttentionModel
from npad.models.recurrent import RecurrentLM
from npad.models.table import TableModel
from npad.pipelines.transcription import Transcriber
from npad.schedules import SCHEDULES
from npad.search.registry import DECODERS, SELECTORS
from npad.training.recipe import Recipe
from wrong_types import WRONG, assert_answered, assert_wrong_arguments_are_refused

TABLE = TableModel.random(3, 3, seed=5)
TOY = npad.load("toy")
npad_with = partial(NPAD, Greedy(), 2)
DECODED_WITH = {  # a decoder that uses a part: a mistake may not hide until then
    DECODERS: lambda decoder: decoder,
    SCHEDULES: lambda schedule: npad_with(Noise(0.3, schedule)),
    DISTRIBUTIONS: lambda drawn: npad_with(
        Noise(0.3, distribution=drawn, relative=drawn.relative_only)
    ),
    SELECTORS: lambda selector: NPAD(Sampling(3), 2, selector=selector),
}
PARTS = [(kind, used) for registry, used in DECODED_WITH.items() for kind in registry]
PARTS += [(partial(Noise, 0.3), npad_with)]
SOUNDS = {
    "model": TABLE,
    "hear": lambda sounds: [0] * len(sounds),
    "detokenise": str,
    "rate": 10,
    "longest": 2.0,
}
ATTENTION = {"source_vocabulary": 5, "target_vocabulary": 6, "units": 8, "embedding": 4}
RECURRENT = {"vocabulary": 5, "embedding": 4, "hidden": 8, "cell": "gru", "layers": 1, "summary": 2}


def on_meta(kind):
    """A model's constructor, without memory for its weights."""

    def make(**arguments):
        with torch.device("meta"):
            return kind(**arguments)

    make.__signature__ = inspect.signature(kind)  # type: ignore[attr-defined]
    return make


def streamed(**arguments):
    return list(islice(TOY.stream(**arguments), 3))


streamed.__signature__ = inspect.signature(TOY.stream)  # type: ignore[attr-defined]
FUNCTIONS = {
    "decode": (npad.decode, {"model": TABLE, "source": [0, 0], "decoder": Beam(2), "ids": [1, 2]}),
    "score": (npad.score, {"model": TABLE, "source": [0], "targets": [[[1], [2, 1]]]}),
    "load": (npad.load, {"name": "toy"}),
    "signature": (npad.signature, {"decoder": Beam(2), "model": TABLE}),
    "check_model": (npad.testing.check_model, {"model": TABLE, "source": [0, 0]}),
    "translate": (TOY.translate, {"sources": ["danke"], "max_length": 5}),
    "stream": (streamed, {"sources": ["danke"], "max_length": 5}),
    "Translator.score": (TOY.score, {"texts": ["danke"], "translations": ["thanks"]}),
    "too_long": (TOY.too_long, {"texts": ["danke"]}),
    "Transcriber": (Transcriber, SOUNDS),
    "transcribe": (Transcriber(**SOUNDS).transcribe, {"sources": [torch.ones(30)]}),
    "Noisy": (npad.Noisy, {"model": TABLE, "noise": Noise(0.3)}),
    "Special": (Special, {"bos": 3, "eos": 0, "pad": 3}),
    "Hypothesis": (Hypothesis, {"tokens": (1,), "log_prob": -1.0, "finished": True}),
    "TableModel": (TableModel, {"tables": {0: {(): [0.5, 0.5]}}}),
    "TableModel.random": (TableModel.random, {"vocabulary": 3, "depth": 2, "seed": 1}),
    "AttentionModel": (on_meta(AttentionModel), ATTENTION),
    "RecurrentLM": (on_meta(RecurrentLM), RECURRENT),
    "Recipe": (Recipe, {}),
    "Pairs": (Pairs.checked, {"sources": ["danke"], "references": ["thanks"]}),
    "Options": (Options, {"budget": 50}),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_wrong_argument_of_a_function_gets_one_line(name):
    assert_wrong_arguments_are_refused(*FUNCTIONS[name])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "used"), PARTS, ids=lambda part: getattr(part, "__name__", ""))
def test_a_wrong_field_of_a_part_gets_one_line(kind, used):
    part = kind()

    def decode(**changes):
        return best(TABLE, used(replace(part, **changes)), max_length=3)

    for field in fields(part):
        for value in WRONG:
            assert_answered(decode, **{field.name: value})
