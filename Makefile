# Set-up, tests and checks of streamgen. `make serve` and `make test` are all that a newcomer needs.
#
# What may be set: PYTHON (an interpreter >= 3.11), VENV (where to install), PORT, HOST, MODEL and ARGS (for serve),
# TORCH_CPU_INDEX (where a CPU build of torch is found if the configured package index has none).

PYTHON ?=
VENV ?= .venv
PORT ?= 8000
HOST ?= 127.0.0.1
MODEL ?=
ARGS ?=
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
FETCH_MODEL := $(BIN)/python -m streamgen.loader.default_model
export TORCH_CPU_INDEX

.PHONY: help setup serve test check format gpu-test bench clean
.DEFAULT_GOAL := help

help:
	@echo "make serve     install what is needed, fetch the default model, serve on http://$(HOST):$(PORT)/;"
	@echo "               PORT=8001 HOST=... MODEL=... ARGS='--max-model-len 4k' pass things on"
	@echo "make test      install what is needed and run all tests"
	@echo "make check     ruff, mypy, import-linter, formatting"
	@echo "make format    let ruff put the code into shape"
	@echo "make gpu-test  the tests that need an NVIDIA GPU"
	@echo "make bench     measure latency and throughput of the model on this machine"
	@echo "make setup     install only;  make clean  remove what was installed and built"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt scripts/setup.sh
	@PYTHON="$(PYTHON)" scripts/setup.sh $(VENV)
	@touch $(STAMP)

serve: $(STAMP)
	@$(if $(MODEL),:,$(FETCH_MODEL))
	@$(BIN)/streamgen serve $(MODEL) --host $(HOST) --port $(PORT) $(ARGS)

test: $(STAMP)
	@$(FETCH_MODEL)
	$(BIN)/python -m pytest -q $(ARGS)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

gpu-test: $(STAMP)
	@$(FETCH_MODEL)
	$(BIN)/python -m pytest -q -m gpu $(ARGS)

bench: $(STAMP)
	$(BIN)/streamgen bench latency $(ARGS)
	$(BIN)/streamgen bench throughput $(ARGS)

clean:
	rm -rf $(VENV) build dist out .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
