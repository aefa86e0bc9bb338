# Two commands do everything: `make run` and `make test`. Both make the virtual environment first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
VECTORS ?= tests/vectors
# What `make stress` repeats: how often, and where.
N ?= 20
MACHINE ?= host
SEED ?= $(shell od -An -N3 -tu4 /dev/urandom | tr -d ' ')

# What runs where is in tests/machines/parts.py.
KERNEL_PARTS := $(addprefix kernel-, \
  host host-alone host-attacks host-containers host-pressure v1 v2-agents v2-others v2-alone v2-long \
  user-mode-agents user-mode-attacks user-mode-others user-mode-containers systemd cluster cluster-long kubelet \
  fuzz fuzz-stories)

.DEFAULT_GOAL := help
.PHONY: help setup run demo explain root test lint format unit conformance kernel kernel-v2 kernel-user-mode cluster e2e bench docs clean soak stress $(KERNEL_PARTS)

help: ## show this list
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-19s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

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

test: setup lint unit conformance kernel ## everything: style, types, rooms, tests, conformance, kernels, a cluster

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python tools/requirements.py
	$(BIN)/python tools/rooms.py
	$(BIN)/python tools/doc_names.py

format: setup ## put the code into its form
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Tests start the project's programs hundreds of times: compiled before, also where PYTHONDONTWRITEBYTECODE is set.
unit: setup
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m compileall -q src
	$(BIN)/pytest -n auto

conformance: setup ## the answers of the real Kubernetes code, from VECTORS=DIR
	$(BIN)/python -m tests.conformance $(VECTORS)

kernel: setup ## the tests that need a real kernel, on five machines, and a real cluster (root)
	@$(BIN)/python -m tests.machines all

$(KERNEL_PARTS): setup
	$(BIN)/python -m tests.machines part $(@:kernel-%=%)

kernel-host: kernel-host-pressure kernel-host-containers kernel-host-attacks ## on this machine's own cgroups
kernel-v1: ## in a virtual machine with controllers of cgroup v1 mounted together, and huge pages
kernel-v2: kernel-v2-agents kernel-v2-others kernel-v2-alone ## in virtual machines with cgroup v2
kernel-user-mode: kernel-user-mode-agents kernel-user-mode-attacks kernel-user-mode-others ## on cgroup v2 of a kernel that is a process, most tests with an agent
kernel-user-mode-containers: ## the tests with an agent once more, with containerd, which takes half an hour
kernel-v2-long: ## crashes, storms and barrages there too, which takes most of an hour when emulated
kernel-systemd: ## in a virtual machine with systemd

kernel-cluster: ## with nodes of a real Kubernetes control plane on this machine, which Go builds once
kernel-cluster-long: ## thirty pods over three nodes, and a connection that breaks all the time, there too
kernel-kubelet: ## the same kernel files as the real kubelet, on this machine's own cgroups; Go builds kubelet once

cluster: setup root ## a Kubernetes control plane with three nodes on this machine, to try (root); Ctrl-C removes it
	@$(BIN)/python -m tests.cluster up

e2e: setup root ## upstream's end-to-end tests of nodes, on a real control plane (root); a table of what they say
	@$(BIN)/python -m tests.cluster e2e

stress: setup root ## TESTS='tests/kernel/…' N=20 times on MACHINE=host, half of them beside load (SEED=n replays)
	@$(if $(TESTS),,echo "no tests: make stress TESTS='tests/kernel/test_machine.py -k name' N=20 MACHINE=host"; exit 2)
	@$(BIN)/python -m tests.machines stress $(MACHINE) --rounds $(N) --seed $(SEED) -- $(TESTS)

soak: setup root ## hours of it: the agent killed under 500 pods (SEED=n replays), hundreds of storms
	EVENKEEL_CRASH_PODS=500 EVENKEEL_CRASHES=60 EVENKEEL_SEED=$(SEED) \
	  $(BIN)/python -m tests.machines test host --time-limit 14400 -- tests/kernel/test_crashes.py -s
	EVENKEEL_STORMS=300 $(BIN)/python -m tests.machines test host --time-limit 14400 -- tests/kernel/test_storms.py -s
	EVENKEEL_KILLS=1000 EVENKEEL_SEED=$(SEED) \
	  $(BIN)/python -m tests.machines test host --time-limit 14400 -- tests/kernel/test_watch.py -k any_moment
	EVENKEEL_FAULTS=200 EVENKEEL_SEED=$(SEED) \
	  $(BIN)/python -m tests.machines test host --time-limit 14400 -- tests/attacks/test_fault_storms.py -s
	EVENKEEL_KILLS=50 EVENKEEL_ROUGH_ROUNDS=1000 EVENKEEL_SEED=$(SEED) \
	  $(BIN)/python -m tests.machines part cluster-long
	EVENKEEL_SESSIONS=1000 \
	  $(BIN)/python -m tests.machines test host --time-limit 14400 -- tests/kernel/test_exec.py tests/kernel/test_attach.py -k many
	EVENKEEL_FUZZ_SECONDS=1800 EVENKEEL_SEED=$(SEED) $(BIN)/pytest tests/fuzz

bench: setup ## every figure beside its reference, and bench/results.json
	$(BIN)/python -m bench

docs: setup ## generate docs/requirements.md from the tests' marks, and docs/rooms.svg from the imports
	$(BIN)/python tools/requirements.py --write
	$(BIN)/python tools/rooms.py --write

clean:
	rm -rf $(VENV) .cache .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist bench/results.json
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
