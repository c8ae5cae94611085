# One verb per question. Everything installs itself into .venv, with the versions CI tested.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help install demo compare test check bench clean lock
.DEFAULT_GOAL := help

help:  ## Show this help.
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

install: $(VENV)/.installed  ## Set everything up in .venv.

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(f"Python >= 3.11 is needed, this is {v[0]}.{v[1]}" if v < (3, 11) else 0)'
	@$(PYTHON) -m venv $(VENV) || { echo "python3 -m venv failed; on Debian: apt-get install python3-venv"; exit 1; }
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[serving,design,dev]'
	@touch $@

demo: install  ## Two real models under a stepping load, kept under their SLAs (about 2.5 minutes).
	$(BIN)/roma demo

compare: install  ## The demo, and the same load again under the law `rules`.
	$(BIN)/roma demo --compare

test: install  ## All tests.
	$(BIN)/pytest

check: install  ## ruff, mypy --strict and import-linter.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: install  ## Throughput, latency, decision and tick costs, as ratios measured side by side.
	$(BIN)/python -m bench

lock: install  ## Write constraints.txt anew from what is installed.
	$(BIN)/pip freeze --exclude-editable > constraints.txt

clean:  ## Remove what was set up and cached.
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
