# Every target says what it does: `make help`.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Changes when what is to be installed changes; `make env` is a no-op otherwise.
STAMP  := $(VENV)/.installed

.PHONY: help
help:  ## Show this list
	@grep -hE '^[a-zA-Z0-9_-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18

.PHONY: env
env: $(STAMP)  ## Create .venv with everything at the locked versions (quick when nothing changed)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Evenkeel needs Python 3.11 or newer; set PYTHON=")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

.PHONY: up
up: env  ## Run a fair fleet on this machine (3 replicas, 4 tenants, router on 127.0.0.1:8080)
	$(BIN)/evenkeel up examples/quickstart.yaml $(ARGS)

.PHONY: demo
demo: env  ## The flood, side by side: round robin + LPM against D2LPM + DLPM (about 3 minutes)
	$(BIN)/evenkeel demo --out out/demo

# The Rust router has an environment of its own: its dependencies are none of ours.
RIVAL := .venv-sglang-router
$(RIVAL)/.installed: bench/router/requirements.txt
	@test -x $(RIVAL)/bin/python || $(PYTHON) -m venv $(RIVAL)
	$(RIVAL)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

.PHONY: bench
bench: env bench-router  ## Every benchmark, one after another (about 40 minutes); ratios against a peer in the same run
	set -e; for part in bench/bench_*.py; do echo "== $$part"; $(BIN)/python -m bench.$$(basename $$part .py); done
	$(BIN)/python bench/fleet_comparison.py

.PHONY: mutation
mutation: env  ## A mutation run over the algorithms (hours); what survives and why: docs/design/mutation.md
	$(BIN)/python tests/mutation/run.py

.PHONY: bench-router
bench-router: env $(RIVAL)/.installed  ## This router against sglang-router on two cores (20 minutes; ARGS=--quick: one)
	$(BIN)/python -m bench.router.run --venv $(RIVAL) $(ARGS)

# What some tests run for real, and are skipped without: a server of Redis, clocks that jump, Prometheus' judgement of rules.
.PHONY: tools
tools:  ## Install what some tests need beyond Python (Debian, root; says so and goes on elsewhere)
	@if command -v redis-server >/dev/null && command -v promtool >/dev/null && ls /usr/lib/*/faketime/libfaketime.so.1 >/dev/null 2>&1; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
	  RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends redis-server libfaketime prometheus >/dev/null; \
	then :; else echo "not installed: redis-server, libfaketime, prometheus; tests that need them are skipped"; fi

.PHONY: test
test: env lint  ## Lint, types, layers, and every test that needs nothing but this machine (but the slow ones)
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow and not sglang" --durations 10 $(ARGS)

.PHONY: test-slow
test-slow: env  ## Long random walks through churn
	$(BIN)/python -m pytest -n auto --dist worksteal -m "slow and not sglang"

# The engine has an environment of its own (6 GB): its dependencies are none of ours.
ENGINE      := .venv-sglang
ENGINE_FROM := sglang_plugin/cpu
# uv, since pip takes ten minutes over it.
ENGINE_INSTALL := $(ENGINE)/bin/uv pip install --quiet --python $(ENGINE)/bin/python
$(ENGINE)/.installed: $(wildcard $(ENGINE_FROM)/*.txt $(ENGINE_FROM)/*.py $(ENGINE_FROM)/*/*/*.py) pyproject.toml
	@test -x $(ENGINE)/bin/python || $(PYTHON) -m venv $(ENGINE)
	$(ENGINE)/bin/python -m pip install --quiet --disable-pip-version-check 'uv>=0.5,<1'
	$(ENGINE_INSTALL) -r $(ENGINE_FROM)/requirements.txt
	$(ENGINE_INSTALL) --no-deps -r $(ENGINE_FROM)/engine.txt $(ENGINE_FROM)/sgl_kernel_stub
	$(ENGINE_INSTALL) --no-deps --editable .
	$(ENGINE_INSTALL) --no-deps --target $(ENGINE)/sglang-0.5.21 sglang==0.5.21
	@# Three processes of each engine import all of it; without bytecode each takes twice the time. Some files are templates.
	$(ENGINE)/bin/python -m compileall -q -j 0 $(ENGINE)/lib $(ENGINE)/sglang-0.5.21 >/dev/null 2>&1 || true
	$(ENGINE)/bin/python $(ENGINE_FROM)/tiny_model.py $(ENGINE)/model
	@touch $@

.PHONY: sglang
sglang: $(ENGINE)/.installed  ## The real engine for CPU in .venv-sglang, with a tiny model (6 GB, minutes; quick when nothing changed)

.PHONY: up-sglang
up-sglang: env sglang  ## The same fair fleet on the real engine: 2 replicas of SGLang, 2 tenants, a tiny model
	$(BIN)/evenkeel up examples/sglang.yaml --sglang $(ENGINE) --model $(ENGINE)/model $(ARGS)

.PHONY: test-sglang
test-sglang: env sglang  ## The plug-in inside the real SGLang on this machine's CPU
	$(BIN)/python -m pytest -m sglang tests/sglang $(ARGS)

.PHONY: chaos
chaos: env tools  ## Real processes, killed, frozen, cut off and misled under load (20 minutes; root for all of it)
	$(BIN)/python -m pytest chaos --durations 0

.PHONY: chaos-core
chaos-core: env tools  ## What of it every change has to pass (5 minutes)
	$(BIN)/python -m pytest chaos -m core --durations 0 $(ARGS)

.PHONY: test-sglang-core
test-sglang-core: env sglang  ## The same but the long ones (about 5 minutes)
	$(BIN)/python -m pytest -m "sglang and not slow" tests/sglang --durations 5 $(ARGS)

.PHONY: lint
lint: env  ## ruff, mypy --strict, import-linter
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: format
format: env  ## Format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: crds
crds: env  ## Write crds/*.yaml anew from the contract (a test fails when they differ)
	$(BIN)/python -m crds.generate

.PHONY: monitoring
monitoring: env  ## Write what chart and operator ship of monitoring/ anew (a test fails when they differ)
	$(BIN)/python -m monitoring.generate

.PHONY: lock
lock: env  ## Resolve constraints.txt anew from pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.5,<1'
	$(BIN)/uv pip compile --quiet --extra dev --python-version 3.11 --universal --no-emit-index-url --no-annotate --custom-compile-command 'make lock' --output-file constraints.txt pyproject.toml

.PHONY: cluster
cluster:  ## A real two-node Kubernetes on this machine (root; Go builds it once, about 10 minutes cold)
	$(PYTHON) -m e2e.rig up

.PHONY: e2e
e2e: env cluster  ## Tests on a real cluster: that of `make cluster`, or E2E_KUBECONFIG
	$(BIN)/python -m pytest e2e

.PHONY: e2e-core
e2e-core: env  ## The core of it (.ci/run): installs and builds what is missing; says so where that cannot be had
	@status=0; $(PYTHON) -m e2e.rig prepare || status=$$?; \
	if [ $$status -eq 77 ]; then echo "e2e-core: SKIPPED, this machine cannot have a cluster (see above)"; exit 0; fi; \
	[ $$status -eq 0 ] || exit $$status; \
	$(PYTHON) -m e2e.rig up && $(BIN)/python -m pytest e2e -m core --durations 10 $(ARGS) || status=$$?; \
	$(PYTHON) -m e2e.rig down; exit $$status

.PHONY: cluster-down
cluster-down:  ## Tear the cluster down; leaves nothing
	$(PYTHON) -m e2e.rig down

.PHONY: clean
clean:  ## Remove what was built (not .venv)
	rm -rf build dist out .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache mutants
