"""Whether the hub can be reached, asked once: its client would try again for two minutes."""

from __future__ import annotations

import os
import socket
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

HUB = "https://huggingface.co"


def out_of_reach(name: str) -> bool:
    """Return whether a model, unless it is a folder here, can come from the cache only."""
    return not Path(name).is_dir() and not _has_address(os.environ.get("HF_ENDPOINT") or HUB)


@cache
def _has_address(endpoint: str) -> bool:
    """Return whether the hub's host is known; behind a proxy only the proxy may know it."""
    if getproxies():
        return True
    try:
        return bool(socket.getaddrinfo(urlsplit(endpoint).hostname, None))
    except OSError:
        return False
