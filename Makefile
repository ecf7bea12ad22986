# Start with `make demo` or `make test`; both set up .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo report-demo test test-slow test-wheel check docs format dist clean

setup: $(READY)

# PEP 517 for packages without a wheel (rliable): older pips warn otherwise
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "aspc needs Python 3.11 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	@echo "Setting up $(VENV) (a few minutes the first time) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@PIP_USE_PEP517=1 $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY)
	@$(BIN)/python examples/demo.py

# Train a small suite on the built-in maze (minutes) and write runs/report-demo/report/index.html
report-demo: $(READY)
	@$(BIN)/aspc bench embedded --out runs/report-demo
	@$(BIN)/aspc report runs/report-demo --out runs/report-demo/report

test: $(READY)
	@$(BIN)/python -m pytest -n 2 -m "not slow"

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
