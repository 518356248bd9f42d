"""check_model finds each way of breaking the contract, and describes it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from cases import EVERY, recurrent, summaries
from npad import Special, decode, score
from npad.errors import ContractError
from npad.model import Layout
from npad.models.recurrent import RecurrentLM
from npad.rescoring import strategies
from npad.rescoring.plan import rectangles
from npad.rows import repeat
from npad.testing import CHECKS, check_model


class Sound(RecurrentLM):
    """A model that keeps the contract; the broken ones below change one thing."""

    def __init__(self):
        super().__init__(9, 6, 8, "gru", 2, 4)
        torch.manual_seed(0)
        for parameter in self.parameters():
            torch.nn.init.normal_(parameter, std=0.7)


def broken(change=None, sites=None, special=None, **methods):
    """A model of which one thing is changed.

    `change` takes what step returns, and its tokens; widths of `sites` are added, None removes one.
    """

    class Broken(Sound):
        def __init__(self):
            super().__init__()
            widths = self.sites | (sites or {})
            self.sites = {site: width for site, width in widths.items() if width is not None}
            self.special = special or self.special

        def step(self, state, tokens, perturb=None):
            logits, state = super().step(state, tokens, perturb)
            return (logits, state) if change is None else change(logits, state, tokens)

    for name, method in methods.items():
        setattr(Broken, name, method)
    return Broken


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
        first = chosen.hidden[:, :1].expand_as(chosen.hidden)
        return type(chosen)(first, None, chosen.summary, chosen.sentence)


class IgnoresPerturb(Sound):
    def step(self, state, tokens, perturb=None):
        if perturb is not None:
            super().step(state, tokens, perturb)
        return super().step(state, tokens)


class ForgetsARow(Sound):
    """select leaves out what belongs to the row."""

    def select(self, state, rows):
        chosen = super().select(state, rows)
        return type(chosen)(chosen.hidden, None, chosen.summary, state.sentence)


class Batched(Sound):
    """Reads the memory of [sentences, rows each] together; takes every select for an expansion."""

    def start(self, source):
        return super().start(source), Layout(len(source), 1)

    def together(self, state, rows):
        inner, layout = state
        sentence = repeat(layout[0], layout[1], inner.hidden.device)[:rows]
        return type(inner)(inner.hidden, None, inner.summary, sentence)

    def step(self, state, tokens, perturb=None):
        logits, inner = super().step(self.together(state, len(tokens)), tokens, perturb)
        return logits, (inner, state[1])

    def forced(self, state, tokens):
        return super().forced(self.together(state, len(tokens)), tokens)

    def select(self, state, rows):
        inner, layout = state
        layout, left = self.after(layout, rows)
        inner = super().select(inner, rows)
        summary = inner.summary if left is None else inner.summary[left]
        return type(inner)(inner.hidden, None, summary, inner.sentence), layout

    def after(self, layout, rows):
        return Layout(layout.sentences, -(-len(rows) // layout.sentences)), None


class NoiseAfter(Sound):
    """The noise enters the state after the transition: the first step has none."""

    def step(self, state, tokens, perturb=None):
        logits, after = super().step(state, tokens)
        if perturb is not None:
            perturb("embedding", torch.zeros(len(tokens), 6))
            perturb("output", torch.zeros(len(tokens), 6))
            hidden = torch.stack([perturb(f"hidden.{i}", h) for i, h in enumerate(after.hidden)])
            after = type(after)(hidden, None, after.summary, after.sentence)
        return logits, after


class RareTokens(Sound):
    """forced is right but for a token that is never likely."""

    def __init__(self):
        super().__init__()
        with torch.no_grad():
            self.logits.bias[5] = -20.0

    def forced(self, state, tokens):
        logits = super().forced(state, tokens)
        logits[..., 5] -= 5
        return logits


class ReturnsViews(OneState):
    """A choice of the first rows is a view of the state that is stepped."""

    def select(self, state, rows):
        chosen = Sound.select(self, state, rows)
        count = len(rows)
        if count < state.hidden.shape[1] and torch.equal(rows, torch.arange(count)):
            return type(chosen)(state.hidden[:, :count], None, chosen.summary, chosen.sentence)
        return chosen


BROKEN = [
    ("2 rows of logits for the 3 sentences", broken(lambda x, state, tokens: (x[:-1], state))),
    ("step returned NaN", broken(lambda x, state, tokens: (x * torch.nan, state))),
    (
        "step 2 returned NaN",
        broken(lambda x, state, tokens: (torch.where(tokens[0] == 0, x, torch.nan), state)),
    ),
    ("is dropout on?", broken(lambda x, state, tokens: (F.dropout(x, 0.5), state))),
    ("seems to return probabilities", broken(lambda x, state, tokens: (x.softmax(-1), state))),
    ("must return (logits, state), not Tensor", broken(lambda x, state, tokens: x)),
    (
        "step must take (state, tokens, perturb=None)",
        broken(step=lambda self, state, tokens: Sound.step(self, state, tokens)),
    ),
    (
        "sentence 0 predicts differently alone and in the batch",
        broken(start=lambda self, source: Sound.start(self, source + source.mean(0))),
    ),
    (
        "forced predicts differently from stepping",
        broken(forced=lambda self, state, x: Sound.forced(self, state, x).roll(1, 1)),
    ),
    ("forced predicts differently from stepping", RareTokens),
    (
        "attention weights must be non-negative and add up to 1",
        broken(attention=lambda self, state: torch.ones(state.hidden.shape[1], 5)),
    ),
    (
        "step calls perturb('embedding', …), which sites does not declare",
        broken(sites={"embedding": None}),
    ),
    ("'attention' is declared but step never calls", broken(sites={"attention": 8})),
    ("declared 12 wide, but step perturbs 16 units", broken(sites={"hidden": 12})),
    ("special must be npad.Special(bos, eos, pad)", broken(special=(0, 1, 0))),
    ("end token 99 is not among the 9 tokens", broken(special=Special(0, 99, 0))),
    ("what perturb returns at 'hidden' has no effect", IgnoresPerturb),
    (
        "what perturb returns at 'hidden' has no effect on the logits of that step; "
        "is it used after it?",
        NoiseAfter,
    ),
    ("select must copy what step writes to", OneState),
    ("select must copy what step writes to", ReturnsViews),
    ("rows do not continue from the past of the selected rows", ForgetsPast),
    ("(recurrent.py, line ", ForgetsARow),
    ("predict differently once select has dropped the others", Batched),
]


@pytest.mark.parametrize(("words", "broken"), BROKEN)
def test_check_model_names_the_broken_rule(words, broken):
    with pytest.raises(ContractError) as caught:
        check_model(broken(), summaries(3, torch.float32))
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{broken.__name__} breaks the contract of npad.Model")


def test_a_sound_model_passes_every_check_that_applies():
    passed = check_model(Sound(), summaries(3, torch.float32))
    assert len(passed) == len(CHECKS) - 1  # it offers no attention


def test_a_layout_follows_from_the_number_of_rows(monkeypatch):
    """What Batched gets wrong, `Layout.after` gets right; and every decoder keeps to it."""

    class Sensible(Batched):
        def after(self, layout, rows):
            return layout.after(rows)

    model, source = Sensible(), summaries(5, torch.float32)
    check_model(model, source)
    with torch.no_grad():
        model.logits.bias[model.special.eos] = 1.0
    for decoder in EVERY.values():
        assert decode(model, source, decoder, 9) == decode(Gathering(model), source, decoder, 9)
    small = strategies.FORCED._replace(parts=lambda reads, on_gpu: rectangles(reads, 8, 8))
    monkeypatch.setattr(strategies, "FORCED", small)
    targets = [[(2, 3), (4,)], [(5,)], [(2,), (3,), (4,)], [(2, 2, 2)], [()]]
    assert score(model, source, targets) == score(Gathering(model), source, targets)


class Gathering(Sound):
    """The same weights, each row with the sentence it reads from."""

    def __init__(self, other):
        super().__init__()
        self.load_state_dict(other.state_dict())
        self.name = type(other).__name__


def test_attention_to_padding_is_found():
    class Padded(Sound):
        def attention(self, state):
            length = 4 if state.hidden.shape[1] > 1 else 2
            return torch.full((state.hidden.shape[1], length), 1 / length)

    message = "sentence 0 has 2 source positions alone, but attends to more in the batch"
    with pytest.raises(ContractError, match=message):
        check_model(Padded(), summaries(3, torch.float32))


def test_a_width_may_be_that_of_each_layer():
    model = Sound()
    model.sites["hidden"] = 16
    check_model(model, summaries(2, torch.float32))
    model.sites["hidden"] = 8
    check_model(model, summaries(2, torch.float32))


def test_one_sentence_is_enough_for_some_checks():
    assert len(check_model(recurrent(), summaries(1))) < len(check_model(recurrent(), summaries(2)))


FAILING = SimpleNamespace(
    special=Special(0, 1, 0), sites={}, start=lambda source: 1 / 0, step=lambda perturb: None
)


@pytest.mark.parametrize(
    ("model", "source", "message"),
    [
        (Sound, [1], r"this is a class: write Sound\(…\), not Sound"),
        (recurrent(), summaries(0), "give at least one sentence"),
        (FAILING, [1], r"ZeroDivisionError: .* \(test_check_model.py, line"),
    ],
    ids=["class", "no sentence", "exception"],
)
def test_a_model_that_cannot_be_checked_is_reported(model, source, message):
    with pytest.raises(ContractError, match=message):
        check_model(model, source)
