# The two commands are `make demo` and `make test`; both do all of the set-up first.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
export OMP_WAIT_POLICY := passive

.PHONY: help setup about browser demo test test-all fuzz fmt lint type check docs bench reproduce-small clean

help:  ## show this help
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## make .venv with everything in it

PIP := $(BIN)/pip install --quiet --disable-pip-version-check

$(READY): requirements.lock requirements-torch.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "headwise needs Python 3.11 or newer, but $(PYTHON) is older: try make PYTHON=python3.11 setup"; exit 2; }
	$(PYTHON) -m venv .venv
	$(PIP) --require-hashes --no-deps --only-binary :all: -r requirements.lock
	$(PIP) --only-binary :all: -r requirements-torch.lock
	$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

demo: $(READY)  ## compare local, global and personalized models on bundled data, with a report
	$(BIN)/headwise compare examples/demo.toml standalone fedavg fedah --draws 3
	@echo "Where clients are alike (--partition iid), a global model is as good. Fine-tuned by each client (fedavg-ft), it becomes a personalized model that is as good here."

about: $(READY)  ## show the machine and the versions
	@$(BIN)/python scripts/about.py

# for the tests of the report's page, where it can be installed; a fresh machine has no lists of packages yet
CHROMIUM := apt-get install -y --no-install-recommends chromium chromium-driver
browser:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && { $(CHROMIUM) || { apt-get update && $(CHROMIUM); }; } >/dev/null 2>&1; } || \
	  echo "no chromium, and it can't be installed here: tests in a browser are skipped"

test: $(READY) browser  ## run the tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

test-all: $(READY) browser  ## run the tests, and every method on every engine
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal -m ""

FUZZ ?= 3000
fuzz: $(READY)  ## try many more damaged bytes and settings than the tests: make fuzz FUZZ=100000
	HEADWISE_FUZZ=$(FUZZ) OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/fuzz -n auto
	@for target in records states toml archives batches programs weights cards offers messages experiments introductions apps workers server_answers server_messages keys shares descriptions tables arrays images clients sums traces public_sets csv_tables; do echo "atheris: $$target"; \
	  OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/guided.py $$target -atheris_runs=$$((10 * $(FUZZ))) -max_len=8192 -verbosity=0 || exit 1; done

fmt: $(READY)  ## format the code
	$(BIN)/ruff format src tests benchmarks examples scripts
	$(BIN)/ruff check --fix src tests benchmarks examples scripts

lint: $(READY)  ## check style and errors
	$(BIN)/ruff format --check src tests benchmarks examples scripts
	$(BIN)/ruff check src tests benchmarks examples scripts

type: $(READY)  ## check types
	$(BIN)/pyright

check: lint type test  ## lint, type and test

docs: $(READY)  ## build the documentation into site/; open site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(READY)  ## run longer measurements
	$(BIN)/python benchmarks/speed.py && $(BIN)/headwise league && $(BIN)/python benchmarks/league.py runs/league

# one column of each paper; HEADWISE_DATA must hold CIFAR-10
SMALL := $(BIN)/headwise reproduce --scale quick
reproduce-small: $(READY)  ## run a column of each paper at a small scale: 20 minutes on two cores
	$(SMALL) fedgmh/2 --columns "CIFAR-10 ExDir(2,0.5)" --methods fedper,fedgmh
	$(SMALL) fedah/1 --columns "CIFAR-10 Dir(0.1)" --methods fedrep,fedah
	$(SMALL) fedafk/5 --columns CIFAR-10 --methods "w/o AFA & KT,FedAFK"
	$(SMALL) fedgh/3 --columns CIFAR-10 --methods lg-fedavg,fedgh
	$(SMALL) fedftha/protocol --columns "CIFAR-10 Dir(0.5)" --methods fedavg,fedrep,fedftha

clean:  ## remove .venv and caches, never runs
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis
