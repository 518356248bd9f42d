"""Damage to the files of a folder: a seeded generator, for any folder that npad reads back.

`damages(folder, seed, count)` yields (description, function); the function damages a copy of the
folder that it is given. Every kind of damage comes about as often, on files drawn at random.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from npad.errors import NpadError

Damage = Callable[[Path], None]  # of a copy of the folder
NUMBERS = (-1, 0, 3, 1 << 70, 0.5, -1e300)
VALUES = (None, True, *NUMBERS, "", "3", "²", [], {}, [3], {"a": 3}, ["a"] * 9)
NESTED = b"[" * 100_000


def damages(folder: Path, seed: int, count: int) -> Iterator[tuple[str, Damage]]:
    """Yield `count` ways to damage a folder, the same ones for a seed."""
    draw = random.Random(seed)
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    folders = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_dir())
    kinds = (*BYTES, *REPLACEMENTS, *JSON, "swap", "rename", *(["folder"] if folders else []))
    for i in range(count):
        kind = kinds[i % len(kinds)]
        if kind in JSON:
            name = draw.choice([name for name in names if name.endswith(("json", "jsonl"))])
            yield f"{kind} in {name}", partial(_json, name, kind, draw.random())
        elif kind in BYTES:
            name = draw.choice(names)
            yield f"{kind}: {name}", partial(_bytes, name, kind, draw.random())
        elif kind in REPLACEMENTS:
            name = draw.choice(names)
            yield f"{kind} in place of {name}", partial(_replaced, name, kind)
        elif kind == "swap":
            first, second = draw.sample(names, 2)
            yield f"swap {first} and {second}", partial(_swapped, first, second)
        elif kind == "rename":
            name = draw.choice(names + folders)
            odd = draw.choice(["best-²", "checkpoint-99", "checkpoint-007", "\udcff", "x" * 200])
            yield f"rename {name} to {odd!r:.20}", partial(_renamed, name, odd)
        else:
            name, how = draw.choice(folders), draw.choice(list(REPLACEMENTS))
            yield f"{how} in place of {name}", partial(_replaced, name, how)


def _flip(content: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(content)) if content else 0
    return content[:place] + bytes([content[place] ^ 1 << draw.randrange(8)]) + content[place + 1 :]


def _cut_within(content: bytes, draw: random.Random) -> bytes:
    start = draw.randrange(len(content))
    return content[:start] + content[start + draw.choice([1, 2, 8, 100]) :]


BYTES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "flip a bit": _flip,
    "truncate": lambda content, draw: content[: draw.randrange(len(content))],
    "empty": lambda content, draw: b"",
    "append": lambda content, draw: content + draw.choice([b"{}\n", b"\0", b"\xff\n", content]),
    "zeros": lambda content, draw: bytes(len(content)),
    "cut out": _cut_within,
    "reverse": lambda content, draw: content[::-1],
    "nest": lambda content, draw: NESTED,
}


def _keys(plain: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) within a JSON value."""
    if isinstance(plain, dict | list):
        inside = list(plain.items() if isinstance(plain, dict) else enumerate(plain))
        deeper = [pair for _, value in inside for pair in _keys(value)]
        return [(plain, key) for key, _ in inside] + deeper
    return []


def _set(container: Any, key: Any, value: Any) -> None:
    container[key] = value


def _other_number(container: Any, key: Any, draw: random.Random) -> None:
    value = container[key]
    whole = isinstance(value, int)
    container[key] = value + draw.choice([1, -1, 10**6]) if whole else draw.random()


def _more_keys(container: Any, key: Any, draw: random.Random) -> None:
    if isinstance(container, dict):
        container["unheard-of"] = draw.choice(VALUES)
    else:
        container.append(draw.choice(VALUES))


JSON: dict[str, Callable[[Any, Any, random.Random], None]] = {
    "another type": lambda container, key, draw: _set(container, key, draw.choice(VALUES)),
    "a key removed": lambda container, key, draw: container.__delitem__(key),
    "another number": _other_number,
    "a key too many": _more_keys,
}


REPLACEMENTS: dict[str, Callable[[Path], None]] = {
    "a pipe": lambda path: os.mkfifo(path),
    "a folder": Path.mkdir,
    "a link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "a link to nowhere": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "nothing": lambda path: None,
}


def _bytes(name: str, kind: str, seed: float, folder: Path) -> None:
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(BYTES[kind](content, random.Random(seed)))


def _json(name: str, kind: str, seed: float, folder: Path) -> None:
    draw, path = random.Random(seed), folder / name
    lines = path.read_text().splitlines() if name.endswith("jsonl") else [path.read_text()]
    place = draw.randrange(len(lines))
    plain = json.loads(lines[place])
    JSON[kind](*draw.choice(_keys(plain)), draw)
    lines[place] = json.dumps(plain)
    path.write_text("\n".join(lines) + "\n")


def _replaced(name: str, kind: str, folder: Path) -> None:
    path = folder / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    REPLACEMENTS[kind](path)


def _swapped(first: str, second: str, folder: Path) -> None:
    content = (folder / first).read_bytes()
    (folder / second).replace(folder / first)
    (folder / second).write_bytes(content)


def _renamed(name: str, odd: str, folder: Path) -> None:
    (folder / name).rename((folder / name).with_name(odd))


HANGS = 60  # seconds after which a case is taken to hang


class Hang(BaseException):
    """A case took too long. No `except Exception` of the code under test may swallow it."""


@contextmanager
def limited(seconds):
    """Interrupt what hangs, as on a pipe that nobody writes to."""

    def interrupt(number, frame):
        raise Hang(f"it took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def fault(attempt, expected):
    """What is wrong with how an attempt ends, if anything; `expected` is None for any result."""
    try:
        with limited(HANGS):
            result = attempt()
            same = expected is None or result == expected
    except NpadError as error:
        return "" if len(str(error).splitlines()) == 1 else f"not one line: {error}"
    except (Exception, Hang) as error:
        return f"{type(error).__name__}: {error!s:.200}"
    return "" if same else "another result"


def faults(source, tmp_path, attempt, expected, seed, count):
    """Try every damage on a copy of its own."""
    found = []
    for description, damage in damages(source, seed, count):
        copy = shutil.copytree(source, tmp_path / "case" / source.name)
        damage(copy)
        if reason := fault(lambda copy=copy: attempt(copy), expected):
            found.append(f"{description}: {reason}")
        shutil.rmtree(tmp_path / "case")
    return found
