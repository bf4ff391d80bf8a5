# Each target sets itself up: a virtual environment in .venv, made once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXECUTORCH ?= 1.5.1

N ?= 1000

.PHONY: demo test models-test kernels-test lint format bench parity fuzz clean

demo: $(VENV)/.demo
	$(BIN)/executorch-slice demo

test: $(VENV)/.test
	$(BIN)/python -m pytest -n 2 --dist worksteal

models-test: $(VENV)/.models $(VENV)/.test
	$(BIN)/python -m pytest -rs tests/test_hugging_face.py

kernels-test: $(VENV)/.test
	$(BIN)/python -m pytest -rs kernels tests/test_kernels.py tests/test_load_kernels.py

lint: $(VENV)/.lint
	$(BIN)/python tools/lint.py

format: $(VENV)/.lint
	$(BIN)/python tools/lint.py --fix

bench: $(VENV)/.models
	$(BIN)/python tests/benchmarks/bench.py
	$(BIN)/python tests/benchmarks/lowering_cost.py

fuzz: $(VENV)/.test
	FUZZ_EXAMPLES=$(N) $(BIN)/python -m pytest -s tests/fuzz

parity: $(VENV)/.test
	$(BIN)/python tests/parity/compare_suites.py

clean:
	rm -rf $(VENV) build *.egg-info

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml setup.py | $(VENV)/bin/python
	$(BIN)/pip install -q torch==2.13.0 executorch==$(EXECUTORCH)
	$(BIN)/pip install -q -e .
	touch $@

$(VENV)/.models: $(VENV)/.demo
	$(BIN)/pip install -q -e '.[models]'
	touch $@

$(VENV)/.test: $(VENV)/.demo
	$(BIN)/pip install -q -e '.[test]'
	touch $@

$(VENV)/.lint: $(VENV)/.test
	$(BIN)/pip install -q -e '.[lint]'
	touch $@
