"""npad evaluate and npad compare: lines, archives with manifests, and lists of recordings."""

from __future__ import annotations

import json
import shlex

import pytest
import sacrebleu
import torch

from media_models import draw, random_model, record, tone, write_tar
from npad import Greedy, load
from npad.metrics.registry import METRICS
from runs import lines
from speech_cases import RATE
from speech_cases import whisper as whisper  # a fixture

SOURCES = ["ich verstehe nur bahnhof", "das ist mir wurst", "na ja", "danke"] * 5
REFERENCES = ["it is all greek to me", "i do not care", "oh well", "thanks"] * 5
CAPTIONS = [["a red kite", "the kite"], ["a blue dog .", "A dog"], ["Two dogs", "a dog on a kite"]]


@pytest.fixture
def files(tmp_path):
    for name, content in (("a.src", SOURCES), ("a.ref", REFERENCES)):
        (tmp_path / name).write_text("".join(line + "\n" for line in content))
    return tmp_path / "a.src", tmp_path / "a.ref"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return random_model(tmp_path_factory.mktemp("model"), "picture")


@pytest.fixture
def pictures(tmp_path):
    """An archive of pictures, not in the manifest's order, and the manifest."""
    paths = [draw(tmp_path / f"{i}.png", i) for i in range(3)]
    write_tar(tmp_path / "images.tar", {path.name: path.read_bytes() for path in paths[::-1]})
    rows = [
        f"{path.name}\t{text}\n"
        for texts in zip(*CAPTIONS, strict=True)
        for path, text in zip(paths, texts, strict=True)
    ]
    (tmp_path / "test.tsv").write_text("".join(rows))
    return paths


def test_table_and_json_have_the_figures_of_the_outputs(corpus, trained, tmp_path, npad_here):
    test_set = corpus / "test.src", corpus / "test.tgt"
    common = (*test_set, "--model", trained, "-d", "npad", "-M", 3, "--sigma", "0,0.1,0.2")
    done = npad_here("evaluate", *common, "--json", "-o", tmp_path / "out")
    report = json.loads(done.stdout)
    outputs, references = lines(tmp_path / "out"), lines(test_set[1])
    assert report["bleu"] == sacrebleu.corpus_bleu(outputs, [references]).score
    assert report["chrf"] == sacrebleu.corpus_chrf(outputs, [references]).score
    assert report["sentences"] == 200
    assert report["signature"].startswith("npad|inner:greedy|chains:3|sigma:0.0,0.1,0.2|")
    table = npad_here("evaluate", *common).stdout
    low, high = report["bleu_interval"]
    assert low <= report["bleu"] <= high
    for row in (
        f"BLEU               {report['bleu']:.2f} [{low:.2f}, {high:.2f}]",
        f"{report['calls'] / 200:.1f} per sentence, {report['calls']:,} in total",
        "BLEU, chrF    of the outputs against the references; higher is better",
        "[low, high]   95 % interval: bootstrap over the sentences, 1,000 test sets",
    ):
        assert row in table


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_can_be_chosen(name, files, printed_here):
    title = METRICS[name].title
    options = (*files, "-m", "toy", "-d", "greedy", "--metric", name)
    report = json.loads(printed_here("evaluate", *options, "--json"))
    key = "bleu" if name == "bleu4" else name
    low, high = report[f"{key}_interval"]
    assert low <= report[key] <= high
    table = printed_here("evaluate", *options)
    assert f"{title:19}" in table
    assert METRICS[name].direction in table
    test_set = ("compare", "-m", "toy", "-i", files[0], "-r", files[1], "--metric", name)
    compared = printed_here(*test_set, "-d", "greedy", "-d", "beam")
    assert f"{title} against" in compared


def test_compare_shows_differences_to_the_first_decoder(files, npad_here):
    test_set = ("-i", files[0], "--reference", files[1])
    table = npad_here("compare", "-m", "toy", *test_set, columns=80).stdout
    for text in ("a.src, 20 sentences, model toy", "BLEU against", "NPAD-10 +", "calls", "[low,"):
        assert text in table
    assert "95 % interval: paired bootstrap" in table
    assert max(map(len, table.splitlines())) <= 80
    header = next(line for line in table.splitlines() if line.startswith("strategy"))
    assert header.split()[-2:] == ["length", "calls"]
    chosen = ("-d", "beam", "-d", "npad(chains=3)", "-d", "npad(chains=3,seed=4)", "--width", 2)
    done = npad_here("compare", "-m", "toy", *test_set, *chosen, "--json")
    first, *others = map(json.loads, done.stdout.splitlines())
    assert first["strategy"] == "beam, 2"
    assert "bleu_gain" not in first
    assert [row["strategy"] for row in others] == ["NPAD-3 + greedy", "npad(chains=3,seed=4)"]
    for row in others:
        assert row["bleu_gain"]["value"] == pytest.approx(row["bleu"] - first["bleu"])
        assert row["calls_per_sentence"] == row["calls"] / 20
        low, high = row["nll_interval"]
        assert low <= row["nll"] <= high


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["-i", "FILE", "--reference", "FILE", "danke"], "or a file with --input, not both"),
        (["FILE", "FILE"], "and others; for references: --reference FILE"),
        (["FILE", "--metric", "bleu"], "bleu compares outputs with references"),
        (["danke", "--metric", "bleu"], "--metric needs a file of lines"),
    ],
)
def test_sources_that_cannot_be_measured_are_refused(given, message, files, refused_here):
    given = [files[0] if word == "FILE" else word for word in given]
    assert message in refused_here("compare", "-m", "toy", *given)


def test_an_archive_is_evaluated_as_its_folder(folder, pictures, tmp_path, npad_here):
    options = ("-m", folder, "-d", "greedy", "--max-length", 9)
    base = (tmp_path / "test.tsv", *options)
    out = tmp_path / "captions.tsv"
    done = npad_here("evaluate", tmp_path / "images.tar", *base, "--json", "-o", out)
    archive = json.loads(done.stdout)
    captions = load(folder).caption(pictures, Greedy(), 9)
    rows = [line.split("\t") for line in out.read_text().splitlines()]
    assert rows == [[p.name, c.text] for p, c in zip(pictures, captions, strict=True)]
    assert archive["references"] == 6
    same = json.loads(npad_here("evaluate", tmp_path, *base, "--json").stdout)
    assert same | {"seconds": 0} == archive | {"seconds": 0}
    shown = npad_here("evaluate", tmp_path, *base).stdout
    assert f"CIDEr-D            {archive['cider']:.3f} [" in shown
    assert "over words of the closest references" in shown
    assert shown.count("Words are those of the Penn Treebank") == 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["images.tar", "test.tsv", "-m", "en-de"], "and en-de is a model of texts; give a file"),
        (
            ["images.tar", "test.tsv", "-m", "MODEL", "--engine", "processes"],
            "--engine does not apply to",
        ),
        (["images.tar", "none.tsv", "-m", "MODEL"], "cannot read none.tsv"),
        (["test.tsv", "test.tsv", "-m", "MODEL"], "is a model of pictures, not of texts"),
        ([".", "test.tsv", "-m", "MODEL", "--metric", "comet"], "metric must be one of bleu"),
        ([".", "test.tsv", "-m", "MODEL"], "1.png is a damaged picture"),
    ],
)
def test_a_damaged_test_set_or_one_of_the_wrong_form_is_refused(
    options, reason, folder, pictures, tmp_path, refused_here, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    if "damaged" in reason:
        pictures[1].write_bytes(pictures[1].read_bytes()[:60])
    given = [folder if option == "MODEL" else option for option in options]
    assert reason in refused_here("evaluate", *given)


def test_a_manifest_of_recordings_is_evaluated_as_a_list_of_them(
    tmp_path, printed_here, refused_here
):
    folder = random_model(tmp_path / "model", "sound")
    for i, hertz in enumerate((300, 700)):
        record(tmp_path / f"{i}.wav", tone(hertz, 0.5, 8000), 8000)
    (tmp_path / "test.tsv").write_text("1.wav\tone two\n0.wav\tthree\n")
    base = ("evaluate", tmp_path, tmp_path / "test.tsv", "-m", folder, "-d", "greedy")
    shown = printed_here(*base, "--max-length", 9, "--json")
    report = json.loads(shown)
    assert (report["recordings"], report["words"]) == (2, 3)
    assert report["sound_seconds"] == pytest.approx(1.0)
    (tmp_path / "list").write_text("".join(f"{tmp_path / name}.wav\n" for name in "10"))
    (tmp_path / "said").write_text("one two\nthree\n")
    listed = ("evaluate", tmp_path / "list", tmp_path / "said", "-m", folder, "-d", "greedy")
    same = json.loads(printed_here(*listed, "--max-length", 9, "--json"))
    assert same | {"seconds": 0} == report | {"seconds": 0}
    table = printed_here(*listed, "--max-length", 9)
    assert f"recordings         2, {report['sound_seconds']:.1f} seconds" in table
    assert f"word errors        {report['errors']} of 3 words" in table
    (tmp_path / "test.tsv").write_text("1.wav\tone\n1.wav\ttwo\n")
    wrong = refused_here(*base)
    assert "has 2 transcripts of 1.wav; word errors are counted against one" in wrong


@pytest.fixture
def recordings(tmp_path):
    noise = torch.rand(4, RATE // 4, generator=torch.Generator().manual_seed(0)) - 0.5
    paths = [record(tmp_path / f"{i}.wav", sound, RATE) for i, sound in enumerate(noise)]
    (tmp_path / "list").write_text("".join(f"{path}\n" for path in paths))
    (tmp_path / "said").write_text("one two\nthree\nfour\nfive\n")
    return paths


def test_whisper_is_evaluated_by_word_errors(
    whisper, recordings, tmp_path, printed_here, refused_here
):
    test_set = ("evaluate", tmp_path / "list", tmp_path / "said", "-m", f"hf:{whisper}")
    options = ("-d", "greedy", "--max-length", 5, "--json", "-o", tmp_path / "heard")
    report = json.loads(printed_here(*test_set, *options))
    assert (report["recordings"], report["words"]) == (4, 5)
    assert report["wer"] == pytest.approx(100 * report["errors"] / 5)
    assert len(lines(tmp_path / "heard")) == 4
    wrong = refused_here(*test_set, "--precision", "bfloat16")
    assert wrong == "--precision does not apply to recordings; leave it out"
    recordings[1].write_text("no sound")
    assert "is not a WAV file" in refused_here(*test_set)


def test_recordings_are_calibrated_by_word_error_rate(whisper, recordings, tmp_path, printed_here):
    test_set = ["calibrate", tmp_path / "list", tmp_path / "said", "-m", f"hf:{whisper}"]
    options = ["--calls", 14, "--max-length", 4, "--json"]
    data = json.loads(printed_here(*test_set, *options))
    assert (data["metric"], data["lower_is_better"]) == ("WER", True)
    assert data["sentences"] == {"search": 2, "held_out": 2}
    line = shlex.split(data["command"]["best"])
    assert line[:2] == ["npad", "transcribe"]
    assert printed_here(*line[1:]).count("\n") == 1
