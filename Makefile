# Everything sets up what it needs: a fresh machine has to have Python 3.11+ and a package index, nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Where torch's CPU wheel comes from, if not from pip's own configuration; see docs/dependencies.md.
PIP_ARGS ?=

.PHONY: setup demo dev test test-slow test-compose test-postgres test-cuda bench-gpu bench-gpu-staged test-rdma test-rdma-endurance lint types proto bench bench-rdma clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt $(PIP_ARGS) -e '.[dev]'
	touch $(READY)

demo: $(READY)
	$(BIN)/worldline demo

dev: $(READY)
	$(BIN)/worldline dev

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadfile -m 'not slow and not compose and not cuda and not rdma and not postgres'

test-slow: $(READY)
	$(BIN)/python -m pytest -m 'slow and not compose and not cuda and not rdma and not postgres' --timeout 600

test-compose: $(READY)
	$(BIN)/python -m pytest -m compose --timeout 1500 tests/compose

# Two admission processes on a server of the tests' own; needs root where the server's packages are not there yet.
test-postgres: $(READY)
	ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || \
		(apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends postgresql)
	$(BIN)/python -m pytest -m postgres --timeout 300 tests/admission tests/e2e

# On this machine's GPUs, without a network: CUDA_PYTHON is one with torch for CUDA and what tests/cuda/constraints.txt names.
CUDA_PYTHON ?= $(abspath $(BIN))/python

# Engines are found by the names of their entry points: where the package is not installed, these are written here.
ENTRY_POINTS = cd $(CURDIR) && $(CUDA_PYTHON) -c 'import setuptools; setuptools.setup()' -q egg_info

test-cuda:
	$(ENTRY_POINTS)
	PYTHONPATH="$(CURDIR):$(CURDIR)/services:$$PYTHONPATH" $(CUDA_PYTHON) -m pytest -m cuda -p no:cacheprovider \
		--timeout 300 tests/cuda

bench-gpu:
	$(ENTRY_POINTS)
	PYTHONPATH="$(CURDIR):$(CURDIR)/services:$$PYTHONPATH" $(CUDA_PYTHON) -m benchmarks.gpu

bench-gpu-staged:
	$(ENTRY_POINTS)
	PYTHONPATH="$(CURDIR):$(CURDIR)/services:$$PYTHONPATH" $(CUDA_PYTHON) -m benchmarks.gpu_staged

# On this machine's verbs device, or in an emulated machine that has two (which needs root and Debian's packages).
test-rdma: $(READY)
	bash tests/rdma/run.sh $(abspath $(BIN))/python -m pytest -m rdma -p no:cacheprovider --timeout 600 tests/rdma

test-rdma-endurance: $(READY)
	RDMA_ABORTS=1000 bash tests/rdma/run.sh $(abspath $(BIN))/python -m pytest -m rdma -p no:cacheprovider \
		--timeout 800 -s -k aborted tests/rdma

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/buf lint protos
	$(BIN)/lint-imports

types: $(READY)
	$(BIN)/mypy

proto: $(READY)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python tools/protos.py

bench-rdma: $(READY)
	bash tests/rdma/run.sh $(abspath $(BIN))/python -m benchmarks.rdma --copy-to /exchange/out
	if [ -e build/rdma-lab/out/rdma.json ]; then cp build/rdma-lab/out/rdma.json benchmarks/results/; fi

# Refuses figures of a busy machine: `make bench BENCH='move --anyway'` prints them marked.
BENCH ?= move

bench: $(READY)
	$(BIN)/worldline bench $(BENCH)

clean:
	rm -rf $(VENV) build *.egg-info
