# The Python that makes .venv; 3.11 or later.
PYTHON ?= python3

.DEFAULT_GOAL := help
.PHONY: help demo test test-all lint clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: .venv/installed ## Train on digits with FedAvg and with FedCOME, print a table, draw demo.png (no download of data)
	@.venv/bin/python examples/quickstart/demo.py

test: .venv/installed ## Run the tests; with FEDCOME_DATA=folder also those on the paper's data
	.venv/bin/python -m pytest

test-all: .venv/installed ## Run the slow tests as well
	.venv/bin/python -m pytest --runslow

lint: .venv/installed ## Check style and types
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy

clean: ## Remove .venv and what tests and tools left behind
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info demo.png
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One environment for everything: the demo alone would need hardly less, since nearly all of it is PyTorch.
# The file is written last, so that an interrupted installation is repeated.
.venv/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null || { \
		echo "fedcome-flwr needs Python 3.11 or later, and '$(PYTHON)' is older or not there." \
			"Name another: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@echo "Installing into .venv: PyTorch, Flower and the tools, several GB and some minutes the first time." \
		"Details: .venv/install.log"
	@$(PYTHON) -m venv .venv
	@.venv/bin/python -m pip install --disable-pip-version-check -e ".[dev]" > .venv/install.log 2>&1 || { \
		tail -n 20 .venv/install.log >&2; echo "The installation failed; all of its output is in .venv/install.log" >&2; exit 1; }
	@touch $@
