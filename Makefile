# make up: set up this machine and serve.   make test: set up, check, test.   See README.md.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# Compiled code is kept: thousands of processes of a run would compile it all again.
unexport PYTHONDONTWRITEBYTECODE

STATE_DIR ?= /var/lib/boxd
SSH_ADDR ?= 127.0.0.1:2222
API_ADDR ?= 127.0.0.1:8080
FLAGS ?=
PART ?=
MINUTES ?= 60
BIN := .venv/bin
CODE := wrkfs objectserver guest-agent daemon tests benchmarks scripts
# Three at a time, as half of their time they wait; each worker in a network of its own; whoever
# takes long begins first.
TESTS := $(addprefix tests/,isolation security soak crash browser integration mcp ssh fuzz faults mount model contract unit)
IN_ROOMS := --tx '3*popen//python=tests/room' --dist loadfile --no-loadscope-reorder
# What fetches packages, and what a user does on a fresh machine, needs the machine's own network.
ONLINE := tests/e2e
IMAGES := tests/integration/test_images.py
# What compares a neighbour's times before and during an attack must not have other neighbours.
ALONE := $(addprefix tests/isolation/test_exhaustion,.py _io.py)

# Failed tests are listed here as they fail, and printed when the run ends, however it ends.
FAILED := .build/failed-tests
LISTED := --failed-list $(FAILED)

# Targets that run beside each other, each with its output in one piece.
BESIDE = $(MAKE) --no-print-directory -j 2 -O

# What a killed benchmark leaves behind, servers and mounts, ends with it.
CONTAINED := unshare --mount --pid --fork --kill-child --mount-proc

.PHONY: help up down setup setup-dev setup-bench check check-types check-code format test test-images test-alone test-rooms test-online unit long long-status bench bench-drive bench-growth bench-boxes bench-budget bench-contention bench-ssh bench-http bench-mcp docs docs-pages clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

up: setup ## set up this machine and serve in the foreground (Ctrl-C stops everything)
	@exec $(BIN)/boxd serve --state-dir $(STATE_DIR) --ssh-addr $(SSH_ADDR) \
		--api-addr $(API_ADDR) --workspace-automount $(FLAGS)

down: ## stop what a killed daemon left running
	@$(BIN)/boxd down --state-dir $(STATE_DIR) $(FLAGS)

setup: ## Debian packages and virtual environment, for serving
	@scripts/setup

setup-dev: ## the same, and what checks and tests need
	@scripts/setup dev

setup-bench: ## the same, and who the drive is measured beside
	@scripts/setup bench

check: setup-dev ## format, lint, types, import contracts, file sizes, documentation
	@$(BESIDE) check-types check-code

check-types:
	$(BIN)/mypy

check-code:
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/lint-imports --no-cache
	$(BIN)/pytest -q tests/checks

format: ## rewrite the code in the house format
	$(BIN)/ruff check --fix-only $(CODE)
	$(BIN)/ruff format $(CODE)

test: setup-dev ## set up, check, and run all tests
	@$(BIN)/python -m tests.machine
	@$(BIN)/python -m tests.plugins.failed_tests --begin $(FAILED)
	@trap '$(BIN)/python -m tests.plugins.failed_tests $(FAILED)' EXIT; \
		$(BESIDE) check-types check-code test-images; \
		$(MAKE) --no-print-directory test-alone; \
		$(BESIDE) test-rooms test-online

test-images:
	$(BIN)/pytest -q $(LISTED) $(IMAGES)

test-alone:
	tests/room -m pytest -q $(LISTED) $(ALONE)

test-rooms:
	$(BIN)/pytest -q $(LISTED) $(IN_ROOMS) $(TESTS) $(addprefix --ignore=,$(IMAGES) $(ALONE))

test-online:
	$(BIN)/pytest -q $(LISTED) $(ONLINE)

unit: setup-dev ## the fast tests alone
	$(BIN)/pytest -q -n 2 tests/unit

long: setup-dev ## the long figures of the reliability catalogue (PART="CR-1 VI-1", MINUTES=60); goes on where it stopped
	$(BIN)/pytest -q --long --minutes $(MINUTES) $(addprefix --part ,$(PART)) tests; $(MAKE) -s long-status

long-status: ## what the long runs have reached
	@$(BIN)/python -m tests.plugins.figures

bench: bench-drive bench-growth bench-boxes bench-ssh bench-http bench-mcp ## all benchmarks (nothing else should run on the machine)

bench-drive: setup-bench ## drive beside JuiceFS and others on the same stores -> benchmarks/results/drive.* (FLAGS=--quick)
	$(CONTAINED) $(BIN)/python -m benchmarks.drive $(FLAGS)

bench-growth: setup-bench ## what an operation costs in large drives -> benchmarks/results/growth.* (FLAGS=--quick)
	$(CONTAINED) $(BIN)/python -m benchmarks.growth $(FLAGS)

bench-budget: setup-dev ## what an operation of our mount is made of -> benchmarks/results/budget.* (FLAGS=--quick)
	$(CONTAINED) $(BIN)/python -m benchmarks.budget $(FLAGS)

bench-contention: setup-dev ## four clients of two mounts in one directory, and what their longest calls wait for -> standard output
	$(CONTAINED) $(BIN)/python -m benchmarks.contention $(FLAGS)

bench-boxes: setup-dev ## boxes made, asleep, woken, forked, and many of them -> benchmarks/results/boxes* (FLAGS=--quick)
	$(BIN)/python -m benchmarks.boxes $(FLAGS)
	$(BIN)/python -m benchmarks.boxes_fleet $(FLAGS)

bench-ssh: setup-dev ## the front door beside Debian's sshd: connections, files, 100 at once -> benchmarks/results/ssh.* (FLAGS=--quick)
	$(BIN)/python -m benchmarks.ssh $(FLAGS)

bench-http: setup-dev ## the HTTP API beside the drive's mount and ports in boxes -> benchmarks/results/http.* (FLAGS=--quick)
	$(BIN)/python -m benchmarks.http $(FLAGS)

bench-mcp: setup-dev ## the MCP plane by each of its doors -> benchmarks/results/mcp.* (FLAGS=--quick)
	$(BIN)/python -m benchmarks.mcp $(FLAGS)

docs: setup-dev ## build the documentation -> .build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-pages: setup-dev ## write the pages of docs/ that are generated from the code
	@$(BIN)/python -m scripts.reference_pages

clean: ## remove the virtual environment and caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
