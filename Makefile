# Everything runs in .venv, which is made on first use from pyproject.toml. Files .venv/.installed-* record which extras
# are installed. CONTRIBUTING.md says what every target does.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MACHINE := $(shell uname -m)

.PHONY: run test test-all test-unfriendly test-wheel test-oldest soak fuzz browser pictures bench bench-compare paper paper-quick \
	tables check docs wheel clean

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

# This runs the suite with settings that differ from a developer's machine as much as one machine allows. Each of them
# has failed a test somewhere, or stands for machines that people have:
# - SIGINT is ignored under nohup and in many CI systems. Python then installs no handler for Ctrl-C.
# - OPENBLAS_CORETYPE takes the oldest BLAS kernels of the architecture, which round unlike those of this processor.
# - NUMBA_CPU_NAME compiles our loops for the baseline processor, without newer vector instructions and without fused
#   multiply-add.
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

# A minute of load from threads and processes. GPX_SCALE_SOAK_SECONDS=1800 makes it half an hour.
soak: $(VENV)/.installed-test
	$(BIN)/python -m pytest tests/house/test_soak.py

# Hostile input, then damaged files, 1,000 of every kind unless GPX_SCALE_DAMAGES is set, with numba's bounds checks, which need a compilation cache of
# their own.
fuzz: $(VENV)/.installed-test
	$(BIN)/python -m pytest tests/fuzz -m fuzz
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(VENV)/bounds_checked GPX_SCALE_DAMAGES=$${GPX_SCALE_DAMAGES:-1000} \
		$(BIN)/python -m pytest tests/persistence/test_damaged_files.py

# The tests of reports need a browser: Debian's Chromium where it can be installed, else the one of playwright.
browser: $(VENV)/.installed-browser
	command -v chromium || (apt-get update && apt-get install --yes --no-install-recommends chromium) || \
		$(BIN)/python -m playwright install chromium

# Draw the pictures of the README.
pictures: run
	cp gpx_demo/digits.png gpx_demo/diabetes.png docs/

# One benchmark: `make bench CASE=large`, by default the suite. An unknown name prints the list. ARGS go to the benchmark,
# such as the names of single measurements: `make bench CASE=large ARGS=kin40k`.
CASE ?= suite
bench:
	@extra=$$($(PYTHON) bench --extra $(CASE)) && $(MAKE) --no-print-directory $(VENV)/.installed-$$extra
	$(BIN)/python bench $(CASE) $(ARGS)

# Measure the loops over tiles again, and fail if a ratio to LAPACK or BLAS is 20% behind the committed one.
bench-compare: $(VENV)/.installed-test
	$(BIN)/python bench/compare_ratios.py

# Write the paper's tables and figures to docs/paper, from where the last run ended. ARGS="--fresh" measures all again.
paper: $(VENV)/.installed-bench
	$(BIN)/python bench/paper/run.py $(ARGS)

paper-quick: $(VENV)/.installed-bench
	$(BIN)/python bench/paper/run.py --quick --fresh

tables: $(VENV)/.installed-test
	$(BIN)/python bench/tables.py

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check src tests bench docs .ci
	$(BIN)/ruff check src tests bench docs .ci
	$(BIN)/mypy

docs: $(VENV)/.installed-docs
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

# The source distribution and the wheel, into dist/.
wheel: $(VENV)/.installed-release
	rm -rf dist build
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m twine check --strict dist/*

# Install the wheel into an empty environment, and run the suite there, outside of the source tree; test-oldest does so
# with the oldest supported versions of all dependencies, for which PYTHON has to be Python 3.11.
test-wheel: wheel
	$(PYTHON) .ci/test_installed.py

test-oldest: wheel
	$(PYTHON) .ci/test_installed.py --constraint .ci/oldest.txt

clean:
	rm -rf $(VENV) docs/_build docs/auto_gallery gpx_demo paper_quick .benchmarks build dist
