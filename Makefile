# Every target sets up what it needs: a bare machine with Python 3.11+, make and a C++ compiler is enough.
# The first set-up compiles llama.cpp, which takes some minutes.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed-dev
JOBS := $(shell nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 2)
PIP := CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip -qq
ARGS ?=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test check bench soak wheel-check clean

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## Create .venv with the package, its tests' and its checks' tools

demo: $(INSTALLED) ## Run the coding agent on the embedded model (ARGS="--model PATH" for another)
	$(BIN)/python examples/coding_agent.py $(ARGS)

test: $(INSTALLED) ## Run the tests (ARGS="-k name" for some)
	$(BIN)/python -m pytest -q $(ARGS)

check: $(INSTALLED) ## Lint, format, types, import arrows, docs, wheel
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tests/support/docs_check.py
	$(BIN)/python tests/support/wheel_check.py

bench: $(INSTALLED) ## Measure the figures that README quotes (some minutes)
	$(BIN)/python -m pytest -q -s tests/benchmarks $(ARGS)

soak: $(INSTALLED) ## Run the long tests
	$(BIN)/python -m pytest -q -m soak tests $(ARGS)

wheel-check: $(INSTALLED) ## Build the wheel and try it in an empty environment
	$(BIN)/python tests/support/wheel_check.py

clean: ## Remove .venv, builds and caches
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks
	find runtime integrations tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Pinfold needs Python 3.11 or newer: make PYTHON=python3.x ...")'
	$(PYTHON) -m venv $(VENV)

$(INSTALLED): pyproject.toml | $(BIN)/python
	@echo "Setting up $(VENV) (the first time, llama.cpp is compiled: some minutes)"
	$(PIP) install --editable '.[dev]'
	@touch $@
