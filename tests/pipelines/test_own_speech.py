"""npad transcribe with speech models that npad trained: rates, silence, damage, overlays."""

from __future__ import annotations

import json

import pytest
import torch

from media_models import OPTIONS, random_model, record, tone
from npad import Beam, Greedy
from npad.pipelines.loading import LONGEST, load
from npad.pipelines.sound import read
from npad.storage import checkpoint

RATE, BINS = OPTIONS["sound"]["rate"], OPTIONS["sound"]["bins"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return random_model(tmp_path_factory.mktemp("model"), "sound")


def test_the_rate_is_the_models_and_a_window_what_it_was_trained_on(folder, tmp_path):
    transcriber = load(folder)
    assert (transcriber.rate, transcriber.longest) == (RATE, LONGEST)
    saved = checkpoint.load(folder)
    about = {"longest_seconds": 2.5}
    checkpoint.save(tmp_path / "model", saved.model, saved.subwords, about)
    short = load(tmp_path / "model")
    assert short.longest == 2.5
    output = next(short.stream([tone(300, 6, RATE)], Greedy(), 5))
    assert len(output.windows) >= 3


def test_a_stereo_recording_of_a_higher_rate_is_converted(folder, tmp_path, printed_here):
    samples = tone(500, 0.5, 44100)
    path = record(tmp_path / "cd.wav", samples, 44100, channels=2)
    converted = read(path, RATE)
    assert len(converted) == RATE // 2
    (window,) = load(folder).transcribe([converted], Beam(), 9)
    shown = printed_here("transcribe", "-m", folder, path, "--max-length", 9)
    assert shown == f"{window.text}\n"


@pytest.mark.parametrize("form", ["windows", "json", "text", "vtt"])
def test_a_folder_gets_a_file_per_recording_in_every_format(folder, tmp_path, npad_here, form):
    quiet = record(tmp_path / "quiet.wav", torch.zeros(RATE), RATE)
    loud = record(tmp_path / "loud.wav", tone(500, 0.5, RATE), RATE)
    (tmp_path / "out").mkdir()
    base = ("transcribe", "-m", folder, "--max-length", 9, "--format", form)
    assert npad_here(*base, quiet, loud, "-o", tmp_path / "out").stdout == ""
    written = {path.stem: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert written.keys() == {"quiet", "loud"}
    together = "" if form == "vtt" else npad_here(*base, quiet, loud).stdout
    for name, path in (("quiet", quiet), ("loud", loud)):
        alone = npad_here(*base, path).stdout
        if form == "windows":
            assert json.loads(alone)["source"] == str(path)
        assert written[name].replace('{"id": 1,', '{"id": 0,') == alone
    if together and form != "windows":
        assert together == written["quiet"] + written["loud"]


def test_json_is_an_old_name_of_windows(folder, tmp_path, npad_here):
    path = record(tmp_path / "a.wav", tone(500, 0.5, RATE), RATE)
    base = ("transcribe", "-m", folder, "--max-length", 9, path)
    done = npad_here(*base, "--json")
    assert done.stdout == npad_here(*base, "--format", "windows").stdout
    assert "warning: transcribe --json is now --format windows" in done.stderr


def test_the_overlay_shows_attention_over_time(folder, tmp_path, printed_here, refused_here):
    path = record(tmp_path / "a.wav", tone(500, 0.5, RATE), RATE)
    base = ("transcribe", "-m", folder, "--max-length", 9, "--overlay", tmp_path / "o.png")
    printed_here(*base, path)
    assert (tmp_path / "o.png").read_bytes().startswith(b"\x89PNG")
    wrong = refused_here(*base, path, path)
    assert wrong == "--overlay shows one recording, and there are 2"


def test_info_shows_what_a_model_reads(folder, tmp_path, printed_here):
    shown = printed_here("info", folder)
    assert "sound" in shown
    assert "rate=8,000 bins=10 channels=8" in shown
    picture = random_model(tmp_path / "picture", "picture")
    record_ = json.loads(printed_here("info", picture, "--json"))
    assert record_["model"]["source"] == "picture"
    assert record_["parameters"] > 0


def test_a_server_hears_with_it(folder):
    pytest.importorskip("starlette")
    from npad.serve.limits import Limits
    from npad.serve.models import serve

    served = serve("own", load(folder), Limits())
    assert served.sound.rate == RATE
    served.thread.close()
