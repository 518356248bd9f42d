"""The page for everyone: narrow and dark screens, keyboards, screen readers, a strict policy."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.web

TOY = "/?text=ich+verstehe+nur+bahnhof&model=toy&decoder=npad&chains=10&sigma=0.3&seed=0"
REAL = "/?text=She+spends+most+of+her+money+on+books.&model=en-de&decoder=npad&chains=20"
BESIDE = "/?text=Where+is+my+phone%3F+Hm.&model=en-de&decoder=npad&chains=5&against=decoder%3Dbeam"
FIXED = f"{REAL}&prefix=Sie+gibt+"
PATHS = {"toy": TOY, "en-de": REAL, "tour": "/?tour=1", "beside": BESIDE, "fixed": FIXED}
NARROW = {"width": 360, "height": 740}


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_a_narrow_screen_scrolls_only_downwards(visit, path):
    page = visit(path, viewport=NARROW)
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
    for name in ("Decode", "Copy link", "Play"):
        assert page.get_by_role("button", name=name).is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_system(visit, scheme):
    page = visit(TOY, color_scheme=scheme)
    rgb = page.evaluate(
        "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    )
    assert (sum(rgb) / 3 < 64) == (scheme == "dark")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize("size", [{"width": 1280, "height": 900}, NARROW], ids=["wide", "narrow"])
def test_axe_finds_no_serious_fault(visit, axe, path, scheme, size):
    page = visit(path, color_scheme=scheme, viewport=size)
    page.evaluate(
        "document.querySelectorAll('details').forEach((details) => (details.open = true))"
    )
    page.evaluate(axe)
    violations = page.evaluate("axe.run().then(result => result.violations)")
    serious = [v for v in violations if v["impact"] in ("serious", "critical")]
    assert [(v["id"], [node["html"] for node in v["nodes"][:3]]) for v in serious] == []


@pytest.mark.parametrize("path", [BESIDE, FIXED], ids=["beside", "fixed"])
def test_targets_have_24_pixels_at_least(visit, path):
    page = visit(path, viewport=NARROW, has_touch=True, is_mobile=True)
    page.evaluate(
        "document.querySelectorAll('details').forEach((details) => (details.open = true))"
    )
    small = page.locator("button, input, select, summary, a, textarea").evaluate_all(
        """elements => elements.filter((element) => {
          const { width, height } = element.getBoundingClientRect();
          return element.checkVisibility() && Math.min(width, height) < 24;
        }).map((element) => element.outerHTML)"""
    )
    assert small == []


def test_every_control_has_a_name_and_the_tab_key_reaches_it(visit):
    page = visit(TOY)
    page.locator("#settings > summary").click()
    reached = set()
    for _ in range(100):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.name || ''"))
    assert {"text", "model", "decoder", "chains", "sigma", "seed", "player-play"} <= reached
    assert {"take-tour", "share", "player-slider", "player-speed"} <= reached


def test_pictures_have_tables(visit):
    page = visit(REAL)
    page.evaluate(
        "document.querySelectorAll('details').forEach((details) => (details.open = true))"
    )
    assert page.locator("#prefix-numbers tbody tr").count() > 0
    assert page.locator("#scatter-numbers tbody tr").count() == 20
    target = page.locator("#attention-numbers tbody tr")
    assert target.count() > 3
    cells = target.first.locator("td").all_inner_texts()
    assert abs(sum(int(cell.split()[0]) for cell in cells) - 100) <= len(cells)


def test_the_policy_of_the_page_forbids_all_but_its_own_files(visit, server):
    page = visit(TOY)
    policy = page.request.get(server).headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
