"""What the page offers to new visitors: examples, sentences, warnings, explanations, files."""

from __future__ import annotations

import json
import re
from urllib.parse import parse_qs, quote, urlsplit
from xml.etree import ElementTree

import pytest
from browsing import decode, settle

from npad.models import toy
from npad.search.registry import DECODERS

pytestmark = pytest.mark.web

TOY = "/?text=ich+verstehe+nur+bahnhof&model=toy"
CHAINS = f"{TOY}&decoder=npad&chains=10&sigma=0.3&seed=0"
REAL = "/?text=They+made+him+wait+outside+in+the+rain.&model=en-de&decoder=npad&chains=20"
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
# What chains find where greedy search goes wrong.
RESCUED = {
    "They made him wait outside in the rain.": "Sie ließen ihn draußen im Regen warten.",
    "I spent the whole weekend reading a book.": (
        "Ich habe das ganze Wochenende damit verbracht, ein Buch zu lesen."
    ),
    "There is nothing better than a cup of coffee in the morning.": (
        "Es gibt nichts Besseres als eine Tasse Kaffee am Morgen."
    ),
}
PARAGRAPH = "Where is my phone? Dr. Smith is at home.\n\n你好，你今天怎么样？"
SENTENCES = ["Where is my phone?", "Dr. Smith is at home.", "你好，你今天怎么样？"]


def chips(page):
    return page.locator("#examples button").all_inner_texts()


def test_examples_show_what_chains_are_for(visit, server):
    page = visit("/")
    first, *others = chips(page)
    assert page.get_by_label("Text", exact=True).input_value() == first
    assert set(RESCUED) <= {first, *others}
    assert first in RESCUED
    for text, rescued in RESCUED.items():
        asked = {"text": text, "model": "en-de"}
        greedy, npad = (decode(server, **asked, decoder=name) for name in ("greedy", "npad"))
        assert npad["text"] == rescued != greedy["text"]
        assert npad["log_prob"] > greedy["log_prob"]
    verdict = page.locator("#verdict").inner_text()
    assert "Greedy search ends with" in verdict
    assert "as probable" in verdict

    page.get_by_role("button", name="Where is my phone?").click()
    page.wait_for_url("**Where+is+my+phone**")
    settle(page)
    assert page.locator("#verdict").inner_text() == "Greedy search finds the same output."


def test_the_toy_brings_its_phrases(visit):
    page = visit(REAL)
    page.locator("select[name=model]").select_option("toy")
    page.wait_for_url("**model=toy**")
    settle(page)
    assert sorted(chips(page)) == sorted(toy.PHRASES)
    assert page.get_by_label("Text", exact=True).input_value() == chips(page)[0]
    page.get_by_role("button", name="das ist mir wurst").click()
    page.wait_for_url("**wurst**")
    settle(page)
    assert page.locator("#translation").inner_text() != ""


def test_a_server_without_the_shipped_model_begins_with_an_example_of_its_own(visit, guarded):
    page = visit("/", settled=False, server=guarded)
    page.get_by_label("This server asks for its token").fill("open sesame")
    page.get_by_role("button", name="Use it").click()
    settle(page)
    assert page.get_by_label("Text", exact=True).input_value() in toy.PHRASES
    page.complaints.clear()  # the browser's own lines about the answers 401


def test_a_paragraph_is_decoded_sentence_by_sentence(visit, server):
    page = visit(
        f"/?model=en-de&decoder=beam&width=2&text={quote(PARAGRAPH)}",
        permissions=["clipboard-read", "clipboard-write"],
    )
    rows = page.locator("#parts-list li")
    assert rows.locator("button").all_inner_texts() == SENTENCES
    expected = [
        decode(server, text=text, model="en-de", decoder="beam", width=2)["text"]
        for text in SENTENCES
    ]
    assert rows.locator("p:not(.note)").all_inner_texts() == expected
    assert "does not know this text" in rows.last.inner_text()
    assert rows.locator(".note").count() == 1
    assert page.locator("#warning").is_hidden()

    page.get_by_role("button", name="Copy all outputs").click()
    page.get_by_role("button", name="Copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == f"{expected[0]} {expected[1]}\n\n{expected[2]}"

    page.get_by_role("button", name=SENTENCES[1]).click()
    page.wait_for_url("**part=1")
    settle(page)
    assert page.locator("#answer-title").inner_text() == "Sentence 2 of 3"
    assert page.locator("#translation").inner_text() == expected[1]
    assert rows.locator("p:not(.note)").all_inner_texts() == expected
    again = visit(page.url[page.url.index("/?") :])
    assert again.locator("#translation").inner_text() == expected[1]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One.", ["One."]),
        ("", [""]),
        (" \n a b \n\ncd ef. Gh? ", ["a b", "cd ef.", "Gh?"]),
        ("Mr. Smith met J. Doe, i.e. a friend. He left.", 2),
        ("Es gibt z. B. Bücher. Er liest.", 2),
        ("你好。谢谢。", ["你好。", "谢谢。"]),
    ],
)
def test_sentences_and_lines_are_split(blank, text, sentences):
    parts, joined = blank.evaluate(
        """async (text) => {
          const { split, join } = await import("/static/sentences.js");
          const parts = split(text);
          return [parts, join(parts, parts.map((part) => part.text))];
        }""",
        text,
    )
    found = [part["text"] for part in parts]
    assert (len(found) if isinstance(sentences, int) else found) == sentences
    assert joined.split() == text.replace("。", "。 ").split()
    assert joined.count("\n") == text.strip().count("\n")


@pytest.fixture(scope="module")
def blank(browser, server):
    """A page of the server whose modules can be imported."""
    page = browser.new_page()
    page.goto(f"{server}/static/icon.svg")
    yield page
    page.close()


@pytest.mark.parametrize(
    ("text", "warned"),
    [
        ("你好，你今天怎么样？", "does not know this text"),
        ("😀🎉🚀", "does not know this text"),
        ("The committee adjourned after a heated debate about fiscal policy.", "is unsure"),
        ("Where is my phone?", None),
    ],
)
def test_texts_that_the_model_does_not_know_get_a_warning(visit, text, warned):
    page = visit(f"/?model=en-de&decoder=greedy&text={quote(text)}", settled=False)
    page.locator("#n-best-rows tr").first.wait_for()
    warning = page.locator("#warning")
    assert warning.is_visible() == (warned is not None)
    if warned:
        assert warned in warning.inner_text()
        assert warned in page.locator("#announcement").inner_text()


def test_after_an_error_nothing_of_the_old_output_stays(visit):
    page = visit(CHAINS)
    assert "greek" in page.locator("#announcement").inner_text()
    page.get_by_label("Text", exact=True).fill("no phrase of the toy")
    page.get_by_role("button", name="Decode").click()
    problem = page.get_by_role("alert")
    problem.wait_for()
    assert "ich verstehe nur bahnhof" in problem.inner_text()  # it names what the model knows
    assert page.locator("#announcement").inner_text() == ""
    assert not any(section.is_visible() for section in page.locator(".result").all())
    assert page.locator("#n-best-rows tr, #comparison-rows tr").count() == 0
    page.get_by_role("button", name="danke").click()
    settle(page)
    assert problem.is_hidden()
    assert page.locator("#translation").inner_text() == "thanks"
    page.complaints.clear()  # the browser's own line about the answer 400


def test_technical_words_explain_themselves_to_pointer_and_keyboard(visit):
    page = visit(REAL)
    page.locator("#settings > summary").click()
    terms = page.evaluate("async () => (await import('/static/glossary.js')).TERMS")
    assert set(DECODERS.kinds) <= set(terms)
    used = page.locator("[data-term]").evaluate_all("all => all.map((e) => e.dataset.term)")
    assert set(used) <= set(terms)
    assert page.locator(".settings [data-option]:not([data-term]) > .term").count() == 0

    tip = page.locator("#tip")
    for name in ("expected chrF", "to re-score", "clean", "model calls", "log p"):
        word = page.locator("dfn", has_text=name).first
        word.hover()
        assert tip.is_visible(), name
        assert terms[word.get_attribute("data-term")][1] in tip.inner_text()
        page.mouse.move(0, 0)
        tip.wait_for(state="hidden")
        page.keyboard.press("Tab")  # so that focus is the keyboard's
        word.focus()
        assert tip.is_visible(), name
        page.keyboard.press("Escape")
        assert tip.is_hidden(), name
    word = page.locator("#translation-facts dfn").first
    word.focus()
    page.locator("#n-best-rows button").first.dispatch_event("click")  # draws all again
    settle(page)
    assert word.evaluate("element => element.isConnected")
    sigma = page.get_by_role("slider", name="Noise σ₀")
    page.keyboard.press("Tab")
    sigma.focus()
    assert terms["sigma"][1] in tip.inner_text()
    assert accessible_description(page, "input[name=sigma]") == terms["sigma"][1]


def accessible_description(page, selector):
    """The description that the browser gives to assistive technology."""
    session = page.context.new_cdp_session(page)
    session.send("Accessibility.enable")
    root = session.send("DOM.getDocument")["root"]["nodeId"]
    node = session.send("DOM.querySelector", {"nodeId": root, "selector": selector})["nodeId"]
    tree = session.send("Accessibility.getPartialAXTree", {"nodeId": node, "fetchRelatives": False})
    return tree["nodes"][0]["description"]["value"]


def test_a_phone_is_tapped_and_its_tree_scrolls(visit):
    page = visit(REAL, **PHONE)
    assert "Tap a branch" in page.locator("#branch").inner_text()
    assert "Swipe" in page.locator("#lattice-hint").inner_text()
    page.locator("dfn", has_text="expected chrF").tap()
    assert page.locator("#tip").is_visible()
    box = page.locator("#tip").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390


@pytest.mark.parametrize("visitor", [PHONE, {"viewport": {"width": 1280, "height": 800}}])
def test_the_tour_stands_beside_or_below_what_it_describes(visit, visitor):
    page = visit("/?tour=2", **visitor)
    page.get_by_role("button", name="Next").click()
    page.wait_for_url("**tour=3*")
    settle(page)
    height = visitor["viewport"]["height"]
    panel, tree = (page.locator(name).bounding_box() for name in ("#tour", "#lattice .player"))
    assert 0 <= tree["y"] < height
    assert panel["y"] + panel["height"] <= height
    below = panel["y"] >= tree["y"] + tree["height"]
    beside = panel["x"] + panel["width"] <= tree["x"]
    assert below or beside


def test_choosing_an_output_brings_its_path_into_view(visit):
    page = visit(REAL, viewport={"width": 700, "height": 600})
    page.get_by_role("button", name="To the first step").click()
    chosen = page.locator("#n-best-rows button").nth(5)
    chosen.click()
    settle(page)
    assert chosen.get_attribute("aria-pressed") == "true"
    assert "pick=5" in page.url
    assert "at=" not in page.url
    path = page.locator("#lattice-picture .winner:not(.hidden):not(.greedy)").first
    inside = """element => {
      const box = element.querySelector("text").getBoundingClientRect();
      const screen = element.closest(".scroll").getBoundingClientRect();
      return box.left >= screen.left && box.right <= screen.right
        && box.top >= Math.max(0, screen.top) && box.bottom <= Math.min(innerHeight, screen.bottom);
    }"""
    assert path.evaluate(inside)


def test_two_strategies_stand_side_by_side(visit, server):
    page = visit(REAL, viewport={"width": 1280, "height": 800})
    page.get_by_label("Compare with").select_option("greedy search")
    page.wait_for_url("**against=decoder%3Dgreedy**")
    settle(page)
    asked = {"text": "They made him wait outside in the rain.", "model": "en-de"}
    expected = [
        decode(server, **asked, decoder="npad", chains=20)["text"],
        decode(server, **asked, decoder="greedy")["text"],
    ]
    outputs = page.locator(".side .output").all_inner_texts()
    assert outputs == expected
    assert outputs[0] != outputs[1]
    assert page.locator(".side mark").count() > 0
    boxes = [side.bounding_box() for side in page.locator(".side").all()]
    assert boxes[0]["y"] == boxes[1]["y"]
    for tree in ("#lattice-picture", "#beside-picture"):
        assert page.locator(f"{tree} [role=treeitem]:not(.hidden)").count() > 0

    page.get_by_label("Compare with").select_option("this one, to change the other")
    page.wait_for_url("**against=decoder%3Dnpad**")
    settle(page)
    page.locator("select[name=decoder]").select_option("beam")
    page.wait_for_url("**decoder=beam**")
    settle(page)
    assert page.locator(".side h3").all_inner_texts() == ["beam 5", "NPAD-20"]
    assert page.locator("#beside-side-output").inner_text() == expected[0]
    kept = parse_qs(urlsplit(page.url).query)["against"][0]
    assert parse_qs(kept)["chains"] == ["20"]


def test_a_second_strategy_that_fails_leaves_the_first_as_it_is(visit):
    page = visit(f"{CHAINS}&against=decoder%3Dbeam%26width%3D99999")
    assert "99,999" in page.get_by_role("alert").inner_text()
    assert page.locator("#translation").inner_text() == "it is all greek to me"
    assert page.locator("#comparison-rows tr").count() == 5
    page.complaints.clear()  # the browser's own line about the answer 400


def test_pictures_and_data_are_saved(visit):
    page = visit(REAL)
    for name, picture in (("tree", "lattice"), ("attention", "attention")):
        with page.expect_download() as saved:
            page.get_by_role("button", name=f"Save the {name} as SVG").click()
        root = ElementTree.parse(saved.value.path()).getroot()
        shapes = [element for element in root.iter() if "stroke" in element.attrib]
        assert len(shapes) > 10 or name == "attention"
        words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
        assert "Regen" in words
        assert all("class" not in element.attrib for element in root.iter())
        assert all(re.fullmatch("none|#[0-9a-f]{6}", shape.get("stroke")) for shape in shapes)
        with page.expect_download() as saved:
            page.get_by_role("button", name=f"Save the {name} as PNG").click()
        content = saved.value.path().read_bytes()
        assert content.startswith(b"\x89PNG")
        width = float(page.locator(f"#{picture}-picture").get_attribute("width"))
        assert int.from_bytes(content[16:20]) == int(2 * width)
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save data").click()
    data = json.loads(saved.value.path().read_text())
    assert data["done"]["text"] == page.locator("#translation").inner_text()
    assert len(data["chains"]) == 20
    assert data["signature"].startswith("npad|")
    assert {"steps", "options", "source", "compared", "address"} <= set(data)


def test_the_foot_of_the_page_leads_to_the_api(visit):
    page = visit(CHAINS)
    page.get_by_role("link", name="API of this server").click()
    page.wait_for_url("**/docs")
    page.get_by_text("/v1/decode/stream", exact=False).first.wait_for()
