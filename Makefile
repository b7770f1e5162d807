# `make demo` and `make test` are all you need; each sets up .venv by itself, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test test-integrations lint types layers unit benchmark clean

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(INSTALLED)
	@mkdir -p demo
	$(BIN)/gelato data info four-rooms --plot demo/four-rooms-data.png
	$(BIN)/gelato model fit four-rooms --run demo/four-rooms-model
	$(BIN)/gelato figure four-rooms --run demo/four-rooms-model --out demo/four-rooms.png
	$(BIN)/gelato uncertainty demo/four-rooms-model --rows 128
	$(BIN)/gelato figure penalties --run demo/four-rooms-model --out demo/penalties.png
	$(BIN)/gelato train four-rooms-hole --method gelato gelato-none --seeds 3 --run demo/hole
	$(BIN)/gelato figure paths --run demo/hole --out demo/paths.png
	@echo "figures: demo/four-rooms-data.png demo/four-rooms.png demo/penalties.png demo/paths.png"

test: lint types layers unit

# PyTorch's CPU build first, so that Stable-Baselines3 does not bring the one for GPUs.
test-integrations: $(INSTALLED)
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[sb3]'
	$(BIN)/pytest -m integration

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
	$(BIN)/python benchmarks/generation.py
	$(BIN)/python benchmarks/behaviour.py

clean:
	rm -rf $(VENV) demo
