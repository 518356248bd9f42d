"""Decoders, models and metrics of installed packages: the one in examples/, and broken ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
BROKEN = {
    "fails": "missing_module:Decoder",
    "no-decoder": "json:dumps",
    "other-name": "npad_broken:Named",
}
SERVER = """
import npad
from npad.serve.limits import Limits
from npad.serve.models import serve
from serve_cases import serving

with serving(serve("colours", npad.load("colours"), Limits())) as client:
    sent = {"text": "rot", "decoder": "branching", "branches": 2, "nbest": 1}
    print(client.post("/v1/decode", sent).json)
    [offered] = client.get("/v1/models").json["data"]
    print(offered["options"]["branching"])
"""


def install(source: Path, target: Path) -> Path:
    """Install a package without its dependencies, which this environment has."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    options = ["--no-build-isolation", "--target", str(target), str(source)]
    subprocess.run([*command, *options], check=True)
    return target


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    return install(ROOT / "examples/plugin", tmp_path_factory.mktemp("example"))


@pytest.fixture
def broken(tmp_path):
    """A package whose decoders cannot be used, each for another reason."""
    info = tmp_path / "npad_broken-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: npad-broken\nVersion: 2.0\n")
    lines = [f"{name} = {value}\n" for name, value in BROKEN.items()]
    (info / "entry_points.txt").write_text("".join(["[npad.decoders]\n", *lines]))
    code = "from npad import Greedy\nclass Named(Greedy):\n    label = 'mine'\n"
    (tmp_path / "npad_broken.py").write_text(code)
    return tmp_path


def run(
    packages: Path, *arguments: object, code: int = 0, module: tuple[str, ...] = ("-m", "npad")
) -> tuple[str, str]:
    """Run a command where a folder of packages is installed; return what it prints."""
    path = os.pathsep.join([str(packages), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, *module, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path, "COLUMNS": "80"},
    )
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


def test_commands_use_the_example_package(example, tmp_path):
    sources, references = tmp_path / "colours.de", tmp_path / "colours.en"
    sources.write_text("rot\nblau\n")
    references.write_text("bright red\nblue\n")
    chosen = ("--model", "colours", "--decoder", "branching", "--branches", 2)
    out, _ = run(example, "translate", *chosen, "rot")
    assert out == "scarlet\n"
    out, _ = run(
        *(example, "compare", "--model", "colours", "-i", sources, "--reference", references),
        *("-d", "greedy", "-d", "branching(branches=3)", "--metric", "exact-match"),
    )
    assert "branching" in out
    assert "50.00" in out
    assert "branching" in run(example, "decoders")[0]
    assert "first tokens to try" in run(example, "decoders", "branching")[0]
    _, err = run(example, "translate", "--decoder", "branchin", "rot", code=2)
    assert "not 'branchin'; did you mean branching?" in err


def test_python_loads_a_package_when_its_name_is_asked_for(example):
    code = """
import sys
import npad
from npad.metrics.registry import metric_named, metric_names
from npad.search.registry import DECODERS

assert "branching" in DECODERS.names()
assert "exact-match" in metric_names()
assert "npad_example" not in sys.modules
decoder = DECODERS.parse("npad(inner=branching(branches=2),chains=3)")
print(npad.load("colours").translate(["blau"], decoder)[0].text)
print(metric_named("exact-match").title, npad.selectors.MBR("exact-match").utility)
"""
    out, _ = run(example, code, module=("-c",))
    assert out == "blue\nexact exact-match\n"


def test_a_server_offers_the_decoders_of_packages(example):
    pytest.importorskip("starlette")
    out, _ = run(example, SERVER, module=("-c",))
    assert "scarlet" in out
    assert "['branches'" in out


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fails", "raised ModuleNotFoundError: No module named 'missing_module'; update or"),
        ("no-decoder", "must be a dataclass that derives from npad.Decoder, with a method"),
        ("other-name", "is called mine; give the class label = 'other-name'"),
    ],
)
def test_a_broken_decoder_is_one_line_when_it_is_asked_for(broken, name, message):
    out, err = run(broken, "translate", "-m", "toy", "-d", name, "danke", code=2)
    assert out == ""
    assert err.startswith(f"npad: {name} of the package npad-broken 2.0 {message}")
    assert err.count("\n") == 1
    assert run(broken, "translate", "-m", "toy", "-d", "beam", "danke") == ("thanks\n", "")


def test_a_broken_decoder_is_a_warning_in_a_list_of_all(broken):
    code = "from npad.search.registry import DECODERS\nDECODERS.load_all()\nprint(len([*DECODERS]))"
    out, err = run(broken, code, module=("-c",))
    assert int(out) > 10
    assert err.count("PluginWarning") == len(BROKEN)


def test_two_packages_with_the_same_name_are_named(broken):
    info = broken / "npad_rival-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: npad-rival\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[npad.decoders]\nfails = json:dumps\n")
    _, err = run(broken, "translate", "-m", "toy", "-d", "fails", "danke", code=2)
    assert "both bring fails; uninstall one of these packages" in err
