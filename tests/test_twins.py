"""Clean twins beside noisy rows give the scores that re-scoring gives."""

from __future__ import annotations

import pytest

from cases import NOISY, assert_same, by_name, recurrent, summaries
from npad import NPAD, Beam, Counted, Greedy, LengthNormalised, Noise, decode
from npad.models.low_precision import LowPrecision
from npad.scoring import judge
from npad.search import npad as module
from test_attention import SOURCE, build

TWINNED = {name: decoder for name, decoder in NOISY.items() if "exact" not in name and "tight" not in name}


@pytest.mark.parametrize("decoder", **by_name(TWINNED))
def test_twins_judge_as_re_scoring_does(decoder, monkeypatch):
    for model, source in ((build(), SOURCE), (recurrent(), summaries(4))):
        expected = decode(model, source, decoder, 9)
        with monkeypatch.context() as patch:
            patch.setattr(module, "twins_pay", lambda model, rows: True)
            patch.setattr(module, "judge", None)  # not asked
            assert_same(decode(model, source, decoder, 9), expected)


@pytest.mark.parametrize("selector", [LengthNormalised()], ids=repr)
def test_selectors_see_the_twins_scores(selector, monkeypatch):
    decoder = NPAD(Beam(3), 4, Noise(0.5), selector=selector)
    expected = decode(build(), SOURCE, decoder, 9)
    monkeypatch.setattr(module, "twins_pay", lambda model, rows: True)
    assert_same(decode(build(), SOURCE, decoder, 9), expected)


def test_twins_pay_where_steps_are_captured_and_rows_few():
    model = build()
    assert not module.twins_pay(model, 50)
    model.capturable = True
    assert module.twins_pay(model, 50)
    assert not module.twins_pay(model, 10**6)
    assert not module.twins_pay(Counted(model), 50)  # which tells a model's calls from its judge's


@pytest.mark.parametrize("clean_chain", [True, False])
def test_chains_in_low_precision_have_no_twins(clean_chain, monkeypatch):
    """A twin of theirs would be in low precision, too, and no judge."""
    judged = []
    monkeypatch.setattr(module, "twins_pay", lambda model, rows: True)
    monkeypatch.setattr(module, "judge", lambda model, *rest, **how: judged.append(model) or judge(model, *rest, **how))
    low = LowPrecision(build().float())
    decode(low, SOURCE, NPAD(Greedy(), 4, Noise(0.5), clean_chain=clean_chain), 9)
    assert judged == [low]
