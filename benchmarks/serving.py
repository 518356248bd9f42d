"""A server under load: its first event, its throughput, and its answers among hostile clients.

python benchmarks/serving.py [--minutes 10] [--clients 32] [--requests 256] [--model en-de]

The server is `npad serve` as a process of its own, on a free port of this machine; the clients are
threads of this one. Three figures:

- first event: milliseconds from a request for a stream to its event `start`, and to the first
  `best`, the clean chain's answer; the server is idle.
- throughput: requests a second of one client after the other's answer, and of many at once. Texts
  are distinct, so that no two requests share their work.
- mixed load for --minutes: clients that decode with several decoders, stream, vanish in the middle,
  give up after a while, and send rubbish. Each answer is compared with the one that the same
  request got alone. Resident memory is that of the server's process (VmRSS), after a warm-up of a
  tenth of the time and at the end.

It fails if a status is none of the documented ones, an answer differs, or memory grew by more than
5 %.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import random
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

SUBJECTS = ("Tom", "My sister", "The teacher", "Nobody", "Our neighbour", "The old man")
VERBS = (
    "wants to go home",
    "reads a book",
    "likes to swim in the lake",
    "asked me a difficult question",
    "spends most of the money on books",
    "would rather stay at home than go out",
    "has never been to Berlin",
    "forgot to close the window",
)
TIMES = ("today", "every morning", "when it rains", "after the long meeting", "on Sundays")
TEXTS = [f"{s} {v} {t}." for s, v, t in itertools.product(SUBJECTS, VERBS, TIMES)]
OPTIONS: list[dict[str, Any]] = [
    {"decoder": "beam"},
    {"decoder": "greedy"},
    {"decoder": "npad", "chains": 10},
    {"decoder": "npad", "chains": 4, "inner": "beam", "width": 3},
    {"decoder": "sampling", "samples": 5, "temperature": 0.5},
]
DOCUMENTED = {200, 400, 408, 413, 415, 429, 503}  # the others are faults
RUBBISH = [
    b"\x00\x01\x02\r\n\r\n",
    b"GET /v1/decode/stream?text= HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST /v1/decode HTTP/1.1\r\nHost: localhost\r\nContent-Length: 7\r\n\r\nrubbish",
    b"POST /v1/decode HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 2000000\r\n\r\n{",
    b"POST /v1/decode HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b'Content-Length: 33\r\n\r\n{"text": "a", "chains": 10000000}',
]
TOLERANCE = 1e-3  # of a log-probability, between a request alone and in a batch
GROWTH = 0.05  # of the resident memory


class Client:
    """Sends requests to a port of this machine."""

    def __init__(self, port: int) -> None:
        self.port = port

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=90)

    def post(self, content: dict[str, Any], path: str = "/v1/decode") -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=90)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", path, json.dumps(content), headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def send_decode(self, connection: socket.socket, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        head = "POST /v1/decode HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def open_stream(self, **parameters: Any) -> socket.socket:
        connection = self.connect()
        query = urlencode(parameters)
        head = f"GET /v1/decode/stream?{query} HTTP/1.1\r\nHost: localhost\r\n"
        connection.sendall(f"{head}Connection: close\r\n\r\n".encode())
        return connection


@contextmanager
def server(model: str) -> Iterator[tuple[int, Client]]:
    """Yield the process id of a server and a client of it."""
    command = [sys.executable, "-m", "npad", "serve", "--port", "0", "--device", "cpu"]
    process = subprocess.Popen([*command, "--model", model], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        found = None
        while found is None:
            line = process.stderr.readline()
            if not line:
                raise SystemExit("the server did not start")
            found = re.search(r"http://[^:]+:(\d+)/", line)
        log = threading.Thread(target=lambda: Counter(process.stderr), daemon=True)
        log.start()  # it would block on a full pipe
        yield process.pid, Client(int(found[1]))
    finally:
        process.terminate()
        process.wait()


def resident(pid: int) -> float:
    """Return the resident memory of a process, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found
    return int(found[1]) / 1024


def first_events(client: Client, count: int) -> dict[str, list[float]]:
    """Return milliseconds to the first event of each kind, of `count` streams."""
    times: dict[str, list[float]] = {"start": [], "best": []}
    for text in TEXTS[:count]:
        start = time.perf_counter()
        connection = client.open_stream(text=text, chains=50)
        received, seen = b"", set[str]()
        while chunk := connection.recv(1 << 16):
            received += chunk
            for name in times.keys() - seen:
                if f"event: {name}\n".encode() in received:
                    seen.add(name)
                    times[name].append(1e3 * (time.perf_counter() - start))
        connection.close()
        assert b"event: done\n" in received
    return times


def throughput(
    client: Client, options: dict[str, Any], clients: int, count: int
) -> tuple[float, float]:
    """Return requests a second, one after another and by many clients at once."""
    rates = []
    for workers, number in ((1, max(8, count // 4)), (clients, count)):
        asked = [{"text": TEXTS[i % len(TEXTS)], **options} for i in range(number)]
        start = time.perf_counter()
        with ThreadPoolExecutor(workers) as pool:
            for status, _ in pool.map(client.post, asked):
                assert status == 200, status
        rates.append(number / (time.perf_counter() - start))
    return rates[0], rates[1]


class Load:
    """Clients of all kinds, until the time is up."""

    def __init__(self, client: Client, texts: int) -> None:
        self.client = client
        self.asked = [{"text": t, **o} for t in TEXTS[:texts] for o in OPTIONS]
        self.alone = [self._answer(client.post(content)) for content in self.asked]
        self.outcomes: Counter[str] = Counter()
        self.faults: list[str] = []
        self.end = 0.0

    def _answer(self, answer: tuple[int, Any]) -> tuple[str, float]:
        status, content = answer
        assert status == 200, content
        (result,) = content["results"]
        return result["text"], result["log_prob"]

    def run(self, minutes: float, clients: int) -> None:
        self.end = time.monotonic() + 60 * minutes
        kinds = itertools.cycle(
            [
                self.decode,
                self.decode,
                self.stream,
                self.decode,
                self.vanish,
                self.rubbish,
                self.decode,
                self.impatient,
            ]
        )
        threads = [
            threading.Thread(target=self._repeat, args=(next(kinds), seed))
            for seed in range(clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _repeat(self, kind: Any, seed: int) -> None:
        generator = random.Random(seed)
        while time.monotonic() < self.end:
            try:
                kind(generator)
            except OSError as error:  # a connection that the server closed
                self.outcomes[f"{kind.__name__}: {type(error).__name__}"] += 1
                time.sleep(0.05)
            except Exception as error:
                self.faults.append(f"{kind.__name__}: {error!r}")

    def note(self, kind: str, status: int) -> None:
        self.outcomes[f"{kind}: {status}"] += 1
        if status not in DOCUMENTED:
            self.faults.append(f"{kind}: status {status}")

    def decode(self, generator: random.Random) -> None:
        number = generator.randrange(len(self.asked))
        status, content = self.client.post(self.asked[number])
        self.note("decode", status)
        if status != 200:
            time.sleep(0.2)
            return
        text, log_prob = self._answer((status, content))
        expected = self.alone[number]
        if text != expected[0] or abs(log_prob - expected[1]) > TOLERANCE:
            self.faults.append(f"{self.asked[number]}: {text!r} {log_prob}, alone {expected}")

    def stream(self, generator: random.Random) -> None:
        number = generator.randrange(len(self.asked))
        connection = self.client.open_stream(**self.asked[number])
        received = b""
        while chunk := connection.recv(1 << 16):
            received += chunk
        connection.close()
        status = int(received.split(b" ", 2)[1])
        self.note("stream", status)
        if status == 200:
            done = re.search(rb"event: done\ndata: (.*)\n", received)
            if done is None or json.loads(done[1])["text"] != self.alone[number][0]:
                self.faults.append(f"stream {self.asked[number]}: {received[-300:]!r}")

    def vanish(self, generator: random.Random) -> None:
        content = {"text": generator.choice(TEXTS), "chains": 200}
        connection = self.client.connect()
        if generator.random() < 0.5:
            connection.close()
            connection = self.client.open_stream(**content)
        else:
            self.client.send_decode(connection, content)
        time.sleep(generator.random() * 0.3)
        connection.close()
        self.outcomes["vanish"] += 1

    def impatient(self, generator: random.Random) -> None:
        """Ask for much and give up, or ask for an answer by a deadline."""
        if generator.random() < 0.5:
            with self.client.connect() as connection:
                connection.settimeout(0.2)
                self.client.send_decode(connection, {"text": TEXTS[0], "chains": 300})
                try:
                    connection.recv(100)
                except TimeoutError:
                    self.outcomes["gave up"] += 1
            return
        connection = self.client.open_stream(text=generator.choice(TEXTS), chains=300, seconds=0.05)
        received = b""
        while chunk := connection.recv(1 << 16):
            received += chunk
        connection.close()
        self.note("deadline", int(received.split(b" ", 2)[1]))

    def rubbish(self, generator: random.Random) -> None:
        with self.client.connect() as connection:
            connection.settimeout(20)
            connection.sendall(generator.choice(RUBBISH))
            received = connection.recv(1 << 16)
            if received:
                self.note("rubbish", int(received.split(b" ", 2)[1]))
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--streams", type=int, default=30)
    parser.add_argument("--texts", type=int, default=20, help="texts of the mixed load")
    parser.add_argument("--model", default="en-de")
    arguments = parser.parse_args()
    with server(arguments.model) as (pid, client):
        for text in TEXTS[-8:]:  # warm up
            client.post({"text": text, "chains": 50})
        for name, times in first_events(client, arguments.streams).items():
            print(
                f"first event {name!r}: median {statistics.median(times):.1f} ms, "
                f"worst {max(times):.1f} ms of {len(times)}"
            )
        for options in OPTIONS[:3]:
            one, many = throughput(client, options, arguments.clients, arguments.requests)
            shown = " ".join(str(value) for value in options.values())
            print(
                f"throughput, {shown}: {one:.1f} requests/s one after another, {many:.1f} with "
                f"{arguments.clients} clients: {many / one:.1f} ×"
            )
        load = Load(client, arguments.texts)
        load.run(arguments.minutes / 10, arguments.clients)
        before = resident(pid)
        load.run(arguments.minutes * 9 / 10, arguments.clients)
        time.sleep(1)
        after = resident(pid)
        print(f"mixed load of {arguments.minutes:g} minutes, {arguments.clients} clients:")
        for outcome, count in sorted(load.outcomes.items()):
            print(f"  {outcome}: {count}")
        growth = after / before - 1
        print(f"memory: {before:.0f} MiB after the warm-up, {after:.0f} at the end: {growth:+.1%}")
        print(f"faults: {len(load.faults)}")
        for fault in load.faults[:10]:
            print(f"  {fault}")
        if load.faults or growth > GROWTH:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
