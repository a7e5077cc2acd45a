# make demo       tune a matrix product for half a minute and compare it with numpy and the machine's peak
# make test       the fast tests, in an environment of their own: four minutes on two cores
# make test-all   these and the slow ones: twenty minutes on two cores
# make lint       ruff, types and import layers
# make docs       the documentation site, in build/docs
#
# A bare machine is enough: Python 3.11 to 3.13 on PATH (or PYTHON=...), make and a package index.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help demo test test-all lint docs format clean

help:
	@sed -n 's/^# \(make .*\)/  \1/p' Makefile

$(BIN)/python:
	@supported='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))'; \
	for candidate in $(PYTHON) python3 python3.13 python3.12 python3.11 python; do \
	  if command -v "$$candidate" >/dev/null && "$$candidate" -c "$$supported" 2>/dev/null; then found="$$candidate"; break; fi; \
	done; \
	if [ -z "$${found:-}" ]; then \
	  echo "No Python 3.11, 3.12 or 3.13 on PATH; install one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12" >&2; exit 1; \
	fi; \
	echo "Creating $(VENV) with $$("$$found" --version)"; \
	rm -rf $(VENV); \
	"$$found" -m venv $(VENV) >/dev/null 2>&1 \
	  || { rm -rf $(VENV); "$$found" -m venv --without-pip $(VENV) \
	       && "$$found" -m pip --python $(VENV)/bin/python install --quiet pip; } \
	  || { rm -rf $(VENV); \
	       echo "$$found can make no virtual environment; install its venv module (Debian, Ubuntu: apt install python3-venv)" >&2; \
	       exit 1; }

$(VENV)/.runtime: pyproject.toml | $(BIN)/python
	@echo "Installing autotune and what it needs"
	@$(PIP_INSTALL) --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "Installing autotune, what it needs, and the tools of its tests"
	@compiler=; command -v g++ c++ clang++ >/dev/null || compiler=,emulator; \
	$(PIP_INSTALL) --editable ".[dev,cuda,cuda12,opencl,postgresql$$compiler]"
	@touch $@ $(VENV)/.runtime

demo: $(VENV)/.runtime
	@$(BIN)/autotune demo $(DEMO_ARGS)

# On all cores that it may use, but few: some tests tune with the threads that the machine has.
WORKERS ?= $(shell nproc 2>/dev/null || echo 2)

test: $(VENV)/.dev
	@$(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 4 $(PYTEST_ARGS)

test-all: $(VENV)/.dev
	@$(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 4 -m "not soak and not fuzz" $(PYTEST_ARGS)

lint: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

docs: $(VENV)/.docs
	@rm -rf build/docs
	@$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --quiet --doctree-dir build/doctrees docs build/docs
	@echo "The site is build/docs/index.html"

$(VENV)/.docs: pyproject.toml | $(BIN)/python
	@echo "Installing autotune, what it needs, and what builds its documentation"
	@$(PIP_INSTALL) --editable ".[docs]"
	@touch $@ $(VENV)/.runtime

format: $(VENV)/.dev
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean:
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
