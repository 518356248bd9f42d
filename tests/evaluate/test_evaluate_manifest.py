"""npad evaluate on a manifest: the figures of captions, and of transcripts by npad's own models."""

from __future__ import annotations

import json
import tarfile

import pytest

from media_models import draw, random_model, record, tone
from npad import Beam, Greedy, InvalidInput
from npad.evaluate.captioning import evaluate_captions
from npad.metrics.captions import Bleu4, Cider
from npad.metrics.metric import Scorer
from npad.pipelines.loading import load
from runs import printed_here, refused_here

CAPTIONS = [["a red kite", "the kite"], ["a blue dog .", "A dog"], ["Two dogs", "a dog on a kite"]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return random_model(tmp_path_factory.mktemp("model"), "picture")


@pytest.fixture
def pictures(tmp_path):
    """An archive of pictures, not in the manifest's order, and the manifest."""
    files = [draw(tmp_path / f"{i}.png", i) for i in range(3)]
    with tarfile.open(tmp_path / "images.tar", "w") as archive:
        for path in reversed(files):
            archive.add(path, path.name)
    lines = [
        (path, text)
        for texts in zip(*CAPTIONS, strict=True)
        for path, text in zip(files, texts, strict=True)
    ]
    (tmp_path / "test.tsv").write_text("".join(f"{path.name}\t{text}\n" for path, text in lines))
    return files


def test_the_figures_are_those_of_the_captions(folder, pictures):
    captioner = load(folder)
    read = [captioner.read(path) for path in pictures]
    report, outputs = evaluate_captions(captioner, read, CAPTIONS, Beam(3), 9)
    expected = captioner.caption(pictures, Beam(3), 9)
    texts = [output.text for output in outputs]
    assert texts == [caption.text for caption in expected]
    assert report.nll == pytest.approx(-sum(c.log_prob for c in expected) / 3)
    assert report.bleu == Scorer(Bleu4(), CAPTIONS).score(texts)
    assert report.cider == pytest.approx(Scorer(Cider(), CAPTIONS).score(texts))
    assert report.nll_interval[0] <= report.nll <= report.nll_interval[1]
    assert report.cider_interval[0] <= report.cider <= report.cider_interval[1]
    assert (report.pictures, report.references) == (3, 6)
    assert report.calls > 0
    assert report.captions == len(set(texts))
    with pytest.raises(InvalidInput, match="2 pictures and references of 3"):
        evaluate_captions(captioner, read[:2], CAPTIONS, Greedy(), 9)


def test_the_command_evaluates_an_archive_as_a_folder(folder, pictures, tmp_path, npad_here):
    options = ("-m", folder, "-d", "greedy", "--max-length", 9)
    base = (tmp_path / "test.tsv", *options)
    out = tmp_path / "captions.tsv"
    done = npad_here("evaluate", tmp_path / "images.tar", *base, "--json", "-o", out)
    archive = json.loads(done.stdout)
    captions = load(folder).caption(pictures, Greedy(), 9)
    rows = [line.split("\t") for line in out.read_text().splitlines()]
    assert rows == [[p.name, c.text] for p, c in zip(pictures, captions, strict=True)]
    assert archive["references"] == 6
    files = json.loads(npad_here("evaluate", tmp_path, *base, "--json").stdout)
    assert files | {"seconds": 0} == archive | {"seconds": 0}
    shown = npad_here("evaluate", tmp_path, *base).stdout
    assert f"CIDEr-D            {archive['cider']:.3f} [" in shown


def test_a_speech_model_of_npad_is_evaluated_by_word_errors(tmp_path, capsys, monkeypatch):
    folder = random_model(tmp_path / "model", "sound")
    for i, hertz in enumerate((300, 700)):
        record(tmp_path / f"{i}.wav", tone(hertz, 0.5, 8000), 8000)
    (tmp_path / "test.tsv").write_text("1.wav\tone two\n0.wav\tthree\n")
    base = ("evaluate", tmp_path, tmp_path / "test.tsv", "-m", folder, "-d", "greedy")
    out = tmp_path / "heard"
    shown = printed_here(capsys, monkeypatch, *base, "--max-length", 9, "--json", "-o", out)
    report = json.loads(shown)
    assert (report["recordings"], report["words"]) == (2, 3)
    assert report["sound_seconds"] == pytest.approx(1.0)
    (tmp_path / "list").write_text("".join(f"{tmp_path / name}.wav\n" for name in "10"))
    (tmp_path / "said").write_text("one two\nthree\n")
    lines = ("evaluate", tmp_path / "list", tmp_path / "said", "-m", folder, "-d", "greedy")
    same = json.loads(printed_here(capsys, monkeypatch, *lines, "--max-length", 9, "--json"))
    assert same | {"seconds": 0} == report | {"seconds": 0}
    (tmp_path / "test.tsv").write_text("1.wav\tone\n1.wav\ttwo\n")
    wrong = refused_here(capsys, monkeypatch, *base)
    assert "has 2 transcripts of 1.wav; word errors are counted against one" in wrong


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["images.tar", "test.tsv", "-m", "en-de"], "and en-de is a model of texts; give a file"),
        (["images.tar", "test.tsv", "-m", "MODEL", "--engine", "processes"], "without --engine"),
        (["images.tar", "none.tsv", "-m", "MODEL"], "cannot read none.tsv"),
        (["test.tsv", "test.tsv", "-m", "MODEL"], "is a model of pictures, not of texts"),
        ([".", "test.tsv", "-m", "none"], "none"),
    ],
)
def test_mistakes_are_one_line(options, reason, folder, pictures, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = [folder if option == "MODEL" else option for option in options]
    assert reason in refused_here(capsys, monkeypatch, "evaluate", *given)


def test_a_bad_picture_of_a_test_set_is_named(folder, pictures, tmp_path, capsys, monkeypatch):
    pictures[1].write_bytes(pictures[1].read_bytes()[:60])
    base = ("evaluate", tmp_path, tmp_path / "test.tsv", "-m", folder)
    wrong = refused_here(capsys, monkeypatch, *base)
    assert wrong.startswith("1.png is a damaged picture")
