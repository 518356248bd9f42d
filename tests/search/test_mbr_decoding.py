"""MBR with pseudo-references of their own: against enumeration, and as the selectors define it."""

from __future__ import annotations

import math

import pytest
import torch

from attention_cases import SOURCE, build
from cases import assert_clean_scores, counted, recurrent, summaries
from npad import (
    MBR,
    NPAD,
    Beam,
    Greedy,
    InvalidInput,
    LengthNormalised,
    MBRDecoding,
    MostProbable,
    Noise,
    Sampling,
    Selected,
    decode,
    load,
)
from npad.metrics.registry import METRICS
from npad.models.table import TableModel
from npad.selectors import ModelMBR, WithCut, _letters
from steered_cases import steered

EVERY_OUTPUT = Beam(300)
SEEDS = range(5)


def overlap(hypothesis: str, reference: str) -> float:
    """An asymmetric utility: the share of the hypothesis's words that the reference has."""
    words = hypothesis.split()
    return sum(word in reference.split() for word in words) / (len(words) + 1)


@pytest.mark.parametrize("utility", [overlap, "chrf", "bleu"])
@pytest.mark.parametrize("candidates", [EVERY_OUTPUT, Beam(3), Sampling(6), NPAD(chains=8)])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_whole_distribution_as_references_gives_the_true_expected_utility(
    seed, candidates, utility
):
    model = TableModel.random(4, 3, seed, dtype=torch.float64)
    outputs = list(model.outputs(0, 4))
    assert all(output.finished for output in outputs)
    assert math.isclose(sum(math.exp(output.log_prob) for output in outputs), 1)

    def compare(text, reference):
        if callable(utility):
            return utility(text, reference)
        return METRICS[utility].of_tokens().utilities([text], [reference]).item()

    def expected(tokens):
        return sum(
            math.exp(output.log_prob) * compare(_letters(tokens), _letters(output.tokens))
            for output in outputs
        )

    decoder = MBRDecoding(candidates, EVERY_OUTPUT, ModelMBR(utility))
    (found,) = decode(model, [0], decoder, 4)
    true = [expected(hypothesis.tokens) for hypothesis in found]
    assert true[0] == pytest.approx(max(true), rel=1e-5)
    assert true == pytest.approx(sorted(true, reverse=True), rel=1e-5)
    if candidates is EVERY_OUTPUT:
        assert len(found) == len(outputs)


@pytest.mark.parametrize("selector", [MBR(), ModelMBR("bleu"), MBR("wer"), WithCut(MBR())])
@pytest.mark.parametrize("inner", [Sampling(8, seed=2), Beam(4)])
def test_candidates_as_their_own_references_are_the_selector(inner, selector):
    model, source = recurrent(vocabulary=7), summaries(3)
    expected = decode(model, source, Selected(inner, selector), 6)
    assert decode(model, source, MBRDecoding(inner, inner, selector), 6) == expected


def test_npads_candidates_count_as_often_as_chains_found_them():
    model, source = TableModel.random(4, 4, 1, 3, torch.float64), [0, 1, 2]
    chains = NPAD(Greedy(), 12, Noise(0.8))
    expected = decode(model, source, NPAD(Greedy(), 12, Noise(0.8), selector=MBR()), 6)
    assert any(hypotheses[0].count > 1 and len(hypotheses) > 2 for hypotheses in expected)
    assert decode(model, source, MBRDecoding(chains, chains), 6) == expected


def test_references_decide_and_are_not_returned():
    """(1) is the mode; nearly all of the rest start with 2, and so does the chosen one."""
    p = {(): [0.0, 0.4, 0.6], (2,): [0.1, 0.45, 0.45], (2, 1): [1, 0, 0], (2, 2): [1, 0, 0]}
    model = TableModel({0: p | {(1,): [1.0, 0, 0]}})
    (found,) = decode(model, [0], MBRDecoding(Beam(2), Sampling(200), MBR(overlap)), 3)
    beam = decode(model, [0], Selected(Beam(2)), 3)[0]
    assert {h.tokens for h in found} == {h.tokens for h in beam}
    assert beam[0].tokens == (1,)
    assert found[0].tokens[0] == 2


def test_a_steered_model_has_the_clean_models_scores():
    model = build()
    found = decode(steered(model), SOURCE, MBRDecoding(Beam(3), Sampling(4)), 12)
    assert_clean_scores(model, SOURCE, found)


def test_the_cost_is_that_of_both_decoders():
    decoders = (Beam(3), Sampling(5), MBRDecoding(Beam(3), Sampling(5)))
    of_beam, of_samples, of_both = (
        counted(decode, recurrent(), summaries(2), decoder, 6)[1].search for decoder in decoders
    )
    # The whole list of a beam may take more steps than its best.
    assert of_both >= of_beam + of_samples


@pytest.mark.parametrize(
    "comparing",
    [lambda mbr: MBRDecoding(Beam(2), Sampling(5), mbr), lambda mbr: Selected(Beam(3), mbr)],
    ids=["mbr-decoding", "selected"],
)
def test_the_utility_compares_texts(comparing):
    """What the translator writes, and not a letter for each token."""
    compared = set()

    def utility(hypothesis, reference):
        compared.update((hypothesis, reference))
        return 0.0

    load("toy").translate(["na ja"], comparing(MBR(utility)))
    assert "well yes" in compared


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"selector": LengthNormalised()}, r"its selector must be MBR\(\) or ModelMBR\(\), not"),
        ({"selector": WithCut(MostProbable())}, "its selector must be MBR"),
        ({"pseudo_references": "sampling"}, "references must be a Decoder, such as"),
        ({"inner": Beam}, "inner must be a decoder: write"),
    ],
)
def test_mistakes_are_one_clear_line(arguments, message):
    with pytest.raises(InvalidInput, match=message):
        MBRDecoding(**arguments)
