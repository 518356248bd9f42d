"""`npad serve` as a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from contextlib import contextmanager

from serve_cases import Client, wait_until


@contextmanager
def process(*arguments, **environment):
    """A server as a process, on a free port; its log is a list of lines."""
    command = [sys.executable, "-m", "npad", "serve", "--port", "0", "--device", "cpu", *arguments]
    running = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=os.environ | environment
    )
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(running.stderr))
    reader.start()
    try:
        wait_until(lambda: running.poll() is not None or any("serving" in x for x in lines), 60)
        found = re.search(r"http://[^:]+:(\d+)/", "".join(lines))
        yield running, Client(int(found[1]) if found else 0), lines
    finally:
        if running.poll() is None:
            running.terminate()
            running.wait(60)
        reader.join(10)
        running.stderr.close()
