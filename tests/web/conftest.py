"""A real server and a real browser, for the tests of the page: `make test-web`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from browsing import BROWSERS, ROOT, find_browser, settle

# `make test-web` fetches it.
AXE = Path(os.environ.get("AXE", ROOT / ".venv/axe/node_modules/axe-core/axe.min.js"))
PATIENCE = 60  # seconds for the server to load its models, and for a page to show a search


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The address of `npad serve` with the shipped model and the toy."""
    yield from serving(tmp_path_factory)


@pytest.fixture(scope="session")
def guarded(tmp_path_factory):
    """The address of a server of the toy that asks for a token."""
    yield from serving(tmp_path_factory, "--model", "toy", "--token", "open sesame")


def serving(tmp_path_factory, *options):
    pytest.importorskip("starlette", reason="needs the extra npad[serve]")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "log"
    command = [sys.executable, "-m", "npad", "serve", "--port", str(port), *options]
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for(f"{address}/health", process, log)
        yield address
        code = process.poll()
        assert code is None, (
            f"npad serve ended during the tests, exit code {code}: {log.read_text()}"
        )
    finally:
        process.terminate()
        process.wait(20)


def wait_for(url, process, log):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if process.poll() is not None:
            pytest.fail(f"npad serve ended: {log.read_text()}")
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    pytest.fail(f"npad serve did not answer within {PATIENCE} s: {log.read_text()}")


@pytest.fixture(scope="session")
def browser():
    """Chromium without a window."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="needs playwright: pip install playwright"
    )
    path = find_browser()
    if path is None:
        pytest.skip(f"needs a browser: one of {', '.join(BROWSERS)}, or its path in CHROMIUM")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser, server):
    """Open the page at an address, as a new visitor; at the end, nothing may have gone wrong.

    A visitor's browser has no error on its console and asks no other server for anything.
    """
    contexts, complaints, strangers = [], [], []

    def open_page(path="/", settled=True, server=server, **visitor):
        context = browser.new_context(**{"reduced_motion": "reduce", **visitor})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(1000 * PATIENCE)
        page.on(
            "console",
            lambda message: (
                complaints.append(message.text) if message.type in ("error", "warning") else None
            ),
        )
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request",
            lambda request: (
                None if request.url.startswith(server) else strangers.append(request.url)
            ),
        )
        page.complaints = complaints  # for a test that expects some
        page.goto(server + path)
        if settled:
            settle(page)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    assert strangers == []


@pytest.fixture
def axe():
    """The source of axe-core."""
    if not AXE.exists():
        pytest.skip(f"needs axe-core, {AXE}: npm install --prefix .venv/axe axe-core")
    return AXE.read_text()
