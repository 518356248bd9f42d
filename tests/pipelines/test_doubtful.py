"""Outputs of too little confidence: marked, and decoded again by a fallback."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import npad
from npad import Beam, Decoding, Greedy, InvalidInput, Transcriber

TEXTS = ["danke", "na ja", "", "das ist mir wurst", "ich verstehe nur bahnhof", "danke"]


@pytest.fixture(scope="module")
def toy():
    """The toy, which trusts outputs of one word."""
    return replace(npad.load("toy"), confidence=lambda h: 90.0 if len(h.tokens) == 1 else 10.0)


def outcomes(pipeline, sources, decoding, window=2):
    return list(pipeline.run(sources, decoding, window))


def test_doubtful_outputs_are_those_of_the_fallback_and_all_others_stay(toy):
    greedy, beam = (toy.translate(TEXTS, decoder) for decoder in (Greedy(), Beam(3, nbest=3)))
    marked = outcomes(toy, TEXTS, Decoding(Greedy(), min_confidence=50))
    assert [output.doubtful for output in marked] == [
        output.confidence is not None and output.confidence < 50 for output in greedy
    ]
    assert 0 < sum(output.doubtful for output in marked) < len(TEXTS)
    assert [replace(output, doubtful=False) for output in marked] == greedy
    decoding = Decoding(Greedy(), min_confidence=50, fallback_decoder=Beam(3, nbest=3))
    again = outcomes(toy, TEXTS, decoding)
    for output, first, second in zip(again, marked, beam, strict=True):
        kept = first if not first.doubtful else replace(second, doubtful=second.confidence < 50)
        assert output == kept


def test_nothing_is_decoded_again_without_doubt(toy):
    with npad.count_calls() as calls:
        toy.translate(TEXTS, Greedy())
    with npad.count_calls() as again:
        outcomes(toy, TEXTS, Decoding(Greedy(), min_confidence=5, fallback_decoder=Beam(3)))
    assert calls == again


def test_what_cannot_be_acted_on_is_refused(toy):
    with pytest.raises(InvalidInput, match="this one has none; fit it"):
        outcomes(npad.load("toy"), TEXTS, Decoding(Greedy(), min_confidence=50))
    with pytest.raises(InvalidInput, match="fallback_decoder needs min_confidence"):
        Decoding(Greedy(), fallback_decoder=Beam())
    with pytest.raises(InvalidInput, match=r"min_confidence must be .*100, not 101"):
        Decoding(Greedy(), min_confidence=101)


def test_a_recording_is_as_doubtful_as_its_worst_window():
    """Its confidence is the mean over its words."""
    toy = npad.load("toy")
    model = toy.model
    heard = Transcriber(
        model,
        lambda recordings: [["danke", "na ja"][len(r) > 15000] for r in recordings],
        toy.detokenise,
        rate=8000,
        longest=2.0,
        confidence=lambda h: 90.0 if len(h.tokens) == 1 else 10.0,
    )
    sound = torch.sin(torch.arange(28000) / 5.0)
    (output,) = heard.run([sound], Decoding(Greedy(), min_confidence=50))
    windows = [window.output for window in output.windows]
    assert len({window.doubtful for window in windows}) == 2
    assert output.doubtful
    weights = [1 + len(window.text.split()) for window in windows]
    pairs = zip(weights, windows, strict=True)
    assert output.confidence == pytest.approx(
        sum(w * window.confidence for w, window in pairs) / sum(weights)
    )
