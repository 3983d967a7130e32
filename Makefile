# `make demo` and `make test` do all their own set-up; a second run starts at once.
#
#   make test ARGS="tests/lua -k claim"    some tests only
#   make test VENV=.venv-3.13 PYTHON=python3.13

VENV ?= .venv
# The first Python on PATH that is new enough and can make an environment (Debian's needs python3-venv for that).
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.10 python; do \
	$$p -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1 && { echo $$p; break; }; done)
# A requirement that goes into a new environment first, such as 'Django~=5.2.0'.
DJANGO ?=
ARGS ?=
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check
PYTEST = $(BIN)/python -m pytest

.PHONY: demo test test-long check lint-lua clean

demo: $(VENV)/.demo
	@$(BIN)/python example_project/demo.py

test: $(VENV)/.test
	$(PYTEST) $(ARGS)

test-long: $(VENV)/.test
	$(PYTEST) -m slow $(ARGS)

check: $(VENV)/.dev lint-lua
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYTHONPATH=.:example_project $(BIN)/python -m mypy
	$(BIN)/lint-imports

# The scripts with their includes expanded; luacheck is Debian's package lua-check, and no package of Python's.
lint-lua: $(VENV)/.dev
	@if command -v luacheck >/dev/null 2>&1; then \
	rm -rf build/lua && $(BIN)/python tests/lua/expand.py build/lua && luacheck -q --no-color build/lua; \
	else echo "luacheck is not installed: the Lua scripts were not linted"; fi

clean:
	rm -rf .venv .venv-* .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "JobRail needs Python 3.10 or later with its venv module: put one on PATH, or run" \
		"make PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# One stamp per set of packages; each is made again when pyproject.toml changes.
$(VENV)/.demo: EXTRAS = embedded,demo
$(VENV)/.test: EXTRAS = test
$(VENV)/.dev: EXTRAS = dev
$(VENV)/.demo $(VENV)/.test $(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(PIP) install --quiet $(if $(DJANGO),'$(DJANGO)') -e '.[$(EXTRAS)]'
	@touch $@
