# The front door: `make demo` tries the stack, `make test` checks all of it, `make setup` builds .venv for both.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

URL ?= http://127.0.0.1:8080
RATE ?= 2
DURATION ?= 60
SCHEDULE ?= $(RATE):$(DURATION)
soak: MINUTES ?= 30
chaos: MINUTES ?= 10

.PHONY: help setup demo test test-tools unit lint audit chart loadtest soak chaos format lock images clean

help: ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

setup: ## build .venv from the locks in requirements/
	@scripts/setup "$(PYTHON)" "$(VENV)" && scripts/compile "$(VENV)"

demo: setup ## start the stack, ingest the standard library, ask a question (ONESHOT=1 stops after the answer)
	@scripts/demo "$(BIN)" "$(ONESHOT)"

test: setup test-tools lint ## run everything, real vLLM, Ray, Redis and Chromium included
	@$(BIN)/python -m pytest

test-tools:
	@scripts/test-tools

unit: setup ## run the tests that need neither Ray nor vLLM
	@$(BIN)/python -m pytest -m "not ray and not vllm"

lint: setup ## style, types, the import rules of docs/architecture.md, the Dockerfile, and bandit
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports && $(BIN)/hadolint docker/Dockerfile && scripts/audit "$(BIN)" code

audit: setup ## bandit over the packages, and what is known against the locked dependencies; needs PyPI's own API
	@scripts/audit "$(BIN)" code && scripts/audit "$(BIN)" dependencies

chart: setup ## lint and render the Helm chart, and check every manifest
	@$(BIN)/python -m scripts.chart

loadtest: setup ## load the stack at URL: RATE a second for DURATION seconds, or SCHEDULE; OPTIONS as in loadtest/README.md
	@$(BIN)/python -m loadtest --headless --only-summary --host "$(URL)" --schedule "$(SCHEDULE)" $(OPTIONS)

soak: setup ## hold 80 % of the capacity of the local stack at URL for MINUTES, and watch the memory of every process
	@$(BIN)/python -m loadtest.soak --url "$(URL)" --minutes "$(MINUTES)" $(OPTIONS)

chaos: setup ## start a stack, kill its processes one by one under load for MINUTES, and judge what every request came to
	@$(BIN)/python -m loadtest.chaos --minutes "$(MINUTES)" $(OPTIONS)

format: setup ## rewrite the sources in the project's style
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

lock: ## resolve pyproject.toml anew into requirements/*.lock
	@scripts/lock

images: ## build the container images for CPUs and GPUs; needs a Docker engine (docs/docker.md)
	@scripts/images

clean: ## remove .venv and caches
	find cachectl -name '*.so' -delete
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache build *.egg-info
