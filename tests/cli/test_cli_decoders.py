"""Decoders on the command line: their options, and those of parts added at run time."""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import npad as package
from npad.cli.decoder_options import flag_of
from npad.distributions import DISTRIBUTIONS
from npad.schedules import SCHEDULES
from npad.search.registry import DECODERS, SELECTORS
from npad.search.request import options_of
from runs import ROOT


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


def test_a_decoder_added_at_run_time_has_its_options(registered, printed_here):
    registered(DECODERS, Widest)
    printed = printed_here
    shown = " ".join(printed("translate", "--help-all").split())
    assert "--breadth N widest: prefixes kept. [2]" in shown
    assert "widest A beam by another name." in " ".join(printed("decoders").split())
    assert "--breadth N prefixes kept. [2]" in " ".join(printed("decoders", "widest").split())
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
    registry, kind, flag, spec, registered, printed_here, refused_here
):
    command = ("translate", "-m", "toy", "-d", "npad", "-M", 4, flag, spec, "--json", "danke")
    assert "must be one of" in refused_here(*command)
    registered(registry, kind)
    assert f":{spec}" in json.loads(printed_here(*command))["signature"]
    assert spec.partition("=")[0] in printed_here("decoders", "npad")


def test_several_decoders_are_named_with_commas(printed_here):
    command = ("translate", "-m", "toy", "-d", "best-of", "--inner", "greedy,beam(width=3)")
    record = json.loads(printed_here(*command, "--json", "danke"))
    decoder = package.BestOf((package.Greedy(), package.Beam(3)))
    expected = package.load("toy").translate(["danke"], decoder)[0]
    assert (record["text"], record["signature"]) == (expected.text, expected.signature)


@pytest.mark.parametrize("name", DECODERS.kinds)
def test_a_decoder_explains_itself(name, printed_here, monkeypatch):
    monkeypatch.setattr(
        "npad.cli.help.shutil.get_terminal_size", lambda: os.terminal_size((80, 24))
    )
    kind: Any = DECODERS.kinds[name]
    (line,) = [
        line for line in printed_here("decoders").splitlines() if line.startswith(f"  {name} ")
    ]
    assert line.endswith(f" {inspect.getdoc(kind).splitlines()[0]}")  # the whole of it
    assert "`" not in line
    shown = printed_here("decoders", name)
    assert max(map(len, shown.splitlines())) <= 80
    for option in options_of(kind):
        assert f"{flag_of(option.name)[2:]} " in shown
    page, _, heading = kind.page.partition("#")
    headings = re.findall(r"^#+ (.*)$", (ROOT / "docs" / page).read_text(), re.MULTILINE)
    assert heading in [title.lower().replace(" ", "-") for title in headings]
    assert shown.splitlines()[-1] == f"Documentation: docs/{kind.page}"


@pytest.mark.parametrize("name", [n for n, kind in DECODERS.kinds.items() if n != "steered"])
def test_the_example_of_a_decoder_runs(name, printed_here):
    example = printed_here("decoders", name).partition("Example:\n")[2]
    words = shlex.split(example.partition("\n\n")[0].replace("\\\n", ""))
    assert words[:3] == ["npad", "translate", "--decoder"]
    command = [*words[1:-1], "--model", "toy", "--json", "danke"]
    record = json.loads(printed_here(*command))
    assert record["text"] == "thanks"


def test_decoders_are_in_two_groups(printed_here):
    everyday, research = printed_here("decoders").split("Research:")
    kinds: dict[str, Any] = DECODERS.kinds
    for name, kind in kinds.items():
        assert f"\n  {name} " in (everyday if kind.everyday else research)
