"""Shared by the tests of decoding in the background: its fixtures, and models that are watched."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

import npad
from npad.pipelines import pipeline
from npad.pipelines.overlap import Background

TOY = npad.load("toy")


@pytest.fixture
def overlap(monkeypatch):
    """Decode in the background, as on a GPU."""
    monkeypatch.setattr(pipeline, "runner_for", lambda model: Background())


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


class Spied:
    """A model that calls `spy` with the number of sentences whenever it starts."""

    def __init__(self, model, spy):
        self.model, self.spy = model, spy
        self.special, self.sites = model.special, model.sites
        self.step, self.select = model.step, model.select

    def start(self, source):
        self.spy(len(source))
        return self.model.start(source)


def spied(translator, spy):
    return replace(translator, model=Spied(translator.model, spy))


def names():
    return [thread.name for thread in threading.enumerate()]
