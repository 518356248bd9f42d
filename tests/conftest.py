import os
import shutil
from functools import partial
from importlib.util import find_spec

import pytest
import torch
from hypothesis import settings

from extras import needing_transformers

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # which Triton reads when it is imported
torch.set_num_threads(1)  # two workers share two cores
settings.register_profile("npad", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("npad")

collect_ignore = needing_transformers() if find_spec("transformers") is None else []
collect_ignore_glob = ["serve/*", "web/*"] if find_spec("starlette") is None else []


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """The reversal corpus, and a model that `npad train` made of it, in the folder `run`."""
    from runs import SMALL_RUN, npad, once, reversal  # after Triton's variable is set

    def make(folder):
        reversal(folder)
        files = [
            folder / f"{split}.{side}" for split in ("train", "valid") for side in ("src", "tgt")
        ]
        done = npad(
            "train", folder / "run", "--train", *files[:2], "--valid", *files[2:], *SMALL_RUN
        )
        assert "Stopped after" in done.stdout
        assert "best so far" in done.stderr

    return once(tmp_path_factory, "reversal", make)


@pytest.fixture(scope="session")
def trained(corpus):
    """The model of `corpus`."""
    return corpus / "run"


@pytest.fixture
def model_copy(tmp_path, trained):
    """A copy of the model of `corpus`, to put an actor beside."""
    from npad.storage import checkpoint

    return shutil.copytree(checkpoint.resolve(trained), tmp_path / "model")


@pytest.fixture
def npad_here(capsys, monkeypatch):
    """`runs.npad` in this process, where the process is not what is tested."""
    from runs import run_here

    return partial(run_here, capsys, monkeypatch)


@pytest.fixture
def printed_here(npad_here):
    """What the command printed, run in this process."""
    return lambda *arguments: npad_here(*arguments).stdout


@pytest.fixture
def refused_here(capsys, monkeypatch):
    """The one line that a mistake gets, run in this process."""
    from runs import refused_here

    return partial(refused_here, capsys, monkeypatch)


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    """A token store of a few pairs."""
    from runs import small_store

    return small_store(tmp_path_factory.mktemp("store"))
