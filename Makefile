# Every target works on a fresh machine with Python 3.10 or newer, make and g++: .venv is made and filled on the
# first call, and again only when pyproject.toml changes. Choose another interpreter with `make PYTHON=python3.12`,
# pass options with `make test ARGS="-k manifest"`.

PYTHON ?= python3
ARGS   ?=

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.cachehome-installed
TORCH := $(shell sed -n 's/.*"\(torch==[^"]*\)".*/\1/p' pyproject.toml)
# PyTorch's own index of builds without CUDA (about 200 MB instead of several GB)
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu

.PHONY: demo test lint format bench docs clean

demo: $(STAMP)
	$(BIN)/python -m cachehome demo $(ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict cachehome

format: $(STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(STAMP)
	$(BIN)/python benchmarks/sync.py $(ARGS)
	$(BIN)/python benchmarks/hook.py

docs: $(STAMP)
	$(BIN)/python docs/generate.py
	$(BIN)/mkdocs build --strict --quiet --config-file .ci/mkdocs.yml
	@echo "open site/index.html"

clean:
	rm -rf $(VENV) build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# torch goes in first and by itself, from the nearest place that has a build fit for this machine:
# what pip can find without an index (find-links), else the CPU index if there is no NVIDIA driver, else the default.
$(STAMP): pyproject.toml
	@.ci/system $(PYTHON)
	@[ -x $(BIN)/pip ] || { echo "making $(VENV) (see the README for how long this takes)" && \
		$(PYTHON) -m venv --clear $(VENV); }
	@$(BIN)/pip install -qq --no-deps --no-index '$(TORCH)' 2>/dev/null || \
		{ [ "$$(uname -s)" = Linux ] && [ ! -e /proc/driver/nvidia ] && \
		  $(BIN)/pip install --no-deps --retries 1 --index-url $(TORCH_CPU_INDEX) '$(TORCH)'; } || true
	$(BIN)/pip install -qq --editable '.[dev]'
	@touch $@
