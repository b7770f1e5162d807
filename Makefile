# `make demo` and `make test` are all you need. Each creates .venv once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DOCS_INSTALLED := $(VENV)/.docs-installed

.PHONY: demo test test-slow test-integrations docs docs-serve docs-packages docs-pages lint types layers unit benchmark \
	chaos chaos-short chaos-broken clean

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(INSTALLED)
	@mkdir -p demo
	$(BIN)/gelato data info four-rooms,transitions=10000 --plot demo/four-rooms-data.png
	$(BIN)/gelato model fit four-rooms,transitions=10000 --run demo/four-rooms-model
	$(BIN)/python experiments/figures/four_rooms.py --run demo/four-rooms-model --out demo/four-rooms.png
	$(BIN)/gelato uncertainty demo/four-rooms-model --rows 128
	$(BIN)/python experiments/figures/penalties.py --run demo/four-rooms-model --out demo/penalties.png
	$(BIN)/gelato train four-rooms-hole,transitions=10000 --method gelato gelato-none --penalty-weight 4 --real-fraction 0.5 --seeds 3 --run demo/hole
	$(BIN)/python experiments/figures/paths.py --run demo/hole --out demo/paths.png
	$(BIN)/gelato select demo/hole
	$(BIN)/gelato report demo/hole --out demo/report.html
	@echo "figures: demo/four-rooms-data.png demo/four-rooms.png demo/penalties.png demo/paths.png"
	@echo "report: $(CURDIR)/demo/report.html"

test: lint types layers unit

test-slow: $(INSTALLED)
	$(BIN)/pytest --numprocesses 2 --dist loadfile -m slow

# PyTorch's CPU build first, so that Stable-Baselines3 does not bring the one for GPUs. The tests of
# the report page use the system's Chromium (Debian package `chromium`) and are skipped without it.
test-integrations: $(INSTALLED)
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[browser,mlflow,ray,sb3,wandb]'
	$(BIN)/pytest -m integration

# The site, in site/. It runs the tutorials, and fails at broken links, missing anchors and public
# names without an entry or a docstring.
docs: docs-pages
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/python -m experiments.check_site site

docs-serve: docs-pages
	$(BIN)/mkdocs serve

docs-pages: $(DOCS_INSTALLED)
	$(BIN)/python -m experiments.tutorials

docs-packages: $(DOCS_INSTALLED)

$(DOCS_INSTALLED): $(INSTALLED)
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs,sb3]'
	touch $@

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

layers: $(INSTALLED)
	$(BIN)/lint-imports

unit: $(INSTALLED)
	$(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

benchmark: $(INSTALLED)
	$(BIN)/python experiments/benchmarks/generation.py
	$(BIN)/python experiments/benchmarks/behaviour.py

# Hours; stop it when you like, and the next call continues.
chaos: $(INSTALLED)
	$(BIN)/python -m experiments.chaos --results results/chaos.json

chaos-short: $(INSTALLED)
	$(BIN)/python -m experiments.chaos --short --work chaos/short --fresh

chaos-broken: $(INSTALLED)
	$(BIN)/python -m experiments.chaos.broken --results results/chaos.json

clean:
	rm -rf $(VENV) demo chaos site .cache
