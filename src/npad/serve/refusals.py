"""Answers to requests that are not served: a status and one line."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Refused(Exception):
    """A request that is not served.

    Args:
        status: the HTTP status.
        message: one line that names the value, the rule and the way out.
        headers: of the answer, such as Retry-After.
    """

    def __init__(self, status: int, message: str, headers: Mapping[str, str] = NO_HEADERS) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers


def busy(status: int, message: str, seconds: int = 1) -> Refused:
    """Return a refusal that tells the client to come again."""
    return Refused(status, f"{message}; try again in {seconds} s", {"Retry-After": str(seconds)})
