# make app    environment, then the app on http://127.0.0.1:8501
# make test   environment, then the tests;  make test-all  the browser tests as well
PYTHON ?= $(shell command -v python3.13 || command -v python3.12 || command -v python3.11 || command -v python3)
PORT ?= 8501
VENV := .venv
BIN := $(VENV)/bin
export OMP_WAIT_POLICY := PASSIVE
export TOKENIZERS_PARALLELISM := false

.PHONY: app test test-all bench clean

# torch first and alone: with it installed, no other package pulls another build.
$(VENV)/.installed: requirements.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else "Python 3.11 or newer is needed, this is %d.%d; set PYTHON=..." % v[:2])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' requirements.txt)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

app: $(VENV)/.installed
	@echo "The effective-depth laboratory: http://127.0.0.1:$(PORT)  (Ctrl-C ends it)"
	$(BIN)/python -m streamlit run app.py --server.address 127.0.0.1 --server.port $(PORT)

test: $(VENV)/.installed
	$(BIN)/python -m pytest -q -m "not browser" tests

test-all: $(VENV)/.installed
	$(BIN)/python -m pytest -q -m browser tests

bench: $(VENV)/.installed
	$(BIN)/python -m ed_core bench

clean:
	rm -rf $(VENV)
