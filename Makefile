# Two commands do everything: `make run` and `make test`. Both make the virtual environment first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
VECTORS ?= tests/vectors
SEED ?= $(shell od -An -N3 -tu4 /dev/urandom | tr -d ' ')

.DEFAULT_GOAL := help
.PHONY: help setup run demo explain root test lint format unit conformance kernel kernel-host kernel-host-alone kernel-v1 kernel-v2 kernel-v2-agents kernel-v2-others kernel-v2-alone kernel-v2-long kernel-systemd bench docs clean soak

help: ## show this list
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.ready ## make .venv and install everything into it

$(VENV)/.ready: pyproject.toml constraints.txt tools/setup.sh
	PYTHON=$(PYTHON) VENV=$(VENV) sh tools/setup.sh
	@touch $@

run: setup root ## run the example pods on this machine (root); Ctrl-C ends them
	$(BIN)/evenkeel up examples/ --stop-pods

demo: setup root ## the three promises, shown on this machine (root), each with a verdict
	$(BIN)/evenkeel demo

explain: setup ## what a node would do with the example pods, and why (any user)
	$(BIN)/evenkeel explain -f examples/ --node 32Gi,8cpu

root:
	@test "$$(id -u)" = 0 || { \
	  echo "running pods takes root, for their cgroups: sudo make $(MAKECMDGOALS)"; \
	  echo "as you are: make explain shows what would happen, and why"; exit 1; }

test: setup lint unit conformance kernel ## everything: style, types, rooms, tests, conformance, kernels

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/requirements.py

format: setup ## put the code into its form
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

unit: setup
	$(BIN)/pytest -n auto

conformance: setup ## the answers of the real Kubernetes code, from VECTORS=DIR
	$(BIN)/python -m tests.conformance $(VECTORS)

# On each of them the tests run one after another and wait a lot, so several go on at once; the longest begin first.
KERNELS := kernel-host kernel-v2-agents kernel-v2-others kernel-systemd kernel-v1

kernel: setup ## the tests that need a real kernel, on four of them at once (root)
	@echo "kernel tests: on several machines at once; what each says is shown when it ends"
	@# This machine mostly waits, an emulated one keeps a processor busy.
	@$(MAKE) --no-print-directory --jobs=$$(($$(nproc) + 1)) --output-sync=target --keep-going $(KERNELS)
	@$(MAKE) --no-print-directory kernel-host-alone kernel-v2-alone

kernel-host: setup ## on this machine's own cgroups
	$(BIN)/python -m tests.machines test host --time-limit 1800 -- tests/kernel \
	  --ignore=tests/kernel/test_storms.py --ignore=tests/kernel/test_cpu_promises.py

# Beside nothing else: who goes in a storm, and who gets what of a processor, not what two emulators leave of either.
kernel-host-alone: setup
	$(BIN)/python -m tests.machines test host --time-limit 900 -- tests/kernel/test_storms.py \
	  tests/kernel/test_cpu_promises.py

kernel-v1: setup ## in a virtual machine with controllers of cgroup v1 mounted together, and huge pages
	$(BIN)/python -m tests.machines test v1 --cpus 2 --time-limit 900 -- \
	  tests/kernel/test_huge_pages.py tests/kernel/test_swap.py tests/kernel/test_drivers_v1.py \
	  tests/kernel/test_reconcile.py

kernel-v2: kernel-v2-agents kernel-v2-others kernel-v2-alone ## in virtual machines with cgroup v2

kernel-v2-agents: setup
	$(BIN)/python -m tests.machines test v2 --name v2-agents --cpus 2 --time-limit 2700 -- tests/kernel -m agent

kernel-v2-others: setup
	$(BIN)/python -m tests.machines test v2 --name v2-others --cpus 2 --time-limit 2700 -- tests/kernel -m 'not agent' \
	  --ignore=tests/kernel/test_cpu_promises.py

# Beside nothing else: who shares an emulated processor is not to pay for what the emulator has to wait. Of the long
# tests these storms are short enough to be there each time.
kernel-v2-alone: setup
	EVENKEEL_LONG=1 $(BIN)/python -m tests.machines test v2 --name v2-alone --cpus 2 --time-limit 900 -- \
	  tests/kernel/test_cpu_promises.py tests/kernel/test_storms.py -k 'not cri'

kernel-v2-long: setup ## crashes, storms and barrages there too, which takes most of an hour when emulated
	EVENKEEL_LONG=1 $(BIN)/python -m tests.machines test v2 --cpus 2 --time-limit 7200 -- tests/kernel -m long

kernel-systemd: setup ## in a virtual machine with systemd
	$(BIN)/python -m tests.machines test systemd --time-limit 1200

soak: setup root ## hours of it: the agent killed under 500 pods (SEED=n replays), hundreds of storms
	EVENKEEL_CRASH_PODS=500 EVENKEEL_CRASHES=60 EVENKEEL_SEED=$(SEED) \
	  $(BIN)/python -m tests.machines test host --time-limit 14400 -- tests/kernel/test_crashes.py -s
	EVENKEEL_STORMS=300 $(BIN)/python -m tests.machines test host --time-limit 14400 -- tests/kernel/test_storms.py -s

bench: setup ## every figure beside its reference, and bench/results.json
	$(BIN)/python -m bench

docs: setup ## generate docs/requirements.md from the tests' marks
	$(BIN)/python tools/requirements.py --write

clean:
	rm -rf $(VENV) .cache .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist bench/results.json
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
