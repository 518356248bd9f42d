"""The reverse proxy of docs/serving.md: nginx with the configuration on that page."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from processes import process

from serve_cases import Client, wait_until

pytestmark = pytest.mark.web

PAGE = Path(__file__).parent.parent.parent / "docs/serving.md"
NGINX = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
TOKEN = "correct horse"
ASKED = {"text": "danke", "model": "toy", "decoder": "greedy"}
WHOLE = """
daemon off; pid {folder}/pid; error_log {folder}/log; worker_processes 1;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
    {shown}
}}
"""


@pytest.fixture(scope="module")
def proxied(tmp_path_factory):
    """A client of npad through nginx, which listens without TLS; and one of npad itself."""
    if NGINX is None:
        pytest.skip("needs nginx: apt-get install nginx-light")
    folder = tmp_path_factory.mktemp("nginx")
    (shown,) = re.findall(r"```nginx\n(.*?)```", PAGE.read_text(), re.DOTALL)
    with process("-m", "en-de", "-m", "toy", NPAD_TOKEN=TOKEN) as (_, server, _):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        shown = re.sub(r"    ssl_certificate.*\n", "", shown)
        shown = shown.replace("listen 443 ssl", f"listen 127.0.0.1:{port}")
        shown = shown.replace("127.0.0.1:8080", f"127.0.0.1:{server.port}")
        (folder / "conf").write_text(WHOLE.format(folder=folder, shown=shown))
        running = subprocess.Popen([NGINX, "-p", folder, "-c", folder / "conf"])
        try:
            wait_until(lambda: answers(port))
            yield Client(port, token=TOKEN), server
        finally:
            running.terminate()
            running.wait(20)


def answers(port: int) -> bool:
    with suppress(OSError):
        return Client(port).get("/health").status == 200
    return False


def test_requests_of_a_session_pass(proxied):
    """For longer than the server's connections to the proxy last."""
    httpx = pytest.importorskip("httpx")
    client, _ = proxied
    headers = {"Authorization": f"Bearer {TOKEN}", "Host": "translate.example"}
    with httpx.Client(base_url=f"http://127.0.0.1:{client.port}", headers=headers) as session:
        for pause in (0, 0, 3.9, 4.1, 5.0, 5.2, 0):
            time.sleep(pause)
            answer = session.post("/v1/decode", json=ASKED)
            assert answer.status_code == 200, answer.text
            assert answer.json()["results"][0]["text"] == "thanks"


def test_the_page_and_its_origin_pass_and_strangers_do_not(proxied):
    client, _ = proxied
    stranger = Client(client.port)
    assert b"<title>" in stranger.get("/").body
    assert stranger.post("/v1/decode", ASKED).status == 401
    own = {"Host": "translate.example", "Origin": "https://translate.example"}
    assert client.post("/v1/decode", ASKED, **own).status == 200
    own["Origin"] = "https://evil.example"
    assert client.post("/v1/decode", ASKED, **own).status == 403


def test_events_pass_at_once(proxied):
    client, _ = proxied
    query = "text=I+would+rather+stay+at+home+than+go+out.&chains=300"
    head = f"GET /v1/decode/stream?{query} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
    times = {}
    with client.connect() as connection:
        connection.sendall(f"{head}\r\n".encode())
        received = b""
        while b"event: done" not in received:
            received += connection.recv(65_536)
            for name in (b"event: start", b"event: best", b"event: done"):
                if name in received:
                    times.setdefault(name, time.monotonic())
    first, best, done = times.values()
    assert first <= best < done
    assert best - first < (done - first) / 2


def test_slow_heads_and_large_bodies_do_not_reach_the_server(proxied):
    client, server = proxied
    with ExitStack() as stack:
        for _ in range(20):
            connection = stack.enter_context(client.connect())
            connection.sendall(b"GET /health HTTP/1.1\r\nHost:")
        assert client.post("/v1/decode", ASKED).status == 200
    head = b"POST /v1/decode HTTP/1.1\r\nHost: x\r\nContent-Length: 99000000\r\n\r\n"
    with client.connect() as connection:
        connection.sendall(head)
        assert connection.recv(1000).startswith(b"HTTP/1.1 413")
    assert Client(server.port).get("/health").status == 200
