"""The figures of a test set of texts, recordings or pictures, each held to what it says it is."""

from __future__ import annotations

import pytest
import sacrebleu
import torch

import npad
from cases import counting_tokeniser
from media_models import draw, random_model
from npad import NPAD, Beam, Greedy, InvalidInput, Noise, Sampling
from npad.evaluate.bootstrap import paired
from npad.evaluate.report import NLL, Evaluation, compare, distinct
from npad.metrics.metric import LogProb, Scorer
from npad.metrics.registry import METRICS
from npad.models.table import TableModel
from npad.pipelines.transcription import Transcriber
from npad.search.request import Decoding

TOY = npad.load("toy")
PHRASES = ["das ist mir wurst", "danke", "na ja", "ich verstehe nur bahnhof"]
REFERENCES = ["i could not care less", "thanks", "oh well", "it is all greek"]
DECODINGS = {
    "greedy": Decoding(Greedy()),
    "beam": Decoding(Beam(3)),
    "npad": Decoding(NPAD(chains=4, noise=Noise(0.5))),
    "sampling": Decoding(Sampling(6)),
}


@pytest.fixture(scope="module")
def captioner(tmp_path_factory):
    return npad.load(random_model(tmp_path_factory.mktemp("model"), "picture"))


@pytest.fixture(scope="module")
def pictures(captioner, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    return [captioner.read(draw(folder / f"{i}.png", i)) for i in range(3)]


CAPTIONS = [["a red kite", "the kite"], ["a blue dog .", "A dog"], ["Two dogs", "a dog on a kite"]]

# The model says "one two" to short windows and "one" to long ones.
LONG = {(): [0.1, 0.9, 0.0], (1,): [1.0, 0.0, 0.0]}
SHORT = {(): [0.1, 0.9, 0.0], (1,): [0.0, 0.0, 1.0], (1, 2): [1.0, 0.0, 0.0]}
TRANSCRIBER = Transcriber(
    TableModel({"long": LONG, "short": SHORT}, dtype=torch.float64),
    lambda windows: ["long" if len(w) > 100 else "short" for w in windows],
    lambda tokens: " ".join(["", "1", "two"][token] for token in tokens),
    rate=100,
    longest=2.0,
)


@pytest.mark.parametrize("name", ["beam", "npad", "sampling"])
def test_figures_are_those_of_the_translations(name):
    decoding = DECODINGS[name]
    report, outputs = Evaluation(TOY, PHRASES, REFERENCES).evaluate(decoding)
    assert outputs == TOY.translate(PHRASES, decoding.decoder)
    texts = [output.text for output in outputs]
    assert report.scores[NLL].value == pytest.approx(-sum(o.log_prob for o in outputs) / 4)
    assert report.scores["bleu"].value == sacrebleu.corpus_bleu(texts, [REFERENCES]).score
    assert report.scores["chrf"].value == sacrebleu.corpus_chrf(texts, [REFERENCES]).score
    words = [sum(len(text.split()) for text in side) for side in (texts, REFERENCES)]
    assert report.length_ratio == words[0] / words[1]
    counts = [len({o.text, *(other.text for other in o.alternatives)}) for o in outputs]
    assert report.unique == sum(counts) / 4
    with npad.count_calls() as calls:
        TOY.translate(PHRASES, decoding.decoder)
    assert (report.calls, report.rescored) == (calls.search, calls.rescoring)
    assert report.signature == npad.signature(decoding.decoder, TOY.model)
    assert "|tok:13a|" in report.to_json()["bleu_signature"]


def test_figures_are_those_of_the_captions(captioner, pictures):
    report, outputs = Evaluation(captioner, pictures, CAPTIONS).evaluate(Decoding(Beam(3), 9))
    assert outputs == captioner.caption(pictures, Beam(3), 9)
    texts = [output.text for output in outputs]
    record = report.to_json()
    assert (record["pictures"], record["references"]) == (3, 6)
    assert record["captions"] == len(set(texts))
    assert record["bleu"] == report.scores["bleu4"].value
    with pytest.raises(InvalidInput, match="2 pictures and 3 references"):
        Evaluation(captioner, pictures[:2], CAPTIONS).evaluate(Decoding(Greedy(), 9))


def test_figures_are_those_of_the_transcripts():
    recordings = [torch.ones(50), torch.ones(150), torch.ones(60)]
    said = ["one two", "One, two!", "two"]
    report, outputs = Evaluation(TRANSCRIBER, recordings, said).evaluate(Decoding(Greedy()))
    assert [output.text for output in outputs] == ["1 two", "1", "1 two"]
    record = report.to_json()
    assert (record["errors"], record["words"], record["wer"]) == (2, 5, pytest.approx(40.0))
    low, high = record["wer_interval"]
    assert low <= record["wer"] <= high
    assert record["sound_seconds"] == pytest.approx(2.6)
    assert record["nll"] == pytest.approx(0.10536, abs=1e-4)
    assert record["calls"] == 3 + 2 + 3
    assert record["finished"] == 1


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_measures_every_medium(name, captioner, pictures):
    cases = [
        (TOY, PHRASES, REFERENCES, Decoding(Beam(2))),
        (TRANSCRIBER, [torch.ones(50), torch.ones(60)], ["one two", "two"], Decoding(Greedy())),
        (captioner, pictures, CAPTIONS, Decoding(Greedy(), 9)),
    ]
    for pipeline, sources, references, decoding in cases:
        report, outputs = Evaluation(pipeline, sources, references, [name]).evaluate(decoding)
        texts, log_probs = zip(*((o.text, o.log_prob) for o in outputs), strict=True)
        statistics = Scorer(METRICS[name], references).statistics(texts, log_probs)
        assert report.scores[name] == paired(METRICS[name], [statistics], weights=(1,))
        assert (report.length_ratio is None) == (name == "logprob")


@pytest.mark.parametrize("name", METRICS)
def test_comparison_is_evaluation_and_paired_bootstrap(name):
    sources, references = PHRASES * 3, REFERENCES * 3
    reports = compare(TOY, sources, references, DECODINGS, [name])
    assert list(reports) == list(DECODINGS)
    metric = METRICS[name]
    for label, report in reports.items():
        alone, _ = Evaluation(TOY, sources, references, [name]).evaluate(DECODINGS[label])
        assert (report.scores, report.calls) == (alone.scores, alone.calls)
        if label == "greedy":
            assert not report.gains
            continue
        systems = [report.statistics, reports["greedy"].statistics]
        assert report.gains[name] == paired(metric, [system[name] for system in systems])
        less = paired(LogProb(), [system[NLL] for system in systems], (-1, 1))
        assert report.gains[NLL] == less


def test_interval_shrinks_with_the_test_set():
    small, large = (
        Evaluation(TOY, PHRASES * n, REFERENCES * n).evaluate(DECODINGS["greedy"])[0]
        for n in (5, 80)
    )
    narrow, wide = large.scores[NLL], small.scores[NLL]
    assert wide.low < wide.value < wide.high
    assert (wide.high - wide.low) / (narrow.high - narrow.low) == pytest.approx(4, rel=0.2)


def test_every_source_is_tokenised_once():
    translator, read = counting_tokeniser(TOY)
    compare(translator, PHRASES, REFERENCES, DECODINGS)
    assert sorted(read) == sorted(PHRASES)


def test_distinct_is_different_over_all():
    assert distinct(["a b a", "b a"], 1) == 2 / 5
    assert distinct(["a b a", "b a"], 2) == 2 / 3
    assert distinct(["a", ""], 2) == 0


@pytest.mark.parametrize(
    ("pipeline", "sources", "references", "message"),
    [
        (TOY, PHRASES, ["one"], "there are 4 sources and 1 references; they must be pairs"),
        (TOY, [], [], "nothing to evaluate"),
        (TOY, ["a" * 10**6], ["one"], "source 1 has 1,000,000 characters"),
        (TRANSCRIBER, iter([torch.ones(50)]), ["one", "two"], "1 recordings and 2 references"),
    ],
)
def test_sources_that_cannot_be_evaluated_are_refused(pipeline, sources, references, message):
    translator = npad.load("en-de") if "characters" in message else pipeline
    with pytest.raises(InvalidInput, match=message):
        Evaluation(translator, sources, references).evaluate(Decoding(Beam()))
