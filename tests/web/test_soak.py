"""64 clients of two real libraries for a minute; `make soak` for ten.

They keep their connections, ask for mixed strategies, streams and transcriptions, give up, and read
slowly. No request may fail, each answer is the one that was given alone, and memory stays flat.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlencode

import pytest
from processes import process

from serve_cases import BOUNDARY, events_of, recording_form, wav
from speech_cases import whisper as whisper

pytestmark = pytest.mark.web

SECONDS = float(os.environ.get("NPAD_SOAK", "60"))
CLIENTS = 64
GROWTH = 1.1  # of the memory after a third of the time
TOLERANCE = 1e-3  # of a log-probability, between a request alone and in a batch
TEXTS = ["How are you?", "It is raining.", "Where is the station?"]
OPTIONS = [
    {"decoder": "greedy"},
    {"decoder": "beam", "width": 3, "nbest": 2},
    {"decoder": "npad", "chains": 4, "seed": 7},
    {"decoder": "sampling", "samples": 2, "temperature": 0.5},
]
JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
DECODES = [
    ("POST", "/v1/decode", json.dumps({"text": text} | options).encode(), JSON)
    for text in TEXTS
    for options in OPTIONS
]
STREAMS = [
    ("GET", f"/v1/decode/stream?{urlencode({'text': text, 'chains': 4})}", None, {})
    for text in TEXTS
]
UPLOADS = [
    ("POST", "/v1/audio/transcriptions", recording_form(wav(seconds, 16_000), max_length=4), FORM)
    for seconds in (0.5, 30.0)
]
REQUESTS = [*DECODES, *STREAMS, *UPLOADS]


def compared(body: bytes) -> object:
    """What must be equal of an answer, and its log-probabilities apart."""
    if body.startswith(b"event:"):
        events = events_of(body)
        for event in events:
            event.data.pop("seconds", None)
        assert events[-1].name == "done"
        return events, []
    content = json.loads(body)
    content.pop("seconds", None)
    results = content.get("results", [])
    best = [(result["text"], result["calls"]) for result in results]
    return best or content, [result["log_prob"] for result in results]


def same(one: object, other: object) -> bool:
    (exact, scores), (others_exact, others_scores) = one, other
    return exact == others_exact and scores == pytest.approx(others_scores, abs=TOLERANCE)


class Httpx:
    """A session of httpx."""

    def __init__(self, address: str):
        httpx = pytest.importorskip("httpx")
        self.session = httpx.AsyncClient(base_url=address, timeout=300)

    async def ask(self, request, pause: float) -> tuple[int, bytes]:
        method, path, body, headers = request
        asked = self.session.stream(method, path, content=body, headers=headers)
        async with asked as answer:
            return answer.status_code, await read(answer.aiter_raw(), pause)

    async def close(self) -> None:
        await self.session.aclose()


class Aiohttp:
    """A session of aiohttp."""

    def __init__(self, address: str):
        aiohttp = pytest.importorskip("aiohttp")
        timeout = aiohttp.ClientTimeout(total=300)
        self.session = aiohttp.ClientSession(address, timeout=timeout)

    async def ask(self, request, pause: float) -> tuple[int, bytes]:
        method, path, body, headers = request
        async with self.session.request(method, path, data=body, headers=headers) as answer:
            return answer.status, await read(answer.content.iter_any(), pause)

    async def close(self) -> None:
        await self.session.close()


async def read(chunks, pause: float) -> bytes:
    body = b""
    async for chunk in chunks:
        body += chunk
        await asyncio.sleep(pause)
    return body


async def use(session, number: int, end: float, alone: list[object], seen: Counter[str]) -> None:
    """Ask, one request after another; some of them slowly, some not to the end."""
    chance = random.Random(number)
    while time.monotonic() < end:
        place = chance.randrange(len(REQUESTS))
        kind = chance.choice(["plain", "plain", "slow", "cancelled"])
        asked = session.ask(REQUESTS[place], 0.02 if kind == "slow" else 0.0)
        if kind == "cancelled":
            try:
                await asyncio.wait_for(asked, chance.uniform(0, 0.3))
            except TimeoutError:
                seen["cancelled"] += 1
            continue
        status, body = await asked
        assert status == 200, body
        assert same(compared(body), alone[place]), (REQUESTS[place][:2], body)
        seen[kind] += 1
        seen[type(session).__name__] += 1
        await asyncio.sleep(chance.uniform(0, 0.5))


def memory(client) -> float:
    """The resident memory of the server in bytes."""
    text = client.get("/metrics").body.decode()
    return float(re.search(r"^process_resident_memory_bytes (\S+)", text, re.MULTILINE)[1])


async def soak(client, alone: list[object]) -> tuple[Counter[str], float]:
    """What clients did, and by how much memory grew after a third of the time."""
    address = f"http://127.0.0.1:{client.port}"
    seen: Counter[str] = Counter()
    sessions: list[Any] = [kind(address) for kind in [Httpx, Aiohttp] * (CLIENTS // 2)]
    end = time.monotonic() + SECONDS
    try:
        async with asyncio.TaskGroup() as clients:
            for number, session in enumerate(sessions):
                clients.create_task(use(session, number, end, alone, seen))
            await asyncio.sleep(SECONDS / 3)
            before = await asyncio.to_thread(memory, client)
    finally:
        for session in sessions:
            await session.close()
    return seen, await asyncio.to_thread(memory, client) / before


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc")
def test_many_clients_of_real_libraries_get_what_they_would_get_alone(whisper):
    patient = ("--limit", "seconds=300", "--limit", "queue=256")  # the machine may be busy
    with process("-m", "en-de", "-m", f"hf:{whisper}", *patient) as (running, client, lines):
        alone = []
        for method, path, body, headers in REQUESTS:
            named = {name.replace("-", "_"): value for name, value in headers.items()}
            answer = client.request(method, path, body, **named)
            assert answer.status == 200, answer.body
            alone.append(compared(answer.body))
        # In a thread of its own: a browser of an earlier test leaves its event loop in this one.
        with ThreadPoolExecutor(1) as thread:
            seen, growth = thread.submit(asyncio.run, soak(client, alone)).result()
        assert running.poll() is None
        assert all(line.startswith(("npad: serving", "npad: 499 ")) for line in lines), lines
    print(f"{dict(seen)}, memory × {growth:.3f}")
    assert min(seen["Httpx"], seen["Aiohttp"], seen["slow"], seen["cancelled"]) > 0
    assert growth < GROWTH
