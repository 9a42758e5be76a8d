# make install | quickstart | test | check | bench: all make .venv if it is not there, and use nothing outside it.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
DEV := .venv/.dev
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
PIP := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt
# Of what pip says, its errors (stderr) and the large downloads.
LARGE := awk '/[0-9][0-9]\.[0-9] MB\)/ { $$1 = $$1; print "  " $$0 } /^Installing/ { print "  Installing" }'

.PHONY: help install wheel quickstart smollm2 dev test test-all test-ci test-slow test-most test-suites test-apart test-wheel test-contracts test-audit test-sandbox test-split test-cluster test-device test-triton test-vllm vllm-env test-adapters verifiers-env verifiers-v0-env test-trl test-smollm2 test-deletable test-browser check docs faults bench gpu-wheels

help:
	@echo "make install      make .venv and install hone into it, from the pinned versions of constraints.txt"
	@echo "make wheel        write hone's wheel into dist, for another machine"
	@echo "make quickstart   hone quickstart: a tiny model from nothing: SFT, RL and evaluation in a few minutes on one CPU core"
	@echo "make smollm2      the same with a pretrained model of 135M parameters: half an hour on two cores"
	@echo "make test         run the quick tests; they and what follows bring tools that hone itself does not need"
	@echo "make test-slow    the contracts' short half, and other tests of more than two seconds each"
	@echo "make test-wheel   install the wheel alone into an empty environment, and run the quickstart and an extension there"
	@echo "make test-all     all of these suites, and check and docs: hours"
	@echo "make test-ci      what .ci/run runs: check, test, docs, and a fixed part of the other suites"
	@echo "make test-contracts  kill, damage and starve runs at hundreds of moments, then compare them"
	@echo "make test-cluster  runs on a Ray cluster"
	@echo "make test-smollm2  test with SmolLM2-135M-Instruct, 93 MB of the package index"
	@echo "make test-audit   audit the built-in tasks, and a zoo of broken rewards"
	@echo "make test-sandbox  test that code of a model stays in its sandbox; needs bubblewrap"
	@echo "make test-split   runs of several processes: roles, ranks, and what kills them"
	@echo "make test-device  train, sample and serve on a fake GPU: nothing on the wrong device, no needless wait"
	@echo "make test-triton  run Liger's GPU kernels by Triton's interpreter on the CPU; takes 1 GB"
	@echo "make vllm-env     make .venv-vllm: vLLM for a CPU, from a hash-locked list"
	@echo "make test-vllm    test against a real vLLM server on the CPU, where that can be had"
	@echo "make verifiers-env  make .venv-verifiers: verifiers, for the tasks verifiers:NAME"
	@echo "make verifiers-v0-env  make .venv-verifiers-v0: the last verifiers with v0, for examples/extension_verifiers_v0"
	@echo "make test-adapters  test against reasoning-gym and verifiers themselves"
	@echo "make test-trl     test losses and advantages against TRL's own trainers"
	@echo "make test-deletable  test without each of the extensions: help, SFT and RL, with the same bytes"
	@echo "make test-browser  test hone view in a real browser; needs chromium"
	@echo "make check        formatting, lint and types"
	@echo "make docs         build the site of the documentation into outputs/site"
	@echo "make faults       seed faults into a copy of the code; the tests catch each one"
	@echo "make bench        time one RL step against TRL's trainer"
	@echo "make gpu-wheels   fetch what benchmarks/gpu/run.py needs on a machine with PyTorch alone and no network"

install: $(STAMP)

# pip itself first, so that the pinned one builds hone with the pinned build tools.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: hone needs Python 3.11 or newer; $(PYTHON) is older: run make PYTHON=python3.11 ..." >&2; exit 2; }
	@echo "Making .venv (a few minutes on the first run: PyTorch is large)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(PIP) --quiet pip
	@set -o pipefail; $(PIP) --build-constraint constraints.txt --progress-bar off --editable . | $(LARGE)
	@touch $@

# What tests and lint need besides.
dev: $(DEV)

$(DEV): $(STAMP)
	@$(PIP) --quiet --progress-bar off --editable ".[dev]"
	@touch $@

wheel: install
	@rm -f dist/*.whl
	@$(BIN)/python -m pip wheel --disable-pip-version-check --quiet --no-deps --build-constraint constraints.txt --wheel-dir dist .
	@ls dist/*.whl

quickstart: install
	@$(BIN)/hone quickstart

# GGUF needs two more packages.
smollm2: install
	@$(PIP) --quiet --progress-bar off --editable ".[gguf]"
	@$(BIN)/hone quickstart --model smollm2-135m --output-dir outputs/smollm2

# Two workers, a file at a time: one core is what a test has.
TWO := -n 2 --dist loadfile --no-loadscope-reorder

test: dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q $(TWO) --durations=15

# The contracts first.
test-slow: dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q $(TWO) -m slow --durations=15

# A failure of the core or of a contract shows first.
test-all: test test-slow test-most test-browser test-smollm2 test-triton test-apart test-cluster check docs

test-most: verifiers-v0-env test-suites

# Of the long contracts one case in 64, of other suites the files of IN_CI in tests/conftest.py; not real vLLM, SmolLM2,
# Triton's interpreter, a cluster and verifiers v0.
test-ci: check test test-slow
	@$(MAKE) --no-print-directory test-suites EVERY=64 PART=ci
	@$(MAKE) --no-print-directory test-browser test-wheel docs

# These suites run together, so that they are collected once and no core waits at the end of each.
PART := all
test-suites: dev verifiers-env
	@command -v bwrap >/dev/null || { echo "error: the tests of the sandbox need bubblewrap" >&2; exit 2; }
	@$(PIP) --quiet --editable ".[dev,bench,reasoning-gym]"
	OMP_NUM_THREADS=1 HONE_EVERY=$(EVERY) HONE_PART=$(PART) $(BIN)/python -m pytest -q -n 2 --dist worksteal \
		-m "split or device or adapters or sandbox or audit or trl or deletable or long" -rs --durations=40

# Each has an environment of its own, and one process that works: together they use two cores.
test-apart: dev
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target test-wheel test-vllm

WHEEL := outputs/wheel
test-wheel: dev
	@rm -rf $(WHEEL) && mkdir -p $(WHEEL)
	@$(BIN)/python -m pip wheel --disable-pip-version-check --quiet --no-deps --build-constraint constraints.txt --wheel-dir $(WHEEL) .
	@$(PYTHON) -m venv $(WHEEL)/env
	@$(WHEEL)/env/bin/python -m pip install --disable-pip-version-check --quiet -c constraints.txt $(WHEEL)/*.whl
	HONE_BIN=$(CURDIR)/$(WHEEL)/env/bin $(BIN)/python -m pytest -q -m "wheel or not wheel" tests/test_quickstart.py tests/test_extensions.py
	@rm -rf $(WHEEL)

# The contracts that take minutes: runs are killed, damaged and starved at a few hundred moments, then compared. One of
# their files takes as long as all others together, so its tests are shared out as well. EVERY=8: one case in eight of
# each test, always the same ones.
EVERY := 1
test-contracts: dev
	OMP_NUM_THREADS=1 HONE_EVERY=$(EVERY) $(BIN)/python -m pytest -q -n 2 --dist worksteal -m long --durations=15

test-deletable: dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 -m "deletable or not deletable" tests/test_deletable.py

test-audit: dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q $(TWO) -m "audit and not sandbox" --durations=10

# Not part of `make test`, which needs no package of the system.
test-sandbox: dev
	@command -v bwrap >/dev/null || \
		{ echo "error: the tests of the sandbox need bubblewrap: apt-get install bubblewrap" >&2; exit 2; }
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q $(TWO) -m sandbox --durations=5

test-split: dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q $(TWO) -m split --durations=10

AS_ROOT := $(if $(filter 0,$(shell id -u)),,--map-root-user)
# Ray looks for addresses outside, and listens on all interfaces: here it has a network of its own.
test-cluster: dev
	@unshare $(AS_ROOT) --net --mount true || { echo "SKIPPED: the tests on a cluster, for the reason above"; exit 0; }; \
		OMP_NUM_THREADS=1 unshare $(AS_ROOT) --net --mount \
		$(BIN)/python -m pytest -q -m cluster tests/extensions/cluster --durations=10

test-device: dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q $(TWO) -m device tests/device --durations=10

# A folder of its own: a CPU build of torch needs no Triton, and one for CUDA brings another.
.venv-triton/.installed: requirements/triton.txt
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --upgrade --target $(@D) --requirement $<
	@touch $@

test-triton: dev .venv-triton/.installed
	TRITON_INTERPRET=1 PYTHONPATH=.venv-triton OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m triton tests/model/test_liger.py

vllm-env:
	@$(PYTHON) scripts/vllm_env.py

# Exit code 3: this machine has no such build. Anything else that goes wrong is a failure.
test-vllm: dev
	@code=0; $(PYTHON) scripts/vllm_env.py || code=$$?; \
		if [ $$code = 3 ]; then echo "SKIPPED: the tests against vLLM, for the reason above"; exit 0; fi; \
		if [ $$code != 0 ]; then exit $$code; fi; \
		OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m vllm tests/extensions/vllm --durations=10

# An environment of its own: verifiers brings scripts of hone's names (vf-eval, replay), and an older openai.
verifiers-env: .venv-verifiers/.installed

# The last version with v0 (`verifiers.load_environment`) needs other packages than the one above.
verifiers-v0-env: .venv-verifiers-v0/.installed

.venv-verifiers/.installed: requirements/verifiers.txt
.venv-verifiers-v0/.installed: examples/extension_verifiers_v0/requirements.txt

.venv-verifiers/.installed .venv-verifiers-v0/.installed:
	@echo "Making $(@D) (about a minute)"
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install --disable-pip-version-check --quiet --requirement $<
	@touch $@

test-adapters: dev verifiers-env verifiers-v0-env
	@$(PIP) --quiet --editable ".[dev,reasoning-gym]"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q $(TWO) -m adapters tests/extensions/libraries --durations=5

test-trl: dev
	@$(PIP) --quiet --editable ".[dev,bench]"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m trl tests/algorithms --durations=5
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/model/test_lora.py

# SmolLM2-135M-Instruct, 93 MB of the package index.
test-smollm2: dev
	OMP_NUM_THREADS=2 $(BIN)/python -m pytest -q -m smollm2 tests/smollm2 --durations=5

# Debian's chromium: the browsers that Playwright would fetch are another download. Screenshots: outputs/browser.
test-browser: dev
	@command -v chromium >/dev/null || \
		{ echo "error: the tests in a browser need chromium: apt-get install chromium" >&2; exit 2; }
	@$(PIP) --quiet --editable ".[dev,browser]"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q $(TWO) -m browser tests/extensions/viewer/browser --durations=5

# Constructions that slow a reader down, per 10,000 words: the number only goes down.
PLAIN := 8.0
check: dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright
	$(BIN)/python scripts/budget.py
	$(BIN)/python scripts/plain.py --max $(PLAIN) --max-folder 66 src docs README.md CONTRIBUTING.md environments examples

# Read it by opening outputs/site/index.html; searching in it needs a server: mkdocs serve.
docs: install
	@$(PIP) --quiet --progress-bar off --editable ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# ROOMS: tables of tests/faults to try, all of them by default.
ROOMS :=
faults: dev
	$(BIN)/python tests/faults/run.py $(ROOMS)

bench: install
	@$(PIP) --quiet --editable ".[dev,bench]"
	$(BIN)/python benchmarks/rl_step.py

# For a machine with another Python: GPU_PYTHON=3.11.
GPU_PYTHON := 3.12
GPU_WHEELS := benchmarks/gpu/wheels
gpu-wheels: install
	@rm -rf $(GPU_WHEELS)
	@$(BIN)/python -m pip download --disable-pip-version-check --quiet --no-deps --only-binary=:all: \
		--implementation cp --python-version $(GPU_PYTHON) --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
		--constraint constraints.txt --requirement benchmarks/gpu/wheels.txt --dest $(GPU_WHEELS)
	@du -sh $(GPU_WHEELS)
