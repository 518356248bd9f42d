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
from npad.serve.models import serve
from npad.serve.options import decoding_for
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
    return serve("en-de", npad.load("en-de"), Limits())


class Gate:
    """A job that holds a thread until it is opened, so that others gather behind it."""

    def __init__(self, thread):
        self.opened = threading.Event()
        thread.submit(QueuedRequest.alone(lambda: self.opened.wait(60)))
        wait_until(lambda: len(thread) == 0)


def test_mixed_requests_are_answered_as_if_alone(shipped):
    asked = [{"text": text, **options} for text in TEXTS for options in OPTIONS]
    asked += [{"text": TEXTS[:3], **OPTIONS[2]}, {"text": [TEXTS[4], "", TEXTS[4]], **OPTIONS[0]}]
    random.Random(3).shuffle(asked)
    with serving(shipped) as client:
        alone = [client.post("/v1/decode", content).json for content in asked]
        before = shipped.thread.batches
        gate = Gate(shipped.thread)
        with ThreadPoolExecutor(len(asked)) as clients:
            pending = [clients.submit(client.post, "/v1/decode", content) for content in asked]
            wait_until(lambda: len(shipped.thread) == len(asked))
            gate.opened.set()
            together = [answer.result().json for answer in pending]
        assert shipped.thread.batches - before == 1 + len(OPTIONS)
    for answer_alone, answer in zip(alone, together, strict=True):
        for expected, result in zip(answer_alone["results"], answer["results"], strict=True):
            assert result["text"] == expected["text"]
            assert result["log_prob"] == pytest.approx(expected["log_prob"], abs=1e-4)
            assert result["calls"] == expected["calls"]
            texts = [hypothesis["text"] for hypothesis in result["hypotheses"]]
            assert texts == [hypothesis["text"] for hypothesis in expected["hypotheses"]]


def test_a_faulty_request_of_a_batch_fails_alone():
    model = toy_model()
    decoding, _ = decoding_for(model.model, {"decoder": "greedy"}, Limits())
    gate = Gate(model.thread)
    texts = ["danke", "unknown", "na ja"]
    queued = [model.thread.submit(decode_request(model, [text], decoding)) for text in texts]
    gate.opened.set()
    assert queued[0].result.result(20)[0].output.text == "thanks"
    assert queued[2].result.result(20)[0].output.text == "well yes"
    with pytest.raises(npad.InvalidInput, match="unknown"):
        queued[1].result.result(20)
    model.thread.close()


def test_a_decoder_that_takes_one_text_at_a_time_counts_the_calls_of_each():
    model = toy_model()
    decoding, _ = decoding_for(model.model, {"decoder": "exact", "budget": 50}, Limits())

    def calls(*texts):
        queued = model.thread.submit(decode_request(model, texts, decoding))
        return [served.calls for served in queued.result.result(20)]

    assert calls("danke", "na ja") == calls("danke") + calls("na ja")
    model.thread.close()


@pytest.fixture
def thread():
    thread = ModelThread("test", limit=9, batch=4)
    yield thread
    thread.close()


def answering(answer):
    return QueuedRequest.alone(lambda: answer)


def test_a_full_queue_refuses_until_cancelled_requests_make_room():
    thread = ModelThread("test", limit=2, batch=8)
    gate = Gate(thread)
    queued = [thread.submit(answering(5)) for _ in range(2)]
    with pytest.raises(RequestRefused, match="2 requests are waiting") as refused:
        thread.submit(answering(5))
    assert refused.value.status == 429
    assert refused.value.headers == {"Retry-After": "1"}
    queued[0].cancel()
    queued.append(thread.submit(answering(6)))
    assert len(thread) == 2
    queued[1].cancel()
    gate.opened.set()
    thread.close()
    assert [request.result.cancelled() for request in queued] == [True, True, False]
    assert queued[2].result.result(20) == 6


def test_closing_finishes_what_was_begun(thread):
    gate = Gate(thread)
    queued = [thread.submit(answering(5)) for _ in range(3)]
    closing = threading.Thread(target=thread.close)
    closing.start()
    wait_until(lambda: thread._closed)
    with pytest.raises(RequestRefused, match="shutting down"):
        thread.submit(answering(5))
    gate.opened.set()
    closing.join(20)
    assert [request.result.result(0) for request in queued] == [5, 5, 5]


def test_the_thread_of_a_model_does_not_keep_a_program_alive(thread):
    assert thread._thread.daemon


def test_a_batch_is_bounded_and_keeps_the_order(thread):
    batches = []
    gate = Gate(thread)

    def run(payloads):
        batches.append(payloads)
        return payloads

    keys = "aabaabaaa"
    queued = [thread.submit(QueuedRequest(run, i, key)) for i, key in enumerate(keys)]
    gate.opened.set()
    assert [request.result.result(20) for request in queued] == list(range(9))
    assert batches == [[0, 1, 3, 4], [2, 5], [6, 7, 8]]


def test_an_error_does_not_end_the_thread(thread):
    failing = thread.submit(QueuedRequest.alone(lambda: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        failing.result.result(20)
    without_result = thread.submit(QueuedRequest(lambda payloads: []))
    with pytest.raises(ValueError, match="zip"):
        without_result.result.result(20)
    assert thread.submit(answering(5)).result.result(20) == 5


def test_a_cancelled_search_stops_within_a_step(shipped):
    decoding, _ = decoding_for(shipped.model, {"chains": 400, "max_length": 500}, Limits())
    queued = shipped.thread.submit(decode_request(shipped, ["word " * 60], decoding))
    wait_until(queued.result.running)
    time.sleep(0.05)
    queued.cancel()
    start = time.monotonic()
    with pytest.raises(Stopped):
        queued.result.result(30)
    assert time.monotonic() - start < 5
    shipped.thread.close()
