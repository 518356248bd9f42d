"""Every wrong argument of decode gets one clear line; never a silently wrong answer."""

from __future__ import annotations

import math

import pytest
import torch

import npad
from cases import EVERY, by_name, recurrent, summaries
from npad import MBR, NPAD, Beam, Greedy, InvalidInput, Noise, Noisy, Sampling, decode
from npad.errors import ModelError
from npad.models.table import TableModel
from npad.selectors import Rerank

every = pytest.mark.parametrize("decoder", **by_name(EVERY))


@every
@pytest.mark.parametrize("max_length", [0, -3, 2.0, None])
def test_max_length_must_be_positive(decoder, max_length):
    with pytest.raises(InvalidInput, match="max_length must be a whole number of at least 1"):
        decode(TableModel.random(3, 2), [0], decoder, max_length)


@pytest.mark.parametrize("ids", [[], [1], [1, 2, 3]])
def test_ids_must_be_one_a_sentence(ids):
    with pytest.raises(
        InvalidInput,
        match=f"ids must be one integer per sentence: there are 2 sentences, not {len(ids)}",
    ):
        decode(TableModel.random(3, 2), [0, 0], Greedy(), ids=ids)


@pytest.mark.parametrize("ids", [[0.5], ["a"], [None]])
def test_ids_must_be_integers(ids):
    with pytest.raises(InvalidInput, match="ids must be integers"):
        decode(TableModel.random(3, 2), [0], Greedy(), ids=ids)


@pytest.mark.parametrize(
    ("model", "source", "message"),
    [
        (TableModel, [0], r"model must be a model: write TableModel\(…\), not TableModel"),
        (
            npad.load("toy"),
            ["danke"],
            r"Translator is no npad.Model \(its .model is one\): it has no special, sites",
        ),
        (
            [0],
            TableModel.random(3, 2),
            "list is no npad.Model: it has no special, sites, start, step, select",
        ),
        (
            TableModel.random(3, 2),
            (i for i in [0]),
            "source must have a length, one entry per sentence; a generator has none",
        ),
    ],
    ids=["class", "translator", "swapped", "generator"],
)
def test_a_model_must_be_one_and_a_source_must_have_a_length(model, source, message):
    with pytest.raises(InvalidInput, match=message):
        decode(model, source, Greedy())


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        (lambda found: 3.0, r"the selector <lambda> must return a tensor \[1, \d+\], not 3.0"),
        (
            lambda found: found.log_prob[:, :1],
            r"the selector <lambda> must return a tensor \[1, \d+\], not \[1, 1\]",
        ),
        (lambda found: found.log_prob * math.nan, "the selector <lambda> returned NaN"),
        (MBR(lambda a, b: math.nan), "the selector MBR returned NaN"),
        (Rerank(lambda one: None), "Rerank's function must return a number, not None"),
        (Rerank(lambda one: math.nan), "the selector Rerank returned NaN"),
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


def test_a_decoder_must_be_one():
    with pytest.raises(InvalidInput, match="decoder must be a Decoder, such as Beam"):
        decode(TableModel.random(3, 2), [0], "beam")
    with pytest.raises(InvalidInput, match=r"write Beam\(\), not Beam"):
        decode(TableModel.random(3, 2), [0], Beam)


def test_an_unknown_site_lists_those_offered():
    message = "TableModel has no noise site 'embedding'; it offers 'hidden', 'output'"
    with pytest.raises(InvalidInput, match=message):
        decode(TableModel.random(3, 2), [0], NPAD(noise=Noise(0.3, site="embedding")))
    with pytest.raises(
        InvalidInput,
        match=r"RecurrentLM has no noise site 'hidden\.1'; it offers 'hidden', 'hidden\.0', 'emb",
    ):
        Noisy(recurrent(), Noise(0.3, site="hidden.1"))


def test_a_noisy_model_by_itself_has_one_sigma():
    with pytest.raises(InvalidInput, match="is one chain: give it one sigma"):
        decode(Noisy(recurrent(), Noise((0.1, 0.2))), summaries(2), Greedy())
