# `make train` and `make test` do all the set-up they need: a fresh machine with Python >= 3.11 is enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TOOLS := $(VENV)/.tools-installed
export OMP_NUM_THREADS ?= 1

.PHONY: setup dev train test test-fast test-all fuzz lint bench models docs clean

setup: $(STAMP)

# torch comes first and alone, as it is most of what is fetched. On Linux PyPI's brings CUDA: 526 MB and gigabytes of
# NVIDIA packages. With PyTorch's index of CPU builds in PIP_EXTRA_INDEX_URL pip takes one of those in its place:
# 2.13.0+cpu satisfies ==2.13.0 and counts as newer. Where there is a GPU that index is left out.
FOR_GPU := $(if $(shell command -v nvidia-smi 2>/dev/null),env -u PIP_EXTRA_INDEX_URL)
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else f"farflung needs Python 3.11 or newer, {sys.executable} is {sys.version.split()[0]}: make PYTHON=/path/to/python3.11")'
	@echo "Making $(VENV), once. With what it downloads this takes some minutes; 1 of 2: PyTorch, the largest part"
	@$(PYTHON) -m venv $(VENV)
	@$(FOR_GPU) $(BIN)/pip install --disable-pip-version-check "$$(grep '^torch==' requirements.lock)"
	@echo "2 of 2: farflung, and the rest of what it needs"
	@$(BIN)/pip install --quiet --disable-pip-version-check --constraint requirements.lock hatchling editables
	@$(BIN)/pip install --quiet --disable-pip-version-check --constraint requirements.lock --no-build-isolation -e '.[torch,pictures,web]'
	@touch $(STAMP)

# What tests, checks, benchmarks and the documentation need besides.
dev: $(TOOLS)

$(TOOLS): $(STAMP)
	@echo "Installing what else requirements.lock names, once; pip may print nothing for some minutes"
	@$(BIN)/pip install --disable-pip-version-check -r requirements.lock
	@touch $(TOOLS)

train: $(STAMP)
	@echo "To type farflung yourself, as the lines below do: source $(VENV)/bin/activate"
	$(BIN)/farflung train examples/gpt.py --local 4 --out runs/gpt

# Four processes at a time, for two cores: many tests wait for a network. tests/conftest.py says which stay together.
PYTEST := $(BIN)/python -m pytest --no-loadscope-reorder --durations 30

# What CI runs: about 15 minutes on two cores (17 where these are threads of one).
test: $(TOOLS)
	$(PYTEST) --numprocesses 4 -m "not full"

# Pure tests only, at most 3 minutes on two cores: no processes, no labs, no fuzzing.
test-fast: $(TOOLS)
	$(PYTEST) --numprocesses 2 -m "not (processes or lab or fuzz or slow or full)"

# Also the largest models, the longest runs, the other cases of long tests, and all examples of laws.
test-all: $(TOOLS)
	$(PYTEST) --numprocesses 4

# A million each of damaged documents, payloads of codecs, frames, and events of simulated fleets
# (docs/measurements/fuzzing.md). Goes on where it was broken off, payloads and events apart.
fuzz: $(TOOLS)
	$(BIN)/python -m tests.fuzz

lint: $(TOOLS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(TOOLS)
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/transport.py

# Minutes on one core: every model of the zoo is captured, most at their usual size too.
models: $(TOOLS)
	$(BIN)/python -m benchmarks.model_table --page docs/reference/models.md

# The site, in build/site; any warning fails it. It needs no internet.
docs: $(TOOLS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) runs
