"""Selectors, each by hand on a few candidates."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from sacrebleu.metrics import BLEU, CHRF

from cases import Stateless, npad, recurrent, summaries
from npad import (
    MBR,
    NPAD,
    Beam,
    Greedy,
    InvalidInput,
    LengthNormalised,
    MostProbable,
    Noise,
    Sampling,
    Special,
    decode,
)
from npad.hypotheses import Hypotheses, join
from npad.models.table import TableModel
from npad.search.request import decoding_from
from npad.selectors import GNMTLength, ModelMBR, Rerank, Vote


def candidates(*rows, coverage=None) -> Hypotheses:
    """Of one sentence: (tokens, log_prob, count, finished)."""
    longest = max(len(tokens) for tokens, *_ in rows)
    return Hypotheses(
        tokens=torch.tensor([[[*tokens, *[0] * (longest - len(tokens))] for tokens, *_ in rows]]),
        lengths=torch.tensor([[len(tokens) for tokens, *_ in rows]]),
        finished=torch.tensor([[row[3] if len(row) > 3 else True for row in rows]]),
        log_prob=torch.tensor([[row[1] for row in rows]]),
        count=torch.tensor([[row[2] for row in rows]]),
        coverage=coverage,
    )


FOUR = candidates(((5, 6), -2.0, 1), ((5, 6, 7, 8), -3.0, 2), ((9,), -1.5, 1), ((5, 6, 7), -2.6, 3))


@pytest.mark.parametrize(
    ("selector", "scores"),
    [
        (MostProbable(), [-2.0, -3.0, -1.5, -2.6]),
        (LengthNormalised(1.0), [-2 / 3, -3 / 5, -1.5 / 2, -2.6 / 4]),  # the end counts
        (LengthNormalised(0.5), [-2 / 3**0.5, -3 / 5**0.5, -1.5 / 2**0.5, -2.6 / 2]),
        (LengthNormalised(0.0), [-2.0, -3.0, -1.5, -2.6]),
        (GNMTLength(1.0), [-2 / (8 / 6), -3 / (10 / 6), -1.5 / (7 / 6), -2.6 / (9 / 6)]),
        (
            GNMTLength(0.6),
            [-2 / (8 / 6) ** 0.6, -3 / (10 / 6) ** 0.6, -1.5 / (7 / 6) ** 0.6, -2.6 / 1.5**0.6],
        ),
    ],
    ids=repr,
)
def test_scores_by_hand(selector, scores):
    assert selector(FOUR).tolist() == [pytest.approx(scores)]


def test_without_an_end_its_token_does_not_count():
    """Cut before the first token, an output has a length of one, so that its score is a number."""
    cut = candidates(((5, 6), -2.0, 1, False), ((), -1.0, 1, False), ((), -1.0, 1, True))
    assert LengthNormalised(1.0)(cut).tolist() == [[-1.0, -1.0, -1.0]]


def test_gnmt_coverage_by_hand():
    """Attention of 1.5, 0.5 and 0 (padding); the other candidate gives none to the second."""
    coverage = torch.tensor([[[1.5, 0.5, 0.0], [2.0, 0.0, 0.0]]])
    found = candidates(((5,), -1.0, 1), ((6,), -1.0, 1), coverage=coverage)
    scores = GNMTLength(0.0, beta=0.5)(found)[0].tolist()
    assert scores[0] == pytest.approx(-1.0 + 0.5 * math.log(0.5))
    assert scores[1] == pytest.approx(-1.0 + 0.5 * math.log(1e-9))


def test_padding_of_a_source_is_its_own():
    """A position without attention is padding of its sentence, whatever others attend to."""
    first = candidates(((5,), -1.0, 1), ((6,), -1.0, 1))
    both = join([first, first], pad=0, dim=0)
    coverage = torch.tensor([[[0.5, 0.5], [0.5, 0.5]], [[1.0, 0.0], [0.5, 0.0]]])
    scores = GNMTLength(0.0, beta=1.0)(replace(both, coverage=coverage))
    expected = [[-1 + 2 * math.log(0.5)] * 2, [-1.0, -1 + math.log(0.5)]]
    assert scores.tolist() == [pytest.approx(row) for row in expected]


def test_mbr_weighs_by_count():
    """Utility 1 for equal texts, ½ for a shared first word: the candidate with count 3 wins."""

    def utility(hypothesis, reference):
        return 1.0 if hypothesis == reference else 0.5 * (hypothesis[0] == reference[0])

    words = MBR(utility, text=lambda tokens: " ".join(map(str, tokens)))
    expected = [(1 + 0.5 * 5) / 7, (2 + 0.5 * 4) / 7, 1 / 7, (3 + 0.5 * 3) / 7]
    assert words(FOUR).tolist() == [pytest.approx(expected)]


def test_model_mbr_weighs_by_probability():
    """References of probabilities ∝ e^log_prob; utility 1 for equal texts alone."""
    scores = ModelMBR(lambda one, other: float(one == other))(FOUR)[0]
    probability = FOUR.log_prob[0].double().softmax(0)
    assert scores.tolist() == pytest.approx(probability.tolist(), rel=1e-5)


ANSWERS = {(5, 6): "x = 3", (5, 6, 7, 8): "3, or 4", (9,): "none", (5, 6, 7): "it is 4"}


@pytest.mark.parametrize(
    ("vote", "shares"),
    [
        (Vote("count", text=ANSWERS.__getitem__, answer=r"\d"), [1, 5, 0, 5]),  # the last match
        (Vote("count", text=ANSWERS.__getitem__, answer=r"x = (\d)"), [1, 0, 0, 0]),
        (Vote("count", text=lambda tokens: str(len(tokens) > 2)), [2, 5, 2, 5]),
        (Vote("count"), [1, 2, 1, 3]),  # tokens, without a text
    ],
    ids=["last match", "group", "text", "tokens"],
)
def test_a_vote_adds_the_counts_of_equal_answers(vote, shares):
    assert vote(FOUR).tolist() == [pytest.approx([share / 7 for share in shares])]


def test_a_vote_weighs_by_probability_of_a_normalised_length():
    weights = [
        math.exp(log_prob / n**0.5) for log_prob, n in ((-2, 3), (-3, 5), (-1.5, 2), (-2.6, 4))
    ]
    expected = [weights[0] + weights[1], weights[0] + weights[1], weights[2], weights[3]]
    merged = Vote(alpha=0.5, text=lambda tokens: {2: "a", 4: "a"}.get(len(tokens), str(tokens)))
    assert merged(FOUR).tolist() == [pytest.approx([e / sum(weights) for e in expected])]


def selector_from(**options: str) -> object:
    return getattr(decoding_from(options).decoder, "selector", None)


def test_an_answer_is_what_a_vote_compares():
    assert selector_from(decoder="sampling", answer="a+") == Vote(answer="a+")
    counted = selector_from(decoder="npad", selector="vote(weights=count)", answer="b")
    assert counted == Vote("count", answer="b")
    for options, rule in (
        ({"selector": "mbr"}, "answer is what a vote compares: write selector vote, not mbr"),
        ({"answer": "("}, "answer must be a regular expression"),
        ({"decoder": "greedy"}, "selector does not go with decoder greedy"),
    ):
        with pytest.raises(InvalidInput, match=rule):
            decoding_from({"decoder": "sampling", "answer": "a", **options})


@pytest.mark.parametrize(
    ("name", "metric"), [("chrf", CHRF()), ("bleu", BLEU(effective_order=True, tokenize="none"))]
)
def test_mbr_uses_sacrebleus_metrics(name, metric):
    letters = ["a b", "a b c d", "e", "a b c"]
    counts = [1, 2, 1, 3]
    text = dict(zip([(5, 6), (5, 6, 7, 8), (9,), (5, 6, 7)], letters, strict=True))
    expected = [
        sum(
            c * metric.sentence_score(one, [other]).score
            for c, other in zip(counts, letters, strict=True)
        )
        / 7
        for one in letters
    ]
    assert MBR(name, text=text.__getitem__)(FOUR)[0].tolist() == pytest.approx(expected, rel=1e-5)
    assert MBR(name)(FOUR)[0].tolist() == pytest.approx(
        expected, rel=1e-5
    )  # a letter and a word for each token


@pytest.mark.parametrize("name", ["chrf", "bleu"])
def test_mbr_can_choose_the_empty_output(name):
    model = TableModel({0: {(): [0.9, 0.1]}})
    assert (
        decode(model, [0], NPAD(Sampling(50), 1, Noise(0.0), selector=MBR(name)))[0][0].tokens == ()
    )


def test_mbr_has_a_letter_up_to_the_last_of_unicode():
    last = 0x10FFFF - 0x20000
    scores = MBR(lambda one, other: float(one == other))
    assert scores(candidates(((last,), -1.0, 1), ((last - 1,), -1.0, 1))).tolist() == [[0.5, 0.5]]
    with pytest.raises(InvalidInput, match=f"MBR has no letter for token {last + 1}: pass text="):
        scores(candidates(((last + 1,), -1.0, 1)))


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (lambda: MBR(text=3), "text must be a function from tokens to text"),
        (lambda: MBR(text=lambda tokens: 3)(FOUR), "text function must return a text, not 3"),
        (lambda: MBR(lambda hypothesis, reference: "x")(FOUR), "must return a number, not 'x'"),
    ],
)
def test_mbr_needs_a_text_and_a_number(score, message):
    with pytest.raises(InvalidInput, match=message):
        score()


def test_rerank_by_a_function_of_the_hypothesis():
    model = TableModel.random(4, 4, seed=3, dtype=torch.float64)
    longest = decode(model, [0], npad(Sampling(5), selector=Rerank(lambda one: len(one.tokens))))[0]
    assert [len(one.tokens) for one in longest] == sorted(
        (len(one.tokens) for one in longest), reverse=True
    )


def test_rerank_tells_numbers_apart_to_the_last_digit():
    scores = Rerank(lambda one: 1 + 1e-15 * len(one.tokens))(FOUR)
    assert scores.argsort(descending=True).tolist() == [[1, 3, 0, 2]]


@pytest.mark.parametrize(
    "selector",
    [
        MostProbable(),
        LengthNormalised(1.0),
        GNMTLength(),
        MBR("chrf"),
        MBR("bleu"),
        Vote(),
        Rerank(lambda one: 0.0),
    ],
)
def test_a_selector_reorders_and_nothing_else(selector):
    """Finished ones stay first, log_prob stays clean, and the set of hypotheses is the same."""
    model, source = recurrent(vocabulary=7), summaries(4)
    plain = decode(model, source, npad(Beam(3, nbest=3)), max_length=6)
    chosen = decode(model, source, npad(Beam(3, nbest=3), selector=selector), max_length=6)
    for before, after in zip(plain, chosen, strict=True):
        assert set(before) == set(after)
        assert [one.finished for one in after] == sorted(
            (one.finished for one in after), reverse=True
        )
    if isinstance(selector, MostProbable | Rerank):
        assert plain == chosen  # ties keep the order of log_prob


def test_a_selector_that_says_nan_is_an_error_and_not_a_choice():
    """Also where it says so of a single candidate, and not where there is none."""

    def of_the_second(found):
        return found.log_prob.masked_fill(torch.arange(found.log_prob.shape[1]) == 1, math.nan)

    decoder = NPAD(Beam(3, nbest=3), 1, Noise(0.0), selector=of_the_second)
    with pytest.raises(InvalidInput, match="the selector of_the_second returned NaN"):
        decode(TableModel.random(4, 3, seed=3), [0], decoder)
    certain = TableModel({0: {(): [1.0, 0.0]}, 1: {(): [0.5, 0.5]}})

    def of_the_empty(found):
        return found.log_prob.masked_fill(~found.exists, math.nan)

    found = decode(certain, [0, 1], NPAD(Beam(2, nbest=2), 1, Noise(0.0), selector=of_the_empty))
    assert [len(hypotheses) for hypotheses in found] == [1, 2]


class Looking(Stateless):
    """A model that attends to source position (token read) mod 3; the last is never read."""

    def __init__(self, attention=lambda state: torch.eye(3)[state % 3]):
        p = torch.tensor(
            [[0.25, 0.40, 0.35], [0.55, 0.2, 0.25], [0.5, 0.45, 0.05], [0.0, 0.6, 0.4]]
        )
        super().__init__(Special(bos=3, eos=0, pad=0), lambda tokens: p[tokens].log())
        self.sites, self.attention = {"hidden": 1}, attention

    def start(self, source):
        return torch.zeros(len(source), dtype=torch.long)

    def step(self, state, tokens, perturb=None):
        return self.logits(tokens), tokens


def test_coverage_comes_from_the_models_attention():
    """(1) is more probable than (2, 1), which covers more of the source; a large β prefers it."""
    inner = Beam(6, nbest=6)

    def best(beta):
        return decode(
            Looking(), [0], NPAD(inner, 1, Noise(0.0), selector=GNMTLength(0.0, beta)), max_length=3
        )[0][0].tokens

    assert best(0.0) == (1,)
    assert best(0.2) == (2, 1)


def test_coverage_is_as_precise_as_the_attention_it_sums():
    third, seen = 1 / 3, []

    class Watch(GNMTLength):
        def __call__(self, candidates):
            seen.append(candidates.coverage)
            return super().__call__(candidates)

    model = Looking(lambda state: torch.full((len(state), 3), third, dtype=torch.float64))
    decoder = NPAD(Beam(6, nbest=6), 1, Noise(0.0), selector=Watch(0.6, 0.2))
    (found,) = decode(model, [0], decoder, max_length=3)
    (coverage,) = seen
    assert coverage.dtype == torch.float64
    lengths = sorted(len(one.tokens) + one.finished for one in found)
    assert sorted(coverage[0, :, 0].tolist()) == [third * length for length in lengths]


@pytest.mark.parametrize(
    "selector", [MostProbable(), GNMTLength(0.6, 0.0), LengthNormalised()], ids=repr
)
def test_attention_is_not_asked_for_in_vain(selector):
    asked = []
    decode(Looking(asked.append), [0], NPAD(Beam(3), 2, Noise(0.0), selector=selector), 3)
    assert not asked


def test_attention_after_the_end_is_no_matter():
    undefined = Looking(
        lambda state: torch.eye(3)[state % 3].masked_fill((state == 0)[:, None], math.nan)
    )
    decoder = NPAD(Beam(6, nbest=6), 1, Noise(0.0), selector=GNMTLength(0.0, 0.2))
    found, expected = (
        decode(model, [0], decoder, max_length=3) for model in (undefined, Looking())
    )
    assert found == expected


def test_coverage_needs_attention():
    """Which a layer of this name is not."""
    layered = recurrent()
    layered.add_module("attention", torch.nn.Linear(2, 2))
    decoder = NPAD(Greedy(), 2, Noise(0.1), selector=GNMTLength(0.6, beta=0.2))
    for model, source in ((TableModel.random(3, 2), [0]), (layered, summaries(1))):
        message = (
            f"coverage needs attention, which {type(model).__name__} does not offer; use beta=0"
        )
        with pytest.raises(InvalidInput, match=message):
            decode(model, source, decoder, 3)
