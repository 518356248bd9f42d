"""Without a connection: one line at once, and folders are read without asking."""

import socket

import pytest

pytest.importorskip("transformers")

import npad
from npad import InvalidInput
from npad.models.huggingface import loading as hub


@pytest.fixture(autouse=True)
def forget():
    hub._failed.clear()
    yield
    hub._failed.clear()


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
    monkeypatch.setattr(hub, "getproxies", lambda: {"https": "http://proxy:3128"})
    assert not hub.out_of_reach("nobody/nothing")
    monkeypatch.setattr(hub, "getproxies", lambda: {"no": "localhost"})  # NO_PROXY alone
    assert hub.out_of_reach("nobody/nothing")


def test_a_network_may_come_back(asked, monkeypatch):
    assert hub.out_of_reach("nobody/nothing")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *rest: ["an address"])
    assert hub.out_of_reach("nobody/nothing")  # for a while
    now = hub.time.monotonic()
    monkeypatch.setattr(hub.time, "monotonic", lambda: now + 60)
    assert not hub.out_of_reach("nobody/nothing")


def test_errors_of_a_cached_model_are_shown_offline(asked, monkeypatch, tmp_path):
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "never-heard-of"}')

    def cached_file(name, file, **rest):
        return str(config) if file == "config.json" else None

    monkeypatch.setattr("transformers.utils.cached_file", cached_file)
    monkeypatch.setattr(
        "transformers.AutoConfig.from_pretrained",
        lambda *rest, **more: (_ for _ in ()).throw(ValueError("never-heard-of is unknown")),
    )
    with pytest.raises(InvalidInput, match="never-heard-of is unknown"):
        npad.load("hf:nobody/nothing")
