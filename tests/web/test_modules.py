"""The page's modules, in a browser, against the package's own code."""

from __future__ import annotations

import math
import re
from dataclasses import fields
from itertools import pairwise

import pytest
import torch

from npad.models import toy
from npad.schedules import SCHEDULES

pytestmark = pytest.mark.web

PHRASE = "ich verstehe nur bahnhof"
SPECS = ["1/t", "constant", "power(p=0.7)", "linear(steps=5)", "cosine(steps=7)"]
SPECS += ["exponential(decay=0.6)", "first-steps(n=4)"]


@pytest.fixture
def evaluate(visit):
    """Evaluate a JavaScript function of a module of the page."""
    page = visit("/?text=danke&model=toy&decoder=greedy", settled=False)

    def call(module, expression, argument=None):
        start = f"const m = await import('/static/{module}.js')"
        return page.evaluate(f"async (given) => {{ {start}; return {expression}; }}", argument)

    return call


@pytest.mark.parametrize("spec", SPECS)
def test_every_schedule_is_known_and_its_curve_is_the_schedule(evaluate, spec):
    steps = torch.arange(1, 17, dtype=torch.float32)
    expected = SCHEDULES.parse(spec)(steps, torch.ones(16)).tolist()
    shares = evaluate(
        "schedule", "given[1].map((t) => m.share(given[0], t))", [spec, steps.tolist()]
    )
    assert shares == pytest.approx(expected, abs=1e-6)

    names = evaluate("schedule", "given.map((name) => m.parse(name))", list(SCHEDULES.kinds))
    for parsed in names:
        own = [field.name for field in fields(SCHEDULES.kinds[parsed["name"]])]
        assert [parsed["parameter"]] == (own or [None])


def test_the_tour_has_the_toys_own_probabilities(evaluate):
    assert evaluate("toy", "m.PHRASE") == PHRASE
    assert evaluate("toy", "m.TABLE") == toy.PHRASES[PHRASE]
    outputs = evaluate("toy", "m.outputs()")
    assert sum(output["probability"] for output in outputs) == pytest.approx(1)
    best = toy_probability("it is all greek to me")
    assert outputs[0] == {"text": "it is all greek to me", "probability": pytest.approx(best)}


def toy_probability(text):
    table, words = toy.PHRASES[PHRASE], text.split()
    return math.prod(table[" ".join(words[:i])][word] for i, word in enumerate(words))


def test_the_numbers_that_the_tour_tells_are_true(evaluate):
    story = " ".join(text for step in evaluate("tour", "m.STEPS") for text in step["paragraphs"])
    best = toy_probability("it is all greek to me")
    greedy = toy_probability("i understand only station")
    first = toy.PHRASES[PHRASE][""]
    ranked = sorted(first, key=first.get, reverse=True)
    assert ranked.index("it") == 3  # the fourth-best word
    for word in ranked:
        assert re.search(rf"“{word}”[^“]*{first[word]:.2f}", story), word
    assert f"= {greedy:.3f}" in story
    assert f"probability {best:.3f}" in story
    assert f"probability {(1 - best) ** 20:.3f}" in story
    numbers = {float(number) for number in re.findall(r"\b0\.\d+", story)}
    known = {*first.values(), 0.52, 0.6, 0.4, round(best, 3), round(greedy, 3)}
    assert numbers <= known | {round((1 - best) ** 20, 3)}


def test_agreement_counts_the_chains_that_have_a_word_in_order(evaluate):
    outputs = [["a", "b", "c"], ["a", "c"], ["b", "a"], []]
    agreed = evaluate("agreement", "m.agreement(given[0], given[1])", [["a", "b", "c"], outputs])
    assert agreed == pytest.approx([2 / 4] * 3)  # “b a” shares one word, the later of the two


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (["▁Sie", "▁gi", "bt", "▁Bü", "cher", "."], ["Sie", "gibt", "Bücher."]),
        (["Ich", "▁bin"], ["Ich", "bin"]),
        ([], []),
    ],
)
def test_pieces_join_into_words(evaluate, tokens, words):
    found = evaluate("words", "m.words(given, true)", tokens)
    assert [word["text"] for word in found] == words
    assert "".join("".join(tokens[w["from"] : w["to"]]) for w in found) == "".join(tokens)


def test_events_are_read_as_the_standard_writes_them(evaluate):
    assert evaluate("stream", "m.parse('event: best\\ndata: {\"a\":\\ndata: 1}')") == [
        "best",
        {"a": 1},
    ]
    assert evaluate("stream", "m.parse(': keep-alive')") is None


@pytest.mark.parametrize(
    ("log_prob", "shown"), [(-2.0065, "0.134"), (0, "1.000"), (-10.5, "2.8·10⁻⁵"), (-1e9, "0.000")]
)
def test_small_probabilities_keep_their_size(evaluate, log_prob, shown):
    assert evaluate("format", "m.probability(given)", log_prob) == shown


def test_impossible_outputs_have_a_score_of_minus_infinity(evaluate):
    received = {"chain": 1, "tokens": ["▁a"], "log_prob": None, "token_log_probs": [None, -1]}
    read = "((run) => (run.receive('chain', given), run.chains.get(1)))(new m.Run({ options: {} }))"
    scores = evaluate("run", f"[{read}.log_prob, ...{read}.token_log_probs].map(String)", received)
    assert scores == ["-Infinity", "-Infinity", "-1"]
    assert evaluate("format", "m.logProb(-Infinity)") == "−∞"


def test_labels_are_spread_without_overlap(evaluate):
    placed = evaluate("scale", "m.spread([10, 11, 12, 95, 96], 14, [0, 100])")
    ordered = sorted(placed)
    assert all(b - a >= 14 for a, b in pairwise(ordered))
    assert ordered[0] >= 0
    assert ordered[-1] <= 100
