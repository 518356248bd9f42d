"""Without a connection: one line at once, and folders are read without asking."""

import socket

import pytest

pytest.importorskip("transformers")

import npad
from npad import InvalidInput
from npad.models.huggingface import hub


@pytest.fixture(autouse=True)
def forget():
    hub._has_address.cache_clear()
    yield
    hub._has_address.cache_clear()


@pytest.fixture
def asked(monkeypatch):
    """Every host whose address was asked for; none is known."""
    hosts = []

    def refuse(host, *rest, **more):
        hosts.append(host)
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(hub, "getproxies", dict)
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    return hosts


def test_the_hub_is_not_asked_again_and_again(asked):
    with pytest.raises(InvalidInput, match="the hub cannot be reached, and the cache lacks it"):
        npad.load("hf:nobody/nothing")
    assert len(asked) < 6  # its client asks six times for each of several files


def test_a_folder_needs_no_hub(asked, tmp_path):
    assert not hub.out_of_reach(str(tmp_path))
    assert asked == []


def test_a_proxy_may_know_the_hub_and_an_endpoint_is_another_hub(asked, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.example:8443/path")
    assert hub.out_of_reach("nobody/nothing")
    assert asked == ["hub.example"]
    hub._has_address.cache_clear()
    monkeypatch.setattr(hub, "getproxies", lambda: {"https": "http://proxy:3128"})
    assert not hub.out_of_reach("nobody/nothing")
