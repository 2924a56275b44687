# `make demo` and `make test` work on a fresh machine with Python 3.11, make and git.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help setup demo test check format bench paper torture clean

help:
	@echo "make demo     set up, then show the idea (a picture and ten exports under out/)"
	@echo "make test     set up, then run the tests"
	@echo "make check    format, lint, types"
	@echo "make bench    the short benchmarks, about six minutes"
	@echo "make paper    the tables of the paper that can be made here"
	@echo "make torture  long random runs"

setup: $(READY)

# torch first and pinned: any other order may fetch gigabytes of another build.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

demo: setup
	$(BIN)/es-ssm demo

test: setup
	$(BIN)/pytest -n auto

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup
	for name in filters layer decode model; do $(BIN)/python -m benchmarks.$$name || exit 1; done

paper: setup
	for recipe in slimpajama-1.3b cadence-287m precision-160m ablation-770m lra-50m sc10-10m d4rl-halfcheetah; do \
		$(BIN)/es-ssm ledger $$recipe || exit 1; done

torture: setup
	$(BIN)/pytest -n auto -m torture

clean:
	rm -rf .venv out .mypy_cache .pytest_cache .ruff_cache .hypothesis
