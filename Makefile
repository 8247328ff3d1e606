# Each target makes its own virtual environment, .venv, from nothing; a second call finds it ready.
PYTHON ?= python3
PIP_FLAGS ?= --quiet --disable-pip-version-check
ARGS ?=
# Of the tests and cases that tests/long_tests.txt names, one of four runs, and others with the next commits.
TURN ?= $(shell git rev-list --count HEAD 2>/dev/null || echo 0)
# Another torch than that of constraints.txt, such as TORCH=2.11.0, in an environment of its own: .venv-2.11.0.
TORCH ?=

VENV := .venv$(addprefix -,$(TORCH))
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
PLAIN_STAMP := .venv-plain/.ready
SITE := docs/_build/html
PORT ?= 8000
PLAIN_TESTS := tests/exact/test_ilp.py tests/exact/test_program.py tests/bounds tests/cli tests/test_backend.py \
  tests/test_compiled_module.py

.DEFAULT_GOAL := help
.PHONY: help install test test-fast test-torch test-plain test-all demo gpu docs docs-serve dist lint clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Pip compiles bytecode in one process, and without the files of tests it is less.
BYTECODE := -m compileall -qq -j 0 -x "/(tests?|testing)/"

$(STAMP): pyproject.toml constraints.txt
	@echo "making the virtual environment $(VENV) (once, a few minutes)"
	$(PYTHON) -m venv $(VENV)
	{ sed '$(if $(TORCH),/^torch==\|^triton==\|^setuptools==/d)' constraints.txt; $(if $(TORCH),echo torch===$(TORCH);) } > $(VENV)/constraints.txt
	$(BIN)/pip install $(PIP_FLAGS) -c $(VENV)/constraints.txt "setuptools>=77" networkx numba pulp
	PYTHONPATH=.:passes $(BIN)/python -m remat_passes.ahead_of_time & \
	  REMAT_COMPILE_LOOPS=0 $(BIN)/pip install $(PIP_FLAGS) --no-compile --no-build-isolation \
	  -c $(VENV)/constraints.txt -e ".[dev]" && wait
	-$(BIN)/python $(BYTECODE) $(VENV)/lib
	@touch $(STAMP)

$(PLAIN_STAMP): pyproject.toml constraints.txt Makefile
	$(PYTHON) -m venv .venv-plain
	.venv-plain/bin/pip install $(PIP_FLAGS) -c constraints.txt setuptools
	REMAT_COMPILE_LOOPS=0 .venv-plain/bin/pip install $(PIP_FLAGS) --no-compile --no-build-isolation \
	  -c constraints.txt -e . pytest pytest-xdist hypothesis
	-.venv-plain/bin/python $(BYTECODE) .venv-plain/lib
	@touch $(PLAIN_STAMP)

install: $(STAMP) ## Make the virtual environment .venv with everything that is tested

test: $(STAMP) ## Run the tests but the slow ones, of long ones each fourth (TURN=2, ARGS="-k budget" choose)
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m "not slow" --turn $(TURN) $(ARGS)

test-fast: $(STAMP) ## Run the tests that need no torch, in less than two minutes
	$(BIN)/python -m pytest -n auto --dist worksteal -m "planning and not slow" --turn $(TURN) $(ARGS)

test-torch: $(STAMP) ## Run the tests of what depends on torch's version (TORCH=2.11.0 chooses one)
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m "torch and not slow" $(ARGS)

test-plain: $(PLAIN_STAMP) ## Run the tests of solvers and the command line where no extra is installed
	.venv-plain/bin/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m "not slow" --turn $(TURN) \
	  $(PLAIN_TESTS) $(ARGS)

test-all: $(STAMP) ## Run all tests, and each case of them
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder --hypothesis-profile=thorough $(ARGS)

demo: $(STAMP) ## Train a BERT-like model under byte budgets (ARGS=--short for a quick look)
	$(BIN)/python examples/demo.py $(ARGS)

gpu: $(STAMP) ## Ask the GPU of this machine what holds on it, in eight minutes (ARGS="--only rivals" chooses)
	$(BIN)/python benchmarks/gpu/run.py --json gpu.json $(ARGS)

docs: $(STAMP) ## Build the documentation site in docs/_build/html; a warning is an error
	$(BIN)/python -m sphinx -b html -W --keep-going -q docs $(SITE)
	@echo "open $(SITE)/index.html"

docs-serve: docs ## Build the documentation site and serve it at http://localhost:8000 (PORT=8080 chooses)
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory $(SITE) $(PORT)

dist: $(STAMP) ## Build dist/: sources, and a wheel for any machine, with which a new environment trains a step
	rm -rf dist *.egg-info
	REMAT_COMPILE_LOOPS=0 $(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/python .ci/check_dist.py dist

lint: $(STAMP) ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/mypy

clean: ## Remove the virtual environment and what the tools cached
	rm -rf .venv .venv-* .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist docs/_build *.egg-info
