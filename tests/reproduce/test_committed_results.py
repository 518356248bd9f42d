"""The reports and tables in the documentation are what the committed results say."""

from __future__ import annotations

import re

import pytest

from npad.reproduce import report
from runs import ROOT
from studies.beyond.outline import BEYOND
from studies.tasks.sections import OUTLINES

README = ROOT / "README.md"
RESULTS = sorted(path.parent for path in (ROOT / "docs/results").glob("*/results.jsonl"))


def test_every_interval_of_the_summary_is_a_reports():
    pages = "".join(page.read_text() for page in (ROOT / "docs/results").glob("*/README.md"))
    given = (ROOT / "docs/results/README.md").read_text().replace("−", "-")
    intervals = re.findall(r"[+-]\d+\.\d+ \[[+-][\d.]+, [+-][\d.]+\]", given)
    assert len(intervals) > 20
    assert [one for one in intervals if one not in pages] == []


@pytest.mark.parametrize("folder", RESULTS, ids=lambda folder: folder.name)
def test_a_committed_report_is_what_its_results_say(folder):
    outline = OUTLINES.get(folder.name, BEYOND)
    assert report.render(folder, outline) == (folder / "README.md").read_text()


def test_the_readmes_results_are_those_of_the_reports_it_links():
    rows = re.findall(
        r"^\| \[.*?\]\((docs/results/.*?)\).*?\|(.*)$", README.read_text(), re.MULTILINE
    )
    assert len(rows) == 5
    for report_page, row in rows:
        figures = re.findall(r"[\d.]+", row)
        assert len(figures) >= 3
        assert set(figures) <= set(re.findall(r"\d+\.\d+", (ROOT / report_page).read_text()))
