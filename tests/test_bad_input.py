"""Every mistake gets one clear line or the sensible result; never a silently wrong answer."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import npad
from cases import EVERY, by_name, recurrent, summaries
from npad import (
    MBR,
    NPAD,
    Adaptive,
    Antithetic,
    Beam,
    BestOf,
    Constant,
    Cosine,
    Diverse,
    Dropout,
    Exact,
    Exponential,
    FirstSteps,
    Fixed,
    GNMTLength,
    Greedy,
    InvalidInput,
    Laplace,
    LengthNormalised,
    Linear,
    ModelError,
    Noise,
    Noisy,
    NpadError,
    Orthogonal,
    OutOfMemory,
    Power,
    Rerank,
    Sampling,
    Special,
    StudentT,
    decode,
)
from npad.models.table import TableModel


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NPAD(chains=0), "chains must be a whole number of at least 1, not 0"),
        (lambda: NPAD(chains=2.5), "chains must be a whole number of at least 1, not 2.5"),
        (lambda: NPAD(candidates="some"), "candidates must be one of 'best', 'all', not 'some'"),
        (lambda: NPAD("beam"), "inner must be a Decoder, such as Beam"),
        (lambda: NPAD(Beam), r"write Beam\(\), not Beam"),
        (lambda: NPAD(noise=0.3), r"noise must be a Noise, such as Noise\(0.3\), not 0.3"),
        (lambda: NPAD(NPAD()), "NPAD cannot be its own inner decoder; use more chains"),
        (lambda: BestOf(Greedy()), "BestOf needs a tuple of decoders"),
        (lambda: BestOf((Greedy(), "beam")), "each of BestOf's decoders must be a Decoder"),
        (lambda: BestOf((NPAD(),)), "BestOf cannot hold NPAD; put it inside"),
        (lambda: NPAD(chains=3, noise=Noise([0.1, 0.2])), "one for each of 3 chains"),
        (
            lambda: NPAD(Exact(), selector=LengthNormalised()),
            "Exact proves the most probable hypothesis",
        ),
        (lambda: NPAD(seed="x"), "seed must be a whole number"),
        (lambda: NPAD(clean_chain="no"), "clean_chain must be True or False, not 'no'"),
        (lambda: NPAD(share_noise=1), "share_noise must be True or False, not 1"),
        (
            lambda: NPAD(selector=MBR),
            r"selector must be a function of the candidates, .*: write MBR\(\), not MBR",
        ),
        (
            lambda: NPAD(selector="mbr"),
            "selector must be a function of the candidates, .* not 'mbr'",
        ),
        (lambda: Exact(beam=5), r"Exact's beam must be a Beam, such as Beam\(5\), not 5"),
        (
            lambda: Noise(0.3, Constant),
            r"schedule must be a function of step .*: write Constant\(\), not Constant",
        ),
        (
            lambda: Noise(0.3, "constant"),
            r"schedule must be a function of step and entropy, such as Constant\(\), not 'con",
        ),
        (
            lambda: Noise(0.3, Laplace()),
            r"schedule must be a function of step and entropy.* not Laplace\(\)",
        ),
        (
            lambda: Noise(0.3, distribution=Laplace),
            r"distribution must be a distribution: write Laplace\(\), not Laplace",
        ),
        (
            lambda: Noise(0.3, distribution="laplace"),
            r"distribution must be a distribution, such as Gaussian\(\)",
        ),
        (lambda: Noise(0.3, relative="no"), "relative must be True or False, not 'no'"),
        (lambda: Fixed(Laplace), r"Fixed's base must be a distribution: write Laplace\(\)"),
        (lambda: Antithetic("x"), "Antithetic's base must be a distribution"),
        (lambda: Beam(0), "width must be a whole number of at least 1, not 0"),
        (lambda: Beam(True), "width must be a whole number of at least 1, not True"),
        (lambda: Beam(3, "stop"), "finish must be one of 'shrink', 'compete', 'pool', not 'stop'"),
        (lambda: Beam(3, nbest=4), "nbest must be at most the width, 3, not 4"),
        (lambda: Beam(3, nbest=0), "nbest must be a whole number of at least 1, not 0"),
        (lambda: Diverse(0), "width must be"),
        (lambda: Diverse(3, eta=-0.1), "eta must be a finite number of at least 0, not -0.1"),
        (lambda: Diverse(3, nbest=4), "nbest must be at most the width"),
        (lambda: Sampling(0), "samples must be a whole number of at least 1, not 0"),
        (lambda: Sampling(temperature=0), "temperature must be a finite number above 0, not 0"),
        (
            lambda: Sampling(temperature=-1.0),
            "temperature must be a finite number above 0, not -1.0",
        ),
        (
            lambda: Sampling(temperature=math.nan),
            "temperature must be a finite number above 0, not nan",
        ),
        (lambda: Sampling(top_k=0), "top_k must be a whole number of at least 1, not 0"),
        (lambda: Sampling(top_p=0.0), "top_p must be a finite number above 0, not 0.0"),
        (lambda: Sampling(top_p=1.5), "top_p must be a share of at most 1, not 1.5"),
        (lambda: Sampling(seed=0.5), "seed must be a whole number"),
        (lambda: Exact(0), "budget must be a whole number of at least 1, not 0"),
        (lambda: Noise(-0.1), "sigma must be a finite number of at least 0, not -0.1"),
        (lambda: Noise(math.nan), "sigma must be a finite number of at least 0, not nan"),
        (lambda: Noise(math.inf), "sigma must be a finite number of at least 0, not inf"),
        (lambda: Noise("0.3"), "sigma must be a finite number of at least 0, not '0.3'"),
        (lambda: Noise((0.1, -1)), "sigma must be a finite number of at least 0, not -1"),
        (lambda: Noise(()), "it is empty"),
        (lambda: Noise(np.array(0.3)), "sigma must be a finite number"),
        (lambda: Noise(torch.tensor(0.3)), "sigma must be a finite number"),
        (
            lambda: Noise(0.3, lambda step: step),
            "schedule must be a function of step and entropy: too many positional",
        ),
        (
            lambda: Noise(0.3, distribution=Dropout()),
            r"Dropout is relative to what it perturbs: write Noise\(0.3, …, rel",
        ),
        (lambda: Noise(0.3, distribution=Fixed(Dropout())), "is relative to what it perturbs"),
        (lambda: Antithetic(Dropout()), "Antithetic needs additive noise; Dropout has no negative"),
        (lambda: StudentT(2.0), "StudentT's nu must be a finite number above 2, not 2.0"),
        (lambda: Orthogonal(17), "Orthogonal's block must be at most 16, not 17"),
        (lambda: Orthogonal(0), "Orthogonal's block must be a whole number of at least 1, not 0"),
        (lambda: Power(-1), "Power's p must be a finite number of at least 0, not -1"),
        (lambda: Linear(0), "Linear's steps must be"),
        (lambda: Cosine(0), "Cosine's steps must be"),
        (lambda: Exponential(0), "Exponential's decay must be a finite number above 0, not 0"),
        (lambda: FirstSteps(0), "FirstSteps' n must be"),
        (lambda: Adaptive(0), "Adaptive's power must be"),
        (lambda: LengthNormalised(-1), "alpha must be"),
        (lambda: GNMTLength(0.6, -1), "beta must be"),
        (
            lambda: MBR("rouge"),
            "utility must be 'chrf', 'bleu', 'wer' or a function of two texts, not 'rouge'",
        ),
        (lambda: Noisy(TableModel, Noise(0.3)), "TableModel"),
        (lambda: Noisy(object(), Noise(0.3)), "object"),
        (
            lambda: Noisy(TableModel.random(3, 2), Noise(0.3), share_noise=1),
            "share_noise must be True or False, not 1",
        ),
        (lambda: Rerank(3), "Rerank needs a function of a Hypothesis, not 3"),
    ],
)
def test_a_wrong_value_is_named_with_its_rule(make, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        make()
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, NpadError)
    assert "\n" not in str(caught.value)


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


def test_special_tokens_must_be_special():
    model = TableModel.random(3, 2)
    model.special = (3, 0, 3)
    with pytest.raises(
        ModelError,
        match=r"TableModel.special must be npad.Special\(bos, eos, pad\), not \(3, 0, 3\)",
    ):
        decode(model, [0], Greedy())


@pytest.mark.parametrize(
    "drop", [torch.nn.Dropout(0.1), torch.nn.LSTM(2, 2, 2, dropout=0.1)], ids=["dropout", "lstm"]
)
def test_a_model_in_training_mode_would_decode_at_random(drop):
    model = recurrent()
    model.add_module("drop", drop)
    decode(model.eval(), summaries(2), Greedy(), 3)
    for call in (
        lambda: decode(model.train(), summaries(2), Greedy(), 3),
        lambda: npad.score(model, summaries(1), [[[2]]]),
    ):
        with pytest.raises(
            InvalidInput, match=r"RecurrentLM is in training mode .* call .eval\(\) first"
        ):
            call()


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


def test_sigmas_may_come_as_an_array():
    assert Noise(torch.linspace(0, 1, 3).tolist()).sigma == (0.0, 0.5, 1.0)
    assert Noise(np.array([0.0, 0.5])).sigma == (0.0, 0.5)


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


class Broken:
    """A sound model whose logits from some step on are something else."""

    def __init__(self, change, from_step=1):
        self.model = recurrent(dtype=torch.float32)
        self.special, self.sites, self.change, self.left = (
            self.model.special,
            self.model.sites,
            change,
            from_step,
        )
        self.start, self.select = self.model.start, self.model.select

    def step(self, state, tokens, perturb=None):
        logits, state = self.model.step(state, tokens, perturb)
        self.left -= 1
        return (self.change(logits) if self.left <= 0 else logits), state


@every
@pytest.mark.parametrize("from_step", [1, 3])
@pytest.mark.parametrize(
    "change",
    [
        lambda x: x * math.nan,
        lambda x: x + math.inf,
        lambda x: x - math.inf,
        lambda x: x.index_fill(1, torch.tensor([2]), math.nan),
    ],
    ids=["nan", "+inf", "all -inf", "one nan"],
)
def test_logits_that_are_no_distribution_are_an_error(decoder, change, from_step):
    with pytest.raises(
        ModelError, match=r"Broken.* returned NaN, \+inf or nothing but −inf as a row of logits"
    ):
        decode(Broken(change, from_step), summaries(3, torch.float32), decoder, max_length=6)


@every
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x[:-1], "returned logits of shape"),
        (lambda x: x[0], "returned logits of shape"),
        (lambda x: x[:, :0], "returned logits of shape"),
        (lambda x: x.long(), "must return floating-point logits"),
        (lambda x: x.tolist(), "must return floating-point logits"),
    ],
    ids=["rows", "flat", "no tokens", "integers", "a list"],
)
def test_logits_of_the_wrong_shape_are_an_error(decoder, change, message):
    with pytest.raises(ModelError, match=message):
        decode(Broken(change), summaries(3, torch.float32), decoder, max_length=6)


@pytest.mark.parametrize(
    "decoder",
    [
        Sampling(10**9),
        Sampling(10**13),
        Beam(10**10),
        Diverse(10**10),
        NPAD(chains=10**10),
        NPAD(Beam(10**5), chains=10**6),
    ],
    ids=repr,
)
def test_more_than_memory_is_refused_before_it_hurts(decoder):
    with pytest.raises(OutOfMemory, match="lower the samples, chains, width or max_length"):
        decode(TableModel.random(3, 2), [0], decoder)


def test_a_large_vocabulary_is_part_of_the_sum():
    """Few tokens, but 10⁷ rows of 10⁵ logits: refused after one step, before the rows exist."""

    class Wide:
        from npad import Special

        special, sites = Special(0, 1, 0), {}

        def start(self, source):
            return torch.zeros(len(source))

        def step(self, state, tokens, perturb=None):
            assert len(tokens) == 1
            return torch.zeros(len(tokens), 100_000), state

        def select(self, state, rows):
            return state[rows]

    with pytest.raises(OutOfMemory, match="10,000,000 rows need about"):
        decode(Wide(), [0], Sampling(10**7), max_length=2)


@every
def test_an_end_that_cannot_come_is_an_error(decoder):
    model = Broken(lambda x: x)
    for eos in (9, 17, -1):
        model.special = Special(0, eos, 0)
        with pytest.raises(
            ModelError, match=f"the end token {eos} is not among the 9 tokens that .*Broken"
        ):
            decode(model, summaries(2, torch.float32), decoder, 4)


def test_a_vocabulary_that_changes_is_an_error():
    with pytest.raises(ModelError, match=r"returned 8 logits per row, and 9 before"):
        decode(Broken(lambda x: x[:, :-1], from_step=3), summaries(2, torch.float32), Greedy(), 6)


def test_a_failed_allocation_is_one_line():
    class Hungry(Broken):
        def step(self, state, tokens, perturb=None):
            torch.empty(2**60, dtype=torch.uint8)

    with pytest.raises(OutOfMemory, match="this does not fit in memory; lower") as caught:
        decode(Hungry(lambda x: x), summaries(2, torch.float32), Greedy())
    assert "\n" not in str(caught.value)


def test_a_models_own_error_is_left_alone():
    class Fails(Broken):
        def step(self, state, tokens, perturb=None):
            raise RuntimeError("my own")

    with pytest.raises(RuntimeError, match=r"^my own$"):
        decode(Fails(lambda x: x), summaries(2, torch.float32), Greedy())


def test_dropout_inside_a_wrapper_is_refused_too():
    model = recurrent()
    model.drop = torch.nn.Dropout(0.5)
    model.train()
    with pytest.raises(InvalidInput, match=r"would apply dropout: call \.eval\(\) first"):
        decode(Noisy(model, Noise(0.3)), summaries(2), Greedy(), 5)
