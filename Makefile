# `make help` lists all targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Older than its sources when packages change; otherwise `make env` does nothing.
STAMP  := $(VENV)/.installed
# What all clones share.
CACHE  := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/evenkeel
UV     := $(CACHE)/uv/bin/uv

# Without bytecode each worker and each process of the tests compiles all of it: three times the CPU time of a collection.
unexport PYTHONDONTWRITEBYTECODE
export UV_PYTHON_DOWNLOADS := never
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif

.PHONY: help
help:  ## Show this list
	@grep -hE '^[a-zA-Z0-9_-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18

# The part that `make up` needs. An installation for developers has it too.
RUNTIME := $(VENV)/.installed-runtime

$(UV):
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Evenkeel needs Python 3.11 or newer; set PYTHON=")'
	@echo "installing uv into $(CACHE) (once)"
	@mkdir -p $(CACHE) && rm -rf $(CACHE)/uv.$$PPID && $(PYTHON) -m venv $(CACHE)/uv.$$PPID && \
	  $(CACHE)/uv.$$PPID/bin/python -m pip install --quiet --disable-pip-version-check 'uv>=0.9,<1' && \
	  rm -rf $(CACHE)/uv && mv -T $(CACHE)/uv.$$PPID $(CACHE)/uv

# Installs packages into an environment, which it makes: $(call packages,FOLDER,ARGUMENTS). What is cached needs no network.
define packages
	@test -x $(1)/bin/python || $(UV) venv --quiet --python $(PYTHON) $(1)
	@set -o pipefail; install="$(UV) pip install --python $(1)/bin/python"; \
	  $$install --offline --quiet $(2) 2>/dev/null || $$install $(2) 2>&1 | sed -u '/^ [+~-] /d'
endef

# Installs an extra of this tree. Tests of the wheel need pip.
define install
	@echo "installing evenkeel-llm[$(1)] into $(VENV) (once)"
	@test ! -x $(BIN)/python || $(UV) pip uninstall --quiet --python $(BIN)/python evenkeel 2>/dev/null || true  # its name until 0.2
	$(call packages,$(VENV),--constraint constraints.txt --editable '.[$(1)]' pip)
endef

.PHONY: env
env: $(STAMP)  ## Create .venv with everything at the locked versions (quick when nothing changed)

$(STAMP): pyproject.toml constraints.txt | $(UV)
	$(call install,dev)
	@touch $@ $(RUNTIME)

$(RUNTIME): pyproject.toml constraints.txt | $(UV)
	$(call install,cli)
	@touch $@

.PHONY: up
up: $(RUNTIME)  ## Run a fair fleet on this machine (3 replicas, 4 tenants, router on 127.0.0.1:8080)
	$(BIN)/evenkeel up examples/quickstart.yaml $(ARGS)

.PHONY: demo
demo: $(RUNTIME)  ## Flood a fleet: round robin + LPM against D2LPM + DLPM (about 3 minutes)
	$(BIN)/evenkeel demo --out out/demo

# The Rust router has its own environment, because Evenkeel does not depend on its packages.
RIVAL := .venv-sglang-router
$(RIVAL)/.installed: bench/router/requirements.txt | $(UV)
	$(call packages,$(RIVAL),--requirement $<)
	@touch $@

.PHONY: bench
bench: env bench-router  ## Run every benchmark (about 40 minutes); results are ratios to a peer in the same run
	set -e; for part in bench/bench_*.py; do echo "== $$part"; $(BIN)/python -m bench.$$(basename $$part .py); done
	$(BIN)/python bench/fleet_comparison.py

# LiteLLM's proxy has its own environment too.
VERSUS := .venv-versus
$(VERSUS)/.installed: bench/versus/requirements.txt | $(UV)
	$(call packages,$(VERSUS),--requirement $<)
	@touch $@

.PHONY: versus
versus: env $(VERSUS)/.installed  ## Compare with LiteLLM, limits, turns and the engines' orders on the same simulated engines (10 minutes)
	$(BIN)/python -m bench.versus --litellm $(VERSUS) $(ARGS)

# Load generators of others, each with an environment of its own; GuideLLM's has PyTorch (5 GB), and inference-perf needs Python 3.12.
.venv-inference-perf/.installed: PYTHON = $(or $(call python-of,3.12),$(error inference-perf needs Python 3.12))
.venv-%/.installed: bench/others/%.txt | $(UV)
	$(call packages,.venv-$*,--no-deps --requirement $<)
	@touch $@

.PHONY: others others-aiperf others-guidellm others-inference-perf
others: others-aiperf others-guidellm others-inference-perf  ## All three of the next

others-aiperf: env .venv-aiperf/.installed  ## Let AIPerf measure a simulated fleet, alone and beside a flood (4 minutes)
	$(BIN)/python -m bench.others aiperf --venv .venv-aiperf $(ARGS)

others-guidellm: env .venv-guidellm/.installed  ## Likewise GuideLLM
	$(BIN)/python -m bench.others guidellm --venv .venv-guidellm $(ARGS)

others-inference-perf: env .venv-inference-perf/.installed  ## Likewise inference-perf
	$(BIN)/python -m bench.others inference-perf --venv .venv-inference-perf $(ARGS)

.PHONY: mutation
mutation: env  ## Mutation tests of the algorithms (hours); surviving mutants: docs/design/mutation.md
	$(BIN)/python tests/mutation/run.py

.PHONY: bench-router
bench-router: env $(RIVAL)/.installed  ## Compare the router with sglang-router on two cores (20 minutes; ARGS=--quick: 1 minute)
	$(BIN)/python -m bench.router.run --venv $(RIVAL) $(ARGS)

# Installs Debian packages, if a program or a file is missing.
define debian
	@for one in $(1); do command -v "$$one" >/dev/null || test -e "$$one" || missing=1; done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get -o DPkg::Lock::Timeout=600 update -qq && \
	  RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 install -qq -y --no-install-recommends $(2) >/dev/null; \
	then :; else echo "not installed: $(2); tests that need them are skipped"; fi
endef

# Some tests need a Redis server, libfaketime, promtool, nginx or Chromium, and are skipped without them.
# Chrome is as good as Chromium, which is no package of Ubuntu.
CHROME = $(notdir $(firstword $(shell command -v chromium chromium-browser google-chrome)))
.PHONY: tools
tools:  ## Install programs that some tests need (as root on Debian; elsewhere only a message)
	$(call debian,redis-server promtool nginx $(or $(CHROME),chromium) lua5.1 $(or $(wildcard /usr/lib/*/faketime/libfaketime.so.1),libfaketime),redis-server libfaketime prometheus nginx-light $(if $(CHROME),,chromium) lua5.1)

.PHONY: quick
quick: env lint  ## Lint, types, layers, and the tests nearest to what changed since main: under a minute
	$(BIN)/python -m loop.quick

.PHONY: ci
ci:  ## Run what a change needs, by loop/stages.toml (as .ci/run does)
	.ci/run

.PHONY: nightly
nightly:  ## Run every suite in its long form, with 25 times as many examples of properties (hours; complete only as root)
	$(PYTHON) -B -m loop.run --nightly

.PHONY: test
test: env lint  ## Lint, types, layers, and all tests except slow ones and those with the real engine
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow and not sglang and not vllm and not console" --durations 10 $(ARGS)

console/node_modules/.installed: console/package-lock.json
	cd console && npm ci --silent --no-audit --no-fund
	@touch $@

.PHONY: console
console: console/node_modules/.installed  ## Build the console's page into the router's package (needs Node 20 and npm)
	cd console && npm run --silent build

.PHONY: test-console
test-console: env tools console/node_modules/.installed  ## Test the console in Chromium (a minute; EVENKEEL_PICTURES=1 also takes the pictures of docs/how-to/console.md)
	$(BIN)/python -m pytest tests/console $(ARGS)

# What runs without processes and servers. pyenv's versions of Python are not on the path.
PURE := tests/test_layout.py tests/conformance $(addprefix tests/unit/evenkeel_,contract fairshare kube laboratory simulator)
python-of = $(or $(firstword $(wildcard $(or $(PYENV_ROOT),$(HOME)/.pyenv)/versions/$(1).*/bin/python)),$(shell command -v python$(1)))
define with-python
	@if [ -z "$(call python-of,$(1))" ]; then echo "SKIPPED: there is no Python $(1) here"; exit 0; fi; \
	$(MAKE) --no-print-directory env VENV=$(VENV)-$(1) PYTHON=$(call python-of,$(1)) && \
	$(VENV)-$(1)/bin/python -m pytest -q -n auto --dist worksteal -m "not slow and not sglang and not vllm and not console" $(ARGS) $(2)
endef

.PHONY: test-python-3.12 test-python-3.13 test-all-python-3.12 test-all-python-3.13
test-python-3.12 test-python-3.13: test-python-%:
	$(call with-python,$*,$(PURE))

.PHONY: test-pythons
test-pythons: test-python-3.12 test-python-3.13  ## Import every module, and run the tests of pure packages, in Python 3.12 and 3.13

test-all-python-3.12 test-all-python-3.13: test-all-python-%:
	$(call with-python,$*)

# Clients of others have an environment of their own (6 GB), with Node in it.
CLIENTS      := .venv-clients
CLIENTS_FROM := tests/clients
$(CLIENTS)/.installed: $(CLIENTS_FROM)/requirements.txt $(CLIENTS_FROM)/openai.txt $(CLIENTS_FROM)/node/package-lock.json
	@test -x $(CLIENTS)/bin/python || $(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip install --quiet --disable-pip-version-check 'uv>=0.5,<1'
	$(CLIENTS)/bin/uv pip install --quiet --no-deps --python $(CLIENTS)/bin/python -r $(CLIENTS_FROM)/requirements.txt
	@# Other clients allow only older versions of OpenAI's.
	$(CLIENTS)/bin/uv pip install --quiet --python $(CLIENTS)/bin/python --target $(CLIENTS)/openai-newest -r $(CLIENTS_FROM)/openai.txt
	cd $(CLIENTS_FROM)/node && PATH="$(CURDIR)/$(CLIENTS)/bin:$$PATH" npm ci --silent --no-audit --no-fund
	@touch $@

.PHONY: test-clients
test-clients: env $(CLIENTS)/.installed $(if $(TARGET),,test-programs)  ## Run stock clients against the fleet, and write docs/reference/clients.md (TARGET=sglang: the real engine)
	$(BIN)/python -m tests.clients.run $(if $(TARGET),--target $(TARGET)) $(ARGS)

# Their packages (3 GB) are outside of the checkout, in ~/.cache/evenkeel/programs.
.PHONY: test-programs
test-programs: env tools $(UV)  ## Part of test-clients: Claude Code, Codex, lm-eval, Cohere's client, nginx, LiteLLM's proxy and an issuer of tokens (ONLY=codex: one of them)
	$(BIN)/python -m tests.clients.programs.run $(if $(ONLY),--only "$(ONLY)") $(if $(TARGET),--target $(TARGET))

SLOW := $(BIN)/python -m pytest -n auto --dist worksteal -m "slow and not sglang and not vllm"
PROPERTIES := tests/property tests/unit
.PHONY: test-slow test-slow-properties test-slow-processes
test-slow: env  ## Slow tests: long random sequences of replicas that join and leave
	$(SLOW) $(ARGS)

# Both parts of it, for CI. The first gives way to the stages beside it: what takes a minute alone may take several.
test-slow-properties: env
	$(SLOW) --timeout 900 $(PROPERTIES) $(ARGS)

test-slow-processes: env
	$(SLOW) $(addprefix --ignore=,$(PROPERTIES)) tests $(ARGS)

# Engines have environments of their own, because Evenkeel does not depend on their packages. Checkouts share the large part (6 GB), in
# EVENKEEL_ENGINES or ~/.cache/evenkeel/engines.
ENGINES_FROM := plugins/sglang/cpu/shared_environment.py plugins/sglang/cpu/tiny_model.py pyproject.toml
# Again where the shared part was removed.
lost          = $(if $(wildcard $(1)/shared/complete),,.FORCE)
.PHONY: .FORCE
.FORCE:

ENGINE := .venv-sglang
$(ENGINE)/.installed: $(call lost,$(ENGINE)) $(ENGINES_FROM) $(wildcard plugins/sglang/cpu/*.txt plugins/sglang/cpu/*/*/*.py)
	$(PYTHON) plugins/sglang/cpu/shared_environment.py sglang $(ENGINE)
	@touch $@

.PHONY: sglang
sglang: $(ENGINE)/.installed  ## Create .venv-sglang: the real engine for the CPU, and a tiny model (6 GB, minutes)

.PHONY: up-sglang
up-sglang: $(RUNTIME) sglang  ## Run a fair fleet with the real engine (2 replicas of SGLang, 2 tenants, a tiny model)
	$(BIN)/evenkeel up examples/sglang.yaml --sglang $(ENGINE) --model $(ENGINE)/model $(ARGS)

.PHONY: test-sglang
test-sglang: env sglang  ## Test the plug-in inside the real SGLang on the CPU
	$(BIN)/python -m pytest -m sglang tests/sglang $(ARGS)

# It needs other versions of SGLang's packages.
VLLM := .venv-vllm
$(VLLM)/.installed: $(call lost,$(VLLM)) $(ENGINES_FROM) plugins/vllm/cpu/requirements.txt plugins/vllm/cpu/vllm_version/pyproject.toml
	$(PYTHON) plugins/sglang/cpu/shared_environment.py vllm $(VLLM)
	@touch $@

.PHONY: vllm
vllm: $(VLLM)/.installed  ## Create .venv-vllm: the real vLLM for the CPU, and a tiny model (6 GB, minutes)

.PHONY: up-vllm
up-vllm: $(RUNTIME) vllm  ## Run a fair fleet with vLLM (2 replicas, 2 tenants, a tiny model)
	$(BIN)/evenkeel up examples/vllm.yaml --vllm $(VLLM) --model $(VLLM)/model $(ARGS)

.PHONY: test-vllm
test-vllm: env vllm  ## Test the router and the plug-in with the real vLLM on the CPU
	$(BIN)/python -m pytest -m vllm tests/vllm $(ARGS)

.PHONY: chaos
chaos: env tools  ## Kill, freeze and disconnect processes under load (20 minutes; complete only as root)
	$(BIN)/python -m pytest chaos --durations 0 $(ARGS)

.PHONY: chaos-core
chaos-core: env tools  ## The chaos tests for every change, three at a time (a few minutes)
	$(BIN)/python -m pytest chaos -m core -n 3 --dist worksteal --durations 0 $(ARGS)

.PHONY: chaos-cluster
chaos-cluster: env tools cluster  ## Every fault on the cluster under load (an hour), and docs/explanation/failure-modes.md from what was measured
	EVENKEEL_WRITE_RESULTS=1 EVENKEEL_SLOW_FAULTS=1 $(BIN)/python -m pytest e2e/faults --durations 0 $(ARGS)
	$(BIN)/python -m docs.generate

PEERS := .venv-peers
$(PEERS)/.installed: tests/peers/requirements.txt tests/peers/go.mod | $(UV)
	$(call packages,$(PEERS),--requirement $<)
	if command -v go >/dev/null; then cd tests/peers && GOBIN="$(CURDIR)/$(PEERS)/bin" go install tool; fi
	@touch $@

.PHONY: test-peers
test-peers: env $(PEERS)/.installed  ## Let checkov, kube-score and kubeconform judge chart and objects, and actionlint the workflows (a minute)
	$(BIN)/python -m pytest tests/peers $(ARGS)

.PHONY: test-sglang-core
test-sglang-core: env sglang  ## The tests with SGLang for every change (about 10 minutes)
	$(BIN)/python -m pytest -m "sglang and not slow" tests/sglang --durations 5 $(ARGS)

.PHONY: newest-engines
newest-engines: env sglang vllm  ## Try the plug-ins with the newest SGLang and vLLM of the package index (400 MB of downloads, 20 minutes), and note it in docs/reference/compatibility.md
	$(BIN)/python -m tests.sglang.versions --newest --tests
	$(BIN)/python -m tests.vllm.versions --newest --tests

# What a GPU machine without network lacks (bench/gpu/README.md).
.gpu/site.tar.xz: bench/gpu/bundle.py plugins/sglang/cpu/requirements.txt plugins/sglang/cpu/engine.txt | env sglang
	$(BIN)/python -m bench.gpu.bundle --out .gpu

.PHONY: gpu-bundle
gpu-bundle: .gpu/site.tar.xz  ## Build what a GPU machine without network lacks into .gpu (400 MB of downloads, minutes)

GPU_TOY = bench/gpu/on_gpu.py --cpu $(ENGINE) --model $(ENGINE)/model --scale 0.1 --limit 3000 --patience 10 --work out/gpu-rehearsal
.PHONY: gpu-rehearsal
gpu-rehearsal: env sglang gpu-bundle  ## Rehearse every call of bench/gpu/README.md with the CPU engine (20 minutes)
	rm -rf out/gpu-rehearsal
	$(BIN)/python $(GPU_TOY) smoke --keep --out out/gpu-rehearsal/smoke
	$(BIN)/python $(GPU_TOY) policies --out out/gpu-rehearsal/policies
	$(BIN)/python $(GPU_TOY) long replicas --pace 0.3 --out out/gpu-rehearsal/further
	$(BIN)/python $(GPU_TOY) papers --workloads qa-s1 tot-s1 --burst 4 --duration 6 --out out/gpu-rehearsal/papers
	$(BIN)/python $(GPU_TOY) profile --attempt 1 --out out/gpu-rehearsal/fallback
	$(BIN)/python -m bench.gpu.fit out/gpu-rehearsal/smoke/results.jsonl --out out/gpu-rehearsal/profile.json
	$(BIN)/python -m bench.gpu.compare out/gpu-rehearsal/policies/results.jsonl --profile out/gpu-rehearsal/profile.json

.PHONY: lint
lint: env  ## Run ruff, mypy --strict and import-linter
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/ruff check --preview --select PLR0917 .
	@test -e .mypy_cache || tar -xf $(CACHE)/types.tar 2>/dev/null || true  # another clone's; mypy compares contents
	$(BIN)/mypy
	@find $(CACHE) -name types.tar -mmin -60 | grep -q . || { tar -cf $(CACHE)/types.$$PPID .mypy_cache && mv $(CACHE)/types.$$PPID $(CACHE)/types.tar; }
	$(BIN)/lint-imports

.PHONY: format
format: env  ## Format the code, and apply automatic fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: crds
crds: env  ## Generate crds/*.yaml from the contract (a test fails if they differ)
	$(BIN)/python -m crds.generate

.PHONY: monitoring
monitoring: env  ## Generate the alerts and dashboards of chart and operator from monitoring/ (a test fails if they differ)
	$(BIN)/python -m monitoring.generate

.PHONY: reference
reference: env  ## Generate the reference pages of docs/ from the code (a test fails if they differ)
	$(BIN)/python -m docs.generate

# The documentation has its own environment, because Evenkeel does not depend on its packages.
DOCS := .venv-docs
$(DOCS)/.installed: docs/requirements.txt | $(UV)
	$(call packages,$(DOCS),--requirement $<)
	@touch $@

.PHONY: docs
docs: $(DOCS)/.installed  ## Build the documentation site into site/ (strict; no request to third parties), and ask its search thirty questions
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet
	$(DOCS)/bin/python -m tests.support.site_search site
	@echo "built: site/index.html; with search: $(PYTHON) -m http.server --directory site"

.PHONY: lock
lock: env  ## Generate constraints.txt from pyproject.toml
	$(UV) pip compile --quiet --extra dev --python-version 3.11 --universal --no-emit-index-url --no-annotate --custom-compile-command 'make lock' --output-file constraints.txt pyproject.toml

.PHONY: cluster
cluster:  ## Create a two-node Kubernetes cluster on this machine (root; the first time builds its programs)
	$(PYTHON) -m e2e.rig up

.PHONY: e2e
e2e: env cluster release-tools  ## Test on a cluster: that of `make cluster`, or E2E_KUBECONFIG
	$(BIN)/python -m pytest e2e --ignore e2e/faults $(ARGS)

.PHONY: e2e-core
e2e-core: env  ## The cluster tests for every change; skipped with a message if the machine cannot run a cluster
	@status=0; $(PYTHON) -m e2e.rig prepare || status=$$?; \
	if [ $$status -eq 77 ]; then echo "e2e-core: SKIPPED, this machine cannot have a cluster (see above)"; exit 0; fi; \
	[ $$status -eq 0 ] || exit $$status; \
	$(PYTHON) -m e2e.rig up && $(PYTHON) -m e2e.rig images && $(BIN)/python -m pytest e2e -m core -n 3 --dist loadfile --no-loadscope-reorder --durations 10 $(ARGS) || status=$$?; \
	$(PYTHON) -m e2e.rig down; exit $$status

# Files whose tests need nothing of the IPv4 cluster; the tutorial is the first.
IPV6_TESTS := $(addprefix e2e/test_,from_nothing.py ipv6.py gateway.py tokens.py cells.py from_zero.py network.py)
.PHONY: e2e-ipv6
e2e-ipv6: export E2E_FAMILY = IPv6
e2e-ipv6: env tools  ## Test on a cluster of its own whose nodes, pods and Services have IPv6 alone (10 minutes)
	@status=0; $(PYTHON) -m e2e.rig prepare || status=$$?; \
	if [ $$status -eq 77 ]; then echo "e2e-ipv6: SKIPPED, this machine cannot have such a cluster (see above)"; exit 0; fi; \
	[ $$status -eq 0 ] || exit $$status; \
	$(PYTHON) -m e2e.rig up && $(PYTHON) -m e2e.rig images && $(BIN)/python -m pytest $(IPV6_TESTS) --durations 5 $(ARGS) || status=$$?; \
	$(PYTHON) -m e2e.rig down; exit $$status

.PHONY: cluster-down
cluster-down:  ## Remove the cluster
	$(PYTHON) -m e2e.rig down

# Programs that build a release have an environment of their own.
RELEASE := .venv-release
$(RELEASE)/.installed: release/requirements.txt | $(UV)
	$(call packages,$(RELEASE),--requirement $<)
	@touch $@

.PHONY: release-tools
release-tools:  ## Install programs that build and test a release (as root on Debian; elsewhere only a message)
	$(call debian,buildah runc skopeo gpg openssl docker-registry,buildah runc skopeo gnupg openssl docker-registry)

REGISTRY ?= localhost:5000/evenkeel
KEYS     ?= $(HOME)/.config/evenkeel/release-keys
DIST     ?= dist

.PHONY: release
release: $(RELEASE)/.installed  ## Build all artifacts of a release for REGISTRY into DIST, and sign them (docs/how-to/make-a-release.md)
	$(RELEASE)/bin/python -m release build --registry $(REGISTRY) --keys "$(KEYS)" --out "$(DIST)" $(ARGS)

.PHONY: release-date
release-date:  ## Give the version in CHANGELOG.md the date of today, before its release
	$(PYTHON) -m release date "$$(date --utc -I)"

.PHONY: version
version:  ## Raise the version everywhere after a release (to the next minor version, or to TO), and open its section of CHANGELOG.md
	$(PYTHON) -m release version $(TO)

.PHONY: registry
registry:  ## Serve a registry for a trial release on localhost:5000, until Ctrl-C (contents in out/registry)
	$(PYTHON) -m release registry $(ARGS)

.PHONY: release-keys
release-keys:  ## Make the keys of a release in KEYS, where there are none
	$(PYTHON) -m release keys --keys "$(KEYS)"

.PHONY: verify
verify:  ## Check signatures, provenance and every byte of DIST with the public key in KEYS
	$(PYTHON) -m release.verify --key "$(KEYS)/evenkeel.pub" "$(DIST)"

.PHONY: publish
publish: $(RELEASE)/.installed verify  ## Push images and chart of DIST to the registry that they were built for
	$(RELEASE)/bin/python -m release publish --out "$(DIST)" $(ARGS)

.PHONY: clean-engines
clean-engines:  ## Remove the engines' packages that all checkouts share (EVENKEEL_ENGINES, or ~/.cache/evenkeel/engines)
	rm -rf "$(or $(EVENKEEL_ENGINES),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/evenkeel/engines)" $(ENGINE) $(VLLM)

.PHONY: clean
clean:  ## Remove build results (not .venv)
	rm -rf build dist out site .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache mutants
