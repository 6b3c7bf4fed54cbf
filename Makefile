# The front door: `make demo` tries the stack, `make test` checks all of it, `make setup` builds .venv for both.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help setup demo test test-tools unit lint audit format lock images clean

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

format: setup ## rewrite the sources in the project's style
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

lock: ## resolve pyproject.toml anew into requirements/*.lock
	@scripts/lock

images: ## build the container images for CPUs and GPUs; needs a Docker engine (docs/docker.md)
	@scripts/images

clean: ## remove .venv and caches
	find cachectl -name '*.so' -delete
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache build *.egg-info
