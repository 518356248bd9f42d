"""npad info, npad pack and npad plot: commands on a trained model."""

from __future__ import annotations

import pytest

import npad as package


def test_a_shipped_model_is_packed_by_its_name(tmp_path, printed_here):
    folder = tmp_path / "small"
    assert f"{folder}: " in printed_here("pack", "en-de", folder)
    assert package.load(folder).translate(["Where is the library?"])


@pytest.mark.parametrize("name", ["toy", "hf:some/model"])
@pytest.mark.parametrize(
    ("command", "use"),
    [
        (["pack", "MODEL", "folder"], "be packed"),
        (["plot", "attention", "danke", "-m", "MODEL"], "be plotted"),
        (["reproduce", "run", "--data", ".", "-m", "MODEL"], "be used by npad reproduce"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_commands_for_trained_models_refuse_others(
    name, command, use, tmp_path, refused_here, monkeypatch
):
    for file in ("test.en", "test.de", "valid.en", "valid.de"):
        (tmp_path / file).write_text("danke\n")
    monkeypatch.chdir(tmp_path)
    arguments = [name if argument == "MODEL" else argument for argument in command]
    expected = f"{name} cannot {use}; give en-de or a folder that npad train wrote"
    assert refused_here(*arguments) == expected
    assert len(list(tmp_path.iterdir())) == 4


def test_info_tells_what_a_model_is(trained, npad_here):
    shown = npad_here("info", trained).stdout
    for part in ("AttentionModel", "64", "hidden (64)", "3,000 pairs", "validation perplexity"):
        assert part in shown
    assert "hidden" in npad_here("info", "toy").stdout


@pytest.mark.parametrize("more", [[], ["--target", "babe bibo"]], ids=["own", "given"])
def test_plot_attention_draws(trained, tmp_path, more, npad_here):
    options = ("--model", trained, "-o", tmp_path / "a.png", *more)
    done = npad_here("plot", "attention", "babe um bibo", *options)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert str(tmp_path / "a.png") in done.stdout
    npad_here("plot", "loss", trained, "-o", tmp_path / "l.svg")
    assert "<svg" in (tmp_path / "l.svg").read_text()
