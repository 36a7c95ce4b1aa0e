# gpu_cluster.readiness. "make help" lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
VENV := .venv/bin
DEFINITIONS := catalog/simulations
SIMULATION ?= $(DEFINITIONS)/healthy.yml
ARGS ?=
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export ANSIBLE_LOCALHOST_WARNING := False

.PHONY: help setup setup-test certify simulated-cluster test test-vectors lint clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1|/' | column -t -s '|'

setup:
	@tools/setup_venv run

setup-test:
	@tools/setup_venv test

certify: setup ## Certify a simulated cluster and print the report; SIMULATION=<definition.yml> takes another, ARGS='…' goes to ansible-playbook
	@tools/with_simulated_cluster "$(SIMULATION)" \
	  $(VENV)/ansible-playbook -i inventories/simulated gpu_cluster.readiness.certify $(ARGS)

simulated-cluster: setup ## Run a simulated cluster until Ctrl-C; prints KUBECONFIG=<path> when ready; SIMULATION=<definition.yml>
	@mkdir -p .build
	@exec $(VENV)/python -m ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator \
	  --definition "$(SIMULATION)" --kubeconfig .build/simulated-cluster.kubeconfig

test: setup-test ## Run the whole test suite
	@tests/run

test-vectors: setup-test ## Compare the parsers with the log vectors; READINESS_CASES=<dir:dir> names others
	@$(VENV)/python -m pytest -q tests/vectors

lint: setup-test ## ruff, mypy, yamllint, ansible-lint, antsibull
	@tests/lint

clean: ## Remove what the other targets made; run archives stay
	@rm -rf .venv .build .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .ansible tests/output
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo "Removed the virtual environment, build folders and caches"
