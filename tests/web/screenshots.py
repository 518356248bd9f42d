"""Write the pictures of docs/serving: the page in light and dark, on a phone, and its features.

python tests/web/screenshots.py ADDRESS [FOLDER]     of a running `npad serve`
"""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.parse import quote

from browsing import BROWSERS, ROOT, find_browser, settle
from playwright.sync_api import sync_playwright

SENTENCE = (
    "/?text=They+made+him+wait+outside+in+the+rain.&model=en-de&decoder=npad&chains=50&seed=0"
)
SPENDS = "/?text=She+spends+most+of+her+money+on+books.&model=en-de&decoder=npad&chains=50&seed=0"
PARAGRAPH = "/?model=en-de&decoder=beam&width=5&text=" + quote(
    "Where is my phone? I spent the whole weekend reading a book. Привет, как дела?"
)
WIDE = {"width": 1180, "height": 1310}
TALL = {"width": 1180, "height": 1600}
PHONE = {"viewport": {"width": 390, "height": 2000}, "has_touch": True, "is_mobile": True}
# name -> the address, the visitor, and the part of the page that is shown
PICTURES = {
    "light": (SENTENCE, {"viewport": WIDE}, None),
    "dark": (SENTENCE, {"viewport": WIDE, "color_scheme": "dark"}, None),
    "beside": (f"{SENTENCE}&against=decoder%3Dgreedy", {"viewport": WIDE}, "#lattice"),
    "paragraph": (PARAGRAPH, {"viewport": WIDE}, "#parts"),
    "fixed": (f"{SPENDS}&prefix=Sie+gibt+den+gr", {"viewport": WIDE}, "#answer"),
    "narrow": (SENTENCE, PHONE, None),
    "tour": ("/?tour=5", {"viewport": TALL}, None),
}


def main(address: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = find_browser()
    if path is None:
        sys.exit(f"there is no browser: install one of {', '.join(BROWSERS)}")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for name, (query, visitor, part) in PICTURES.items():
            page = browser.new_context(reduced_motion="reduce", **visitor).new_page()
            page.goto(address + query)
            settle(page)
            shown = page.locator(part) if part else page
            shown.screenshot(path=folder / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/"), Path(*sys.argv[2:3] or [ROOT / "docs/serving"]))
