# make install | quickstart | test | check | bench: all make .venv if it is not there, and use nothing outside it.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: help install quickstart quickstart-controls test check bench

help:
	@echo "make install      make .venv and install hone into it, from the pinned versions of constraints.txt"
	@echo "make quickstart   a tiny model from nothing: SFT, RL and evaluation in a few minutes on one CPU core"
	@echo "make test         run the tests"
	@echo "make check        formatting, lint and types"
	@echo "make bench        time one RL step against TRL's trainer"

install: $(STAMP)

# pip itself first, so that the pinned one builds hone with the pinned build tools.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: hone needs Python 3.11 or newer; $(PYTHON) is older: run make PYTHON=python3.11 ..." >&2; exit 2; }
	@echo "Making .venv (a few minutes on the first run: PyTorch is large)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt pip
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --progress-bar on \
		--constraint constraints.txt --build-constraint constraints.txt --editable ".[dev]"
	@touch $@

quickstart: install
	@$(BIN)/python scripts/quickstart.py

quickstart-controls: install
	@$(BIN)/python scripts/quickstart.py --controls

test: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q --durations=15

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright

bench: install
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[bench]"
	$(BIN)/python benchmarks/rl_step.py
