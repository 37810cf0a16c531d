# The whole developer interface. Every target sets up .venv by itself; nothing else needs installing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH_STAMP := $(VENV)/.installed-bench
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
JOBS ?= auto

# The tests start many programs: they find what they import compiled, even if the shell would rather have no such files.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test deep mutants check format bench-quick bench soak clean

help: ## Show this list.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(STAMP) ## Create or update the virtual environment.

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing analemma and what its tests need into $(VENV)"
	@$(PIP) install "pip>=25.1" 2>&1 | grep -v '^WARNING: Location' || true
	@# Python compiles what it imports when it first does; compiling the rest would take a third of the time.
	@$(PIP) install --no-compile --constraint constraints.txt --editable '.[postgres,s3,redis,langgraph]' --group test --group check
	@touch $@

$(BENCH_STAMP): $(STAMP) pyproject.toml
	@echo "installing the peers of the benchmarks into $(VENV)"
	@$(PIP) install --constraint constraints.txt --group bench
	@touch $@

demo: $(STAMP) ## Set up, then show the main job on the embedded default; ends by itself.
	@$(BIN)/analemma demo

# The processes that share the tests each read all of them; on a fresh tree each would compile them, too.
define COMPILE_TESTS
$(BIN)/python -m pytest --collect-only --quiet tests/api >/dev/null 2>&1 & \
$(BIN)/python -m pytest --collect-only --quiet tests --ignore tests/api >/dev/null 2>&1; wait
endef

test: $(STAMP) ## Set up, then run the tests, with PostgreSQL where it is the subject.
	@$(if $(ARGS),,test -d tests/core/canon/__pycache__ || { $(COMPILE_TESTS); })
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m 'not soak' $(ARGS)

deep: $(STAMP) ## Every test at its full count, on both databases, on clusters.
	@$(BIN)/python -m tests.deep -n $(JOBS) --dist worksteal $(ARGS)

mutants: $(STAMP) ## Break one guard at a time: a test must fail. ARGS names some of them.
	@$(BIN)/python -m tests.mutants $(ARGS)

check: $(STAMP) ## Lint, types (strict) and layers.
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(STAMP) ## Rewrite the code in the house format.
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

bench-quick: $(BENCH_STAMP) ## A few minutes of benchmarks, with ratios to the same run's floor.
	@$(BIN)/python -m bench --quick

bench: $(BENCH_STAMP) ## All benchmarks at full size.
	@$(BIN)/python -m bench

soak: $(STAMP) ## Long runs: kill, interleaving and property tests at full size.
	@$(BIN)/python -m pytest -n $(JOBS) --timeout 3600 --hypothesis-profile explore -m soak $(ARGS)
	@$(BIN)/python -m pytest -n $(JOBS) --hypothesis-profile explore -m 'not soak' tests/property

clean: ## Remove what the other targets made.
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
