# One verb per question. Everything installs itself into .venv, with the versions CI tested.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# What every request passes, compiled by mypyc; pyproject.toml lists the modules.
COMPILED := build/compiled
DECISIONS := $(addprefix tests/,dispatcher experiments gateway golden properties supervisor)
SOURCES := $(shell find roma controllers dispatcher supervisor -name '*.py')

.PHONY: help install demo compare test check bench peers faults fuzz soak wheel images pictures clean lock
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

test: install $(COMPILED)/.built  ## All tests; those of the decisions once more, compiled.
	$(BIN)/pytest
	ROMA_COMPILED=1 $(BIN)/pytest --override-ini pythonpath='$(COMPILED) .' $(DECISIONS)

check: install  ## ruff, mypy --strict and import-linter.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: install $(COMPILED)/.built  ## Throughput, latency, decision and tick costs, as ratios measured side by side.
	$(BIN)/python -m bench

fuzz: install  ## SECONDS (60) of any bytes for the reader of gRPC messages, beside protobuf's.
	PYTHONPATH=. $(BIN)/python -m tests.gateway.fuzz_wire $(or $(SECONDS),60)

peers: .venv-peers/.installed $(COMPILED)/.built  ## The gateway beside other serving systems, in an environment of their own.
	$(BIN)/python -m bench peers

.venv-peers/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/pip install --quiet --disable-pip-version-check '.[peers]'
	@touch $@

faults: install  ## Every fault of tests/faults with its recovery time, as docs/faults.md (about two minutes).
	PYTHONPATH=. $(BIN)/python -m tests.faults.report

soak: install  ## MINUTES (30) of load with a fault every few seconds, as docs/soak.md.
	PYTHONPATH=. $(BIN)/python -m tests.faults.soak $(or $(MINUTES),30)

wheel: $(COMPILED)/.built  ## A compiled wheel in dist/ (needs a C compiler).

# By way of a source distribution: compiled next to its source, a module would hide every later
# change of it.
$(COMPILED)/.built: $(VENV)/.installed $(SOURCES)
	rm -rf build dist
	$(BIN)/hatchling build --target sdist --directory build
	HATCH_BUILD_HOOK_ENABLE_MYPYC=1 $(BIN)/pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps --wheel-dir dist build/*.tar.gz
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target $(COMPILED) dist/*.whl
	@touch $@

images:  ## Container images roma/control:dev and roma/model-server:dev (needs a Docker engine).
	compose/build.sh

pictures: install  ## The documents' pictures of the live page, from a real deployment (needs Chromium).
	PYTHONPATH=. $(BIN)/python docs/pictures.py

lock: install  ## Write constraints.txt anew from what is installed.
	$(BIN)/pip freeze --exclude-editable > constraints.txt

clean:  ## Remove what was set up and cached.
	rm -rf $(VENV) .venv-peers build dist .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
