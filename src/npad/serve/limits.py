"""What one client may ask for, so that no request holds the server up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Upper bounds of requests.

    Attributes:
        body: bytes of a request's body.
        audio: bytes of an uploaded recording, with its form.
        audio_seconds: length of a recording.
        texts: texts of a request.
        characters: characters of a text.
        rows: rows that a text may take: chains × width, or samples.
        mbr_rows: rows of a text whose candidates MBR compares, each with each.
        budget: model calls of exact search.
        max_length: tokens of an output.
        queue: requests that wait for a model.
        batch: texts that are decoded together.
        requests: requests in progress.
        connections: open connections.
        seconds: from a request's arrival to its answer.
        receive_seconds: for a client to send its headers, and then its body.
        idle_seconds: of a connection between two requests.
        unsent: bytes of events that wait for a slow reader.
    """

    body: int = 1_000_000
    audio: int = 25_000_000
    audio_seconds: float = 600.0
    texts: int = 64
    characters: int = 10_000
    rows: int = 1024
    mbr_rows: int = 256
    budget: int = 100_000
    max_length: int = 500
    queue: int = 64
    batch: int = 64
    requests: int = 256
    connections: int = 512
    seconds: float = 60.0
    receive_seconds: float = 10.0
    idle_seconds: float = 5.0
    unsent: int = 16_000_000
