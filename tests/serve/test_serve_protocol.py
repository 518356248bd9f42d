"""The rules of a connection and of errors, without a network: who is late, and what is answered."""

from __future__ import annotations

import asyncio
import resource
import socket
import threading
from types import SimpleNamespace
from unittest.mock import Mock

import h11
import pytest

from npad import InvalidInput
from npad.engine.deadline import Stopped
from npad.errors import OutOfMemory, StorageError
from npad.serve import server
from npad.serve.events import SlowReader
from npad.serve.limits import Limits, RequestRefused
from npad.serve.model_thread import QueuedRequest
from npad.serve.server import MALFORMED, TOO_SLOW, BoundedProtocol, bind, raise_descriptor_limit
from npad.serve.service import Service, as_json, failure
from serve_cases import hearing_model, toy_model

BEGUN = SimpleNamespace(response_started=True, response_complete=False)
WAITING = SimpleNamespace(response_started=False, response_complete=False)
ENDED = SimpleNamespace(response_started=True, response_complete=True)


def connection(
    cycle=None, closing=False, unsent=0, paused=False, idle=False, received=b"", state=h11.IDLE
):
    protocol: BoundedProtocol = object.__new__(BoundedProtocol)
    protocol.transport = Mock(
        is_closing=lambda: closing, get_write_buffer_size=lambda: unsent, spec=["write", "close"]
    )
    protocol.flow, protocol.cycle = SimpleNamespace(write_paused=paused), cycle
    protocol.timeout_keep_alive_task = idle or None
    protocol.conn = SimpleNamespace(our_state=state, trailing_data=(received, False))
    return protocol


def test_a_server_that_ended_may_start_again_at_once():
    with bind("127.0.0.1", 0) as listener:
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < 1 << 20


@pytest.mark.parametrize(
    ("fields", "task"),
    [
        ({}, ("send", None)),
        ({"cycle": ENDED}, ("send", ENDED)),
        ({"cycle": ENDED, "idle": True}, None),
        ({"cycle": WAITING}, None),
        ({"cycle": BEGUN}, None),
        ({"cycle": BEGUN, "paused": True}, ("read", 0)),
        ({"cycle": ENDED, "closing": True}, None),
        ({"cycle": ENDED, "closing": True, "unsent": 1}, ("read", 0)),
        ({"cycle": BEGUN, "unsent": 1}, None),
    ],
)
def test_a_client_has_to_send_or_to_read_or_neither(fields, task):
    assert connection(**fields)._client_task() == task


@pytest.mark.parametrize(("task", "looks"), [("read", 4), ("send", 7), (None, 0)])
def test_a_client_is_late_once_its_time_is_over(monkeypatch, caplog, task, looks):
    """At the first look beyond 0.2 s to read and 0.5 s to send, unless it does something."""
    protocol, closed = connection(), []
    protocol.limits = Limits(send_seconds=0.2, receive_seconds=0.5)
    protocol.transport = SimpleNamespace(abort=lambda: closed.append("read"))
    monkeypatch.setattr(protocol, "_close_unasked", lambda: closed.append("send"))
    for awaited, expected in (
        ([(task, i) for i in range(20)], 0),
        ([task and (task, 0)] * 9, looks),
    ):
        seen = 0
        for value in awaited:
            monkeypatch.setattr(protocol, "_client_task", lambda value=value: value)
            protocol.close_if_late()
            seen += 1
            if closed:
                break
        assert (seen if closed else 0) == expected
    assert closed == ([task] if task else [])
    assert len(caplog.records) == (task == "read")


def test_reading_is_progress(monkeypatch):
    monkeypatch.setattr("uvicorn.protocols.http.h11_impl.H11Protocol.resume_writing", Mock())
    protocol = connection(paused=True)
    protocol.resume_writing()
    assert protocol._client_task() == ("read", 1)


@pytest.mark.parametrize(
    ("received", "state", "answered"),
    [(b"GET", h11.IDLE, True), (b"", h11.IDLE, False), (b"GET", h11.SEND_BODY, False)],
)
def test_only_a_client_that_began_hears_that_it_is_late(caplog, received, state, answered):
    protocol = connection(received=received, state=state)
    protocol._close_unasked()
    assert protocol.transport.write.call_args_list == [((TOO_SLOW,),)] * answered
    assert len(caplog.records) == answered
    protocol.transport.close.assert_called_once()


@pytest.mark.parametrize(
    ("cycle", "answered"), [(None, True), (WAITING, True), (ENDED, True), (BEGUN, False)]
)
def test_what_is_no_http_is_answered_unless_an_answer_has_begun(cycle, answered):
    protocol = connection(cycle)
    protocol.send_400_response("a reason of h11")
    assert protocol.transport.write.call_args_list == [((MALFORMED,),)] * answered
    protocol.transport.close.assert_called_once()


@pytest.mark.parametrize(
    ("soft", "hard", "wanted"),
    [
        *[(100, 1000, 1000), (100, 50_000, 16_384), (16_383, -1, 16_384), (1000, 1000, None)],
        *[(16_384, 50_000, None), (50_000, 50_000, None), (-1, -1, None)],
    ],
)
def test_as_many_files_are_asked_for_as_the_system_allows(monkeypatch, soft, hard, wanted):
    asked = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: asked.append((kind, *limits)))
    raise_descriptor_limit()
    assert asked == ([] if wanted is None else [(resource.RLIMIT_NOFILE, wanted, hard)])


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [
        ("203.0.113.1", 0, "cannot listen on 203.0.113.1, port 0: Cannot assign"),
        ("x" * 70 + ".y", 0, "cannot listen on x+.y, port 0: "),
    ],
)
def test_an_address_of_another_machine_is_one_line(host, port, message):
    with pytest.raises(InvalidInput, match=message):
        bind(host, port)


def test_a_port_in_use_is_named():
    with bind("127.0.0.1", 0) as listener:
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(InvalidInput, match=f"port {port} is in use; choose another with"):
            bind("127.0.0.1", port)


def test_a_server_has_the_limits_and_the_socket(monkeypatch):
    made, ran = [], []
    config = server.make_server(Mock(), Limits(idle_seconds=7, seconds=9)).config
    assert (config.timeout_keep_alive, config.timeout_graceful_shutdown) == (7, 9)
    assert (config.access_log, config.server_header, config.ws) == (False, False, "none")
    assert config.h11_max_incomplete_event_size == 32_768
    monkeypatch.setattr(server, "raise_descriptor_limit", lambda: made.append("files"))
    running = SimpleNamespace(run=lambda sockets: ran.append(sockets))
    monkeypatch.setattr(server, "make_server", lambda *given: made.append(given) or running)
    server.run("app", "listener", "limits", "started")
    assert (made, ran) == (["files", ("app", "limits", "started")], [["listener"]])


FAILED = "the server failed; its log has the reason"
MEMORY = "there is not enough memory for this; ask for less"


@pytest.mark.parametrize(
    ("error", "status", "message", "level", "logged"),
    [
        (RequestRefused(429, "a\n b"), 429, "a b", "WARNING", "a b"),
        (RequestRefused(503, "later"), 503, "later", "ERROR", "later"),
        (RequestRefused(500, "own"), 500, "own", "ERROR", "own"),
        (InvalidInput("width"), 400, "width", "WARNING", "width"),
        (SlowReader(), 408, "the events were read too slowly", "WARNING", None),
        (Stopped(), 499, "the client closed the connection", "WARNING", None),
        (OutOfMemory("9 GiB"), 503, MEMORY, "ERROR", "'9 GiB'"),
        (KeyError("x"), 500, FAILED, "ERROR", "KeyError: 'x'"),
        (StorageError("gone"), 500, FAILED, "ERROR", "'gone'"),
    ],
)
@pytest.mark.parametrize("traceback", [True, False])
def test_an_error_is_a_line_of_json_and_a_line_of_the_log(
    monkeypatch, caplog, error, status, message, level, logged, traceback
):
    monkeypatch.setenv("NPAD_TRACEBACK", "1" if traceback else "")
    request = SimpleNamespace(scope={"path": "/p"}, method="GET")
    answer = failure(request, error)
    assert (answer.status_code, answer.body) == (status, b'{"error": "%s"}' % message.encode())
    (record,) = caplog.records
    assert record.levelname == level
    assert record.getMessage().startswith(f"{status} GET /p: ")
    assert (logged or message) in record.getMessage()
    assert bool(record.exc_info) == (traceback and status == 500)


def test_an_answer_is_strict_json_in_utf8():
    answer = as_json({"text": "ü"}, 201, {"x-a": "b"})
    assert (answer.status_code, answer.body) == (201, '{"text": "ü"}'.encode())
    assert answer.headers["x-a"] == "b"
    assert as_json({}).status_code == 200
    with pytest.raises(ValueError, match="not JSON compliant"):
        as_json(float("nan"))


@pytest.mark.parametrize(
    ("find", "name", "found"),
    [
        ("model", None, "toy"),
        ("model", "ear", "ear"),
        ("model", "no", "there is no model 'no'; there are toy, ear"),
        ("model", 3, "there is no model 3; there are toy, ear"),
        ("hearing", None, "ear"),
        ("hearing", "whisper-1", "ear"),
        ("hearing", "toy", "toy"),
        ("hearing", "no", "there is no model 'no'; there is ear"),
    ],
)
def test_a_model_is_found_by_its_name_or_is_the_first(find, name, found):
    service = Service({model.id: model for model in (toy_model(), hearing_model())})
    if " " in found:
        with pytest.raises(InvalidInput, match=found):
            getattr(service, find)(name)
    else:
        assert getattr(service, find)(name).id == found


@pytest.mark.parametrize("gone", [False, True])
def test_an_answer_leaves_no_task_behind_and_a_client_that_goes_cancels_its_search(gone):
    model = toy_model()
    service, opened = Service({"toy": model}), threading.Event()

    async def receive():
        if not gone:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def asked():
        request = SimpleNamespace(request=SimpleNamespace(receive=receive))
        queued = QueuedRequest.alone(lambda: opened.wait(5 * gone) or 7)
        try:
            return await service.outcome(request, model, queued), queued.cancelled
        except RequestRefused as refused:
            return refused.status, queued.cancelled
        finally:
            await asyncio.sleep(0)
            assert len(asyncio.all_tasks()) == 1

    assert asyncio.run(asked()) == ((499, True) if gone else (7, False))
    opened.set()
    model.thread.close()
