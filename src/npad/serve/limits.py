"""What one client may ask for, so that no request holds the server up, and how more is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import get_type_hints

from npad.errors import InvalidInput
from npad.specs import parse_value
from npad.validation import ensure_number

CLIENT_GONE = 499  # nginx's status for a client that closed the connection


@dataclass(frozen=True)
class Limits:
    """Upper bounds of requests."""

    body: int = 1_000_000  # bytes of a request's body
    audio: int = 25_000_000  # bytes of an uploaded recording, with its form
    uploads: int = 1_000_000_000  # bytes of all uploads in progress, which are kept on disk
    audio_seconds: float = 600.0  # length of a recording
    texts: int = 64  # texts of a request
    characters: int = 10_000  # characters of a text
    phrases: int = 64  # phrases that a constraint forbids or requires
    phrase_characters: int = 200  # characters of one, and of a choice
    choices: int = 10_000  # texts of a closed set
    rows: int = 1024  # rows that a text may take: chains × width, or samples
    mbr_rows: int = 256  # rows of a text whose candidates MBR compares, each with each
    budget: int = 100_000  # model calls of exact search
    max_length: int = 500  # tokens of an output
    queue: int = 64  # requests that wait for a model
    batch: int = 64  # texts that are decoded together
    requests: int = 256  # requests in progress
    connections: int = 512  # open connections
    seconds: float = 60.0  # from a request's arrival to its answer
    receive_seconds: float = 10.0  # for a client to send its headers, and then its body
    send_seconds: float = 10.0  # for a client to read the next 0.2 MB of an answer
    idle_seconds: float = 5.0  # of a connection between two requests
    unsent: int = 16_000_000  # bytes of events that wait for a slow reader

    @classmethod
    def changed(cls, changes: Sequence[str]) -> Limits:
        """Return the limits with changes such as `body=5000000`.

        Raises:
            InvalidInput: there is no such limit, or its value is no positive number.
        """
        types, values = get_type_hints(cls), {}
        for change in changes:
            name, _, text = change.partition("=")
            if name not in types:
                names = ", ".join(field.name for field in fields(cls))
                raise InvalidInput(f"there is no limit {name!r}; write NAME=N with one of {names}")
            values[name] = parse_value(f"the limit {name}", text, types[name])
            ensure_number(f"the limit {name}", values[name], above=0)
        return replace(cls(), **values)


class RequestRefused(Exception):
    """A request that is not served.

    Args:
        status: the HTTP status.
        message: one line that names the value, the rule and the way out.
        headers: of the answer, such as Retry-After.
    """

    def __init__(
        self, status: int, message: str, headers: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers


def busy(status: int, message: str, seconds: int = 1) -> RequestRefused:
    """Return a refusal that tells the client when to try again."""
    message = f"{message}; try again in {seconds} s"
    return RequestRefused(status, message, {"Retry-After": str(seconds)})
