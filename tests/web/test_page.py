"""The page in a real browser: what a visitor does, and what the page shows then."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from browsing import decode, settle

pytestmark = pytest.mark.web

TOY = "/?text=ich+verstehe+nur+bahnhof&model=toy"
CHAINS = f"{TOY}&decoder=npad&chains=10&sigma=0.3&seed=0"
PICTURES = ["lattice-picture", "staircase-picture", "scatter-picture", "attention-picture"]
# Every element of a picture with its attributes, whose order tells nothing, and its text.
DRAWN = """picture => [picture, ...picture.querySelectorAll("*")].map((element) => [
  element.tagName,
  ...[...element.attributes].map(({ name, value }) => `${name}=${value}`).sort(),
  element.children.length ? "" : element.textContent,
].join(" "))"""
TABLES = ["n-best-rows", "comparison-rows", "translation-facts"]


def open_settings(page):
    page.locator("#settings > summary").click()


def pictures(page):
    """Everything drawn and listed, except how long it took."""
    shown = {name: page.locator(f"#{name}").evaluate(DRAWN) for name in PICTURES}
    tables = {name: page.locator(f"#{name}").inner_text() for name in TABLES}
    tables["translation-facts"] = re.sub(r"[\d.]+ m?s\b", "", tables["translation-facts"])
    return shown | tables


def test_a_visitor_types_a_text_and_sees_its_translation(visit, server):
    page = visit()
    page.get_by_label("Text", exact=True).fill("How are you?")
    page.get_by_role("button", name="Decode").click()
    page.wait_for_url("**How+are+you**")
    settle(page)
    expected = decode(server, text="How are you?", model="en-de", decoder="npad")
    shown = page.locator("#translation").inner_text()
    assert shown.replace(" ", "") == expected["text"].replace(" ", "")
    assert (
        f"{expected['log_prob']:.3f}".replace("-", "−") in page.locator("#n-best-rows").inner_text()
    )


def test_enter_decodes_and_words_carry_no_marks(visit):
    page = visit()
    text = page.get_by_label("Text", exact=True)
    text.fill("Good morning.")
    text.press("Enter")
    page.wait_for_url("**Good+morning**")
    settle(page)
    assert "▁" not in page.locator("body").inner_text()
    assert "▁" not in page.locator("#lattice-picture").inner_html()


def test_something_is_seen_at_once(visit):
    """Some 50 ms after a click, on an idle machine; this one may be busy."""
    page = visit(CHAINS)
    milliseconds = page.evaluate("""() => new Promise((resolve) => {
      const clicked = performance.now();
      const seen = () => requestAnimationFrame(() => resolve(performance.now() - clicked));
      const facts = document.getElementById("translation-facts");
      document.querySelector("#ask button").click();
      new MutationObserver(seen).observe(facts, { childList: true });
    })""")
    settle(page)
    assert milliseconds < 1000


def test_a_server_with_a_token_asks_for_it(visit, guarded):
    page = visit(CHAINS, settled=False, server=guarded)
    page.get_by_label("This server asks for its token").fill("open sesame")
    page.get_by_role("button", name="Use it").click()
    settle(page)
    assert page.locator("#translation").inner_text() == "it is all greek to me"
    assert "sesame" not in page.url
    page.complaints.clear()  # the browser's own lines about the answers 401


def test_steps_grow_the_tree(visit):
    page = visit(CHAINS)
    visible = "#lattice-picture [role=treeitem]:not(.hidden)"
    whole = page.locator(visible).count()
    page.get_by_role("button", name="To the first step").click()
    counts = [page.locator(visible).count()]
    while page.get_by_role("button", name="One step forward").is_enabled():
        page.get_by_role("button", name="One step forward").click()
        counts.append(page.locator(visible).count())
    assert counts == sorted(counts)
    assert counts[0] < counts[-1] == whole
    page.get_by_role("button", name="One step back").click()
    assert "at=" in page.url


def test_play_and_pause_control_the_step_in_view(visit):
    page = visit(CHAINS)
    page.get_by_label("Speed").select_option("4")
    page.get_by_role("button", name="Play").click()
    page.get_by_role("button", name="Pause").click()
    paused = page.locator("#player-position").inner_text()
    page.wait_for_timeout(400)
    assert page.locator("#player-position").inner_text() == paused
    page.get_by_role("button", name="Play").click()
    page.locator("#player-play", has_text="Play").wait_for()
    total = page.locator("#player-position").inner_text().split()[-1]
    assert page.locator("#player-position").inner_text() == f"step {total} of {total}"


@pytest.mark.parametrize(
    "path",
    [
        CHAINS,
        f"{TOY}&decoder=beam&width=3",
        "/?text=I+would+rather+stay+at+home.&model=en-de&decoder=npad&chains=12&seed=3",
    ],
    ids=["toy", "beam", "en-de"],
)
def test_a_shared_link_gives_the_same_picture(visit, path):
    page = visit(path, permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="One step back").click()
    assert page.locator("#n-best-rows button").count() > 0
    page.locator("#n-best-rows button").last.click()
    page.wait_for_timeout(300)
    page.get_by_role("button", name="Copy link").click()
    page.get_by_role("button", name="Link copied").wait_for()
    link = page.evaluate("navigator.clipboard.readText()")
    again = visit(link[link.index("/?") :])
    assert again.url == page.url
    page.mouse.move(0, 0)
    assert pictures(again) == pictures(page)


OPTIONS = [
    "decoder=greedy",
    "decoder=beam&width=4",
    "decoder=beam&width=4&selector=length-normalised",
    "decoder=sampling&samples=20",
    "decoder=diverse&width=3&eta=0.5",
    "decoder=exact",
    "decoder=epsilon&samples=20&epsilon=0.125",
    "decoder=npad&chains=6&inner=beam&width=2",
    "decoder=npad&chains=6&inner=sampling&temperature=0.5",
    "decoder=npad&chains=1",
    "decoder=npad&chains=6&schedule=adaptive(power%3D1.0)&relative=true&distribution=dropout",
    "decoder=npad&chains=6&selector=mbr&site=output&sigma=0.125",
    "decoder=npad&chains=3&sigma=0,0.1,0.2&max_length=3",
]


@pytest.mark.parametrize("options", OPTIONS)
def test_every_decoder_is_shown_and_its_options_kept(visit, server, options):
    page = visit(f"/?text=na+ja&model=toy&{options}", reduced_motion="no-preference")
    given, kept = parse_qs(options), parse_qs(urlsplit(page.url).query)
    for name, (value,) in given.items():
        assert kept[name][0] == value or kept[name][0].startswith(f"{value}(")  # with its fields
    asked = {name: value for name, (value,) in given.items()}
    expected = decode(server, text="na ja", model="toy", **asked)
    assert page.locator("#translation").inner_text() == (expected["text"] or "(an empty output)")
    assert page.locator("#n-best-rows tr").count() > 0
    assert page.locator("#lattice-picture [role=treeitem]:not(.hidden)").count() > 0
    sections = page.locator("#answer, #lattice, #n-best, #cost-lead").all_inner_texts()
    assert ("chain" in " ".join(sections)) == (asked["decoder"] == "npad")


def test_the_address_holds_every_option_and_texts_name_their_languages(visit):
    page = visit(CHAINS)
    query = parse_qs(urlsplit(page.url).query)
    assert {"text", "model", "decoder", "chains", "sigma", "schedule", "site", "seed"} <= set(query)
    assert {"selector", "inner", "distribution", "max_length"} <= set(query)
    assert page.get_by_label("Text", exact=True).get_attribute("lang") == "de"
    assert page.locator("#translation").get_attribute("lang") == "en"
    assert page.title() == "ich verstehe nur bahnhof · npad"


def test_back_returns_to_the_search_before(visit):
    page = visit(CHAINS)
    before = pictures(page)
    page.locator("select[name=decoder]").select_option("greedy")
    page.wait_for_url("**decoder=greedy**")
    settle(page)
    assert pictures(page) != before
    page.go_back()
    page.wait_for_url("**decoder=npad**")
    settle(page)
    assert pictures(page) == before


def test_controls_fit_the_decoder_and_change_the_search(visit):
    page = visit(CHAINS)
    open_settings(page)
    assert page.get_by_label("Chains", exact=True).is_visible()
    assert not page.get_by_label("Beam width").is_visible()
    curve = page.locator("#curve").inner_html()
    page.get_by_label("Schedule").select_option("constant")
    settle(page)
    assert page.locator("#curve").inner_html() != curve
    assert parse_qs(urlsplit(page.url).query)["schedule"] == ["constant"]
    page.locator("select[name=decoder]").select_option("beam")
    settle(page)
    assert page.get_by_label("Beam width").is_visible()
    assert not page.get_by_label("Chains", exact=True).is_visible()
    page.locator("select[name=decoder]").select_option("mbr-decoding")  # has a selector of its own
    page.wait_for_url("**decoder=mbr-decoding**selector=mbr**")
    settle(page)
    assert page.get_by_role("alert").is_hidden()


def test_the_staircase_never_falls_and_ends_at_the_proven_optimum(visit, server):
    page = visit(CHAINS)
    exact = decode(server, text="ich verstehe nur bahnhof", model="toy", decoder="exact")
    rows = page.locator("#comparison-rows tr").all_inner_texts()
    assert exact["proven"]
    assert any("proven" in row and "it is all greek to me" in row for row in rows)
    assert [row.split("\t")[0] for row in rows][:3] == ["NPAD-10", "greedy search", "beam 5"]
    path = page.locator("#staircase-picture .stairs").get_attribute("d")
    heights = [float(y) for y in re.findall(r"[V,]([\d.]+)", path)]
    assert heights == sorted(heights, reverse=True)  # SVG's y axis points down


def test_a_branch_tells_its_probability_by_keyboard_and_pointer(visit):
    page = visit(CHAINS)
    idiom = page.locator("#lattice-picture [role=treeitem][aria-label^='it is all greek to me:']")
    idiom.hover(force=True)
    assert "0.134" in page.locator("#branch").inner_text()
    first = page.locator("#lattice-picture [role=treeitem][tabindex='0']")
    first.focus()
    assert first.get_attribute("aria-label").startswith("i:")
    assert "0.440" in page.locator("#branch").inner_text()
    page.keyboard.press("ArrowRight")
    assert "0.229" in page.locator("#branch").inner_text()  # i understand: 0.44 × 0.52
    assert "noise" in page.locator("#branch").inner_text()


def test_a_malformed_number_in_a_link_is_named(visit):
    page = visit(f"{TOY}&decoder=npad&chains=abc", settled=False)
    page.get_by_role("alert").wait_for()
    assert "chains" in page.get_by_role("alert").inner_text()
    assert "nbest" not in page.get_by_role("alert").inner_text()
    page.complaints.clear()  # the browser's own line about the answer 400


def test_a_typed_text_is_kept_when_the_decoder_changes(visit):
    page = visit(CHAINS)
    page.get_by_label("Text", exact=True).fill("danke")
    page.locator("select[name=decoder]").select_option("greedy")
    page.wait_for_url("**text=danke**decoder=greedy**")
    settle(page)
    assert page.get_by_label("Text", exact=True).input_value() == "danke"
    assert page.locator("#translation").inner_text() == "thanks"


def test_a_text_that_is_too_long_is_refused_whole(visit):
    page = visit(f"/?model=toy&text={'danke ' * 900}", settled=False)
    page.get_by_role("alert").wait_for()
    assert (
        "at most 5000 characters, and this text has 5399" in page.get_by_role("alert").inner_text()
    )


def test_a_refusal_is_one_line_and_the_page_goes_on(visit):
    page = visit(f"{CHAINS}&selector=nonsense", settled=False)
    problem = page.get_by_role("alert")
    problem.wait_for()
    assert "selector" in problem.inner_text()
    page.complaints.clear()  # the browser's own line about the answer 400
    open_settings(page)
    page.get_by_label("Keep the").select_option("most-probable")
    settle(page)
    assert problem.is_hidden()
    assert page.locator("#translation").inner_text() == "it is all greek to me"


def test_markup_in_a_text_stays_text(visit):
    text = "<img src=x onerror=alert(1)> & <b>bold</b>"
    page = visit(f"/?text={quote(text)}&model=en-de&decoder=greedy", settled=False)
    page.locator("body[data-search=done]").wait_for(state="attached")
    assert page.get_by_label("Text", exact=True).input_value() == text
    assert page.locator("main img, main b").count() == 0


def test_the_tour_has_six_steps(visit):
    page = visit(CHAINS)
    page.get_by_role("button", name="Tour in six steps").click()
    titles = []
    for step in range(1, 7):
        page.wait_for_url(f"**tour={step}*")
        settle(page)
        titles.append(page.locator("#tour h2").inner_text())
        if step == 3:
            assert page.locator("#translation").inner_text() == "i get nothing"
            page.get_by_label("Beam width").fill("4")
            page.get_by_label("Beam width").press("Tab")
            page.wait_for_url("**width=4**")
            settle(page)
            assert page.locator("#translation").inner_text() == "it is all greek to me"
        if step < 6:
            page.get_by_role("button", name="Next").click()
    assert len(set(titles)) == 6
    assert page.locator("#translation").inner_text() == "it is all greek to me"
    again = visit(page.url[page.url.index("/?") :])
    assert pictures(again) == pictures(page)
    page.get_by_role("button", name="Finish").click()
    assert page.locator("#tour").is_hidden()


SPENDS = "/?text=She+spends+most+of+her+money+on+books.&model=en-de&decoder=npad&chains=8&seed=0"


def test_a_click_on_a_word_fixes_everything_before_it_and_decodes_on(visit, server):
    page = visit(SPENDS)
    free = page.locator("#translation").inner_text()
    assert page.get_by_text("Choose a word to fix everything before it").is_visible()
    page.locator("#translation button", has_text=re.compile("^die$")).click()
    settle(page)
    field = page.get_by_label("Fixed: the output begins with")
    assert field.input_value() == "Sie gibt "
    assert "prefix=Sie+gibt+" in page.url
    page.keyboard.type("den gr")  # the field has the focus
    page.keyboard.press("Enter")
    page.wait_for_url("**den+gr**")
    settle(page)
    asked = {"text": "She spends most of her money on books.", "model": "en-de", "chains": 8}
    expected = decode(server, **asked, decoder="npad", prefix="Sie gibt den gr")
    shown = page.locator("#translation").inner_text()
    assert shown == expected["text"] != free
    assert page.locator("#translation .fixed").all_inner_texts() == ["Sie", "gibt", "den"]
    for row in page.locator("#comparison-rows td:nth-child(2)").all_inner_texts():
        assert row.startswith("Sie gibt den gr") or row == "(empty)"
    again = visit(page.url[page.url.index("/?") :])
    assert again.locator("#translation").inner_text() == shown
    page.get_by_role("button", name="Release").click()
    page.wait_for_url(lambda url: "prefix" not in url)
    settle(page)
    assert page.locator("#translation").inner_text() == free
    assert page.locator("#translation .fixed").count() == 0
    assert not field.is_visible()
    page.go_back()
    settle(page)
    assert page.locator("#translation").inner_text() == shown


def test_words_are_fixed_with_the_keyboard(visit):
    page = visit(SPENDS.replace("npad", "greedy"))
    page.locator("#translation button").nth(1).focus()
    page.keyboard.press("Tab")
    second = page.evaluate("document.activeElement.textContent")
    assert second == page.locator("#translation button").nth(2).inner_text()
    page.keyboard.press("Enter")
    settle(page)
    assert page.evaluate("document.activeElement.id") == "prefix"
    begun = page.locator("#translation").inner_text().split()[:2]
    assert page.locator("#prefix").input_value().split() == begun
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # Release
    page.wait_for_url(lambda url: "prefix" not in url)
    settle(page)
    assert page.evaluate("document.activeElement.id") == "translation"


def test_another_text_model_or_sentence_releases_what_was_fixed(visit):
    path = SPENDS.replace("books.", "books.+How+are+you%3F")
    page = visit(f"{path}&prefix=Sie+gibt+")
    page.locator("#parts-list button").nth(1).click()
    page.wait_for_url(lambda url: "prefix" not in url)
    settle(page)
    assert page.locator("#translation").inner_text().startswith("Wie")
    assert page.locator("#parts-list p").first.inner_text().startswith("Sie gibt ")
    page.locator("#translation button").nth(1).click()
    settle(page)
    page.locator("select[name=model]").select_option("toy")
    page.wait_for_url(lambda url: "prefix" not in url)
    settle(page)
    assert page.locator("#translation button").count() == 0  # the toy cannot be constrained
    assert not page.locator("#fix-hint").is_visible()
