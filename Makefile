# make demo   set up and audit a small network on bundled photographs: a verdict table and runs/quickstart-*/report.html
# make test   set up, then ruff, mypy and all tests
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
TEST_STAMP := .venv/.installed-test

.PHONY: setup setup-test demo test lint bench docs package clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -d .venv || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt -e .
	@touch $@

setup-test: $(TEST_STAMP)

$(TEST_STAMP): $(STAMP) examples/plugin/pyproject.toml
	$(BIN)/pip install --quiet -c constraints.txt -e '.[test]' -e examples/plugin
	@touch $@

demo: setup
	@$(BIN)/gradleak run --show-truth; code=$$?; \
	if [ $$code -eq 1 ]; then echo "exit code 1: something leaks, as a CI gate would see it"; else exit $$code; fi

lint: setup-test
	$(BIN)/ruff check src tests bench examples
	$(BIN)/mypy

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

bench: setup-test
	for name in step labels defended ig dlg; do $(BIN)/python bench/$$name.py || exit 1; done

# docs/ as a site in site/, every link checked.
docs: setup
	$(BIN)/pip install --quiet -c constraints.txt -e '.[docs]'
	$(BIN)/mkdocs build --strict --quiet

# A wheel and an sdist, installed in a clean environment, where the command must answer.
package:
	rm -rf dist && $(PYTHON) -m venv dist/build && dist/build/bin/pip install --quiet build
	dist/build/bin/python -m build --quiet --outdir dist .
	$(PYTHON) -m venv dist/clean && dist/clean/bin/pip install --quiet -c constraints.txt dist/gradleak-*.whl
	cd dist && clean/bin/gradleak --version && clean/bin/gradleak plan

clean:
	rm -rf .venv runs site
