"""A stream's memory does not grow with the variety of its batches."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from npad.cli import startup
from npad.engine import memory
from npad.models import linear

CACHES = ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY")

# Multiplies once with every number of rows, as a long stream does, once `npad` has started, and
# prints how many MiB the process grew by.
MULTIPLY = """
import re, sys
from npad.cli import main

sys.argv = ["npad", "--version"]
try:
    main.main()
except SystemExit:
    pass
import torch
from npad.models import linear

def resident():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024

inputs, outputs = map(int, sys.orig_argv[-2:])
product = linear.Product(torch.randn(outputs, inputs), torch.randn(outputs))
with torch.inference_mode():
    product(torch.randn(500, inputs))
    before = resident()
    for rows in range(3, 500):
        product(torch.randn(rows, inputs))
print(resident() - before)
"""


@pytest.mark.skipif(not linear.can_pack(), reason="this torch compiles no products")
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the memory is unknown")
@pytest.mark.parametrize(
    ("shape", "most"), [((16, 32), 50), ((64, 1024), 320)], ids=["small weight", "packed"]
)
def test_few_compiled_products_stay_in_memory(shape, most):
    environment = {name: value for name, value in os.environ.items() if name not in CACHES}
    done = subprocess.run(
        [sys.executable, "-c", MULTIPLY, *map(str, shape)],
        capture_output=True,
        text=True,
        check=True,
        env=environment | {"OMP_NUM_THREADS": "1"},
    )
    assert int(done.stdout.split()[-1]) < most  # 276 and 537 with all products in memory


KEPT = str(startup.PRODUCTS_KEPT)


@pytest.mark.parametrize(
    ("environment", "loaded", "capacities"),
    [
        ({}, False, [KEPT, KEPT]),
        # the second is oneDNN's older name
        ({"LRU_CACHE_CAPACITY": "7", "DNNL_PRIMITIVE_CACHE_CAPACITY": "9"}, False, ["7", None]),
        ({}, True, [None, None]),
    ],
    ids=["before torch is loaded", "set by the user", "after torch is loaded"],
)
def test_capacities_are_set_unless_the_user_did_or_it_is_late(
    environment, loaded, capacities, monkeypatch
):
    for name in (*CACHES, "DNNL_PRIMITIVE_CACHE_CAPACITY"):
        monkeypatch.setenv(name, environment.get(name, ""))  # so that it is undone afterwards
        if name not in environment:
            monkeypatch.delenv(name)
    if not loaded:
        monkeypatch.delitem(sys.modules, "torch")
    startup.bound_product_caches()
    assert [os.environ.get(name) for name in CACHES] == capacities


def test_free_memory_is_returned_where_the_c_library_can(monkeypatch):
    trimmed: list[int] = []
    monkeypatch.setattr(memory, "_malloc_trim", lambda: trimmed.append)
    memory.return_free_memory()
    assert trimmed == [0]
    monkeypatch.setattr(memory, "_malloc_trim", lambda: None)
    memory.return_free_memory()
    assert trimmed == [0]
