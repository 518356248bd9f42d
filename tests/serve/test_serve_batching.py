"""Requests that arrive together are one batch, and each gets what it would get alone."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import npad
from npad.engine.deadline import Stopped
from npad.serve.decoding import decode_request
from npad.serve.limits import Limits, RequestRefused
from npad.serve.model_thread import ModelThread, QueuedRequest
from npad.serve.models import serve_translator
from npad.serve.options import choose
from serve_cases import serving, toy_model, wait_until

TEXTS = [
    "How are you?",
    "She spends most of her money on books.",
    "I would rather stay at home than go out tonight.",
    "Where is the station?",
    "It is raining.",
    "Tom asked me a question that I could not answer.",
]
OPTIONS = [
    {"decoder": "greedy"},
    {"decoder": "beam", "width": 4, "nbest": 2},
    {"decoder": "npad", "chains": 6, "seed": 4},
    {"decoder": "npad", "chains": 3, "inner": "beam", "width": 2},
    # A draw among tokens of tiny probability would be at the mercy of float32.
    {"decoder": "sampling", "samples": 4, "seed": 9, "temperature": 0.5},
]


@pytest.fixture
def shipped():
    return serve_translator("en-de", npad.load("en-de"), Limits())


class Gate:
    """A job that holds a thread until it is opened, so that others gather behind it."""

    def __init__(self, thread):
        self.opened = threading.Event()
        thread.submit(QueuedRequest.alone(lambda: self.opened.wait(60)))
        wait_until(lambda: len(thread) == 0)


def test_a_load_of_mixed_requests_gets_its_answers_alone(shipped):
    asked = [{"text": text, **options} for text in TEXTS for options in OPTIONS]
    asked += [{"text": TEXTS[:3], **OPTIONS[2]}, {"text": [TEXTS[4], "", TEXTS[4]], **OPTIONS[0]}]
    random.Random(3).shuffle(asked)
    with serving(shipped) as client:
        alone_ = [client.post("/v1/decode", content).json for content in asked]
        before = shipped.thread.batches
        gate = Gate(shipped.thread)
        with ThreadPoolExecutor(len(asked)) as clients:
            pending = [clients.submit(client.post, "/v1/decode", content) for content in asked]
            wait_until(lambda: len(shipped.thread) == len(asked))
            gate.opened.set()
            together = [answer.result().json for answer in pending]
        assert shipped.thread.batches - before == 1 + len(OPTIONS)
    for one, other in zip(alone_, together, strict=True):
        for result, same in zip(one["results"], other["results"], strict=True):
            assert result["text"] == same["text"]
            assert result["log_prob"] == pytest.approx(same["log_prob"], abs=1e-4)
            assert result["calls"] == same["calls"]
            texts = [hypothesis["text"] for hypothesis in result["hypotheses"]]
            assert texts == [hypothesis["text"] for hypothesis in same["hypotheses"]]


def test_a_request_that_fails_fails_alone():
    model = toy_model()
    chosen = choose({"decoder": "greedy"}, model.defaults, Limits())
    gate = Gate(model.thread)
    texts = ["danke", "unknown", "na ja"]
    jobs = [model.thread.submit(decode_request(model, [text], chosen)) for text in texts]
    gate.opened.set()
    assert jobs[0].result.result(20)[0].output.text == "thanks"
    assert jobs[2].result.result(20)[0].output.text == "well yes"
    with pytest.raises(npad.InvalidInput, match="unknown"):
        jobs[1].result.result(20)
    model.thread.close()


def test_a_full_queue_refuses():
    thread = ModelThread("test", limit=2, batch=8)
    gate = Gate(thread)
    jobs = [thread.submit(QueuedRequest.alone(lambda: 5)) for _ in range(2)]
    with pytest.raises(RequestRefused, match="2 requests are waiting") as refused:
        thread.submit(QueuedRequest.alone(lambda: 5))
    assert refused.value.status == 429
    assert refused.value.headers == {"Retry-After": "1"}
    gate.opened.set()
    assert [job.result.result(20) for job in jobs] == [5, 5]
    thread.close()


def test_cancelled_jobs_make_room_in_a_full_queue():
    thread = ModelThread("test", limit=2, batch=8)
    gate = Gate(thread)
    for _ in range(2):
        thread.submit(QueuedRequest.alone(lambda: 5)).cancel()
    job = thread.submit(QueuedRequest.alone(lambda: 6))
    assert len(thread) == 1
    gate.opened.set()
    assert job.result.result(20) == 6
    thread.close()


def test_closing_finishes_what_was_begun():
    thread = ModelThread("test", limit=9, batch=8)
    gate = Gate(thread)
    jobs = [thread.submit(QueuedRequest.alone(lambda: 5)) for _ in range(3)]
    closing = threading.Thread(target=thread.close)
    closing.start()
    wait_until(lambda: thread._closed)
    with pytest.raises(RequestRefused, match="shutting down"):
        thread.submit(QueuedRequest.alone(lambda: 5))
    gate.opened.set()
    closing.join(20)
    assert [job.result.result(0) for job in jobs] == [5, 5, 5]


def test_a_batch_is_bounded_and_keeps_the_order():
    thread, ran = ModelThread("test", limit=99, batch=4), []
    gate = Gate(thread)

    def run(payloads):
        ran.append(payloads)
        return payloads

    keys = "aabaabaa"
    jobs = [thread.submit(QueuedRequest(run, i, key)) for i, key in enumerate(keys)]
    gate.opened.set()
    assert [job.result.result(20) for job in jobs] == list(range(8))
    assert ran == [[0, 1, 3, 4], [2, 5], [6, 7]]
    thread.close()


def test_an_error_in_a_job_does_not_end_the_thread():
    thread = ModelThread("test", limit=9, batch=4)
    failing = thread.submit(QueuedRequest.alone(lambda: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        failing.result.result(20)
    forgetful = thread.submit(QueuedRequest(lambda payloads: []))
    with pytest.raises(ValueError, match="zip"):
        forgetful.result.result(20)
    assert thread.submit(QueuedRequest.alone(lambda: 5)).result.result(20) == 5
    thread.close()


def test_a_cancelled_job_is_not_run():
    thread, ran = ModelThread("test", limit=9, batch=4), []
    gate = Gate(thread)
    job = thread.submit(QueuedRequest.alone(lambda: ran.append(1)))
    job.cancel()
    gate.opened.set()
    thread.close()
    assert ran == []
    assert job.result.cancelled()


def test_a_search_that_nobody_waits_for_stops_within_a_step(shipped):
    chosen = choose({"chains": 400, "max_length": 500}, shipped.defaults, Limits())
    job = shipped.thread.submit(decode_request(shipped, ["word " * 60], chosen))
    wait_until(job.result.running)
    time.sleep(0.05)
    job.cancel()
    start = time.monotonic()
    with pytest.raises(Stopped):
        job.result.result(30)
    assert time.monotonic() - start < 5
    shipped.thread.close()
