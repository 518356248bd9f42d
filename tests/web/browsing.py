"""Where a browser is, when the page in it has come to rest, and what the server answers."""

from __future__ import annotations

import json
import os
import shutil
import urllib.request
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


def decode(server, **body):
    """The server's result for one text, asked for as JSON."""
    request = urllib.request.Request(
        f"{server}/v1/decode", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    return json.load(urllib.request.urlopen(request))["results"][0]
