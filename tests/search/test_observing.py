"""An observer sees every step of a search, and changes nothing."""

from __future__ import annotations

import itertools

import pytest
import torch

from cases import PLAIN, assert_same, recurrent, summaries
from npad import NPAD, Beam, Exact, Greedy, Noise, Sampling, decode
from npad.engine.cost import count_calls
from npad.engine.deadline import Stopped, stopped_by
from npad.models import toy
from npad.models.table import TableModel
from npad.search.observing import observed_by

DECODERS = PLAIN | {
    "npad": NPAD(Greedy(), 5, Noise(0.5)),
    "npad beam": NPAD(Beam(2), 3, Noise(0.5)),
}


@pytest.mark.parametrize("decoder", DECODERS.values(), ids=DECODERS)
def test_an_observer_changes_nothing(decoder):
    model, source = recurrent(), summaries(4)
    with observed_by(lambda progress: progress.prefixes()):
        observed = decode(model, source, decoder, 7)
    assert_same(observed, decode(model, source, decoder, 7))


def test_the_prefixes_of_greedy_search_grow_to_its_output():
    seen = []
    with observed_by(lambda progress: seen.append(progress.prefixes().to_lists()[0][0])):
        ((best,),) = decode(toy.model(), ["das ist mir wurst"], Greedy(), 10)
    assert [prefix.tokens for prefix in seen] == [
        *(best.tokens[:t] for t in range(1, len(best.tokens) + 1)),
        best.tokens,
    ]
    assert [prefix.finished for prefix in seen] == [False] * len(best.tokens) + [True]


def test_a_beams_prefixes_are_its_ended_and_its_live_ones():
    seen = []
    with observed_by(lambda progress: seen.append(progress.prefixes().to_lists()[0])):
        decode(toy.model(), ["na ja"], Beam(3, nbest=3), 10)
    assert all(len(rows) == 3 for rows in seen[:2])
    assert sorted(toy.detokenise(row.tokens) for row in seen[0]) == ["", "oh", "well"]
    assert [row.finished for row in seen[0]] == [True, False, False]


def test_the_rows_of_samples_keep_their_places():
    seen = []
    model = TableModel.random(5, 6, seed=1, dtype=torch.float64)
    with observed_by(lambda progress: seen.append(progress.prefixes().to_lists()[0])):
        decode(model, [0], Sampling(6), 6)
    for before, after in itertools.pairwise(seen):
        for row, longer in zip(before, after, strict=True):
            assert longer.tokens[: len(row.tokens)] == row.tokens


@pytest.mark.parametrize("decoder", DECODERS.values(), ids=DECODERS)
def test_the_calls_of_all_windows_are_those_of_the_search(decoder):
    if isinstance(decoder, Exact):
        pytest.skip("exact search steps outside the loop")
    reported = []
    with (
        count_calls() as counted,
        observed_by(lambda progress: reported.append(progress.calls * len(progress.groups))),
    ):
        decode(recurrent(), summaries(4), decoder, 7)
    assert sum(reported) == counted.search


def test_chains_and_ids_name_the_groups():
    seen = []
    with observed_by(lambda progress: seen.append((progress.ids, progress.chains))):
        decode(recurrent(), summaries(2), NPAD(Greedy(), 3, Noise(0.5)), 7, ids=[8, 9])
    assert seen[0] == ([8, 8, 8, 9, 9, 9], [0, 1, 2, 0, 1, 2])


def test_an_exception_in_an_observer_ends_the_search():
    def observer(progress):
        if progress.step == 2:
            raise KeyError

    with observed_by(observer), pytest.raises(KeyError):
        decode(recurrent(), summaries(2), Greedy(), 7)


@pytest.mark.parametrize("decoder", [Greedy(), Beam(3), NPAD(Greedy(), 3), Exact(1000)], ids=str)
def test_a_search_stops_within_a_step(decoder):
    model, asked = TableModel.random(5, 9, seed=1), []

    def condition():
        asked.append(None)
        return len(asked) == 2

    with stopped_by(condition), pytest.raises(Stopped):
        decode(model, [0], decoder, 9)
    assert len(asked) == 2
