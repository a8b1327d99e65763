# Every target runs in the environment that `make setup` makes. You need not activate the environment.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# The interpreter from which the environment is made.
PYTHON ?= python3.11

PACKAGES := conf storage metrics spark device etl training scoring reporting nightrank jobs setup local_airflow
# airflow_dags imports Airflow, which is installed in a separate environment. So ruff checks airflow_dags, but mypy cannot.
LINTED := $(PACKAGES) $(wildcard airflow_dags) tests $(wildcard benchmarks)
IN_ENV := . setup/env.sh &&
# Extra arguments for the command of a target: make test ARGS='-k topk', make demo ARGS=--help
ARGS ?=
# Number of processes that run the tests. It is one more than two cores, because tests often wait for jobs and servers.
# With 0, all tests run in one process, which needs less memory.
TEST_WORKERS ?= 3

.PHONY: help setup demo airflow airflow-test jars doctor audit dist wheel test test-extended test-all test-fast test-changed fuzz campaign image-test large-test check format docs lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv from the lock files and build Horovod (about 6 minutes the first time, on two cores)
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not on PATH: apt-get install python3.11 python3.11-venv, or make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -m setup.install

demo: setup ## run the nightly job for three days of a generated click log, and measure the lists
	@$(IN_ENV) python jobs/demo.py $(ARGS)

airflow: setup ## start Airflow on 127.0.0.1, train, make the lists of a day, and keep Airflow running (docs/airflow.md)
	@$(IN_ENV) python -m local_airflow $(ARGS)

airflow-test: setup ## run the tests of the DAGs, including those on a real scheduler, which make test leaves out
	@$(IN_ENV) pytest tests/airflow $(ARGS)

jars: setup ## fetch jars (1.1 GB, once): the RAPIDS Accelerator for tests of GPU plans, S3, HDFS, Iceberg, Delta, PostgreSQL's driver
	@$(IN_ENV) python -m setup.jars

# PROFILE is the name of a file in conf/spark, or a path. More arguments: make doctor ARGS='--profile on-yarn --lake PATH'
PROFILE ?= local
doctor: setup ## check whether this machine can run the jobs of a Spark profile: make doctor PROFILE=etl-gpu
	@$(IN_ENV) python -m setup.doctor --profile $(PROFILE) $(ARGS)

audit: setup ## look up vulnerabilities of all packages and jars at OSV (needs a network); requirements/audit.toml lists accepted ones
	@$(IN_ENV) python -m setup.audit $(ARGS)

dist: setup ## make build/nightrank-<version>.tar for a cluster: the wheel, a packed environment, jobs, settings and DAGs
	@$(IN_ENV) python -m setup.dist

wheel: setup ## make build/nightrank-<version>-….whl, which reads lakes and uses models without Spark (docs/python.md)
	@$(IN_ENV) python -m setup.python_wheel

# On CI the tests of GPU plans, lakes and sinks must not be skipped, so the jars that they need are fetched first.
# Our packages are compiled once here. Otherwise, if PYTHONDONTWRITEBYTECODE is set, each test process would compile them again.
# OMP_THREAD_LIMIT gives each test process one thread of OpenMP. The processes share the cores, so a training run with two
# threads would take up to three times the CPU time, most of it in threads that wait for one another.
# MARKS is an expression of pytest's markers. If it is empty, the tests of make test and of make test-extended run together.
MARKS ?= not extended
test: setup $(if $(CI),jars) ## run the tests of every behaviour once (10 to 17 minutes on two cores)
	@$(IN_ENV) python -m compileall -q $(PACKAGES) && OMP_THREAD_LIMIT=1 pytest -n $(TEST_WORKERS) -m "$(MARKS)" $(ARGS)

test-extended: setup $(if $(CI),jars) ## run what make test leaves out: clusters, every store and engine, long faults, old lakes, rehearsals, Airflow's scheduler
	@$(IN_ENV) python -m compileall -q $(PACKAGES) && pytest -n $(TEST_WORKERS) -m extended $(ARGS)

# These tests compile a server of Google's store with Go, install 7 GB with pip, and pack 5 GB for YARN. Others run all jobs on a store.
large-test: setup jars ## run the tests that need gigabytes, many minutes or Go: all jobs on other stores and on YARN, and an installation with pip
	@$(IN_ENV) pytest -m large -rP $(ARGS)

test-all: test test-extended image-test large-test ## run all tests: make test, make test-extended, make image-test and make large-test

# OMP_NUM_THREADS is 1, because two test processes share two cores.
test-fast: setup ## run only unit and property tests, without Spark jobs (under 90 seconds on two cores)
	@$(IN_ENV) OMP_NUM_THREADS=1 pytest -n 2 -m "not spark and not servers and not cluster and not processes and not slow and not extended" $(ARGS)

# SINCE is a commit. HEAD, the default, means the changes that are not committed.
SINCE ?= HEAD
test-changed: setup ## run the tests nearest to the changed files, at most 3 minutes: make test-changed SINCE=HEAD~1
	@$(IN_ENV) OMP_NUM_THREADS=1 python -m setup.changed_tests --since $(SINCE) $(ARGS)

fuzz: setup ## run compiled code under sanitizers, and readers of files, on mutated inputs: make fuzz ARGS='--seconds 600 --seed 3'
	@$(IN_ENV) python -m tests.fuzz $(ARGS)

campaign: setup ## kill, disturb and damage the jobs and files of a small lake at random: make campaign ARGS='--seconds 3600 --seed 3'
	@$(IN_ENV) nice -n 10 python -m tests.campaign $(ARGS)

# With unshare, the mounts of buildah end with the tests, even if the tests are killed. Set IMAGE_STORE=FOLDER to keep the images there.
image-test: jars ## build the container images with buildah and run a small chain in them (needs root, 20 GB and 20 minutes)
	@$(IN_ENV) unshare --mount pytest -m image -rP tests/container/test_image.py $(ARGS)

format: setup ## sort imports and format the code
	@$(IN_ENV) ruff check --select I --fix --quiet $(LINTED)
	@$(IN_ENV) ruff format $(LINTED)

check: setup ## check lint rules, formatting, types, and the number and size of modules
	@$(IN_ENV) ruff check $(LINTED)
	@$(IN_ENV) ruff format --check $(LINTED)
	@$(IN_ENV) mypy $(PACKAGES) $(wildcard benchmarks)
	@$(IN_ENV) python -m setup.house --check

docs: setup ## make the generated reference pages, conf/schema.json, and the documentation site in build/docs/site
	@$(IN_ENV) python -m etl.ops.pages docs/operators
	@$(IN_ENV) python -m jobs.reference
	@$(IN_ENV) python -m setup.job_pages
	@$(IN_ENV) python -m setup.docs_site

UV_COMPILE = UV_CUSTOM_COMPILE_COMMAND='make lock' ../.bootstrap/bin/uv pip compile --quiet --generate-hashes --no-annotate \
	--no-emit-index-url --python-version 3.11 --python-platform x86_64-manylinux_2_28 $(ARGS)

lock: setup ## resolve requirements/*.in into the lock files again (ARGS=--upgrade for newer versions)
	@cd requirements && $(UV_COMPILE) --override overrides.in runtime.in -o runtime.txt
	@cd requirements && $(UV_COMPILE) -c runtime.txt build.in dev.in -o tools.txt
	@cd requirements && $(UV_COMPILE) -c runtime.txt benchmark.in -o benchmark.txt
	@cd requirements && $(UV_COMPILE) benchmark-nvtabular.in -o benchmark-nvtabular.txt
	@cd requirements && $(UV_COMPILE) benchmark-lists.in -o benchmark-lists.txt
	@cd requirements && $(UV_COMPILE) --override benchmark-neural-overrides.in benchmark-neural.in -o benchmark-neural.txt
	@cd requirements && $(UV_COMPILE) test-s3.in -o test-s3.txt
	@cd requirements && $(UV_COMPILE) test-google.in -o test-google.txt
	@cd requirements && $(UV_COMPILE) test-readers.in -o test-readers.txt
	@cd requirements && $(UV_COMPILE) test-tables.in -o test-tables.txt
	@cd requirements && $(UV_COMPILE) test-postgres.in -o test-postgres.txt
	@cd requirements && $(UV_COMPILE) test-redis.in -o test-redis.txt
	@cd requirements && $(UV_COMPILE:x86_64-manylinux_2_28=x86_64-manylinux_2_35) test-triton.in -o test-triton.txt
	@cd requirements && $(UV_COMPILE) test-container.in -o test-container.txt
	@cd requirements && $(UV_COMPILE) test-sbom.in -o test-sbom.txt
	@cd requirements && $(UV_COMPILE) airflow.in -o airflow.txt
	@cd requirements && $(UV_COMPILE) docs.in -o docs.txt
	@cd requirements && $(UV_COMPILE) bootstrap.in -o bootstrap.txt
	@cd requirements && $(UV_COMPILE) --no-deps horovod.in -o horovod.txt

clean: ## remove caches and the files that runs leave in the checkout; keep .venv and lake
	rm -rf demo_out spark-warehouse metastore_db derby.log work build .gradle .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find $(LINTED) -name __pycache__ -type d -prune -exec rm -rf {} +
