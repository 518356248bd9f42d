"""A model that breaks its contract, or does not fit in memory, is an error of one line."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from cases import EVERY, Stateless, by_name, recurrent, summaries
from npad import (
    NPAD,
    Beam,
    Diverse,
    Greedy,
    InvalidInput,
    Noise,
    Noisy,
    Sampling,
    Special,
    decode,
    score,
)
from npad.errors import ModelError, OutOfMemory
from npad.model import device_of
from npad.models.table import TableModel

every = pytest.mark.parametrize("decoder", **by_name(EVERY))


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
        lambda: score(model, summaries(1), [[[2]]]),
        lambda: decode(Noisy(model, Noise(0.3)), summaries(2), Greedy(), 5),
    ):
        with pytest.raises(
            InvalidInput, match=r"in training mode .* would apply dropout: call \.eval\(\) first"
        ):
            call()


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

    def logits(tokens):
        assert len(tokens) == 1
        return torch.zeros(len(tokens), 100_000)

    with pytest.raises(OutOfMemory, match="10,000,000 rows need about"):
        decode(Stateless(Special(0, 1, 0), logits), [0], Sampling(10**7), max_length=2)


@every
def test_an_end_that_cannot_come_is_an_error(decoder):
    model = Broken(lambda x: x)
    for eos in (9, 17, -1):
        model.special = Special(0, eos, 0)
        with pytest.raises(
            ModelError, match=f"the end token {eos} is not among the 9 tokens that .*Broken"
        ):
            decode(model, summaries(2, torch.float32), decoder, 4)


def test_a_failed_allocation_is_one_line_and_other_errors_are_left_alone():
    def fail(logits):
        raise RuntimeError("my own")

    exhaust = Broken(lambda logits: torch.empty(2**60, dtype=torch.uint8))
    with pytest.raises(OutOfMemory, match="this does not fit in memory; lower") as caught:
        decode(exhaust, summaries(2, torch.float32), Greedy())
    assert "\n" not in str(caught.value)
    with pytest.raises(RuntimeError, match=r"^my own$"):
        decode(Broken(fail), summaries(2, torch.float32), Greedy())


def test_a_vocabulary_that_changes_is_an_error():
    with pytest.raises(ModelError, match=r"returned 8 logits per row, and 9 before"):
        decode(Broken(lambda x: x[:, :-1], from_step=3), summaries(2, torch.float32), Greedy(), 6)


class OnlyBuffers(torch.nn.Module):
    """A model without parameters; its `start` returns a tensor on its device."""

    special, sites = Special(eos=0, bos=2, pad=0), {}

    def __init__(self):
        super().__init__()
        self.register_buffer("rows", torch.zeros(2, 2))


class Attribute:
    """A model that is not a module and keeps one in an attribute."""

    def __init__(self):
        self.network = OnlyBuffers()


@pytest.mark.parametrize("model", [OnlyBuffers(), Attribute()], ids=["buffers", "attribute"])
def test_a_model_without_parameters_is_where_its_buffers_are(model):
    getattr(model, "network", model).to("meta")
    assert device_of(model) == torch.device("meta")


def test_a_model_whose_device_cannot_be_found_is_told_to_name_it():
    model = TableModel.random(3, 2)
    hidden = SimpleNamespace(
        special=model.special,
        sites={},
        start=lambda source: torch.zeros(len(source), device="meta"),
        step=model.step,
        select=model.select,
        name="hidden",
    )
    for run in (lambda: decode(hidden, [0], Greedy()), lambda: score(hidden, [0], [[(1,)]])):
        with pytest.raises(ModelError, match=r"on meta.*give the model an attribute `device`"):
            run()
