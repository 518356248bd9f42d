"""Where a browser is, and when the page in it has come to rest."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def find_browser():
    """The path of a browser, or None."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)


def settle(page):
    """Wait until the search and the other strategies have ended, and nothing moves."""
    page.locator("body[data-search=done][data-compared=true]").wait_for(state="attached")
    page.locator("#player-play", has_text="Play").wait_for()
    page.wait_for_timeout(150)
