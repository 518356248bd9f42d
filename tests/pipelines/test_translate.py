"""Text in, text out, on the toy."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from dataclasses import replace
from itertools import count, islice
from pathlib import Path

import pytest
import torch

import npad
from cases import Small, counting_tokeniser, one_warning
from npad import NPAD, Beam, Greedy, InvalidInput, Noise
from npad.errors import OutOfMemory
from npad.hypotheses import Hypothesis
from npad.pipelines import writers
from npad.pipelines.names import ModelReference
from npad.pipelines.outputs import Output, TooLong, Window
from npad.search.request import Decoding
from npad.text.subwords import MAX_CHARACTERS_PER_TOKEN
from pipeline_cases import sentences, spied, untrained

TOY = npad.load("toy")
PHRASES = ["das ist mir wurst", "danke", "na ja"]


def test_greedy_takes_the_garden_path_and_others_do_not():
    assert TOY.translate(PHRASES[:1], Greedy())[0].text == "that is sausage"
    assert TOY.translate(PHRASES[:1], Beam(5))[0].text == "i could not care less"
    assert TOY.translate(PHRASES[:1], NPAD(chains=50, noise=Noise(0.3)))[0].text.startswith("i ")


def test_a_translation_says_how_it_was_made():
    assert TOY.translate(["danke"])[0].signature == npad.signature(Beam(5), TOY.model)


def test_a_blank_text_becomes_an_empty_one():
    blank, spaces, danke = TOY.translate(["", " \t", "danke"], NPAD(chains=3))
    assert (blank.text, blank.log_prob, blank.hypothesis.finished) == ("", 0.0, True)
    assert spaces == blank
    assert danke.text == "thanks"


def test_by_default_a_stream_is_read_eight_batches_at_a_time():
    read = []
    endless = (read.append(i) or PHRASES[i % 3] for i in count())
    assert len(list(islice(TOY.stream(endless, Beam(5), max_rows=20), 3))) == 3
    assert len(read) == 8 * 4  # eight batches of four


@pytest.mark.parametrize("bound", ["max_rows", "window"])
def test_a_bound_may_be_the_largest_integer(bound):
    (danke,) = TOY.stream(["danke"], **{bound: 2**63 - 1})
    assert danke.text == "thanks"
    assert list(TOY.stream([], **{bound: 2**63 - 1})) == []


def test_a_batch_size_that_did_not_fit_is_not_tried_again():
    translator = untrained()
    model = Small(translator.model, 13)
    with one_warning():
        list(
            replace(translator, model=model).stream(
                sentences(200), Greedy(), max_length=8, max_rows=64, window=80
            )
        )
    assert [rows for rows in model.seen if rows > 13] == [64, 32, 16]


def scoring():
    """The untrained model, which also scores the numbers that it writes."""
    return replace(
        untrained(), tokenise=lambda texts: [list(map(int, text.split())) for text in texts]
    )


def test_long_texts_take_the_place_of_several_rows():
    """300 letters count for two rows and 600 for three: four or two such texts fill eight rows."""
    translator = scoring()
    for letters, together in ((10, 8), (300, 4), (600, 2)):
        texts = [letter * letters for letter in "abcdefgh"]
        seen = []
        watched = spied(translator, seen.append)
        watched.translate(texts, Greedy(), max_length=2, max_rows=8)
        assert seen == [together] * (8 // together)
        watched.score(texts, ["1"] * 8, max_rows=8)
        assert seen == [together] * (2 * 8 // together)


def test_given_translations_that_do_not_fit_together_are_scored_in_turn():
    translator = scoring()
    texts = [text for text in sentences(50) if text]
    outputs = [output.text for output in translator.translate(texts, Greedy(), max_length=8)]
    expected = translator.score(texts, outputs)
    small = replace(translator, model=Small(translator.model, 13, starts=7))
    with one_warning():
        assert small.score(texts, outputs) == pytest.approx(expected)


def test_one_sentence_that_does_not_fit_is_an_error():
    translator = untrained()
    with one_warning(), pytest.raises(OutOfMemory, match="this does not fit in memory; lower"):
        replace(translator, model=Small(translator.model, 4)).translate(["a", "b"], Beam(5))


def test_long_texts_are_skipped_or_refused_and_by_their_characters_not_even_tokenised():
    read = []
    short = replace(TOY, longest=5, encode=lambda texts: read.extend(texts) or list(texts))
    long = "a" * (5 * MAX_CHARACTERS_PER_TOKEN + 1)
    texts = ["danke", "danke!", "", long, "na ja"]
    sizes = {1: "6 tokens", 3: "321 characters (at most 64 per token)"}
    assert short.too_long(texts) == sizes
    first, second, blank, fourth, last = short.stream_or_skip(texts, Greedy())
    assert (first.text, blank.text, last.text) == ("thanks", "", "well yes")
    assert (second, fourth) == tuple(TooLong(size, 5) for size in sizes.values())
    for given, size in ((texts, sizes[1]), (["danke", long], sizes[3])):
        message = f"text 2 has {size} and 5 tokens are allowed; split"
        with pytest.raises(InvalidInput, match=re.escape(message)):
            short.translate(given)
    assert long not in read


@pytest.mark.parametrize("window", [1, 3, 100])
def test_every_text_is_tokenised_once(window):
    translator, read = counting_tokeniser(replace(untrained(), longest=9))
    small = replace(translator, model=Small(translator.model, 7))  # halves of batches are decoded
    texts = sentences(40)
    with one_warning() if window == 100 else nullcontext():
        outcomes = list(small.stream_or_skip(texts, Greedy(), max_length=4, window=window))
    assert sorted(read) == sorted(filter(None, texts))
    skipped = [
        text for text, outcome in zip(texts, outcomes, strict=True) if isinstance(outcome, TooLong)
    ]
    assert skipped == [text for text in texts if len(text) > 9]


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_cache_of_encodings_changes_no_translation(kind):
    """Of a source that is not a list, nothing is cached."""
    translator = untrained()
    plain = replace(translator, encode=lambda texts: kind(translator.encode(texts)))
    counted, read = counting_tokeniser(plain)
    caching, texts = counted.caching(), sentences(40)
    for decoder in (Greedy(), Beam(3)):
        assert caching.too_long(texts) == {}
        expected = plain.translate(texts, decoder, max_length=4, max_rows=20)
        assert caching.translate(texts, decoder, max_length=4, max_rows=20) == expected
    if kind is list:
        assert sorted(read) == sorted(set(texts))


def test_a_source_may_be_of_any_kind_that_can_be_sliced():
    """A tuple cannot be filtered in place: it is encoded again without its long texts."""
    translator = untrained()
    as_tuple = replace(translator, longest=9, encode=lambda texts: tuple(translator.encode(texts)))
    texts = sentences(20)
    for text, outcome in zip(texts, as_tuple.stream_or_skip(texts, Greedy(), 4), strict=True):
        if len(text) > 9:
            assert outcome == TooLong(f"{len(text)} tokens", 9)
        else:
            assert outcome.text == translator.translate([text], Greedy(), 4)[0].text


def test_the_models_own_limit_bounds_the_users():
    assert replace(TOY, positions=511).limited_to(1000).longest == 511
    assert replace(TOY, positions=511).limited_to(100).longest == 100
    assert TOY.limited_to(2000).longest == 2000


def test_a_given_translation_has_the_score_it_had_when_found():
    outputs = TOY.translate(PHRASES, Beam(5))
    scores = TOY.score(PHRASES, [output.text for output in outputs])
    assert scores == pytest.approx([output.log_prob for output in outputs])


@pytest.mark.parametrize(("max_rows", "window"), [(1, 8), (7, 8), (8, 16), (2**63 - 1, 2**63 - 1)])
def test_a_window_is_of_eight_batches(max_rows, window):
    """Here a text takes four rows; a batch has at least one."""
    assert TOY._window(Decoding(Beam(4), max_rows=max_rows)) == window


MISTAKES = {
    r"takes a list of texts; write translate\(\['danke'\]\)": lambda: TOY.translate("danke"),
    r"stream takes an iterable of texts; write stream\(\['danke'\]\)": lambda: TOY.stream("danke"),
    "window must be a whole number of at least 1, not 0": lambda: TOY.stream(["danke"], window=0),
    "text 3 has 6 tokens and 5 tokens are allowed; split it": lambda: list(
        replace(TOY, longest=5).stream(["danke", "na ja", "danke!"], window=2)
    ),
    "translate takes texts, not 1": lambda: TOY.translate([1]),
    "encode must return one entry per text: it returned 0": lambda: (
        replace(TOY, encode=lambda texts: []).caching().translate(["danke"])
    ),
    "longest must be a whole number of at least 1, not 0": lambda: replace(TOY, longest=0),
    "positions must be a whole number of at least 1, not 0": lambda: replace(TOY, positions=0),
    "toy has no table for 'hallo'": lambda: TOY.translate(["hallo"]),
    "one translation per text: 1 texts, 0 translations": lambda: TOY.score(["danke"], []),
    "toy does not know the word 'hello'": lambda: TOY.score(["danke"], ["hello"]),
    "toy cannot score texts: its translator has no `tokenise`": lambda: replace(
        TOY, tokenise=None
    ).score(["danke"], ["thanks"]),
    "source 2 has 5 tokens and 4 tokens are allowed; split it": lambda: replace(
        TOY, longest=4
    ).ensure_lengths(["dank", "danke"], "source"),
    "text 2 has 5 tokens and 4 tokens are allowed; split it": lambda: replace(TOY, longest=4).score(
        ["dank", "danke"], ["thanks", "thanks"]
    ),
    r"'\\ud83d' holds half a surrogate pair, which is not text": lambda: TOY.translate(["\ud83d"]),
    "encode must be a function from texts to": lambda: replace(TOY, encode=3),
    "detokenise must be a function from tokens to text": lambda: replace(TOY, detokenise=3),
    "language must be a code, such as 'de', or None": lambda: npad.load("toy", language=3),
    "there is no model en-xx": lambda: npad.load("en-xx"),
    "hf: needs a model's name or folder": lambda: npad.load("hf:"),
    "device must be cpu, cuda or auto, not 'abacus'": lambda: npad.load("en-de", "abacus"),
    "device cuda:99: torch can use . GPUs on this machine; use another": lambda: npad.load(
        "en-de", "cuda:99"
    ),
    "device must be .*, not 'meta'": lambda: npad.load("en-de", torch.device("meta")),
    "toy has one language: leave out 'de'": lambda: npad.load("toy", language="de"),
    "toy cannot be packed; give en-de or a folder that npad train": lambda: ModelReference.parse(
        "toy"
    ).require_folder("be packed"),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_are_named(message):
    with pytest.raises(InvalidInput, match=message):
        MISTAKES[message]()


def test_model_names_are_parsed():
    assert ModelReference.parse("toy") == ModelReference("toy")
    assert ModelReference.parse("en-de").folder.name == "en-de"
    assert ModelReference.parse("en-de").folder.is_dir()
    assert ModelReference.parse("runs/x").folder == Path("runs/x")
    assert ModelReference.parse(Path("runs/x")).folder == Path("runs/x")
    for name, fields in {
        "hf:a/b:eng-deu": {"pretrained": "a/b:eng-deu"},
        "chat:a/b": {"pretrained": "a/b", "chat": True},
        "firefox:a/b": {"firefox": Path("a/b")},
        "shortlist:a/b": {"firefox": Path("a/b"), "shortlist": True},
    }.items():
        assert ModelReference.parse(name) == ModelReference(name, **fields)


def test_outputs_are_written_with_their_alternatives():
    second = Hypothesis((3,), -2.25, False, chain=2, noisy_log_prob=-2.0)
    others = (Output("a | b\nc", -2.0, second, ""), Output("ü", -2.25, second, ""))
    first = Hypothesis((1, 2), -1.5, True)
    best = Output("a | b\nc", -1.5, first, "beam", others, 50.0, "s", doubtful=True)
    assert writers.as_text(3, "x", best, 2) == "a | b c\n"
    assert writers.as_manifest(3, "x\x1b", best, 2) == "x\\x1b\ta | b c\n"
    lines = [
        "3 ||| a &#124; b c ||| logp= -1.5 length= 2 confidence:s= 50 ||| -1.500000\n",
        "3 ||| ü ||| logp= -2.25 length= 1 noisy= -2 chain= 2 ||| -2.250000\n",
    ]
    assert writers.as_moses(3, "x", best, 1) == lines[0]
    assert writers.as_moses(3, "x", best, 9) == "".join(lines)
    (one,), (other,) = (
        [{"text": text, "log_prob": p, "noisy_log_prob": n, "chain": chain, "finished": end}]
        for text, p, n, chain, end in (
            ("a | b\nc", -1.5, None, 0, True),
            ("ü", -2.25, -2.0, 2, False),
        )
    )
    trust = {"confidence": 50.0, "signal": "s", "doubtful": True, "signature": "beam"}
    record = {"id": 3, "source": "é"} | one | trust
    assert writers.as_record(3, "é", best) == record
    for nbest, more in ((1, {}), (2, {"alternatives": [other]})):
        line = writers.as_json(3, "é", best, nbest)
        assert (json.loads(line), line[-2:], "é" in line) == (record | more, "}\n", True)
    windows = (Window(0.0, 1.0, best), Window(1.0, 2.0, best))
    together = writers.as_windows(3, "é", replace(best, windows=windows), 1)
    assert together == 2 * writers.as_json(3, "é", best, 1)
