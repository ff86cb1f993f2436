# Umbra. `make help` lists what can be done here.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
OBJECTS ?= 1000
WORKERS ?= 0
CACHE := $(shell UMBRA_CACHE='$(UMBRA_CACHE)' PYTHONPATH=images $(PYTHON) -m umbra_images.cachefolder)
ifeq ($(CACHE),)
$(error the folder for built things is not known, see above: set UMBRA_CACHE, or PYTHON to a Python 3.11)
endif
VENV := $(CACHE)/venv/$(shell ($(PYTHON) -VV; cat requirements/dev.txt) | sha256sum | cut -c1-16)
BIN := $(VENV)/bin
# Absolute, because what make starts runs elsewhere.
override export UMBRA_CACHE := $(CACHE)
export PYTHONPATH := operator:linker:tests/lib:tests/cluster:tests/engine:tests/bench:images
# A user's choice for packages of their own; ours go into folders that we name.
export PIP_REQUIRE_VIRTUALENV := 0
export PIP_USER := 0
export MYPYPATH := operator:linker:images:tests/lib:tests/cluster:tests/engine:tests/bench

.PHONY: help
help: ## Lists the targets
	@awk '/^##@ / { print ""; print substr($$0, 5) } \
	  /^##= / { name = $$2; sub(/^##= [^ ]+ +/, ""); printf "  %-20s %s\n", name, $$0 } \
	  /^[a-z-]+:.*## / { name = $$0; sub(/:.*/, "", name); sub(/.*## /, ""); printf "  make %-20s %s\n", name, $$0 }' \
	  $(firstword $(MAKEFILE_LIST))

##@ The local cluster

.PHONY: up
up: python ## Starts a real local cluster with the whole product and restores a request from its store
	@$(PYTHON) -m localstack up

.PHONY: up-api
up-api: $(VENV)/done ## Starts only a control plane and the operator: no root, no node, no engine
	@$(BIN)/python -m localstack up --api-only

.PHONY: prometheus
prometheus: $(VENV)/done ## Starts a real Prometheus on the local cluster, with the chart's rules; see docs/tutorial
	@$(BIN)/python -m localstack prometheus

.PHONY: down
down: ## Stops the local cluster and removes everything that it left on the machine
	@$(PYTHON) -m localstack down

.PHONY: status
status: ## Says what of the local cluster runs
	@$(PYTHON) -m localstack status

##@ Development

.PHONY: venv
venv: $(VENV)/done ## Installs the development tools outside the repository
	@echo $(VENV)

# The folder's name has the lock file's content, so its date says nothing: a second clone must not build it anew.
$(VENV)/done: | python
	@$(PYTHON) -m umbra_images.cachefolder --writable >/dev/null
	@mkdir -p $(CACHE)/venv
	@exec 9>$(VENV).lock; if command -v flock >/dev/null; then flock 9; fi; [ ! -e $@ ] || exit 0; \
	  echo "installing the development tools into $(VENV)" >&2; \
	  rm -rf $(VENV); \
	  $(PYTHON) -m venv $(VENV) || { echo "error: no virtual environment, see above (Debian: apt-get install python3-venv)"; exit 1; }; \
	  $(BIN)/pip install --quiet --require-hashes --requirement requirements/dev.txt \
	    || { echo "error: the packages of requirements/dev.txt could not be installed, see above; run the command again"; exit 1; }; \
	  touch $@

.PHONY: python
python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "error: Python 3.11 or later is needed; set PYTHON=/path/to/python3.11"; exit 1; }

.PHONY: generate
generate: $(VENV)/done ## Writes CRDs and reference pages from the API models
	@$(BIN)/python -m umbra_operator.codegen

.PHONY: check
check: $(VENV)/done ## Formatting, lint, types, import rules, generated files, names and the file map
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy -p umbra_operator -p umbra_linker -p umbra_agent -p umbra_sim -p umbra_images -p localcluster -p localstack -p cpuengine -p faultproxy
	@$(BIN)/lint-imports
	@$(BIN)/python -m umbra_operator.codegen --check
	@$(BIN)/pytest --quiet --no-header tests/contract/test_tree.py tests/contract/test_architecture.py

.PHONY: format
format: $(VENV)/done ## Formats the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

.PHONY: test
test: check ## Runs the tests, with the real engine, store, API server and kubelet; time per group at the end
	@$(BIN)/pytest tests -m "not nightly" -n $(WORKERS)

.PHONY: nightly
nightly: $(VENV)/done ## Runs the tests that take minutes each, such as an operator killed at every one of its writes
	@$(BIN)/pytest tests -m nightly

.PHONY: test-fast
test-fast: check ## Runs the tests that need no engine, API server or kubelet
	@$(BIN)/pytest tests -m "not nightly and not engine and not apiserver and not kubelet" -n $(WORKERS)

.PHONY: images
images: python ## Writes the operator and kit images into dist/ and prints NAME@DIGEST of each; needs REGISTRY
	@[ -n "$(REGISTRY)" ] || { echo "error: say where you will push them: make images REGISTRY=registry.example.com/umbra"; exit 2; }
	@$(PYTHON) -m umbra_images operator kit --output dist --registry $(REGISTRY)

.PHONY: bench-operator
bench-operator: $(VENV)/done ## Measures the operator with OBJECTS K3Deployments; writes build/bench/operator.json
	@$(BIN)/python -m operatorbench --objects $(OBJECTS)

.PHONY: bench-poll
bench-poll: $(VENV)/done ## Measures what asking and judging 100 engines costs the operator; writes build/bench/poll.json
	@$(BIN)/python -m pollbench

.PHONY: bench-operator-page
bench-operator-page: $(VENV)/done ## Writes the last figures into docs/explanation/operator-performance.md
	@$(BIN)/python -m operatorbench --page

PICTURES := $(CACHE)/venv/pictures-$(shell cat requirements/pictures.txt | sha256sum | cut -c1-16)
.PHONY: pictures
pictures: $(VENV)/done $(PICTURES)/done ## Draws the dashboards beside the product under load, after make up; 5 minutes
	@$(BIN)/python -m panelfigures
	@$(PICTURES)/bin/python -m panelpictures

$(PICTURES)/done: | $(VENV)/done
	@$(PYTHON) -m venv --clear $(PICTURES)
	@$(PICTURES)/bin/pip install --quiet --require-hashes --requirement requirements/pictures.txt \
	  || { echo "error: the packages of requirements/pictures.txt could not be installed, see above; run the command again"; exit 1; }
	@touch $@

# The peer stands apart: nothing else needs it, and its own dependencies are not used.
LIBCACHESIM := $(CACHE)/bench/libcachesim-0.3.5

$(LIBCACHESIM): | $(VENV)/done
	@$(BIN)/pip install --quiet --no-deps --target $@ libcachesim==0.3.5

.PHONY: bench-sizing
bench-sizing: $(VENV)/done $(LIBCACHESIM) ## Measures umbra size, beside libCacheSim on plain LRU; writes build/bench/sizing.json
	@PYTHONPATH=$(PYTHONPATH):$(LIBCACHESIM) $(BIN)/python -m sizingbench

.PHONY: compare-model
compare-model: $(VENV)/done ## Compares umbra size's model with a prototype and reports; needs AGENTS and MOONCAKE, the traces
	@[ -f "$(AGENTS)" ] && [ -f "$(MOONCAKE)" ] || { echo "error: say where the traces are: make compare-model AGENTS=... MOONCAKE=..."; exit 2; }
	@$(BIN)/python -m modelcheck --agents "$(AGENTS)" --mooncake "$(MOONCAKE)" $(if $(PAGE),--page)

.PHONY: bench-linker
bench-linker: $(VENV)/done ## Measures the linker beside SGLang's own; writes build/bench/linker.json
	@$(BIN)/python -m linkerbench

.PHONY: bench-linker-page
bench-linker-page: $(VENV)/done ## Writes the last figures into docs/explanation/linker.md
	@$(BIN)/python -m linkerbench --page

.PHONY: linker-faults-page
linker-faults-page: $(VENV)/done ## Plays every fault of the store; writes docs/explanation/linker-faults.md
	@$(BIN)/pytest tests/engine/test_fault_matrix.py -m engine -o junit_family=xunit1 --junitxml=build/linker-faults.xml
	@$(BIN)/python -m faultmatrix build/linker-faults.xml

.PHONY: bench-policy
bench-policy: $(VENV)/done ## Measures the write policies and what touching costs; writes build/bench/policy.json. AGENTS: sessions
	@$(BIN)/python -m policybench $(if $(AGENTS),--agents "$(AGENTS)")

.PHONY: bench-policy-page
bench-policy-page: $(VENV)/done ## Writes the last figures, and the picture, into docs/explanation/write-policy.md
	@$(BIN)/python -m policypicture
	@$(BIN)/python -m policybench --page

.PHONY: lock
lock: $(VENV)/done ## Renews the lock files from requirements/*.in
	@for name in operator dev pictures; do $(BIN)/uv pip compile --quiet --python-version 3.11 --generate-hashes --no-annotate \
	  --no-header --no-emit-index-url --no-emit-find-links requirements/$$name.in -o requirements/$$name.txt; done

.PHONY: clean-cache
clean-cache: python ## Removes what was built outside the repository; refuses while something runs from it
	@$(PYTHON) -m localstack clean-cache

##@ Variables, of the environment or after the target
##= UMBRA_CACHE folder of all that is built and runs; below XDG_CACHE_HOME, or ~/.cache/umbra, when it is not set
##= UMBRA_CLUSTER names another cluster beside your own, for up, down and status: 1 to 8 of a-z and 0-9
##= REGISTRY registry and path in front of the images' names, for images
##= PYTHON the Python, 3.11 or later, that runs the local cluster and makes the virtual environment; python3
##= AGENTS, MOONCAKE the traces of make compare-model, and AGENTS of bench-policy: recorded agent sessions, Mooncake's synthetic trace
##= PAGE set: make compare-model writes its tables into docs/explanation/cache-model.md
##= OBJECTS how many K3Deployments make bench-operator makes, at least 100; 1000
##= WORKERS processes that share the tests of make test and make test-fast; 0 runs them in one
##= CI set: tests whose part this machine cannot run fail, where they are skipped otherwise
##= KUBEBUILDER_ASSETS folder with kube-apiserver, etcd and kubectl for the tests; the controllers are built by Go in any case
##= UMBRA_KEEP_CLUSTER set: the tests leave their cluster running, for a look (UMBRA_CLUSTER=test make down)
##= UMBRA_SEED number that a test which draws at random printed: it draws the same again
##= UMBRA_TRIALS how often the tests behind docs/decisions/0001 and 0002 try
##= UMBRA_DEBIAN_MIRROR mirror that has Debian 11, when apt's own has dropped it
