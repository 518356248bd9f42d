"""Defaults: the same on the command line and in Python, and listed in docs/decoding.md."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace

import pytest

import npad
from cases import make_decoder
from npad import NPAD, Diverse, Greedy, MostProbable, Noise, Sampling
from npad.calibrate.decoder_space import DecoderSpace
from npad.cli.compare import QUICK
from npad.cli.decoder_options import options_for
from npad.search.defaults import Defaults, default_npad
from npad.selectors import WithCut
from runs import ROOT

RELATIVE = Noise(0.1, relative=True)


def toy(**capabilities):
    """The toy, with some capabilities of a transformer."""
    model = npad.load("toy").model
    for name, value in capabilities.items():
        setattr(model, name, value)
    return model


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({}, NPAD(Greedy(), 50, Noise(0.3))),
        ({"relative_noise": 0.1}, NPAD(Greedy(), 10, RELATIVE)),
        (
            {"relative_noise": 0.1, "open_ended": True},
            NPAD(Greedy(), 10, RELATIVE, selector=WithCut()),
        ),
    ],
    ids=["own", "transformer", "decoder-only"],
)
def test_the_commands_and_python_have_one_npad_for_a_model(capabilities, expected):
    model = toy(**capabilities)
    defaults = Defaults.of(model)
    assert default_npad(model) == expected
    assert make_decoder("npad", {}, defaults) == expected
    assert make_decoder("npad()", {}, defaults) == expected
    assert make_decoder("npad(seed=3)", {}, defaults) == replace(expected, seed=3)
    assert make_decoder("npad", {"chains": 7}, defaults) == replace(expected, chains=7)
    assert options_for(expected, defaults) == f"--decoder npad --sigma {expected.noise.sigma:g}"


@pytest.mark.parametrize("capabilities", [{}, {"relative_noise": 0.1}], ids=["own", "transformer"])
def test_calibration_tries_the_default_noise(capabilities):
    model = toy(**capabilities)
    tried = [candidate.decoder for candidate in DecoderSpace(model, "bleu").candidates()]
    assert default_npad(model) in tried


def test_the_page_lists_them():
    page = (ROOT / "docs/decoding.md").read_text()
    section = page.partition("## Defaults\n")[2].partition("\n## ")[0]
    rows = [row.strip("| ").split(" | ") for row in re.findall(r"^\|.*\|$", section, re.MULTILINE)]
    shown = {
        name: [value.split(":")[0].split(",")[0] for value in rest] for name, *rest in rows[2:]
    }
    own, transformer = Defaults(), Defaults.from_facts(0.1, True)
    assert shown["NPAD's chains"] == [
        str(value) for value in (own.chains, transformer.chains, QUICK["chains"])
    ]
    assert shown["σ₀"][:2] == [f"{own.noise.sigma:g}", f"{transformer.noise.sigma:g}"]
    assert shown["samples"] == [str(Sampling().samples)] * 2 + [str(QUICK["samples"])]
    assert shown["η of diverse decoding"] == [f"{Diverse().eta:g}"] * 2 + [f"{QUICK['eta']:g}"]
    assert own.selector == MostProbable()


def test_inside_generate_the_chains_are_the_same():
    hf = pytest.importorskip("npad.hf")
    chains = inspect.signature(hf.npad).parameters["npad_chains"].default
    assert chains == Defaults.from_facts(0.1, False).chains
