"""Decoders on the command line: their options, and those of parts added at run time."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial

import pytest
import torch

import npad as package
from npad.distributions import DISTRIBUTIONS
from npad.schedules import SCHEDULES
from npad.search.registry import DECODERS, SELECTORS
from runs import printed_here, refused_here


@pytest.fixture
def registered():
    """Register parts for the time of a test."""
    added = []

    def register(registry, kind):
        registry.add(kind)
        added.append((registry, kind))
        return kind

    yield register
    for registry, kind in added:
        registry.remove(kind)


@dataclass(frozen=True)
class Widest(package.Decoder):
    """A beam by another name."""

    breadth: int = field(default=2, metadata={"help": "prefixes kept", "title": "{}"})

    def search(self, model, state, problems):
        return package.Beam(self.breadth).search(model, state, problems)

    @property
    def rows(self):
        return self.breadth


def test_a_decoder_added_at_run_time_has_its_options(registered, capsys, monkeypatch):
    registered(DECODERS, Widest)
    printed = partial(printed_here, capsys, monkeypatch)
    shown = " ".join(printed("translate", "--help").replace("│", " ").split())
    assert "widest: prefixes kept. [2]" in shown
    assert "--breadth" in shown
    record = json.loads(
        printed("translate", "-m", "toy", "-d", "widest", "--breadth", 3, "--json", "danke")
    )
    assert record["signature"].startswith("widest|breadth:3|")
    assert "widest, 4" in printed("compare", "-m", "toy", "--breadth", 4, "danke")
    inner = ("translate", "-m", "toy", "-d", "npad", "--inner", "widest", "--breadth", 3, "--json")
    assert "inner:widest(breadth=3)" in printed(*inner, "danke")


@dataclass(frozen=True)
class Early:
    """A schedule that is 1 at the first step and then `floor`."""

    floor: float = 0.0

    def __call__(self, step, entropy):
        return torch.where(step <= 1, 1.0, self.floor)


@dataclass(frozen=True)
class Coin(package.distributions.Distribution):
    """Plus or minus `size`."""

    size: float = 1.0

    def unit(self, keys, width):
        return self.size * package.distributions.Gaussian().unit(keys, width).sign()


@dataclass(frozen=True)
class Shortest:
    """A selector by length."""

    weight: float = 1.0

    def __call__(self, found):
        return -self.weight * found.lengths.double()


@pytest.mark.parametrize(
    ("registry", "kind", "flag", "spec"),
    [
        (SCHEDULES, Early, "--schedule", "early(floor=0.5)"),
        (DISTRIBUTIONS, Coin, "--distribution", "coin(size=2.0)"),
        (SELECTORS, Shortest, "--selector", "shortest(weight=3.0)"),
    ],
    ids=["schedule", "distribution", "selector"],
)
def test_a_part_of_npad_added_at_run_time_is_an_option(
    registry, kind, flag, spec, registered, capsys, monkeypatch
):
    command = ("translate", "-m", "toy", "-d", "npad", "-M", 4, flag, spec, "--json", "danke")
    assert "must be one of" in refused_here(capsys, monkeypatch, *command)
    registered(registry, kind)
    assert f":{spec}" in json.loads(printed_here(capsys, monkeypatch, *command))["signature"]
    shown = printed_here(capsys, monkeypatch, "translate", "--help")
    assert spec.partition("(")[0] in shown


def test_several_decoders_are_named_with_commas(capsys, monkeypatch):
    command = ("translate", "-m", "toy", "-d", "best-of", "--inner", "greedy,beam(width=3)")
    record = json.loads(printed_here(capsys, monkeypatch, *command, "--json", "danke"))
    decoder = package.BestOf((package.Greedy(), package.Beam(3)))
    expected = package.load("toy").translate(["danke"], decoder)[0]
    assert (record["text"], record["signature"]) == (expected.text, expected.signature)
