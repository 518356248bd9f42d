"""Write the pictures of docs/serving: the page in light, dark and narrow, and its tour.

python tests/web/screenshots.py ADDRESS [FOLDER]     of a running `npad serve`
"""

from __future__ import annotations

import sys
from pathlib import Path

from browsing import BROWSERS, ROOT, find_browser, settle
from playwright.sync_api import sync_playwright

SENTENCE = "/?text=She+spends+most+of+her+money+on+books.&model=en-de&decoder=npad&chains=20&seed=0"
WIDE = {"width": 1180, "height": 1480}
PICTURES = {
    "light": (SENTENCE, {"viewport": WIDE}),
    "dark": (SENTENCE, {"viewport": WIDE, "color_scheme": "dark"}),
    "narrow": (SENTENCE, {"viewport": {"width": 360, "height": 1400}}),
    "tour": ("/?tour=5", {"viewport": WIDE}),
}


def main(address: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = find_browser()
    if path is None:
        sys.exit(f"there is no browser: install one of {', '.join(BROWSERS)}")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for name, (query, visitor) in PICTURES.items():
            page = browser.new_context(reduced_motion="reduce", **visitor).new_page()
            page.goto(address + query)
            settle(page)
            page.screenshot(path=folder / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/"), Path(*sys.argv[2:3] or [ROOT / "docs/serving"]))
