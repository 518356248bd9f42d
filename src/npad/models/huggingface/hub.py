"""Whether the hub can be reached: its own client would try again for two minutes."""

from __future__ import annotations

import math
import os
import socket
import time
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

HUB = "https://huggingface.co"
REMEMBERED = 30  # seconds; a network may come back
PROXIES = {"http", "https", "all"}
_failed: dict[str, float] = {}  # when an endpoint had no address, by its name


def out_of_reach(name: str) -> bool:
    """Return whether a model, unless it is a folder here, can come from the cache only."""
    return not Path(name).is_dir() and not _has_address(os.environ.get("HF_ENDPOINT") or HUB)


def _has_address(endpoint: str) -> bool:
    """Return whether the hub's host is known; behind a proxy only the proxy may know it."""
    if getproxies().keys() & PROXIES:
        return True
    if time.monotonic() - _failed.get(endpoint, -math.inf) < REMEMBERED:
        return False
    try:
        return bool(socket.getaddrinfo(urlsplit(endpoint).hostname, None))
    except (OSError, ValueError):
        _failed[endpoint] = time.monotonic()
        return False
