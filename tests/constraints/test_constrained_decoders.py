"""Theorems that hold for every decoder over constrained models."""

from __future__ import annotations

import re
from math import exp

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from cases import (
    EVERY,
    FOUR,
    PLAIN,
    WAYS,
    assert_clean_scores,
    assert_same,
    by_name,
    in_fours,
    key,
    recurrent,
    summaries,
    tables,
)
from npad import NPAD, Beam, Diverse, Exact, InvalidInput, anytime, decode, score
from npad.constraints import Choices, Constrained, Constraint, Prefix, With, Without
from npad.constraints.kinds import Both
from npad.decoding import search
from npad.rows import places_among_equals

every = pytest.mark.parametrize("decoder", **by_name(EVERY))


def keeps(constraint: Constraint, output) -> bool:
    """Whether an output of a table satisfies a constraint, by its definition."""
    tokens = output.tokens
    if isinstance(constraint, Prefix):
        return tokens[: len(constraint.text)] == constraint.text
    if isinstance(constraint, Choices):
        return output.finished and tokens in constraint.choices
    if isinstance(constraint, Without):
        return not any(has(tokens, phrase) for phrase in constraint.phrases)
    if isinstance(constraint, With):
        return all(has(tokens, phrase) for phrase in constraint.phrases)
    assert isinstance(constraint, Both)
    return keeps(constraint.first, output) and keeps(constraint.second, output)


def has(tokens, phrase) -> bool:
    """Whether tokens hold a phrase."""
    places = range(len(tokens) - len(phrase) + 1)
    return any(tokens[place : place + len(phrase)] == phrase for place in places)


@st.composite
def constrained_tables(draw, sentences=1):
    """A random table, and a constraint in its tokens."""
    model = draw(tables(sentences=sentences))
    token = st.integers(1, model.vocabulary - 1)
    texts = st.lists(token, max_size=3).map(tuple)
    prefix = st.builds(Prefix, texts)
    choices = st.builds(Choices, st.lists(texts, min_size=1, max_size=5).map(tuple))
    phrases = st.lists(st.lists(token, min_size=1, max_size=3).map(tuple), min_size=1, max_size=2)
    without, within = (st.builds(kind, phrases.map(tuple)) for kind in (Without, With))
    several = st.builds(lambda a, b: a & b, prefix, st.one_of(choices, without, within))
    return model, draw(st.one_of(prefix, choices, without, within, several))


def allowed(model, constraint, sentence, max_length):
    """The outputs that satisfy a constraint, and their log-probabilities, by enumeration."""
    return {
        (output.tokens, output.finished): output.log_prob
        for output in model.outputs(sentence, max_length)
        if keeps(constraint, output)
    }


def without_required(constraint: Constraint) -> Constraint:
    """The constraint, whose required phrases only rank outputs."""
    if isinstance(constraint, Both):
        return without_required(constraint.first) & without_required(constraint.second)
    return Prefix(()) if isinstance(constraint, With) else constraint


def found_by(model, constraint, decoder, sources, max_length, ids=None):
    return search(Constrained(model, constraint), sources, decoder, max_length, ids, None)


@every
@in_fours
@given(case=constrained_tables(sentences=4), max_length=st.integers(1, 5))
def test_outputs_satisfy_the_constraint_with_the_models_own_log_prob(decoder, case, max_length):
    model, constraint = case
    for sentence, hypotheses in enumerate(found_by(model, constraint, decoder, FOUR, max_length)):
        possible = allowed(model, constraint, sentence, max_length)
        every = allowed(model, without_required(constraint), sentence, max_length)
        for hypothesis in hypotheses:
            output = hypothesis.tokens, hypothesis.finished
            assert hypothesis.met == (output in possible)
            assert hypothesis.log_prob == pytest.approx(every[output], abs=1e-9)
        order = [(h.met, *key(h)) for h in hypotheses]
        assert order == sorted(order, reverse=True)


@pytest.mark.parametrize("decoder", [EVERY[way] for way in WAYS], ids=WAYS)
@in_fours
@given(case=constrained_tables(sentences=4), order=st.permutations(FOUR))
def test_a_sentence_decodes_alike_alone_and_in_a_batch(decoder, case, order):
    model, constraint = case
    together = found_by(model, constraint, decoder, FOUR, 5, [70, 71, 72, 73])
    shuffled = found_by(model, constraint, decoder, order, 5, [70 + i for i in order])
    assert_same(shuffled, [together[i] for i in order])
    for i in FOUR:
        assert_same(found_by(model, constraint, decoder, [i], 5, [70 + i]), [together[i]])


@given(case=constrained_tables(), max_length=st.integers(1, 5))
def test_exact_search_is_enumeration_under_the_constraint(case, max_length):
    model, constraint = case
    possible = allowed(model, constraint, 0, max_length)
    if "with(" in str(constraint):  # of outputs that are cut, the best may lack a phrase
        possible = {output: p for output, p in possible.items() if output[1]}
        if not possible:
            return
    if not possible:
        with pytest.raises(InvalidInput) as caught:
            decode(Constrained(model, constraint), [0], Exact(1000), max_length)
        assert str(constraint) in str(caught.value)
        return
    ((best,),) = decode(Constrained(model, constraint), [0], Exact(1000), max_length)
    finished, log_prob = max((finished, p) for (_, finished), p in possible.items())
    assert (best.finished, best.log_prob) == (finished, pytest.approx(log_prob, abs=1e-9))
    assert best.proven


@given(
    model=tables(), texts=st.sets(st.lists(st.integers(1, 3), max_size=3).map(tuple), min_size=1)
)
def test_scores_of_choices_are_their_posterior_and_exact_search_finds_its_mode(model, texts):
    texts = [text for text in texts if all(token < model.vocabulary for token in text)] or [()]
    choices = Choices((*texts,))
    probabilities = {output[0]: exp(p) for output, p in allowed(model, choices, 0, 4).items()}
    total = sum(probabilities.values())
    assume(total > 0)
    (scores,) = score(model, [0], [texts])
    posterior = torch.tensor(scores, dtype=torch.float64).softmax(0).tolist()
    expected = [probabilities.get(text, 0.0) / total for text in texts]
    assert posterior == pytest.approx(expected, abs=1e-9)
    ((best,),) = decode(Constrained(model, choices), [0], Exact(1000), 4)
    assert best.proven
    assert posterior[texts.index(best.tokens)] == pytest.approx(max(posterior))


@pytest.mark.parametrize("name", ["greedy", "shrink", "nbest", "stochastic", "exact"])
@in_fours
@given(case=constrained_tables(sentences=4))
def test_npad_is_never_below_its_inner_decoder(name, case):
    model, constraint = case
    inner = found_by(model, constraint, PLAIN[name], FOUR, 5)
    noisy = found_by(model, constraint, EVERY[f"npad-{name}"], FOUR, 5)
    for plain, better in zip(inner, noisy, strict=True):
        assert [(h.met, *key(h)) for h in plain[:1]] <= [(h.met, *key(h)) for h in better[:1]]


@given(case=constrained_tables(sentences=4), max_length=st.integers(1, 5))
def test_anytime_ends_with_what_decode_returns(case, max_length):
    model, constraint = case
    constrained, decoder = Constrained(model, constraint), NPAD(Beam(2), chains=3)
    try:
        expected = decode(constrained, FOUR, decoder, max_length)
    except InvalidInput as error:
        with pytest.raises(InvalidInput, match=re.escape(str(error))):
            list(anytime(constrained, FOUR, decoder, max_length=max_length))
        return
    *_, answer = anytime(constrained, FOUR, decoder, max_length=max_length)
    assert_same(answer.hypotheses, expected)


@given(case=constrained_tables(), width=st.integers(1, 4))
def test_scores_do_not_depend_on_the_precision_of_the_mask(case, width):
    """Nested constraints are one after the other, and neither normalises again."""
    model, constraint = case
    nested = Constrained(Constrained(model, constraint), Prefix(()))
    once = search(Constrained(model, constraint), [0], Beam(width), 5, None, None)
    assert_same(search(nested, [0], Beam(width), 5, None, None), once)


@given(rows=st.lists(st.lists(st.integers(-1, 3), min_size=1, max_size=9), min_size=1, max_size=3))
def test_places_among_equals_are_counted(rows):
    """So a beam's memory grows with its children, not with their pairs."""
    rows = [row[: min(map(len, rows))] for row in rows]
    expected = [[row[:i].count(x) for i, x in enumerate(row)] for row in rows]
    assert places_among_equals(torch.tensor(rows)).tolist() == expected


@pytest.mark.parametrize("finish", ["shrink", "compete", "pool"])
@pytest.mark.parametrize("width", [1, 5])
@pytest.mark.parametrize(
    "phrases",
    [((7, 8, 9), (30,), (12, 13)), ((7, 8, 9), (7, 9), (7, 10, 7), (7, 11, 12), (30, 7))],
    ids=["apart", "alike"],
)
def test_a_beam_writes_all_required_phrases(width, finish, phrases):
    """However improbable they are: slots are reserved for prefixes that have more of them."""
    model = recurrent(vocabulary=40, ends=6.0)
    required = With(phrases)
    decoder = Beam(width, finish)
    found = decode(Constrained(model, required), summaries(4), decoder, 40)
    for (hypothesis,) in found:
        assert (hypothesis.met, hypothesis.finished) == (True, True)
        assert all(has(hypothesis.tokens, phrase) for phrase in required.phrases)
    assert_clean_scores(model, summaries(4), found)
    (free,) = decode(model, summaries(1), decoder, 40)
    assert not keeps(required, free[0])


@pytest.mark.parametrize("decoder", [Beam(3), Diverse(3), Exact(50), NPAD(Diverse(3), 2)], ids=repr)
def test_searches_of_prefixes_refuse_what_cannot_be_satisfied(decoder):
    model = recurrent(vocabulary=5)
    both = With(((3,),)) & Without(((3,),))
    with pytest.raises(InvalidInput, match=re.escape("satisfies with(3)&without(3)")):
        decode(Constrained(model, both), summaries(2), decoder, 4)
