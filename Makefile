# `make demo` and `make test` need Python 3.11 or newer, git and make; the rest is installed into .venv.

PYTHON ?= python3
PY := .venv/bin/python
INSTALLED := .venv/installed
LOG := .venv/install.log

.DEFAULT_GOAL := help
.PHONY: help demo test test-all images-test lint bench bench-speed clean

help:  ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

demo: $(INSTALLED)  ## FedAvg and FedCOME on twenty clients whose data disagree; writes demo.png
	@$(PY) examples/quickstart/demo.py

test: $(INSTALLED)  ## Run the tests
	$(PY) -m pytest -rs

test-all: $(INSTALLED)  ## Run the tests, the slow ones too
	$(PY) -m pytest -rs --runslow

images-test: $(INSTALLED)  ## Build the container images and train two rounds in them (minutes, 10 GB)
	@PATH="$(CURDIR)/.venv/bin:$$PATH" PYTHON=$(PY) docker/images-test.sh

lint: $(INSTALLED)  ## Check style, types, Dockerfiles and compose files
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	.venv/bin/hadolint docker/Dockerfile.server docker/Dockerfile.device
	.venv/bin/check-jsonschema --builtin-schema vendor.compose-spec docker/compose*.yml

bench: $(INSTALLED)  ## What FedCOME does on real data (hours; FEDCOME_DATA names a folder of local data sets)
	$(PY) benchmarks/learning.py

bench-speed: $(INSTALLED)  ## What FedCOME costs: consensus, selection, the server's step, whole rounds (half an hour)
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(PY) benchmarks/consensus.py
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(PY) benchmarks/selection.py
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(PY) benchmarks/server_step.py
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(PY) benchmarks/whole_rounds.py

clean:  ## Remove .venv and what tools left behind
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: expected Python 3.11 or newer, found: $$($(PYTHON) --version 2>&1). Name another: make PYTHON=python3.12 ..." >&2; \
	  exit 1; }
	@echo "Installing into .venv: PyTorch, Flower and what the examples and tests need."
	@echo "One to five minutes and about 6 GB, once ($(LOG) shows how far it is)."
	@$(PYTHON) -m venv .venv
	@$(PY) -m pip install --disable-pip-version-check -e '.[dev]' > $(LOG) 2>&1 || { \
	  tail -n 20 $(LOG) >&2; \
	  echo "error: the installation failed; the whole log is $(LOG). Run make again to go on." >&2; \
	  exit 1; }
	@touch $@
