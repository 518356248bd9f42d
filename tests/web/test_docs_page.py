"""The page of the API, in a real browser."""

from __future__ import annotations

import json
import re
import shlex
import urllib.request

import pytest

pytestmark = pytest.mark.web


def test_the_page_shows_every_operation_and_its_options(visit, server):
    page = visit("/docs", settled=False)
    page.locator("section").first.wait_for()
    paths = json.load(urllib.request.urlopen(f"{server}/openapi.json"))["paths"]
    titles = [f"{verb.upper()} {path}" for path, verbs in paths.items() for verb in verbs]
    assert page.locator("section h2").all_inner_texts() == [*titles, "Limits"]
    translate = page.get_by_role("region", name="POST /translate").locator("pre").inner_text()
    assert shlex.split(translate)[-1] == '{"q":"TEXT","target":"en"}'
    section = page.get_by_role("region", name="POST /v1/decode")
    command = shlex.split(section.locator("pre").inner_text())
    assert command == [
        *("curl", f"{server}/v1/decode", "-H", "Content-Type: application/json"),
        *("-d", '{"text":"TEXT"}'),
    ]
    section.locator("summary").click()
    chains = section.get_by_role("row", name=re.compile("^chains "))
    assert "integer \u2265 1" in chains.inner_text()
    assert "50" in chains.inner_text()


@pytest.mark.parametrize("width", [360, 1280])
def test_axe_finds_no_serious_fault_on_the_page_of_the_api(visit, axe, width):
    page = visit("/docs", settled=False, viewport={"width": width, "height": 800})
    page.locator("section").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate(axe)
    violations = page.evaluate("axe.run().then(result => result.violations)")
    serious = [v for v in violations if v["impact"] in ("serious", "critical")]
    assert [(v["id"], [node["html"] for node in v["nodes"][:3]]) for v in serious] == []
