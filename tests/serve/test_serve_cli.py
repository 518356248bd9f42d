"""The command `npad serve`, up to where the server starts."""

from __future__ import annotations

import pytest
import torch

from npad import NPAD, Beam, InvalidInput, Translator
from npad.cli.serve import command
from npad.serve import server


@pytest.fixture
def run(monkeypatch):
    """What the command would run."""
    ran = []

    def pretend(app, listener, limits, started):
        ran.append((app, server.url_of(listener), limits))
        started()
        listener.close()

    monkeypatch.setattr(server, "run", pretend)
    return ran


def test_the_command_names_its_models_and_opens_the_page(run, capsys, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    command(["toy"], port=0, limit=["body=5"], open_page=True)
    ((_, url, limits),) = run
    assert opened == [url]
    assert limits.body == 5
    assert capsys.readouterr().err == f"npad: serving toy at {url}\n"


@pytest.mark.parametrize(("device", "times"), [("cpu", 1), ("cuda", 4)])
def test_warm_up_decodes_texts_and_lines_before_the_server_is_ready(
    run, device, times, monkeypatch, tmp_path, capsys
):
    decoded, translator_run = [], Translator.run

    def watched(self, texts, decoding, *rest, **options):
        assert run == []
        decoded.append((texts, type(decoding.decoder)))
        return translator_run(self, texts, decoding, *rest, **options)

    monkeypatch.setattr(Translator, "run", watched)
    monkeypatch.setattr("npad.serve.decoding.device_of", lambda model: torch.device(device))
    (tmp_path / "lines.txt").write_text("danke\nna ja\n")
    command(["toy"], port=0, warm=["das ist mir wurst", str(tmp_path / "lines.txt")])
    texts = ("das ist mir wurst", "danke", "na ja")
    expected = [([text], kind) for kind in (NPAD, Beam) for text in texts for _ in range(times)]
    assert decoded == expected
    assert "serving toy" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"warm": ["danke " * 2000]}, "a text has .* tokens are allowed"),
        ({"warm": ["missing/texts.txt"]}, "missing/texts.txt"),
        ({"model": ["nowhere/en-cs"]}, "en-cs"),
        ({"model": ["runs/en-cs", "old/en-cs"]}, "two models are called en-cs"),
        ({"host": "0.0.0.0"}, "add --token"),
        ({"host": "192.0.2.1", "token": "long enough"}, "cannot listen on 192.0.2.1"),
        ({"host": "no such host.invalid", "token": "long enough"}, "cannot listen on no such"),
        ({"token": "short"}, "--token must have at least 8"),
        ({"device": "tpu"}, "--device must be"),
        ({"precision": "int4"}, "precision must be"),
        ({"precision": "int8"}, "toy is not a torch module"),
        ({"limit": ["bodies=3"]}, "there is no limit 'bodies'"),
    ],
    ids=str,
)
def test_bad_arguments_are_refused(run, arguments, message):
    with pytest.raises((InvalidInput, OSError), match=message):
        command(**{"model": ["toy"], "port": 0, **arguments})
    assert run == []


@pytest.mark.parametrize("precision", ["int8", "int8-all"])
def test_models_run_in_the_precision_and_their_names_say_so(run, precision, monkeypatch):
    monkeypatch.setattr("npad.serve.app.build", lambda service: service)
    command(precision=precision, port=0)
    ((service, _, _),) = run
    (served,) = service.models.values()
    assert served.model.name == f"en-de+{precision}"


def test_without_the_extra_it_names_it(run, monkeypatch):
    monkeypatch.setattr("npad.cli.serve.find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match=r'pip install .*"starlette>=1.0"'):
        command(["toy"], port=0)
