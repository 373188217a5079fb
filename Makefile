# make up: set up this machine and serve.   make test: set up, check and test.   See README.md.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# Python caches compiled code; otherwise thousands of processes would compile it again.
unexport PYTHONDONTWRITEBYTECODE

STATE_DIR ?= /var/lib/boxd
SSH_ADDR ?= 127.0.0.1:2222
API_ADDR ?= 127.0.0.1:8080
FLAGS ?=
PART ?=
MINUTES ?= 60
BIN := .venv/bin
CODE := wrkfs objectserver guest-agent daemon clients tests benchmarks scripts
# Three workers run in parallel, because tests wait half of their time. Each has its own network.
# Slow folders come first.
TESTS := $(addprefix tests/,isolation security soak crash browser integration mcp ssh fuzz faults mount model contract unit)
IN_ROOMS := --tx '3*popen//python=tests/room' --dist loadfile --no-loadscope-reorder
# These tests fetch packages, or act as a user on a new machine. They need the machine's network.
ONLINE := tests/e2e
IMAGES := tests/integration/test_images.py
# These tests measure the effect of an attack on a neighbour, so no other tests may run.
ALONE := $(addprefix tests/isolation/resources/test_exhaustion,.py _io.py)

# The file lists failed tests as they fail. The list is printed at the end, also after an abort.
FAILED := .build/failed-tests
LISTED := --failed-list $(FAILED)

# Runs targets in parallel, with the output of each in one piece.
BESIDE = $(MAKE) --no-print-directory -j 2 -O

# Servers and mounts of a killed benchmark end with it.
CONTAINED := unshare --mount --pid --fork --kill-child --mount-proc

.PHONY: help up down setup setup-dev setup-bench check check-types check-code format test test-images test-alone test-rooms test-online unit long long-status bench bench-drive bench-growth bench-boxes bench-budget bench-contention bench-ssh bench-http bench-mcp docs docs-pages docs-pictures package audit clean

help: ## print this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

up: setup ## set up this machine and run boxd in the foreground (Ctrl-C stops everything)
	@exec $(BIN)/boxd serve --state-dir $(STATE_DIR) --ssh-addr $(SSH_ADDR) \
		--api-addr $(API_ADDR) --workspace-automount $(FLAGS)

down: ## stop all processes that a killed daemon left running
	@$(BIN)/boxd down --state-dir $(STATE_DIR) $(FLAGS)

setup: ## install the Debian packages and the virtual environment for serving
	@scripts/setup

setup-dev: ## setup, and install the tools of the checks and tests
	@scripts/setup dev

setup-bench: ## setup-dev, and install the file systems that the benchmarks compare
	@scripts/setup bench

check: setup-dev ## check format, lint, types, import contracts, file sizes and documentation
	@$(BESIDE) check-types check-code

check-types:
	$(BIN)/mypy
	scripts/typescript

check-code:
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/lint-imports --no-cache
	$(BIN)/pytest -q tests/checks

format: ## format the code
	$(BIN)/ruff check --fix-only $(CODE)
	$(BIN)/ruff format $(CODE)

test: setup-dev ## set up, check, and run all tests
	@$(BIN)/python -m tests.leftovers
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

unit: setup-dev ## run only the unit tests
	$(BIN)/pytest -q -n 2 tests/unit

long: setup-dev ## continue the long runs of the reliability catalogue (PART="CR-1 VI-1", MINUTES=60)
	$(BIN)/pytest -q --long --minutes $(MINUTES) $(addprefix --part ,$(PART)) tests; $(MAKE) -s long-status

long-status: ## print the progress of the long runs
	@$(BIN)/python -m tests.plugins.figures

bench: bench-drive bench-growth bench-boxes bench-ssh bench-http bench-mcp ## run all benchmarks (on an otherwise idle machine)

bench-drive: setup-bench ## compare the drive with JuiceFS and others on the same stores -> benchmarks/results/drive.* (FLAGS=--quick)
	$(CONTAINED) $(BIN)/python -m benchmarks.drive.measure $(FLAGS)

bench-growth: setup-bench ## measure operations in large drives -> benchmarks/results/growth.* (FLAGS=--quick)
	$(CONTAINED) $(BIN)/python -m benchmarks.drive.growth $(FLAGS)

bench-budget: setup-dev ## measure the parts of an operation of the mount -> benchmarks/results/budget.* (FLAGS=--quick)
	$(CONTAINED) $(BIN)/python -m benchmarks.drive.budget $(FLAGS)

bench-contention: setup-dev ## measure the waits of four clients on two mounts in one directory -> standard output
	$(CONTAINED) $(BIN)/python -m benchmarks.drive.contention $(FLAGS)

bench-boxes: setup-dev ## measure create, suspend, resume and fork of boxes, and many boxes -> benchmarks/results/boxes* (FLAGS=--quick)
	$(BIN)/python -m benchmarks.boxes.measure $(FLAGS)
	$(BIN)/python -m benchmarks.boxes.fleet $(FLAGS)

bench-ssh: setup-dev ## compare the SSH server with Debian's sshd: connections, files, 100 clients -> benchmarks/results/ssh.* (FLAGS=--quick)
	$(BIN)/python -m benchmarks.ssh.measure $(FLAGS)

bench-http: setup-dev ## compare the HTTP API with the mount and with ports in boxes -> benchmarks/results/http.* (FLAGS=--quick)
	$(BIN)/python -m benchmarks.http.measure $(FLAGS)

bench-mcp: setup-dev ## measure MCP over each transport -> benchmarks/results/mcp.* (FLAGS=--quick)
	$(BIN)/python -m benchmarks.mcp $(FLAGS)

package: setup ## build the wheel and the Debian package -> dist/
	@packaging/build

audit: setup-dev ## look up the locked Python packages in the database of known vulnerabilities
	@$(BIN)/python -m scripts.audit

docs: setup-dev ## build the documentation site -> .build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-pages: setup-dev ## generate the reference pages of docs/ from the code
	@$(BIN)/python -m scripts.reference_pages

docs-pictures: setup-dev ## run the tests that make the pictures -> docs/pictures
	rm -rf .build/pictures
	REPLACE_PICTURES=1 tests/room -m pytest -q tests/browser/test_pictures.py
	cp .build/pictures/* docs/pictures/

clean: ## remove the virtual environment and caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
