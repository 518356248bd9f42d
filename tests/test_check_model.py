"""check_model finds each way of breaking the contract, and says which in words."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from cases import recurrent, summaries
from npad import ContractError, Special
from npad.models.recurrent import RecurrentLM
from npad.testing import CHECKS, check_model


class Sound(RecurrentLM):
    """A model that keeps the contract; the broken ones below change one thing."""

    def __init__(self):
        super().__init__(9, 6, 8, "gru", 2, 4)
        torch.manual_seed(0)
        for parameter in self.parameters():
            torch.nn.init.normal_(parameter, std=0.7)


class WrongRows(Sound):
    def step(self, state, tokens, perturb=None):
        logits, state = super().step(state, tokens, perturb)
        return logits[:-1], state


class ReturnsNaN(Sound):
    def step(self, state, tokens, perturb=None):
        logits, state = super().step(state, tokens, perturb)
        return logits * torch.nan, state


class OneState(Sound):
    """All states are the same buffer."""

    def step(self, state, tokens, perturb=None):
        logits, after = super().step(state, tokens, perturb)
        state.hidden.copy_(after.hidden)
        return logits, state

    def select(self, state, rows):
        if torch.equal(rows, torch.arange(state.hidden.shape[1])):
            return state  # saves a copy, and breaks every decoder
        return super().select(state, rows)


class ForgetsPast(Sound):
    def select(self, state, rows):
        chosen = super().select(state, rows)
        return type(chosen)(chosen.hidden[:, :1].expand_as(chosen.hidden), None, chosen.summary, chosen.sentence)


class MixesSentences(Sound):
    def start(self, source):
        return super().start(source + source.mean(0))


class ForcedOffByOne(Sound):
    def forced(self, state, tokens):
        return super().forced(state, tokens).roll(1, 1)


class UndeclaredSite(Sound):
    def __init__(self):
        super().__init__()
        del self.sites["embedding"]


class SilentSite(Sound):
    def __init__(self):
        super().__init__()
        self.sites["attention"] = 8


class WrongWidth(Sound):
    def __init__(self):
        super().__init__()
        self.sites["hidden"] = 8


class IgnoresPerturb(Sound):
    def step(self, state, tokens, perturb=None):
        if perturb is not None:
            super().step(state, tokens, perturb)
        return super().step(state, tokens)


class HasDropout(Sound):
    def step(self, state, tokens, perturb=None):
        logits, state = super().step(state, tokens, perturb)
        return torch.nn.functional.dropout(logits, 0.5), state


class BadAttention(Sound):
    def attention(self, state):
        return torch.ones(state.hidden.shape[1], 5)


class NoSpecial(Sound):
    def __init__(self):
        super().__init__()
        self.special = (0, 1, 0)


class EndOutside(Sound):
    def __init__(self):
        super().__init__()
        self.special = Special(0, 99, 0)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (WrongRows, "step returned 2 rows of logits for the 3 sentences"),
        (ReturnsNaN, "step returned NaN"),
        (OneState, "select must copy what step writes to"),
        (ForgetsPast, "do not continue from the past of the rows selected"),
        (MixesSentences, "sentence 0 alone predicts other than in the batch"),
        (ForcedOffByOne, "forced predicts other than stepping"),
        (UndeclaredSite, "step calls perturb('embedding', …), which sites does not declare"),
        (SilentSite, "the site 'attention' is declared but step never calls"),
        (WrongWidth, "the site 'hidden' is declared 8 wide, but step perturbs 16 units"),
        (IgnoresPerturb, "what perturb returns at 'hidden' has no effect"),
        (HasDropout, "two runs on the same input differ; is dropout on?"),
        (BadAttention, "attention weights must be non-negative and add up to 1"),
        (NoSpecial, "special must be npad.Special(bos, eos, pad)"),
        (EndOutside, "the end symbol 99 is not among the 9 symbols"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_what_is_broken_is_said_in_words(broken, words):
    with pytest.raises(ContractError) as caught:
        check_model(broken(), summaries(3, torch.float32))
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{broken.__name__} breaks the contract of npad.Model")


def test_a_sound_model_passes_every_check():
    assert len(check_model(Sound(), summaries(3, torch.float32))) == len(CHECKS)


def test_one_sentence_is_enough_and_none_is_not():
    check_model(recurrent(), summaries(1))
    with pytest.raises(ContractError, match="give at least one sentence"):
        check_model(recurrent(), summaries(0))


def test_an_exception_in_the_model_is_a_finding():
    model = SimpleNamespace(special=Special(0, 1, 0), sites={}, start=lambda source: 1 / 0, step=None)
    with pytest.raises(ContractError, match="raised ZeroDivisionError"):
        check_model(model, [1])
