"""What the `npad` command sets before torch is imported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from npad.cli import startup


@pytest.fixture
def environment(monkeypatch):
    """An environment of its own, without OpenMP's variables."""
    copied = {name: v for name, v in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    monkeypatch.setattr(os, "environ", copied)
    return copied


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_threads_spin_shortly_while_they_wait_unless_the_user_chose(environment, name):
    startup.share_cores()
    assert environment.pop("GOMP_SPINCOUNT") == "1000"
    environment[name] = "1"
    before = dict(environment)
    startup.share_cores()
    assert environment == before


def test_translating_imports_no_compiler():
    """torch's compiler takes as long to import as all the rest."""
    code = (
        "import sys, npad\n"
        "npad.load('en-de').translate(['Yes.'], npad.NPAD(npad.Beam(2), 2))\n"
        "print('torch._dynamo' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
