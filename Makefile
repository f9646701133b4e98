# One place for every task; `make` alone lists them.
#   PYTHON=/path/to/python   the interpreter for .venv (otherwise the newest of the usual names that is 3.11 or later)
#   ARGS="..."               passed on to the command behind up, test, bench, bench-scheduling, soak and lock
#   TRACES=/path/to/folder   the traces for bench-scheduling; docs/SCHEDULING.md says where to get them

ARGS ?=
PYTHON ?=
TRACES ?= $(wildcard ../shared/traces)
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
PIP_INSTALL := $(BIN)/python -m pip install -qq

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install install-dev up test check format docs bench bench-scheduling soak lock clean FORCE

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-16s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

install: .venv/.installed ## make .venv with everything needed to run Rota
	@:

install-dev: .venv/.installed-dev ## the same .venv, with the test and lint tools as well
	@:

up: export ROTA_MADE_BY := make up ARGS='--port 10001 --lease-port 9124'
up: install ## install, then start Rota on this machine
	@$(BIN)/rota up $(ARGS)

# Many tests wait for processes, so four workers keep two cores busy. Each has a run of neighbours, which share servers.
test: install-dev ## run the tests, all but the soak
	@tools/system-packages test
	$(BIN)/python -m pytest -n 4 --dist worksteal $(ARGS)

check: install-dev ## lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install-dev ## let ruff fix and format the code
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

docs: install-dev ## write docs/STATES.md's table and docs/reference anew from the code
	$(BIN)/python tools/states_doc.py
	$(BIN)/python -m tools.cli_doc
	$(BIN)/python -m tools.settings_doc
	$(BIN)/python -m tools.api_doc

bench: install-dev ## measure; prints numbers, judges nothing
	@tools/system-packages bench
	$(BIN)/python -m tests.bench $(ARGS)

bench-scheduling: install-dev ## every policy on the traces in TRACES; ARGS=--record writes docs/SCHEDULING.md
	$(BIN)/python -m tests.bench.scheduling $(if $(TRACES),--traces '$(TRACES)') $(ARGS)

soak: install-dev ## the tests that run for many minutes, and every property on new examples
	@tools/system-packages test
	ROTA_HYPOTHESIS=soak $(BIN)/python -m pytest -m "soak or hypothesis" --timeout 1800 $(ARGS)

lock: ## write the hash-pinned requirements anew (ARGS=--upgrade takes newer versions)
	@set -e; uv=$$(command -v uv || true); \
	if [ -z "$$uv" ]; then \
	  $(find_python); tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; \
	  echo "fetching uv ..."; "$$python" -m venv "$$tmp"; "$$tmp/bin/pip" install -qq uv; uv=$$tmp/bin/uv; \
	fi; \
	lock() { out=$$1; shift; echo "locking $$out ..."; UV_PYTHON_DOWNLOADS=never "$$uv" pip compile --quiet --universal \
	  --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links $(ARGS) \
	  --extra server --extra postgres --extra gpu --extra tui pyproject.toml requirements/build.in "$$@" -o "$$out"; }; \
	lock requirements/server.txt; \
	lock requirements/dev.txt --group dev -c requirements/server.txt

clean: ## remove .venv and everything that was built or cached
	rm -rf .venv build dist .pytest_cache .hypothesis .mypy_cache .ruff_cache .coverage .coverage.* htmlcov
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# --- how .venv is made: one stamp a step, so that a second `make install` does nothing ---

# Sets $python in a recipe. Each candidate is run, not only looked up: a pyenv shim may exist for a version that is not there.
define find_python
python=; for try in $(if $(PYTHON),"$(PYTHON)",python3.13 python3.12 python3.11 python3); do \
  if "$$try" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then python=$$try; break; fi; \
done; \
if [ -z "$$python" ]; then \
  echo "Rota needs Python 3.11 or later with its venv module, and $(if $(PYTHON),$(PYTHON) is not one,found none on PATH)." >&2; \
  echo "On Debian or Ubuntu: apt-get install python3 python3-venv. Elsewhere: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; \
  exit 1; \
fi
endef

# A .venv holds absolute paths, so one that was copied or moved here with the tree is made anew.
.venv/.made-for: $(if $(filter $(CURDIR),$(shell cat .venv/.made-for 2>/dev/null)),,FORCE)
	@$(find_python); echo "making .venv with $$("$$python" --version) ..."; "$$python" -m venv --clear .venv
	@echo '$(CURDIR)' >$@

.venv/.installed: .venv/.made-for pyproject.toml requirements/server.txt
	@echo "installing what Rota needs (about 30 s the first time) ..."
	@$(PIP_INSTALL) --require-hashes -r requirements/server.txt
	@$(PIP_INSTALL) --no-build-isolation --no-deps -e .
	@touch $@

# The dev lock contains the server lock, so one install serves both stamps.
.venv/.installed-dev: .venv/.made-for pyproject.toml requirements/server.txt requirements/dev.txt
	@echo "installing what Rota and its tests need (about 40 s the first time) ..."
	@$(PIP_INSTALL) --require-hashes -r requirements/dev.txt
	@$(PIP_INSTALL) --no-build-isolation --no-deps -e .
	@touch .venv/.installed $@
