# Both of the main targets need nothing but a Python of 3.10 or newer with venv; they set up the rest in $(VENV).
#   make train                        the main job: GRPO on purified episodes, with a small model, on a CPU
#   make train ARGS="saar.share=0"    the same without purification
#   make test                         the whole test suite
#   make check                        what a change must pass: tests, linter, formatter, types

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
PYTEST_ARGS ?=

BIN := $(VENV)/bin
# Byte-compiling a gigabyte of packages, most of which is never imported, would take longer than the download.
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --no-compile --quiet -c constraints.txt

.PHONY: train test check lint clean

train: $(VENV)/train.done
	$(BIN)/cleaner train $(ARGS)

test: $(VENV)/test.done
	$(BIN)/python -m pytest $(PYTEST_ARGS)

check: lint test

lint: $(VENV)/test.done
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "cleaner-env needs Python 3.10 or newer; name one with: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
		{ echo "$(PYTHON) has no venv; on Debian or Ubuntu install it with: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/train.done: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing cleaner-env and what training needs into $(VENV) (once; a minute or two) ..."
	$(PIP_INSTALL) -e '.[llm]'
	@touch $@

$(VENV)/test.done: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing cleaner-env and what the tests need into $(VENV) (once; a minute or two) ..."
	$(PIP_INSTALL) -e '.[all,dev]'
	@touch $@ $(VENV)/train.done

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
