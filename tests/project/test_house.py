"""The figures that keep the package small count what they say."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

HOUSE = runpy.run_path(str(Path(__file__).parent.parent.parent / ".ci/house.py"))


@pytest.fixture
def trees(tmp_path):
    files = {
        "search/beam.py": "class Beam(Decoder):\n    pass\nclass Wide(Beam):\n    pass\n",
        "search/plan.py": "from npad.search.beam import Beam\nclass Plan:\n    pass\n",
        "engine/plan.py": "import npad.search.plan\nclass Plan:\n    pass\n",
        "front.py": (
            "from npad.search import beam, plan\n"
            "def run(max_length, *, max_rows):\n    return isinstance(run, int | beam)\n"
            "def stop(max_length):\n    return isinstance(stop, (int, Wide))\n"
        ),
    }
    for name, text in files.items():
        (tmp_path / "npad" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "npad" / name).write_text(text)
    return HOUSE["parse"](tmp_path / "npad")


@pytest.mark.parametrize(
    ("count", "found"),
    [
        ("repeated_classes", ["Plan: npad.engine.plan, npad.search.plan"]),
        ("single_importers", []),
        ("loose_requests", ["npad.front:2 run"]),
        ("decoder_questions", ["npad.front:5 Wide"]),
        ("searches_in_engine", ["npad.engine.plan: npad.search.plan"]),
    ],
)
def test_a_figure_names_the_places_it_counts(trees, count, found):
    assert HOUSE[count](trees) == found


def test_a_module_imported_once_is_named_with_its_importer(trees):
    del trees["npad.front"]
    assert HOUSE["single_importers"](trees) == [
        "npad.search.beam (by npad.search.plan)",
        "npad.search.plan (by npad.engine.plan)",
    ]


def test_every_figure_has_a_limit():
    assert HOUSE["figures"]().keys() == HOUSE["LIMITS"].keys()
