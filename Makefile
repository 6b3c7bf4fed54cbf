# `make demo` tries the stack, `make test` checks all of it, `make setup` builds .venv for both.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
# One worker more than cores, because tests often wait. Engines compute on every core they get, so two start them.
WORKERS ?= $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) + 1 )))
# Files run in order of their names. pytest-xdist would start the largest first, and would end with the slowest tests,
# which have files of their own, on one worker.
ORDER := --no-loadscope-reorder
# Each worker and each process of a stack imports the same thousand files.
unexport PYTHONDONTWRITEBYTECODE

URL ?= http://127.0.0.1:8080
RATE ?= 2
DURATION ?= 60
SCHEDULE ?= $(RATE):$(DURATION)
soak: MINUTES ?= 30
chaos: MINUTES ?= 10
fuzz: MINUTES ?= 10

.PHONY: help setup demo test prove test-tools unit lint types style audit chart loadtest soak chaos fuzz format lock images clean

help: ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

setup: ## build .venv from the locks in requirements/
	@scripts/setup "$(PYTHON)" "$(VENV)" && scripts/compile "$(VENV)"

demo: setup ## start the stack, ingest the standard library, ask a question (ONESHOT=1 stops after the answer)
	@scripts/demo "$(BIN)" "$(ONESHOT)"

test: setup test-tools lint ## lint, then run the tests, including those with real vLLM, Ray, Redis and Chromium
	@$(PYTEST) -n $(WORKERS) -m "not prove and not ray and not vllm"
	@$(PYTEST) -n 2 $(ORDER) -m "not prove and (ray or vllm)"

prove: setup test-tools ## run what takes long: proofs, chaos, all examples of property tests (SINCE=COMMIT: what changed)
	@$(if $(SINCE),,RAGTREE_TEST_ALL_EXAMPLES=1) $(PYTEST) -n 2 $(ORDER) \
	  -m $(if $(SINCE),prove --changed-since $(SINCE),"prove or hypothesis")

test-tools:
	@scripts/test-tools

unit: setup ## run the tests that need neither Ray nor vLLM
	@$(PYTEST) -n $(WORKERS) -m "not ray and not vllm"

lint: setup ## check style, types, import rules (docs/architecture.md), the Dockerfile, and run bandit
	@$(MAKE) --no-print-directory --jobs --output-sync types style

# mypy keeps one core busy. The other checks fit on another one.
types:
	@$(BIN)/mypy

style:
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports && $(BIN)/hadolint docker/Dockerfile && scripts/audit "$(BIN)" code

audit: setup ## run bandit and pip-audit (known vulnerabilities of locked versions); needs PyPI's own API
	@scripts/audit "$(BIN)" code && scripts/audit "$(BIN)" dependencies

chart: setup ## lint and render the Helm chart, and check every manifest
	@$(BIN)/python -m scripts.chart

loadtest: setup ## load the stack at URL: RATE per second for DURATION seconds, or SCHEDULE; OPTIONS: see loadtest/README.md
	@$(BIN)/python -m loadtest --headless --only-summary --host "$(URL)" --schedule "$(SCHEDULE)" $(OPTIONS)

soak: setup ## hold 80 % of the local stack's capacity at URL for MINUTES and watch the memory of every process
	@$(BIN)/python -m ragtree_lab.soak --url "$(URL)" --minutes "$(MINUTES)" $(OPTIONS)

chaos: setup ## start a stack, kill its processes one by one under load for MINUTES, and judge every request
	@$(BIN)/python -m ragtree_lab.chaos --minutes "$(MINUTES)" $(OPTIONS)

fuzz: setup ## start a stack, send it all that strangers can send for MINUTES, and let a second tenant judge the answers
	@$(BIN)/python -m ragtree_lab.fuzz --minutes "$(MINUTES)" $(OPTIONS)

format: setup ## format the sources
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

lock: ## resolve pyproject.toml into requirements/*.lock
	@scripts/lock

images: ## build the container images for CPUs and GPUs; needs a Docker engine (docker/README.md)
	@scripts/images

clean: ## remove .venv and caches
	find cachectl -name '*.so' -delete
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache build *.egg-info
