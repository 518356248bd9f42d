"""What is published: the wheel, its metadata, the workflows that build it, and the citation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from npad.version import __version__

ROOT = Path(__file__).parent.parent.parent
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
ON_GITHUB = (
    r"https://(?:github|raw\.githubusercontent)\.com/OWNER/npad/(?:blob/)?v[\d.]+/([^)\s#]+)"
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel that is built from the source distribution, as a release's files are."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [source] = folder.glob("*.tar.gz")
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(source)], check=True)
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def metadata(wheel):
    with zipfile.ZipFile(wheel) as files:
        [name] = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_bytes(files.read(name))


def test_the_wheel_has_the_package_and_its_licence_only(wheel):
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
    info = f"npad-{__version__}.dist-info"
    assert {name.partition("/")[0] for name in names} == {"npad", info}
    tracked = subprocess.run(
        ["git", "ls-files", "src/npad"], cwd=ROOT, capture_output=True, text=True
    )
    if tracked.returncode == 0:  # it is a clone
        expected = {line.removeprefix("src/") for line in tracked.stdout.split()}
        assert {name for name in names if name.startswith("npad/")} == expected
    assert f"{info}/licenses/LICENSE" in names
    assert "npad/shipped/en-de/README.md" in names  # credits the data of the model


def test_the_metadata_names_the_project_and_its_author(metadata):
    urls = dict(url.split(", ") for url in metadata.get_all("Project-URL"))
    assert {"Source", "Documentation", "Changelog"} <= urls.keys()
    assert metadata["Author"] == "The npad developers"
    pythons = re.findall(r"python: \[(.*)\]", (ROOT / ".github/workflows/test.yml").read_text())
    tested = re.findall(r"[\d.]+", pythons[0])
    prefix = "Programming Language :: Python :: "
    classified = [line for line in metadata.get_all("Classifier") if line.startswith(prefix)]
    assert [line.removeprefix(prefix) for line in classified] == tested


def test_links_of_the_readme_lead_to_files_of_the_release(metadata):
    readme = metadata.get_payload()
    paths = re.findall(ON_GITHUB, readme)
    assert len(paths) > 10
    assert all((ROOT / path).exists() for path in paths)
    assert not re.findall(r"\]\((?![a-z]+:|#)", readme)
    assert "![" not in re.sub(r"!\[[^\]]*\]\(https://raw\.githubusercontent\.com", "", readme)


def test_the_installed_wheel_translates(wheel, tmp_path):
    """In an environment of its own, which takes the libraries, torch included, from this one."""
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env/bin/python"
    command = [sys.executable, "-m", "pip", f"--python={python}", "install", "--quiet"]
    subprocess.run([*command, "--no-deps", "--no-index", str(wheel)], check=True)
    [site] = (tmp_path / "env/lib").glob("*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    clean = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}

    def run(*arguments):
        done = subprocess.run(
            [str(argument) for argument in arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=clean,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    npad = tmp_path / "env/bin/npad"
    assert run(npad, "--version") == f"{__version__}\n"
    assert run(npad, "translate", "How are you?") == "Wie geht es dir?\n"
    home = run(python, "-c", "import npad; print(npad.__file__)")
    assert Path(home.strip()).is_relative_to(tmp_path)


def test_a_release_is_refused_until_the_owner_is_filled_in(tmp_path):
    for name in ("pyproject.toml", "CHANGELOG.md", ".ci/release.py", ".ci/metadata.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    (tmp_path / "src/npad").mkdir(parents=True)
    (tmp_path / "src/npad/version.py").write_text('__version__ = "9.8.7"\n')
    command = [sys.executable, str(tmp_path / ".ci/release.py"), "v9.8.6"]

    def refused():
        return subprocess.run(command, capture_output=True, text=True).stdout.splitlines()

    assert refused() == [
        "pyproject.toml: [tool.npad] owner must be the owner of the repository",
        "src/npad/version.py: the version is 9.8.7, and the tag v9.8.6",
        "CHANGELOG.md: there is no section '## 9.8.7 (YYYY-MM-DD)'",
    ]
    project = (tmp_path / "pyproject.toml").read_text().replace('"OWNER"', '"someone"')
    (tmp_path / "pyproject.toml").write_text(project)
    (tmp_path / "CHANGELOG.md").write_text("## 9.8.7 (2030-01-02)\n")
    command[-1] = "v9.8.7"
    assert refused() == []
    assert subprocess.run(command).returncode == 0


def test_the_owner_is_written_in_one_place():
    tracked = [*ROOT.glob("*"), *ROOT.glob(".ci/*"), *ROOT.glob("docs/*.md"), *WORKFLOWS]
    texts = [
        path.read_text() for path in tracked if path.suffix in (".toml", ".md", ".yml", ".cff")
    ]
    assert sum(text.count('owner = "') for text in texts) == 1
    assert not any("github.com/OWNER" in text for text in texts)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_has_no_secret_and_few_rights(path):
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    assert "secrets." not in path.read_text()
    for name, job in workflow["jobs"].items():
        rights = {"id-token": "write", "attestations": "write"} if name == "publish" else None
        assert job.get("permissions") == rights
        assert all({"uses", "run"} & step.keys() for step in job["steps"])


def test_the_citation_names_npad_and_the_paper():
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["title"].startswith("npad")
    [paper] = citation["references"]
    assert paper["title"].startswith("Noisy Parallel Approximate Decoding")
    assert paper["url"] == "https://arxiv.org/abs/1605.03835"
