"""The decoders that `npad calibrate` tries: each once, and each from the line that is printed."""

from __future__ import annotations

import shlex
from types import SimpleNamespace
from typing import Any

import pytest
import typer.main
from typer import Typer

import npad
from npad import NPAD, Beam, Greedy, LengthNormalised, Noise, Selected
from npad.calibrate.decoder_space import TEACHER, DecoderSpace
from npad.cli.decoder_options import decodes, options_for
from npad.reproduce.bench import decoder_signature
from npad.search.defaults import Defaults
from npad.search.registry import DECODERS
from npad.selectors import MostProbable, WithCut

TOY = npad.load("toy").model


def model(**capabilities):
    """The toy, with some capabilities of other models."""
    table = npad.load("toy").model
    for name, value in capabilities.items():
        setattr(table, name, value)
    return table


def actor(state, rows):
    raise AssertionError("the space runs nothing")


MODELS = {
    "table": {},
    "steered": {"steer": actor},
    "transformer": {"relative_noise": 0.1},
    "open-ended": {"relative_noise": 0.1, "open_ended": True},
}


def parse(words: list[str], defaults: Defaults, monkeypatch):
    """The decoder that a command receives from these options."""
    received = []

    def command(model: str = "toy", *, decoder=None) -> None:
        received.append(decoder)

    monkeypatch.setattr("npad.cli.decoder_options.defaults_of", lambda name: defaults)
    app = Typer()
    app.command()(decodes()(command))
    typer.main.get_command(app).main(words, standalone_mode=False)
    return received[0]


@pytest.mark.parametrize("metric", ["bleu", "wer", "logprob"])
@pytest.mark.parametrize("capabilities", MODELS.values(), ids=MODELS)
def test_every_decoder_is_made_by_its_options(capabilities, metric, monkeypatch):
    table = model(**capabilities)
    defaults = Defaults.of(table)
    candidates = DecoderSpace(table, metric).candidates()
    for candidate in candidates[:: 1 if metric == "bleu" else 7]:
        words = shlex.split(options_for(candidate.decoder, defaults))
        assert parse(words, defaults, monkeypatch) == candidate.decoder, words


@pytest.mark.parametrize("capabilities", MODELS.values(), ids=MODELS)
def test_no_decoder_comes_twice(capabilities):
    table = model(**capabilities)
    for metric in ("chrf", "logprob"):
        candidates = DecoderSpace(table, metric).candidates()
        for key in ("name", "decoder"):
            values = [getattr(candidate, key) for candidate in candidates]
            assert len(set(values)) == len(values)
        signatures = {decoder_signature(candidate.decoder) for candidate in candidates}
        assert len(signatures) == len(candidates)


def test_sizes_rise_on_a_ladder_below_that_of_the_teacher():
    ladders: dict[str, list[int]] = {}
    candidates = DecoderSpace(model(steer=actor), "bleu").candidates()
    for candidate in candidates:
        ladders.setdefault(candidate.ladder, []).append(candidate.decoder.rows)
    assert all(rows == sorted(rows) for rows in ladders.values())
    assert max(map(len, ladders.values())) > 5
    assert TEACHER.width > max(c.decoder.rows for c in candidates if c.family == "beam")


def test_decoders_that_need_missing_capabilities_are_not_tried():
    def families(metric="bleu", unit="calls", **capabilities):
        space = DecoderSpace(model(**capabilities), metric, unit)
        return {candidate.family for candidate in space.candidates()}

    assert families(steer=actor) - families() == {"steered", "NPAD over steered"}
    assert "shared sampling" not in families()
    recurrent = npad.load("en-de").model
    by_calls = {c.family for c in DecoderSpace(recurrent, "bleu", "calls").candidates()}
    by_time = {c.family for c in DecoderSpace(recurrent, "bleu", "milliseconds").candidates()}
    assert by_time - by_calls == {"sampling"}  # the same outputs for more calls, perhaps less time


def test_only_the_most_probable_candidate_is_selected_for_log_probability():
    for candidate in DecoderSpace(TOY, "logprob").candidates():
        selector = getattr(candidate.decoder, "selector", MostProbable())
        assert selector == MostProbable()


def test_open_ended_models_keep_their_order():
    for candidate in DecoderSpace(model(open_ended=True), "bleu").candidates():
        if candidate.name != "greedy":
            assert isinstance(candidate.decoder, NPAD | Selected), candidate.name
            assert isinstance(candidate.decoder.selector, WithCut), candidate.name


def test_given_sigmas_replace_the_grid():
    space = DecoderSpace(TOY, "bleu", sigmas=[0.4, 0.4])
    noisy = [c.decoder for c in space.candidates() if isinstance(c.decoder, NPAD)]
    assert {decoder.noise.sigma for decoder in noisy} == {0.4}
    found = space.sigma_candidates(NPAD(Beam(2), 5, Noise(0.3)))
    assert [c.decoder for c in found] == [Beam(2), NPAD(Beam(2), 5, Noise(0.4))]


def test_every_decoder_that_is_compared_is_tried():
    recurrent = npad.load("en-de").model
    tried = {type(c.decoder) for c in DecoderSpace(recurrent, "bleu", "milliseconds").candidates()}
    tried |= {
        type(c.decoder.inner)
        for c in DecoderSpace(recurrent, "bleu").candidates()
        if isinstance(c.decoder, Selected)
    }
    kinds: list[Any] = [*DECODERS]
    assert tried >= {kind for kind in kinds if kind.compared}


def test_the_line_leaves_out_the_models_defaults():
    open_ended = Defaults(Noise(0.1, relative=True), WithCut())
    decoder = NPAD(Greedy(), 50, Noise(0.2, relative=True), selector=WithCut())
    assert options_for(decoder, open_ended) == "--decoder npad --sigma 0.2"
    assert options_for(NPAD(noise=Noise(0.2)), open_ended) == (
        "--decoder npad --sigma 0.2 --selector most-probable --no-relative"
    )
    assert options_for(NPAD(chains=10, noise=Noise(0.2, relative=True), clean_chain=False)) == (
        "--decoder npad --sigma 0.2 -M 10 --no-clean-chain --relative"
    )
    normalised = Selected(Beam(8), LengthNormalised(0.5))
    assert options_for(normalised) == (
        "--decoder beam --width 8 --selector 'length-normalised(alpha=0.5)'"
    )
    assert options_for(Beam(8), open_ended).endswith("--selector most-probable")
    assert options_for(Greedy(), SimpleNamespace(selector=None)) == "--decoder greedy"
