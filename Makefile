# Two commands do everything on a fresh machine: `make demo` and `make test`.
# The rest: setup, learner, check (the quick round before a commit), long, proofs, faults, soak, bench, constraints, clean.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LEARNER := $(VENV)/.learner
# In several processes, in each of which torch would take every core. Each program that a test starts
# would compile our sources anew where an environment forbids Python to write byte code.
SHARED_OUT := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
FAST := not deployment and not kafka and not postgres and not vllm and not ray and not prometheus and not browser and not benchmarks and not faults and not processes and not learning

.PHONY: help setup components learner lint check test long proofs demo faults soak bench constraints clean

help: ## This list.
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

setup: $(READY) ## A virtual environment in .venv with kintsugi and its tools; no root.

# The stamp is newer than what it was made from, so an up-to-date environment costs nothing.
$(READY): pyproject.toml constraints.txt
	@ops/install/environment "$(PYTHON)" "$(VENV)"
	@touch $@

# The learner's packages take 4.7 GB: only what runs or checks it fetches them.
$(LEARNER): $(READY)
	@ops/install/environment "$(PYTHON)" "$(VENV)" train
	@touch $@

components: $(READY) ## PostgreSQL, Prometheus, docker-compose, Java, Maven, a C compiler, Apache Kafka, vLLM, Ray, bfcl-eval: where missing.
	@ops/install/components "$(BIN)/python"

lint: $(LEARNER) ## Format, rules, types, which package may import which, and the goals of ops.house.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m ops.house

check: lint ## Lint and the tests that need no service: five minutes.
	$(SHARED_OUT) -q -n auto --no-loadscope-reorder -m "$(FAST)"

# A whole run also fails where a test that a document names as proof did not run and pass.
test: components $(LEARNER) ## All tests but the long ones, against a real Kafka, PostgreSQL, vLLM and Ray.
	$(SHARED_OUT) -n 2 --no-loadscope-reorder --max-worker-restart 1 \
	    --durations 12 $(if $(PYTEST),$(PYTEST),--proofs test)

long: components $(LEARNER) ## The tests that take minutes each: the whole loop on the real stack, jobs on vLLM and Ray, Helm, MLflow, a Collector.
	$(BIN)/python -m ops.helm.programs
	$(BIN)/python -m ops.mlflow.server
	$(BIN)/python -m ops.collector.server
	$(SHARED_OUT) -m long --durations 12 $(if $(PYTEST),$(PYTEST),--proofs long)

proofs: components $(LEARNER) ## The tests that docs/guarantees.md names as proof, and no others; PROOFS=--long: the long ones.
	OMP_NUM_THREADS=1 $(BIN)/python -m ops.proofs $(PROOFS)

demo: $(LEARNER) ## An agent that keeps failing at something gets better by itself. Needs no service.
	@$(BIN)/python -m ops.demo $(DEMO)

learner: $(LEARNER) ## The packages of the learner too (torch, transformers, peft): 4.7 GB.

faults: components ## Every fault driver at its full count (hours); resumes where it was stopped.
	$(BIN)/python -m ops.faults.run $(FAULTS)

soak: components $(LEARNER) ## Two hours of everything at once, with kills and restarts: what grows, and whether anything is lost.
	$(BIN)/python -m ops.soak $(SOAK)

bench: $(LEARNER) ## Speed of log, folds, gateway and a step here, as ratios; what a call takes on disk; errors of guard and lift. One JSON each.
	$(BIN)/python -m ops.bench.append
	$(BIN)/python -m ops.bench.fold
	$(BIN)/python -m ops.bench.replay
	$(BIN)/python -m ops.bench.gateway
	$(BIN)/python -m ops.bench.gateway.counting
	$(BIN)/python -m ops.bench.sizing
	$(BIN)/python -m ops.bench.guard --table
	$(BIN)/python -m ops.bench.lift
	$(BIN)/python -m ops.bench.step

constraints: $(READY) ## Pin the newest versions that pyproject.toml allows.
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --no-annotate \
	    --no-header --extra train --extra otel --group dev --output-file constraints.txt pyproject.toml

clean: ## Remove what make and the tools left, the virtual environment included.
	rm -rf $(VENV) .local dist .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	    .import_linter_cache demo-report.json demo-report.html
