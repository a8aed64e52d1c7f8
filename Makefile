# Everything happens in .venv; nothing is installed elsewhere.
# A command's prerequisites set up what it needs: on a fresh machine `make test` is enough.

PYTHON ?= python3
BIN := .venv/bin
MODEL ?=
IMAGE ?= docs/images/street.jpg

.DEFAULT_GOAL := help
.PHONY: help setup demo test check docs bench test-lowest clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

setup: .venv/installed ## Create .venv and install detcli with its development tools

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

demo: setup ## Detect on a picture: make demo MODEL=yolov10n.onnx [IMAGE=street.jpg]
	@test -n "$(MODEL)" || { echo 'usage: make demo MODEL=path/to/yolov10n.onnx [IMAGE=picture.jpg]'; exit 2; }
	$(BIN)/detcli predict '$(IMAGE)' --model '$(MODEL)' --format table --save demo
	@echo 'The annotated picture is in demo/'

test: setup ## Run the tests
	$(BIN)/pytest

check: setup ## Formatting, lint, types, documentation, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest

docs: setup ## Write docs/cli.md and docs/output.md anew from the program
	$(BIN)/python docs/generate.py

bench: setup ## Measure the selection: make bench
	$(BIN)/python tests/benchmarks/selection.py

test-lowest: ## Run the tests with the lowest versions that pyproject.toml admits
	$(PYTHON) -m venv --clear .venv-lowest
	.venv-lowest/bin/pip install --quiet uv
	.venv-lowest/bin/uv pip install --python .venv-lowest/bin/python --resolution lowest-direct --editable '.[dev]'
	.venv-lowest/bin/pytest

clean: ## Remove what the other targets made
	rm -rf .venv .venv-lowest build dist demo .mypy_cache .pytest_cache .ruff_cache .hypothesis
