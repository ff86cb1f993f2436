# Umbra. `make help` lists what can be done here.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
CACHE := $(shell PYTHONPATH=images $(PYTHON) -m umbra_images.cachefolder)
ifeq ($(CACHE),)
$(error the folder for built things is not known, see above: set UMBRA_CACHE, or PYTHON to a Python 3.11)
endif
VENV := $(CACHE)/venv/$(shell cat requirements/dev.txt | sha256sum | cut -c1-16)
BIN := $(VENV)/bin
# Absolute, because what make starts runs elsewhere.
export UMBRA_CACHE := $(CACHE)
export PYTHONPATH := operator:linker:tests/lib:tests/cluster:tests/engine:tests/bench:images
export MYPYPATH := operator:linker

.PHONY: help
help: ## Lists the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

##@ The local cluster

.PHONY: up
up: python ## Starts a real local cluster with the whole product and restores a request from its store
	@$(PYTHON) -m localstack up

.PHONY: up-api
up-api: $(VENV)/done ## Starts only a control plane and the operator: no root, no node, no engine
	@$(BIN)/python -m localstack up --api-only

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

$(VENV)/done: requirements/dev.txt | python
	@$(PYTHON) -m umbra_images.cachefolder --writable >/dev/null
	@echo "installing the development tools into $(VENV)"
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --require-hashes --requirement requirements/dev.txt \
	  || { echo "error: the package registry cannot be reached; check the network and run the command again"; exit 1; }
	@touch $@

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
	@$(BIN)/mypy -p umbra_operator -p umbra_linker -p umbra_agent
	@$(BIN)/lint-imports
	@$(BIN)/python -m umbra_operator.codegen --check
	@$(BIN)/pytest --quiet --no-header tests/contract/test_tree.py tests/contract/test_architecture.py

.PHONY: format
format: $(VENV)/done ## Formats the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

.PHONY: test
test: check ## Runs every test, with the real engine, store, API server and kubelet; time per group at the end
	@$(BIN)/pytest tests

.PHONY: test-fast
test-fast: check ## Runs the tests that need no engine, API server or kubelet
	@$(BIN)/pytest tests -m "not engine and not apiserver and not kubelet"

.PHONY: lock
lock: $(VENV)/done ## Renews the lock files from requirements/*.in
	@for name in operator dev; do $(BIN)/uv pip compile --quiet --python-version 3.11 --generate-hashes --no-annotate \
	  --no-header --no-emit-index-url --no-emit-find-links requirements/$$name.in -o requirements/$$name.txt; done

.PHONY: clean-cache
clean-cache: ## Removes what was built outside the repository (the cluster must be down)
	@rm -rf $(CACHE)
