"""Models and decoders from a user's Python file: `--model my.py:make`, `--decoder my.py:Make`."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest

import npad as library
from npad import InvalidInput
from npad.cli.own_parts import register_own_parts
from npad.distributions import DISTRIBUTIONS
from npad.pipelines.loading import confidence_place, load_as
from npad.pipelines.names import ModelReference, PythonName
from npad.pipelines.transcription import Transcriber
from npad.schedules import SCHEDULES
from npad.search.registry import DECODERS, SELECTORS
from npad.storage.regular import digest
from runs import npad


@pytest.fixture(autouse=True)
def nothing_stays(monkeypatch):
    """Forget the parts that a test registered and the files that it ran in this process."""
    for registry in (DECODERS, DISTRIBUTIONS, SCHEDULES, SELECTORS):
        monkeypatch.setattr(registry, "kinds", dict(registry.kinds))
    monkeypatch.setattr(sys, "path", [*sys.path])
    modules = set(sys.modules)
    yield
    for name in set(sys.modules) - modules:
        if name.startswith("npad_file_") or name == "neighbour":
            del sys.modules[name]


def test_a_package_may_bring_a_model(monkeypatch):
    monkeypatch.setattr("npad.plugins.installed", lambda group: {"brought": group})
    assert ModelReference.parse("brought").python == "npad.models"


def test_a_file_must_have_the_name_of_a_python_file(tmp_path):
    (tmp_path / "my.txt").write_text("make = 3")
    with pytest.raises(InvalidInput, match=r"my\.txt cannot be run as a Python file"):
        PythonName(tmp_path / "my.txt", "make").load()

    def refuse():
        raise InvalidInput("as it is")

    with pytest.raises(InvalidInput, match=r"^as it is$"):
        PythonName(tmp_path / "my.txt", "make").call(refuse)


@pytest.mark.parametrize("name", ["toy", "chat:{}"])
def test_a_confidence_is_kept_in_a_folder_of_a_model(tmp_path, name):
    for file in ("a.safetensors", "b.bin.gz", "c.txt"):
        (tmp_path / file).write_text(file)
    hashes = [hashlib.sha256(file.encode()).hexdigest() for file in ("a.safetensors", "b.bin.gz")]
    place = confidence_place(ModelReference.parse(f"hf:{tmp_path}"))
    assert place == (tmp_path, digest("\n".join(hashes)))
    with pytest.raises(InvalidInput, match="cannot keep a confidence"):
        confidence_place(ModelReference.parse(name.format(tmp_path)))


FILE = '''
from __future__ import annotations

import torch
from dataclasses import dataclass, field, replace

import npad
from neighbour import SUFFIX, broken

toy = npad.load("toy")


def make(device):
    assert isinstance(device, torch.device)
    return replace(toy, detokenise=lambda tokens: toy.detokenise(tokens) + SUFFIX)


def without_arguments():
    return toy


def fails():
    raise ValueError("no\\nweights")


def number():
    return 3


@dataclass(frozen=True)
class Twice(npad.Decoder):
    """A beam of twice the given width."""

    half: int = field(default=2, metadata={"help": "Half the width", "title": "{}"})

    @property
    def rows(self):
        return 2 * self.half

    def search(self, model, state, problems):
        return npad.Beam(2 * self.half).search(model, state, problems)


@dataclass(frozen=True)
class Required(Twice):
    other: int = field(kw_only=True)


class Plain(npad.Decoder):
    pass


@dataclass(frozen=True)
class Failing(Twice):
    how: str = field(default="step", metadata={"help": "What goes wrong"})

    def search(self, model, state, problems):
        if self.how == "raise":
            raise ValueError("no such thing")
        if self.how == "torch":
            return torch.zeros(2) @ torch.zeros(3)
        if self.how == "neighbour":
            return broken()
        if self.how == "npad":
            return npad.Beam(2).search(None, state, problems)
        return "nothing"


ready = npad.NPAD(Twice(1), chains=3, noise=npad.Noise(0.3))
'''
TEXT = "ich verstehe nur bahnhof"


@pytest.fixture
def file(tmp_path):
    (tmp_path / "neighbour.py").write_text(
        "SUFFIX = '!'\n\n\ndef broken():\n    raise OverflowError('too far')\n"
    )
    path = tmp_path / "my.py"
    path.write_text(FILE)
    return path


def test_a_model_of_a_file_translates(file):
    done = npad("translate", "-m", f"{file}:make", "-d", f"{file}:Twice", "--half", 3, TEXT)
    best = library.load("toy").translate([TEXT], library.Beam(6))[0]
    assert done.stdout == best.text + "!\n"


@pytest.mark.parametrize("name", ["make", "without_arguments", "toy"])
def test_load_takes_a_translator_or_a_function(file, name):
    (best,) = library.load(f"{file}:{name}").translate([TEXT])
    assert best.text.removesuffix("!") == library.load("toy").translate([TEXT])[0].text


@pytest.mark.parametrize(
    ("chosen", "title"),
    [
        (["-d", "FILE:Twice"], "twice, 2"),
        (["-d", "FILE:Twice(half=4)"], "twice, 4"),
        (["--decoder=FILE:ready"], "NPAD-3 + twice 1"),
        (["-d", "npad(inner=FILE:Twice(half=3),chains=2)"], "NPAD-2 + twice 3"),
    ],
)
def test_compare_takes_decoders_of_a_file(file, chosen, title, npad_here):
    chosen = [text.replace("FILE", str(file)) for text in chosen]
    done = npad_here("compare", "-m", "toy", *chosen, TEXT)
    rows = [line.split("│")[1].strip() for line in done.stdout.splitlines() if line[:1] == "│"]
    assert rows[0].startswith(title.split(" ")[0])
    assert len(rows) == 1


@pytest.mark.parametrize(
    ("name", "as_model", "as_decoder"),
    [
        ("missing.py:make", "there is no file missing.py; give a Python file", None),
        ("FILE:nothing", "has no 'nothing'; it has ", None),
        ("FILE:fails", "raised ValueError in line 23: no weights", None),
        ("FILE:number", "gave 3, and must give an npad.Translator", "is 3, and must be a decoder"),
        ("FILE:Required", None, "needs a default for its field 'other'"),
        ("FILE:Plain", None, "derives from npad.Decoder, with a method `search`"),
    ],
)
def test_an_unusable_name_in_a_file_is_a_one_line_error(
    name, as_model, as_decoder, file, refused_here
):
    name = name.replace("FILE", str(file))
    if as_model is not None:
        line = refused_here("translate", "-m", name, TEXT)
        assert as_model in line
    line = refused_here("translate", "-m", "toy", "-d", name, TEXT)
    assert (as_decoder or as_model) in line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\nraise RuntimeError('a\\nb')", "raised RuntimeError in line 2: a b"),
        ("x = (", "raised SyntaxError in line 1"),
        ("import sys\nsys.exit(3)", "raised SystemExit in line 2: 3"),
        ("import no_such_module", "raised ModuleNotFoundError in line 1"),
        ("", "has no 'make'; it defines nothing"),
    ],
)
def test_a_file_that_fails_is_one_line(tmp_path, text, message, refused_here):
    (tmp_path / "bad.py").write_text(text)
    model = f"{tmp_path / 'bad.py'}:make"
    assert message in refused_here("translate", "-m", model, TEXT)


def test_names_of_other_models_run_nothing(tmp_path, monkeypatch):
    (tmp_path / "my.py").write_text("raise RuntimeError")
    monkeypatch.chdir(tmp_path)
    for name in ("my.py", "my.py:", "my.py:1x", "my:make", "hf:my.py:make"):
        assert ModelReference.parse(name).python is None
    assert ModelReference.parse(Path("my.py:make")).python is None


def test_only_the_options_of_decoders_run_a_file(file):
    name = f"{file}:Twice"
    for arguments in (["translate", name], ["-o", name], ["--", "-d", name], [f"--text={name}"]):
        register_own_parts(arguments)
    assert name not in DECODERS
    register_own_parts(["-d", name])
    assert name in DECODERS


def test_a_registry_runs_no_file(file):
    with pytest.raises(InvalidInput, match="decoder must be one of"):
        DECODERS.parse(f"{file}:Twice")


def test_a_file_runs_once(tmp_path):
    (tmp_path / "once.py").write_text("a, b = [], []")
    first = PythonName.parse(f"{tmp_path}/once.py:a")
    assert first.load() is first.load()


def test_an_engine_refuses_a_decoder_of_a_file(file, tmp_path, refused_here):
    (tmp_path / "in").write_text(TEXT + "\n")
    files = tmp_path / "in", tmp_path / "in"
    options = ("-m", "toy", "-d", f"{file}:Twice", "--engine", "local")
    assert "twice" in refused_here("evaluate", *files, *options)


@pytest.mark.parametrize(
    ("how", "name", "message"),
    [
        ("raise", "my.py", "raised ValueError in line {}: no such thing"),
        ("torch", "my.py", "raised RuntimeError in line {}: "),
        ("neighbour", "neighbour.py", "raised OverflowError in line 5: too far"),
    ],
)
def test_an_exception_in_a_users_file_names_the_file_and_line(
    how, name, message, file, refused_here, monkeypatch
):
    monkeypatch.chdir(file.parent)
    lines = file.read_text().splitlines()
    place = {"raise": 'raise ValueError("no such', "torch": "torch.zeros(2) @"}.get(how, "\0")
    number = next((i for i, line in enumerate(lines, start=1) if place in line), 0)
    options = ["translate", "-m", "toy", "-d", f"my.py:Failing(how={how})", TEXT]
    line = refused_here(*options, code=1)
    assert line.startswith(f"{name} {message.format(number)}")


@pytest.mark.parametrize(("how", "where"), [("npad", " in line "), ("nothing", ": ")])
def test_a_bug_under_a_users_file_names_the_file_and_npad(
    how, where, file, refused_here, monkeypatch
):
    monkeypatch.chdir(file.parent)
    options = ["translate", "-m", "toy", "-d", f"my.py:Failing(how={how})", TEXT]
    line = refused_here(*options, code=70)
    assert line.startswith("this is a bug in my.py, or in npad; NPAD_TRACEBACK=1 shows")
    assert where in line.partition("the traceback: ")[2]


NOISE = """
from dataclasses import dataclass

from npad import NPAD, Noise
from npad.distributions import Distribution, Uniform


@dataclass(frozen=True)
class Signs(Distribution):
    scale: float = 1.0

    def unit(self, keys, width):
        return self.scale * Uniform().unit(keys, width).sign()


class Plain(Distribution):
    def unit(self, keys, width):
        return Uniform().unit(keys, width).sign()


@dataclass(frozen=True)
class Slow:
    p: float = 0.5

    def __call__(self, step, entropy):
        return step**-self.p


@dataclass(frozen=True)
class Bare:
    p: float

    def __call__(self, step, entropy):
        return step


def late(step, entropy):
    return (step > 1) / step


def shortest(candidates):
    return -candidates.lengths.float()


ready, number = Signs(2.0), 3
"""


@pytest.fixture
def noise_file(tmp_path):
    path = tmp_path / "noises.py"
    path.write_text(NOISE)
    return path


@pytest.mark.parametrize(
    ("options", "noise"),
    [
        (["--distribution", "F:Signs"], "distribution=Signs()"),
        (["--noise", "F:Signs(scale=0.5)"], "distribution=Signs(0.5)"),
        (["--distribution=F:Plain"], "distribution=Plain()"),
        (["--distribution=F:ready"], "distribution=ready"),
        (["--schedule", "F:late"], "schedule=late"),
        (["--schedule", "F:Slow(p=2)"], "schedule=Slow(2.0)"),
    ],
)
def test_noise_of_a_file_is_the_noise_of_python(noise_file, options, noise, npad_here):
    """The same draws, so the same log-probabilities; fields are given in brackets."""
    options = [option.replace("F:", f"{noise_file}:") for option in options]
    common = ("-m", "toy", "-d", "npad", "--chains", 3, "--sigma", 0.9)
    shown = npad_here("translate", *common, *options, "--nbest", 3, "--json", TEXT).stdout
    names = PythonName(noise_file, "late").load().__globals__
    decoder = eval(f"NPAD(chains=3, noise=Noise(0.9, {noise}))", dict(names))
    expected = library.load("toy").translate([TEXT], decoder)[0]
    record = json.loads(shown)
    assert record["log_prob"] == pytest.approx(expected.log_prob)
    assert [r["text"] for r in record["alternatives"]] == [o.text for o in expected.alternatives]
    assert record["noisy_log_prob"] == pytest.approx(expected.hypothesis.noisy_log_prob)


def test_parts_of_a_file_may_be_within_brackets(noise_file, npad_here):
    fixed = f"fixed(base={noise_file}:Signs)"
    noise = f"noise(sigma=0.5,schedule={noise_file}:late,distribution={fixed})"
    inside = f"npad(chains=2,noise={noise},selector={noise_file}:shortest)"
    shown = npad_here("translate", "-m", "toy", "-d", inside, "--json", TEXT).stdout
    signature = json.loads(shown)["signature"]
    assert "schedule:late|noise:fixed(base=signs(scale=1.0))" in signature
    assert "selector:shortest" in signature


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--schedule", "F:number"], "is 3, and must be a schedule or its class"),
        (["--selector", "F:number"], "is 3, and must be a selector or its class"),
        (["--distribution", "F:number"], "must be a distribution, its class, or a function that"),
        (["--schedule", "F:Bare"], "needs a default for its field 'p'"),
        (["--schedule", "F:shortest"], "schedule must be a function of step and entropy"),
        (["--distribution", "F:nothing"], "has no 'nothing'; it has "),
        (["--distribution", "F:Slow"], "derives from npad.distributions.Distribution"),
    ],
)
def test_noise_that_cannot_be_is_one_line(noise_file, options, message, refused_here):
    options = [option.replace("F:", f"{noise_file}:") for option in options]
    asked = ("translate", "-m", "toy", "-d", "npad", *options, TEXT)
    assert message in refused_here(*asked)


def test_a_run_is_not_trained_with_noise_of_a_file(noise_file, tmp_path, refused_here):
    for name in ("a", "b"):
        (tmp_path / name).write_text("na ja\n")
    files = ("--train", tmp_path / "a", tmp_path / "b", "--valid", tmp_path / "a", tmp_path / "b")
    noise = ("--sigma", 0.1, "--distribution", f"{noise_file}:Signs")
    line = refused_here("train", tmp_path / "run", *files, *noise)
    assert line.startswith("a run can be resumed only with a schedule and a distribution that npad")
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_decoder_of_a_file_is_explained_as_others_are(file, npad_here):
    name = f"{file}:Twice"
    shown = npad_here("decoders", name).stdout
    assert "A beam of twice the given width." in shown.splitlines()[0]
    assert "--half N  Half the width. [2]" in shown
    assert f"--decoder {name} " in " ".join(shown.split())
    assert "Documentation" not in shown
    assert "--half N" in npad_here("translate", "-d", name, "--help-all").stdout
    assert npad_here("decoders", f"{file}:ready").stdout.startswith(
        f"{file}:ready: Run noisy chains"
    )


@pytest.mark.parametrize("name", [3, None, b"toy", ["toy"]])
def test_a_name_is_a_text_or_a_path(name):
    with pytest.raises(InvalidInput, match="name must be"):
        ModelReference.parse(name)


def test_a_file_of_another_kind_of_model_is_named_by_what_it_reads(tmp_path):
    text = "from npad.models import toy\nfrom npad.pipelines.transcription import Transcriber\n"
    (tmp_path / "my.py").write_text(text + "ear = Transcriber(toy.model(), list, str)\n")
    name = f"{tmp_path}/my.py:ear"
    assert isinstance(load_as(Transcriber, name), Transcriber)
    with pytest.raises(InvalidInput, match="is a model of sounds, not of texts; use it with npad"):
        load_as(library.Translator, name)
