"""Best of several decoders: all that they find, best first."""

from __future__ import annotations

import torch

from cases import key, recurrent, summaries
from npad import Beam, BestOf, Diverse, Exact, Greedy, Sampling, decode
from npad.models.table import TableModel

DECODERS = (Greedy(), Sampling(3, seed=2), Beam(3, nbest=2), Exact(50))


def test_best_of_returns_all_hypotheses_of_its_decoders_best_first():
    model, source = recurrent(vocabulary=6), summaries(4)
    apart = [decode(model, source, decoder, 7) for decoder in DECODERS]
    together = decode(model, source, BestOf(DECODERS), 7)
    for sentence, found in enumerate(together):
        every = [one for hypotheses in apart for one in hypotheses[sentence]]
        assert sorted(one.tokens for one in found) == sorted(one.tokens for one in every)
        assert [key(one) for one in found] == sorted(map(key, every), reverse=True)


def test_a_proof_is_of_one_decoder_and_not_of_all():
    model = TableModel.random(3, 3, seed=1, dtype=torch.float64)
    assert decode(model, [0], Exact(), 5)[0][0].proven
    assert {one.proven for one in decode(model, [0], BestOf((Exact(), Beam(2))), 5)[0]} == {None}


def test_all_its_candidates_are_those_of_its_decoders():
    plain = BestOf((Beam(3), Greedy(), Diverse(2, 0.1)))
    assert plain.all_candidates() == BestOf((Beam(3, nbest=3), Greedy(), Diverse(2, 0.1, nbest=2)))
