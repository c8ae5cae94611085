# One verb per question. Everything installs itself into .venv, with the versions CI tested.
PYTHON ?= python3
# The path of uv; UV=false leaves everything to pip.
UV ?= $(shell command -v uv)
VENV := .venv
BIN := $(VENV)/bin

# The extras of pyproject.toml that .venv has for the demo, for building wheels and images, and for
# everything else. A verb adds what it needs; nothing is taken away.
EXTRAS_demo := serving
EXTRAS_build := serving,oidc,otel,build
EXTRAS_dev := $(EXTRAS_build),design,gpu,torch,dev
DEMO := $(VENV)/.has-demo
BUILD := $(VENV)/.has-build
DEV := $(VENV)/.has-dev

# What every request passes, compiled by mypyc; pyproject.toml lists the modules.
COMPILED := build/compiled
# What needs no engine, no browser and no framework; and what decides, which is compiled, too.
FAST := $(addprefix tests/,unit properties virtual_time protocol stories)
# Half of what they do is waiting for sockets and programs: more processes than two cores.
PARALLEL := --numprocesses 4 --dist loadfile
DECISIONS := $(addprefix tests/,unit/dispatcher unit/supervisor protocol/gateway virtual_time/experiments virtual_time/golden properties)
SOURCES := $(shell find roma controllers dispatcher supervisor -name '*.py')
QUIET := --quiet --disable-pip-version-check
# Many images set it; every process of a run of the tests would then compile every module again.
unexport PYTHONDONTWRITEBYTECODE


# Kubernetes and containerd, built from source, for tests/system/kubernetes. Where the programs are
# already: KUBEBUILDER_ASSETS.
KUBERNETES := .cache/kubernetes
KUBERNETES_VERSION := $(shell sed -n 's/.*k8s.io\/kubernetes v\([0-9.]*\).*/\1/p' tools/kubernetes/go.mod)
export KUBEBUILDER_ASSETS ?= $(CURDIR)/$(KUBERNETES)/bin

.PHONY: help install dev demo compare test test-all test-long test-containers test-frameworks kubernetes check docs bench peers faults fuzz soak wheel images pictures clean lock
.DEFAULT_GOAL := help

help:  ## Show this help.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

install: $(DEMO)  ## Install what the demo and a deployment need into .venv.

dev: $(DEV)  ## Install what tests, checks, benchmarks and reports need, too.

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(f"Python >= 3.11 is needed, this is {v[0]}.{v[1]}" if v < (3, 11) else 0)'
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "python3 -m venv failed; on Debian: apt-get install python3-venv"; exit 1; }

# uv installs in a fraction of pip's time. pip brings it where it is missing, and takes over where it
# cannot be had or fails: uv reads none of pip's settings, such as the address of a mirror. The pip
# that comes with Python 3.11 needs half as long again as today's, and byte code, which uv leaves to
# the first import, another 10 s.
$(VENV)/.has-%: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing into $(VENV): $(EXTRAS_$*)"
	@uv='$(UV)'; test -n "$$uv" || uv=$(BIN)/uv; \
	command -v "$$uv" >/dev/null || $(BIN)/pip install $(QUIET) --constraint constraints.txt uv || true; \
	"$$uv" pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[$(EXTRAS_$*)]' || \
	{ echo "without uv: pip installs, which takes longer"; \
	$(BIN)/pip install $(QUIET) 'pip>=26' || true; \
	$(BIN)/pip install $(QUIET) --no-compile --constraint constraints.txt --editable '.[$(EXTRAS_$*)]'; }
	@touch $@

demo: $(DEMO)  ## Two real models under a stepping load, kept under their SLAs (about 2 minutes).
	$(BIN)/roma demo

compare: $(DEMO)  ## The demo, and the same load again under the law `rules`.
	$(BIN)/roma demo --compare

test: $(DEV)  ## Tests without an engine, a browser or a framework (3 to 5 minutes on two cores).
	$(BIN)/pytest $(PARALLEL) -m "not long" $(FAST)

test-all: $(DEV) $(BUILD)  ## All tests: those, real models, containers and browsers; the decisions once more, compiled.
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target test-long $(COMPILED)/.built
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target test-containers test-frameworks
	$(BIN)/pytest tests/system --ignore tests/system/docker --ignore tests/system/kubernetes

test-long: $(DEV)
	$(BIN)/pytest $(PARALLEL) $(FAST)

test-containers: $(DEV)
	$(BIN)/pytest tests/system/docker

# They compute, with what the containers' tests leave: those wait most of the time.
test-frameworks: $(DEV)
	tools/spare.sh $(BIN)/pytest --numprocesses 2 --dist loadfile tests/tensorflow
	tools/spare.sh $(BIN)/pytest tests/pytorch
	ROMA_COMPILED=1 tools/spare.sh $(BIN)/pytest $(PARALLEL) --override-ini pythonpath='$(COMPILED) .' $(DECISIONS)

kubernetes: $(DEV) $(KUBERNETES)/.built  ## Tests against a real API server and a real kubelet (builds them first: 10 minutes).
	$(BIN)/pytest tests/system/kubernetes

# The version is compiled in: a client asks for it, and without one every component says v0.0.0.
$(KUBERNETES)/.built: $(wildcard tools/*/go.mod tools/*/go.sum tools/kubernetes/build.sh tools/kubernetes/pause/*.go)
	@tools/kubernetes/build.sh "$(KUBEBUILDER_ASSETS)" "$(KUBERNETES_VERSION)"
	@mkdir -p $(@D) && touch $@

check: $(DEV)  ## ruff, mypy --strict and import-linter.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(DEV)  ## The documentation site, in build/docs; a link to nothing fails.
	PYTHONPATH=. $(BIN)/python docs/reference.py
	$(BIN)/sphinx-build --quiet -W --keep-going -b html docs build/docs

bench: $(DEV) $(COMPILED)/.built  ## Throughput, latency, decision and tick costs, as ratios measured side by side.
	$(BIN)/python -m bench

fuzz: $(DEV)  ## SECONDS (60) of any bytes for the reader of gRPC messages, beside protobuf's.
	PYTHONPATH=. $(BIN)/python -m tests.protocol.gateway.fuzz_wire $(or $(SECONDS),60)

peers: .venv-peers/.installed $(COMPILED)/.built  ## The gateway beside other serving systems, in an environment of their own.
	$(BIN)/python -m bench peers

.venv-peers/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/pip install $(QUIET) '.[peers]'
	@touch $@

faults: $(DEV)  ## Every fault of tests/system/faults with its recovery time, as docs/faults.md (about two minutes).
	PYTHONPATH=. $(BIN)/python -m tests.system.faults.report

soak: $(DEV)  ## MINUTES (30) of load with a fault every few seconds, as docs/soak.md.
	PYTHONPATH=. $(BIN)/python -m tests.system.faults.soak $(or $(MINUTES),30)

wheel: $(COMPILED)/.built  ## A compiled wheel in dist/ (needs a C compiler).

# By way of a source distribution: compiled next to its source, a module would hide every later
# change of it.
$(COMPILED)/.built: $(BUILD) $(SOURCES)
	rm -rf build dist
	$(BIN)/hatchling build --target sdist --directory build
	HATCH_BUILD_HOOK_ENABLE_MYPYC=1 $(BIN)/pip wheel $(QUIET) --no-build-isolation --no-deps --wheel-dir dist build/*.tar.gz
	$(BIN)/pip install $(QUIET) --no-deps --target $(COMPILED) dist/*.whl
	@touch $@

images:  ## Container images roma/control:dev and roma/model-server:dev (needs a Docker engine).
	compose/build.sh

pictures: $(DEV)  ## The documents' pictures of the live page, from a real deployment (needs Chromium).
	PYTHONPATH=. $(BIN)/python docs/pictures.py

lock: $(DEV)  ## Write constraints.txt anew from what is installed.
	$(BIN)/pip freeze --exclude-editable > constraints.txt

clean:  ## Remove what was set up and cached.
	rm -rf $(VENV) .venv-peers build dist .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
