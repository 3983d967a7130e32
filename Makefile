# `make demo` and `make test` do all their own set-up; a second run starts at once.

VENV ?= .venv
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.10 python; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && { echo $$p; break; }; done)
DJANGO ?=
BIN = $(VENV)/bin
PYTEST = $(BIN)/python -m pytest

.PHONY: demo test test-long check bench clean

demo: $(VENV)/.demo
	@$(BIN)/python example_project/demo.py

test: $(VENV)/.test
	$(PYTEST) $(ARGS)

test-long: $(VENV)/.test
	$(PYTEST) -m slow $(ARGS)

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYTHONPATH=.:example_project $(BIN)/python -m mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "JobRail needs Python 3.10 or later on PATH (or: make PYTHON=/path/to/python)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# One stamp per set of packages; each is made again when pyproject.toml changes.
$(VENV)/.demo: EXTRAS = embedded,demo
$(VENV)/.test: EXTRAS = test
$(VENV)/.dev: EXTRAS = dev
$(VENV)/.demo $(VENV)/.test $(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(DJANGO) -e ".[$(EXTRAS)]"
	@touch $@
