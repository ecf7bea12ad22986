# Start with `make demo` or `make test`; both set up .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Two stamps: the demo needs only the core, everything else the packages of all extras and of the tools.
CORE := $(VENV)/.core
READY := $(VENV)/.ready

# Without bytecode every start of Python compiles its imports again; containers often set this variable.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo report-demo test test-slow test-wheel check docs format dist clean

setup: $(READY)

$(CORE): pyproject.toml constraints.txt
	@echo "Setting up $(VENV) ..."
	@PYTHON='$(PYTHON)' .ci/install $(VENV) -e .
	@touch $@

$(READY): pyproject.toml constraints.txt
	@echo "Setting up $(VENV) (a few minutes the first time) ..."
	@PYTHON='$(PYTHON)' .ci/install $(VENV) -e '.[dev]'
	@touch $(CORE) $@

demo: $(CORE)
	@$(BIN)/python examples/demo.py

# Train a small suite on the built-in maze (minutes) and write runs/report-demo/report/index.html
report-demo: $(READY)
	@$(BIN)/aspc bench embedded --out runs/report-demo
	@$(BIN)/aspc report runs/report-demo --out runs/report-demo/report

test: $(READY)
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

test-slow: $(READY)
	@$(BIN)/python -m pytest -m slow

# Test the wheel alone, in an empty environment, home and folder
test-wheel: dist
	@$(BIN)/python .ci/wheel.py dist/*.whl

check: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

# Build the site in site/. Broken links and anchors are errors.
docs: $(READY)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "The site is in site/index.html"

format: $(READY)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# Build the sdist, and the wheel from it, in dist/
dist: $(READY)
	@rm -rf dist
	@$(BIN)/python -m build --no-isolation --quiet >/dev/null

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache
