# The verbs of this project. `make demo` and `make test` need Python 3.11 or newer, and make; nothing else.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PART ?= 01

.PHONY: demo test check docs bench test-long clean

demo: $(VENV)/demo.done
	$(BIN)/heedful demo

test: $(VENV)/test.done
	$(BIN)/python -m pytest -q -n auto --dist worksteal --ignore tests/docs

check: $(VENV)/test.done
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/docs

docs: $(VENV)/test.done
	$(BIN)/python -m pytest -q -n auto tests/laws --compatibility docs/compatibility.md

bench: $(VENV)/test.done
	$(BIN)/python -m bench

test-long: $(VENV)/test.done
	$(BIN)/python -m pytest -q -o addopts="--strict-markers --import-mode=importlib" tests/long/part$(PART) --durations=10

clean:
	rm -rf $(VENV) build dist *.egg-info

# One environment for both: `test.done` is `demo.done` and the test extras.
# torch first and pinned: a range would take the newest build, with whatever accelerator libraries it brings.
$(VENV)/demo.done: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "heedful needs Python 3.11 or newer: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/test.done: $(VENV)/demo.done
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $@
