"""Text in, text out, on the toy."""

from __future__ import annotations

from dataclasses import replace

import pytest

import npad
from npad import MBR, NPAD, Beam, Greedy, InvalidInput, Noise, Sampling

TOY = npad.load("toy")
PHRASES = ["das ist mir wurst", "danke", "na ja"]


def test_greedy_takes_the_garden_path_and_others_do_not():
    assert TOY.translate(PHRASES[:1], Greedy())[0].text == "that is sausage"
    assert TOY.translate(PHRASES[:1], Beam(5))[0].text == "i could not care less"
    assert TOY.translate(PHRASES[:1], NPAD(chains=50, noise=Noise(0.3)))[0].text.startswith("i ")


@pytest.mark.parametrize("decoder", [NPAD(chains=9, noise=Noise(0.5)), Sampling(5)], ids=["npad", "sampling"])
def test_a_texts_noise_depends_on_the_text_alone(decoder):
    together = TOY.translate(PHRASES, decoder)
    assert [TOY.translate([phrase], decoder)[0] for phrase in PHRASES] == together
    assert TOY.translate(PHRASES[::-1], decoder) == together[::-1]


def test_alternatives_are_the_others_best_first():
    best = TOY.translate(["na ja"], Beam(4, nbest=4))[0]
    scores = [best.log_prob, *(one.log_prob for one in best.alternatives)]
    assert len(scores) == 4
    assert scores == sorted(scores, reverse=True)
    assert best.text not in [one.text for one in best.alternatives]


def test_a_translation_says_how_it_was_made():
    assert TOY.translate(["danke"])[0].signature == npad.signature(Beam(5), TOY.model)


def test_mbr_compares_texts():
    seen = []

    def utility(hypothesis, reference):
        seen.append(hypothesis)
        return 0.0

    TOY.translate(["danke"], NPAD(Sampling(5), chains=3, noise=Noise(0.3), selector=MBR(utility)))
    assert set(seen) <= {"thanks", "thanks to me", "i see"}


def test_nothing_in_nothing_out():
    assert TOY.translate([]) == []


def test_a_blank_text_becomes_an_empty_one():
    blank, spaces, danke = TOY.translate(["", " \t", "danke"], NPAD(chains=3))
    assert (blank.text, blank.log_prob, blank.hypothesis.finished) == ("", 0.0, True)
    assert spaces == blank
    assert danke.text == "thanks"


@pytest.mark.parametrize(
    "decoder", [Beam(3), NPAD(chains=9, noise=Noise(0.5)), Sampling(5)], ids=lambda d: type(d).__name__
)
def test_the_rows_decoded_at_a_time_do_not_matter(decoder):
    texts = [*PHRASES, "ich verstehe nur bahnhof"] * 3
    few, many = (TOY.translate(texts, decoder, max_rows=rows) for rows in (1, 1024))
    for one, other in zip(few, many, strict=True):
        assert one.text == other.text
        assert [each.text for each in one.alternatives] == [each.text for each in other.alternatives]
        assert one.hypothesis.chain == other.hypothesis.chain
        assert one.log_prob == pytest.approx(other.log_prob, abs=1e-6)


def test_a_given_translation_has_the_score_it_had_when_found():
    found = TOY.translate(PHRASES, Beam(5))
    assert TOY.score(PHRASES, [one.text for one in found]) == pytest.approx([one.log_prob for one in found])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TOY.translate("danke"), r"translate takes a list of texts; write translate\(\['danke'\]\)"),
        (lambda: TOY.translate([1]), "translate takes texts, not 1"),
        (
            lambda: replace(TOY, encode=lambda texts: []).translate(["danke"]),
            "encode must return one sentence a text: it made 0",
        ),
        (lambda: TOY.translate(["hallo"]), "toy has no table for 'hallo'"),
        (lambda: replace(TOY, longest=3).translate(["danke"]), "text 1 has 5 symbols and 3 are allowed; split it"),
        (lambda: TOY.translate(["danke"], Beam), r"write Beam\(\), not Beam"),
        (lambda: TOY.translate(["danke"], max_rows=0), "max_rows must be a whole number of at least 1, not 0"),
        (lambda: TOY.score(["danke"], []), "one translation a text: 1 texts, 0 translations"),
        (lambda: TOY.score(["danke"], ["hello"]), "toy does not know the word 'hello'"),
        (lambda: replace(TOY, symbols=None).score(["danke"], ["thanks"]), "toy cannot score texts"),
        (lambda: npad.load("en-xx"), "there is no model en-xx"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(InvalidInput, match=message):
        call()
