"""Who may ask: the token, the loopback rule, and requests that another site's page makes."""

from __future__ import annotations

import hmac
import ipaddress
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request

from npad.errors import InvalidInput
from npad.serve.limits import RequestRefused

SHORTEST_TOKEN = 8
LOCAL_NAMES = {"localhost", "127.0.0.1", "::1"}
HEADERS = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'self'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


def is_loopback(host: str) -> bool:
    """Return whether an address is reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def ensure_reachable(host: str, token: str | None) -> None:
    """Require a token for an address that others can reach, and a token that is worth its name.

    Raises:
        InvalidInput: there is none, or it is too short or not ASCII.
    """
    if token is not None and (
        len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()
    ):
        raise InvalidInput(f"--token must have at least {SHORTEST_TOKEN} letters, digits or signs")
    if token is None and not is_loopback(host):
        raise InvalidInput(
            f"{host} can be reached by others: add --token, which clients must then send, or use "
            "--host 127.0.0.1"
        )


class Guard:
    """Decides whether a request is served.

    Args:
        host: the address that the server listens on.
        token: what clients must send; None: anybody on this machine may ask.
    """

    def __init__(self, host: str = "127.0.0.1", token: str | None = None) -> None:
        self.token = token
        local = token is None and is_loopback(host)
        self.hosts = LOCAL_NAMES | {host} if local else None  # None: any, such as a proxy's

    def check_host(self, request: Request) -> None:
        """Refuse requests by another name than this machine's, if no token is needed.

        Otherwise a page elsewhere could read answers by a name that its owner lets point to
        127.0.0.1 (DNS rebinding).
        """
        name = _host_name(request.headers.get("host", ""))
        if self.hosts is not None and name not in self.hosts:
            raise RequestRefused(
                400, "the Host header must be localhost or 127.0.0.1 on this server"
            )

    def check_origin(self, request: Request) -> None:
        """Refuse requests of another site's page, which its visitor's browser sends."""
        self.check_host(request)
        origin = request.headers.get("origin")
        foreign = origin is not None and _authority(origin) != request.headers.get("host", "")
        if foreign or request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            raise RequestRefused(
                403, "requests of another site's page are refused: there is no CORS"
            )

    def check_token(self, request: Request, key: Any = None) -> None:
        """Require the token, if the server has one.

        Args:
            request: may have the token in its header `Authorization: Bearer`.
            key: LibreTranslate's parameter `api_key`, which may be the token.
        """
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        in_header = scheme.lower() == "bearer" and self._equal(given.strip())
        if self.token is not None and not in_header and not self._equal(key):
            raise RequestRefused(
                401,
                "a token is needed: send it as Authorization: Bearer TOKEN, or as api_key",
                {"WWW-Authenticate": "Bearer"},
            )

    def _equal(self, given: Any) -> bool:
        return (
            self.token is not None
            and isinstance(given, str)
            and hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode())
        )


def _host_name(host: str) -> str:
    """Return the name in a Host header, without the port."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _authority(origin: str) -> str | None:
    """Return the host and port of an Origin header; None if it is malformed."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None
