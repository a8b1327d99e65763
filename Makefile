# Every target runs in the environment that `make setup` makes; nothing needs to be activated by hand.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# The interpreter the environment is made from.
PYTHON ?= python3.11

PACKAGES := conf storage metrics spark etl training scoring reporting jobs setup local_airflow
# airflow_dags imports Airflow, which has an environment of its own: ruff reads it, mypy cannot.
LINTED := $(PACKAGES) $(wildcard airflow_dags) tests $(wildcard benchmarks)
IN_ENV := . setup/env.sh &&
# Given by hand: make test ARGS='-k topk', make demo ARGS=--help
ARGS ?=
# Processes that share the tests, one more than two cores: jobs and servers are waited for. 0: all in one process, with less memory.
TEST_WORKERS ?= 3

.PHONY: help setup demo airflow airflow-test jars dist test test-fast check format docs lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv from the lock files and build Horovod (about 3 minutes once on two cores, then nothing)
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not on PATH: apt-get install python3.11 python3.11-venv, or make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -m setup.install

demo: setup ## three nights end to end on a generated click log, and what their lists are worth
	@$(IN_ENV) python jobs/demo.py $(ARGS)

airflow: setup ## an Airflow on loopback that trains and makes the lists of a day, then stays for a look (docs/airflow.md)
	@$(IN_ENV) python -m local_airflow $(ARGS)

airflow-test: setup ## the tests of the DAGs, on a real scheduler (make test runs them too)
	@$(IN_ENV) pytest tests/airflow $(ARGS)

jars: setup ## fetch jars (920 MB, once): the RAPIDS Accelerator for tests of GPU plans, S3, HDFS and PostgreSQL's driver
	@$(IN_ENV) python -m setup.jars

dist: setup ## build/nightrank-<version>.tar: the wheel, a packed environment, jobs, settings and DAGs, for a cluster
	@$(IN_ENV) python -m setup.dist

# On CI the tests of GPU plans and of lakes and sinks are not skipped, so that their jars are fetched first.
# Compiled once: where PYTHONDONTWRITEBYTECODE is set, each of the suite's processes would compile our packages anew.
test: setup $(if $(CI),jars) ## the test suite
	@$(IN_ENV) python -m compileall -q $(PACKAGES) && pytest -n $(TEST_WORKERS) $(ARGS)

# OMP_NUM_THREADS: two processes on two cores.
test-fast: setup ## units and properties alone, no Spark job: under 90 seconds on two cores
	@$(IN_ENV) OMP_NUM_THREADS=1 pytest -n 2 -m "not spark and not servers and not cluster and not processes" $(ARGS)

format: setup ## sort imports and format the code
	@$(IN_ENV) ruff check --select I --fix --quiet $(LINTED)
	@$(IN_ENV) ruff format $(LINTED)

check: setup ## lint, formatting and types
	@$(IN_ENV) ruff check $(LINTED)
	@$(IN_ENV) ruff format --check $(LINTED)
	@$(IN_ENV) mypy $(PACKAGES) $(wildcard benchmarks)

docs: setup ## the generated reference pages, conf/schema.json, and the documentation site in build/docs/site
	@$(IN_ENV) python -m etl.ops.pages docs/operators
	@$(IN_ENV) python -m jobs.reference
	@$(IN_ENV) python -m setup.job_pages docs/jobs.md
	@$(IN_ENV) python -m setup.docs_site

UV_COMPILE = UV_CUSTOM_COMPILE_COMMAND='make lock' ../.bootstrap/bin/uv pip compile --quiet --generate-hashes --no-annotate \
	--no-emit-index-url --python-version 3.11 --python-platform x86_64-manylinux_2_28 $(ARGS)

lock: setup ## resolve requirements/*.in anew into the lock files (ARGS=--upgrade for newer versions)
	@cd requirements && $(UV_COMPILE) --override overrides.in runtime.in -o runtime.txt
	@cd requirements && $(UV_COMPILE) -c runtime.txt build.in dev.in -o tools.txt
	@cd requirements && $(UV_COMPILE) -c runtime.txt benchmark.in -o benchmark.txt
	@cd requirements && $(UV_COMPILE) benchmark-nvtabular.in -o benchmark-nvtabular.txt
	@cd requirements && $(UV_COMPILE) test-s3.in -o test-s3.txt
	@cd requirements && $(UV_COMPILE) test-readers.in -o test-readers.txt
	@cd requirements && $(UV_COMPILE) test-postgres.in -o test-postgres.txt
	@cd requirements && $(UV_COMPILE) test-container.in -o test-container.txt
	@cd requirements && $(UV_COMPILE) airflow.in -o airflow.txt
	@cd requirements && $(UV_COMPILE) docs.in -o docs.txt
	@cd requirements && $(UV_COMPILE) bootstrap.in -o bootstrap.txt
	@cd requirements && $(UV_COMPILE) --no-deps horovod.in -o horovod.txt

clean: ## remove caches and what runs leave in the checkout; .venv and lake stay
	rm -rf demo_out spark-warehouse metastore_db derby.log work build .gradle .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find $(LINTED) -name __pycache__ -type d -prune -exec rm -rf {} +
