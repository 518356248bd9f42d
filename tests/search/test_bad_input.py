"""Every wrong argument of decode gets one clear line; never a silently wrong answer."""

from __future__ import annotations

import math

import pytest
import torch

import npad
from cases import recurrent, summaries
from npad import MBR, NPAD, Beam, Greedy, InvalidInput, Noise, Noisy, Sampling, decode
from npad.errors import ModelError
from npad.models.table import TableModel
from npad.selectors import Rerank

TABLE = TableModel.random(3, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(
            ({"max_length": value}, "max_length must be a whole number of at least 1")
            for value in (0, -3, 2.0, None)
        ),
        *(
            ({"ids": ids}, f"one integer per sentence: there are 1 sentences, not {len(ids)}")
            for ids in ([], [1, 2, 3])
        ),
        *(({"ids": ids}, "ids must be integers") for ids in ([0.5], ["a"], [None])),
        ({"decoder": "beam"}, "decoder must be a Decoder, such as Beam"),
        ({"decoder": Beam}, r"write Beam\(\), not Beam"),
        ({"model": TableModel}, r"model must be a model: write TableModel\(…\), not TableModel"),
        (
            {"model": npad.load("toy"), "source": ["danke"]},
            r"Translator is not an npad.Model \(its .model is one\): it has no special, sites",
        ),
        (
            {"model": [0], "source": TABLE},
            "list is not an npad.Model: it has no special, sites, start, step, select",
        ),
        (
            {"source": (i for i in [0])},
            "source must have a length, one entry per sentence; a generator has none",
        ),
        (
            {"decoder": NPAD(noise=Noise(0.3, site="embedding"))},
            "TableModel has no noise site 'embedding'; it offers 'hidden', 'output'",
        ),
        ({"model": Noisy(TABLE, Noise((0.1, 0.2)))}, "is one chain: give it one sigma"),
    ],
)
def test_a_wrong_argument_is_named_with_its_rule(change, message):
    arguments = {"model": TABLE, "source": [0], "decoder": Greedy()} | change
    with pytest.raises(InvalidInput, match=message):
        decode(**arguments)


def test_an_unknown_site_lists_those_offered():
    with pytest.raises(
        InvalidInput,
        match=r"RecurrentLM has no noise site 'hidden\.1'; it offers 'hidden', 'hidden\.0', 'emb",
    ):
        Noisy(recurrent(), Noise(0.3, site="hidden.1"))


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        (lambda candidates: 3.0, r"the selector <lambda> must return a tensor \[1, \d+\], not 3.0"),
        (
            lambda candidates: candidates.log_prob[:, :1],
            r"the selector <lambda> must return a tensor \[1, \d+\], not \[1, 1\]",
        ),
        (lambda candidates: candidates.log_prob * math.nan, "the selector <lambda> returned NaN"),
        (MBR(lambda a, b: math.nan), "the selector MBR returned NaN"),
        (Rerank(lambda hypothesis: None), "Rerank's function must return a number, not None"),
        (Rerank(lambda hypothesis: math.nan), "the selector Rerank returned NaN"),
    ],
)
def test_a_selector_must_say_a_number_for_each(selector, message):
    with pytest.raises(InvalidInput, match=message):
        decode(
            TableModel.random(4, 3),
            [0],
            NPAD(Sampling(5), chains=5, noise=Noise(0.5), selector=selector),
        )


def test_a_schedule_must_return_one_factor_a_row():
    for schedule, got in ((lambda t, e: t[:, None], r"\[4, 1\]"), (lambda t, e: 0.5, "0.5")):
        with pytest.raises(
            InvalidInput, match=rf"the schedule must return a tensor \[4\], not {got}"
        ):
            decode(recurrent(), summaries(2), NPAD(chains=2, noise=Noise(0.3, schedule)), 3)


def test_noise_too_strong_is_named():
    with pytest.raises(
        ModelError, match=r"Noisy\(RecurrentLM\).step returned NaN.* is the noise too strong\?"
    ):
        decode(
            recurrent(dtype=torch.float32),
            summaries(2, torch.float32),
            NPAD(noise=Noise(1e38, lambda t, e: t * 10.0)),
            3,
        )
