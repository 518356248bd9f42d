"""Prefixes that hypotheses share are read once, and the scores are the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attention_cases import SOURCE, build
from cases import counted
from npad import InvalidInput, score
from npad.engine.cuda_graphs import Graph, bucket
from npad.errors import MemoryWarning, OutOfMemory
from npad.models.cgru.fast import Prepared
from npad.rescoring import strategies
from npad.rescoring.plan import group_size, read_steps, spans
from npad.rescoring.teacher_forcing import CAPTURED_STEPS, LEAST_ROWS, MAX_LOGITS


def near(scores):
    return [pytest.approx(of_sentence, abs=1e-12) for of_sentence in scores]


@given(
    st.integers(0, 2**31),
    st.integers(1, 3),
    st.integers(1, 30),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(1, 4),
)
def test_every_hypothesis_goes_through_its_own_prefixes(
    seed, sentences, n, length, vocabulary, window
):
    random = np.random.default_rng(seed)
    x, reads = (
        random.integers(vocabulary, size=(sentences, n, length)),
        random.integers(length + 1, size=(sentences, n)),
    )
    x = x[:, :, : reads.max()]
    read = [(s, ()) for s in range(sentences)]  # what each row has read, and of which sentence
    sizes = []
    for t, step in enumerate(read_steps(x, reads, window)):
        step = step.padded(step.rows + 2 * step.group_size)
        read = [
            (*read[p][:1], (*read[p][1], token))
            for p, token in zip(step.parents, step.tokens, strict=True)
        ]
        going = {(s, i): (s, tuple(x[s, i, : t + 1])) for s, i in np.argwhere(reads > t)}
        rows = {
            (s, i): int(step.row_of[prefix])
            for (s, i), prefix in zip(np.argwhere(reads > 0), step.prefix_of, strict=True)
            if reads[s, i] > t
        }
        assert {where: read[row] for where, row in rows.items()} == going
        assert len(step.row_of) == len(set(rows.values())) == len(set(going.values()))  # each once
        assert all(step.owners[row // step.group_size] == s for (s, _), row in rows.items())
        assert len(step.parents) == len(step.owners) * step.group_size
        sizes.append(step.group_size)
    assert all(len(set(sizes[i : i + window])) == 1 for i in range(0, len(sizes), window))


@given(st.integers(1, 5000))
def test_captured_rows_are_of_few_sizes_that_groups_divide(rows):
    captured = bucket(max(LEAST_ROWS, rows))
    assert rows <= captured <= max(LEAST_ROWS, 1.5 * rows)
    assert captured % group_size(100) == 0


@pytest.mark.parametrize("hypotheses", [1, 3, 40])
@pytest.mark.parametrize("limit", [0, 1 << 14])
def test_captured_steps_give_the_same_scores(hypotheses, limit, monkeypatch):
    """On a CPU a replay is a second call."""
    monkeypatch.setattr(Prepared, "capturable", property(lambda self: True))
    monkeypatch.setattr("npad.engine.cuda_graphs.EAGER_CALLS", 1)
    monkeypatch.setattr("npad.rescoring.teacher_forcing.CAPTURED_ROWS", limit)
    plain = build()
    model = Prepared(plain)
    random = np.random.default_rng(hypotheses)
    reads = 2 * CAPTURED_STEPS  # of all but one, so that the last window has one step and few rows
    targets = [
        [random.integers(3, 6, size=random.integers(reads - 3, reads)).tolist() for _ in range(n)]
        for n in [hypotheses] * len(SOURCE)
    ]
    targets[-1][-1] = [6] * reads
    expected = near(score(plain, SOURCE, targets))
    for _ in range(3):
        assert score(model, SOURCE, targets) == expected
    captured = [key for key, entry in model._graphs.entries.items() if isinstance(entry, Graph)]
    assert any(key[0][0] == "prefixes" for key in captured) == (limit > 0)


@pytest.mark.parametrize("least", [1, 4, 100])
def test_a_plan_in_parts_is_the_plan(least, monkeypatch):
    plain = build()
    monkeypatch.setattr("npad.rescoring.teacher_forcing.PLANNED_ROWS", least)
    monkeypatch.setitem(MAX_LOGITS, "cpu", least)
    targets = [[[3, 4, 5, 6], [3, 4], [3, 4, 5], []]] * len(SOURCE)
    expected = near(score(plain, SOURCE, targets))
    assert score(Prepared(plain), SOURCE, targets) == expected


def test_hypotheses_that_do_not_fit_are_rescored_in_halves(monkeypatch):
    plain, read = build(), strategies.BY_PREFIX.read

    def cramped(model, state, found):
        if found.lengths.numel() > 1:
            raise OutOfMemory("no")
        return read(model, state, found)

    monkeypatch.setattr(strategies, "BY_PREFIX", strategies.BY_PREFIX._replace(read=cramped))
    targets = [[[3, 4, 5]] * (1 + i % 2) + [[4]] * (i % 3) for i in range(len(SOURCE))]
    expected = near(score(plain, SOURCE, targets))
    with pytest.warns(MemoryWarning):
        assert score(Prepared(plain), SOURCE, targets) == expected


def test_there_may_be_many_sentences():
    x = np.random.default_rng(0).integers(3, size=(600, 4, 3))
    for step in read_steps(x, np.full((600, 4), 3)):
        assert np.array_equal(np.unique(step.owners), np.arange(600))


@given(st.lists(st.integers(1, 9), max_size=9), st.integers(1, 20))
def test_spans_are_all_there_is_and_never_too_large(sizes, most):
    found = list(spans(sizes, most))
    assert [size for _, some in found for size in sizes[some]] == sizes
    assert [before for before, _ in found] == [sum(sizes[: some.start]) for _, some in found]
    assert all(sum(sizes[some]) <= most or len(sizes[some]) == 1 for _, some in found)


@pytest.mark.parametrize(
    ("targets", "rows"),
    [
        (
            [[[3, 4, 5, 6], [3, 4, 5, 7], [3, 4, 5]]] * len(SOURCE),
            (1 + 1 + 1 + 1 + 2) * len(SOURCE),
        ),
        ([[[], [3, 4]], *[[[]]] * (len(SOURCE) - 1)], len(SOURCE) + 2),
    ],
    ids=["shared", "empty"],
)
def test_a_shared_prefix_is_read_once(targets, rows):
    scores, calls = counted(score, Prepared(build()), SOURCE, targets)
    assert scores == near(score(build(), SOURCE, targets))
    assert calls.rescoring == rows


def test_a_token_that_is_none_is_refused():
    with pytest.raises(InvalidInput, match="token 99 is outside the vocabulary of"):
        score(Prepared(build()), SOURCE, [[[3, 99]]] * len(SOURCE))
