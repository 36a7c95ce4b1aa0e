# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0

# gpu_cluster.readiness. "make help" lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
VENV := .venv/bin
DEFINITIONS := catalog/simulations
SIMULATION ?= $(DEFINITIONS)/healthy.yml
ARGS ?=
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export ANSIBLE_LOCALHOST_WARNING := False

.PHONY: isolation-campaign fault-matrix help setup setup-test certify simulated-cluster control-plane test test-vectors test-control-plane lint clean

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

control-plane: setup-test ## Run a genuine Kubernetes control plane with simulated nodes until Ctrl-C (needs Go; the first build takes ten minutes)
	@exec $(VENV)/python -m ansible_collections.gpu_cluster.readiness.tests.control_plane \
	  --definition "$(SIMULATION)" --kubeconfig .build/control-plane.kubeconfig --jobset-and-trainer $(ARGS)

test: setup-test ## Run the whole test suite
	@tests/run

test-vectors: setup-test ## Compare the parsers with the log vectors; READINESS_CASES=<dir:dir> names others
	@$(VENV)/python -m pytest -q tests/vectors

isolation-campaign: setup-test ## Measure fault isolation on random worlds; WORLDS=n per table cell, SEED=s, ONLY=random|wild|table, OUTPUT=file.json
	@$(VENV)/python tests/benchmarks/isolation_campaign.py --worlds $(or $(WORLDS),12) --seed $(or $(SEED),1) $(if $(ONLY),--only "$(ONLY)") $(if $(OUTPUT),--output $(OUTPUT))

fault-matrix: setup-test ## Certify simulated clusters through an API that fails, cell by cell (an hour); ONLY=text of their names, OUTPUT=file.json
	@$(VENV)/python -m ansible_collections.gpu_cluster.readiness.tests.fault_matrix $(if $(ONLY),--only "$(ONLY)") $(if $(OUTPUT),--output "$(OUTPUT)") $(ARGS)

test-control-plane: setup-test ## Run the end-to-end scenarios and the API contract on a genuine control plane alone
	@tests/run control-plane

lint: setup-test ## ruff, mypy, yamllint, ansible-lint, antsibull, reuse
	@tests/lint

clean: ## Remove what the other targets made; run archives stay
	@rm -rf .venv .build .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .ansible tests/output
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo "Removed the virtual environment, build folders and caches"
