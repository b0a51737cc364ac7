# What a checkout needs, on a machine that has Python 3.11 or newer and nothing else. `make` alone lists the targets.
#
#   PYTHON=python3.12    the interpreter to make the virtual environment with (default: the first that is new enough)
#   TORCH_INDEX=URL      a further package index for torch, such as PyTorch's own index of builds without CUDA.
#                        By default pip decides, by its own configuration (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, pip.conf).
#   DEMO_ARGS=...        handed to `ioprof demo`, after --out demo --force
#   TEST_ARGS=...        handed to pytest, e.g. TEST_ARGS='-k blame -x'; -n 0 has one process make all tests
#   CI=true              less output

VENV ?= .venv
CONSTRAINTS ?= constraints.txt
TORCH ?= torch==2.13.0
PYTHONS := $(or $(PYTHON),python3 python3.11 python3.12 python3.13 python3.14)

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --disable-pip-version-check $(if $(CI),-qq) -c $(CONSTRAINTS)
NATIVE := $(wildcard setup.py ioprof/native/*.c ioprof/native/*.h converters/*.c)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install demo test test-gpu check bench clean

help:  ## show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

install: $(INSTALLED)  ## make the virtual environment, with ioprof and all it needs; nothing to do when it is there

demo: $(INSTALLED)  ## generate, convert, run and report in one go, on any machine, in minutes
	$(BIN)/ioprof demo --out demo --force $(DEMO_ARGS)

test: $(INSTALLED)  ## run the tests; what this machine cannot test is skipped, and said
	$(BIN)/python -m pytest -n 2 --dist worksteal $(TEST_ARGS)

test-gpu:  ## run the tests that need a GPU, under the machine's own python3 and its torch
	python3 setup.py -q build_ext --inplace
	python3 -m pytest -o addopts= --import-mode=importlib tests/gpu $(TEST_ARGS)

check: $(INSTALLED)  ## lint, format, types, and the house's own rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_architecture.py tests/test_house.py

bench: $(INSTALLED)  ## measure what the README claims, one program of benchmarks/ after the other
	@set -e; for program in $(sort $(filter-out benchmarks/training.py benchmarks/recorded_in_part.py,$(wildcard benchmarks/*.py))); do \
	  echo "== $$program"; $(BIN)/python "$$program"; \
	done

clean:  ## remove what make made: the environment, built libraries, caches, the demo's output
	rm -rf $(VENV) build dist demo ioprof.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f ioprof/*.so ioprof/native/*.so
	find . -name __pycache__ -prune -exec rm -rf {} +

# A half-made environment (interrupted, or of an interpreter that is gone) has no working pip, and is made anew. torch comes
# first and alone: it is by far the largest, and may have to come from an index of its own.
$(INSTALLED): pyproject.toml $(wildcard $(CONSTRAINTS)) $(NATIVE)
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { $(MAKE_ENVIRONMENT); }
	$(PIP) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) '$(TORCH)'
	$(PIP) -e '.[test,check]'
	@if $(BIN)/python -c 'import ioprof._native' 2>/dev/null; \
	then echo 'capture library: built'; \
	else echo 'capture library: not built (needs a C compiler and the headers of Python): spans use the slower Python writer'; fi
	@touch $@

define MAKE_ENVIRONMENT
for python in $(PYTHONS); do \
  if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
    echo "$$python -m venv $(VENV)"; "$$python" -m venv --clear $(VENV) && exit 0; \
    echo "make: $$python cannot make a virtual environment; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; \
  fi; \
done; \
echo "make: ioprof needs Python 3.11 or newer; tried: $(PYTHONS). Name one with: make install PYTHON=/path/to/python3" >&2; exit 1
endef
