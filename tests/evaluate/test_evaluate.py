"""The figures of a test set, each held to what it says it is."""

from __future__ import annotations

import pytest
import sacrebleu

import npad
from cases import counting_tokeniser
from npad import NPAD, Beam, InvalidInput, Noise, Sampling
from npad.engine.cost import Counted
from npad.evaluate.report import distinct, evaluate

TOY = npad.load("toy")
PHRASES = ["das ist mir wurst", "danke", "na ja", "ich verstehe nur bahnhof"]
REFERENCES = ["i could not care less", "thanks", "oh well", "it is all greek"]


@pytest.mark.parametrize(
    "decoder",
    [Beam(3), NPAD(chains=4, noise=Noise(0.5)), Sampling(6)],
    ids=["beam", "npad", "sampling"],
)
def test_the_figures_are_those_of_the_translations(decoder):
    report, outputs = evaluate(TOY, PHRASES, REFERENCES, decoder)
    assert outputs == TOY.translate(PHRASES, decoder)
    texts = [one.text for one in outputs]
    assert report.nll == pytest.approx(-sum(one.log_prob for one in outputs) / 4)
    assert report.bleu == sacrebleu.corpus_bleu(texts, [REFERENCES]).score
    assert report.chrf == sacrebleu.corpus_chrf(texts, [REFERENCES]).score
    assert report.length_ratio == sum(len(text.split()) for text in texts) / sum(
        len(r.split()) for r in REFERENCES
    )
    counts = [len({one.text, *(other.text for other in one.alternatives)}) for one in outputs]
    assert report.unique == sum(counts) / 4
    counted = Counted(TOY.model)
    npad.decode(counted, PHRASES, decoder)
    assert report.calls > 0
    assert (report.rescored > 0) == isinstance(decoder, NPAD)
    assert report.signature == npad.signature(decoder, TOY.model)
    assert "|tok:13a|" in report.bleu_signature


def test_every_source_is_tokenised_once():
    translator, read = counting_tokeniser(TOY)
    evaluate(translator, PHRASES, REFERENCES, Beam(3))
    assert sorted(read) == sorted(PHRASES)


def test_distinct_is_different_over_all():
    assert distinct(["a b a", "b a"], 1) == 2 / 5
    assert distinct(["a b a", "b a"], 2) == 2 / 3
    assert distinct(["a", ""], 2) == 0


def test_mistakes_are_named():
    with pytest.raises(
        InvalidInput, match="there are 4 sources and 1 references; they must be pairs"
    ):
        evaluate(TOY, PHRASES, ["one"], Beam())
    with pytest.raises(InvalidInput, match="nothing to evaluate"):
        evaluate(TOY, [], [], Beam())
