# Everything runs in .venv, made on first use from pyproject.toml; stamps in it say which extras are installed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MACHINE := $(shell uname -m)

.PHONY: run test test-all test-unfriendly soak fuzz browser pictures bench bench-full bench-scaling bench-peers bench-large bench-text bench-inducing bench-varying bench-doors paper paper-quick tables check docs clean

$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.installed-%: pyproject.toml | $(VENV)/.made
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[$*]"
	touch $@

run: $(VENV)/.installed-cli
	$(BIN)/gpx-scale demo --out gpx_demo

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m "not slow and not soak"

# The same suite where everything is as unlike a developer's machine as one machine can make it. Each setting has failed a test
# somewhere, or stands for machines that people have:
# - SIGINT is ignored under nohup and in many CI systems. Python then installs no handler for Ctrl-C.
# - OPENBLAS_CORETYPE takes the oldest BLAS kernels of the architecture, which round unlike those of this processor.
# - NUMBA_CPU_NAME does the same to the compiled loops: no vector instructions or fused multiply-add beyond the baseline.
# - One thread is what a machine with one core has, and what many CI systems set.
# - workqueue is numba's threading layer where TBB and OpenMP are absent. It ends the process if two threads enter it.
# - Neither numba nor anything that asks for a home folder can store a file, as with a read-only install in a container.
# Because SIGINT is ignored, Ctrl-C does not end this run, but Ctrl-\ does.
UNFRIENDLY := OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 NUMBA_THREADING_LAYER=workqueue \
	NUMBA_CPU_NAME=generic NUMBA_CACHE_LOCATOR_CLASSES=UserProvidedCacheLocator NUMBA_CACHE_DIR=/dev/null/none \
	HOME=/dev/null XDG_CACHE_HOME=/dev/null/none XDG_CONFIG_HOME=/dev/null/none
ifneq ($(filter x86_64 amd64,$(MACHINE)),)
UNFRIENDLY += OPENBLAS_CORETYPE=Prescott
else ifneq ($(filter aarch64 arm64,$(MACHINE)),)
UNFRIENDLY += OPENBLAS_CORETYPE=ARMV8
endif

test-unfriendly: $(VENV)/.installed-test
	trap '' INT; env $(UNFRIENDLY) $(BIN)/python -m pytest -m "not slow and not soak"

test-all: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m "not soak"

# A minute of load from threads and processes; GPX_SCALE_SOAK_SECONDS=1800 makes it half an hour.
soak: $(VENV)/.installed-test
	$(BIN)/python -m pytest tests/house/test_soak.py

# Hostile input, then 1,000 damaged files of every kind with numba's bounds checks, compiled into a cache of their own.
fuzz: $(VENV)/.installed-test
	$(BIN)/python -m pytest tests/fuzz -m fuzz
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(VENV)/bounds_checked GPX_SCALE_DAMAGES=1000 $(BIN)/python -m pytest tests/persistence/test_damaged_files.py

# For the tests of reports in a browser: Debian's Chromium where it can be installed, else playwright's own.
browser: $(VENV)/.installed-browser
	command -v chromium || (apt-get update && apt-get install --yes --no-install-recommends chromium) || $(BIN)/python -m playwright install chromium

# The README's pictures.
pictures: run
	cp gpx_demo/digits.png gpx_demo/diabetes.png docs/

SUITE := -m pytest bench --benchmark-only --benchmark-columns=median,iqr,rounds -s

bench: $(VENV)/.installed-test
	$(BIN)/python $(SUITE) -m "not full" --benchmark-json=bench/results/suite.json

bench-full: $(VENV)/.installed-test
	$(BIN)/python $(SUITE) -m full --benchmark-json=bench/results/suite_full.json

bench-scaling: $(VENV)/.installed-test
	$(BIN)/python bench/scaling.py

bench-peers: $(VENV)/.installed-peers
	PYTHONPATH=bench $(BIN)/python -m peers

bench-large: $(VENV)/.installed-peers
	$(BIN)/python bench/large.py

bench-text: $(VENV)/.installed-test
	$(BIN)/python bench/text.py

bench-inducing: $(VENV)/.installed-peers
	$(BIN)/python bench/inducing.py

bench-varying: $(VENV)/.installed-peers
	$(BIN)/python bench/varying.py
	$(BIN)/python bench/spatial.py

bench-doors: $(VENV)/.installed-test
	$(BIN)/python bench/doors.py

# The paper's tables and figures into docs/paper, from where the last run ended; ARGS="--fresh" measures all of it again.
paper: $(VENV)/.installed-bench
	$(BIN)/python bench/paper/run.py $(ARGS)

paper-quick: $(VENV)/.installed-bench
	$(BIN)/python bench/paper/run.py --quick --fresh

tables: $(VENV)/.installed-test
	$(BIN)/python bench/tables.py

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check src tests bench docs
	$(BIN)/ruff check src tests bench docs
	$(BIN)/mypy

docs: $(VENV)/.installed-docs
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

clean:
	rm -rf $(VENV) docs/_build docs/auto_gallery gpx_demo paper_quick .benchmarks
