# `make demo` trains `guided` on HalfCheetah-v3, `make test` runs the tests, `make docs` builds the documentation in site/.
# Each makes its environment first.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
SOURCES = pyproject.toml setup.py src/offrank/engines/native/_rollout.c
CODE = src tests examples docs results README.md CHANGELOG.md CONTRIBUTING.md setup.py pyproject.toml  # not scripts of yours
DEMO_SEED ?= 1
DEMO_STEPS ?= 100k

.PHONY: demo test test-gpu lint docs clean

demo: $(VENV)/.installed
	$(BIN)/offrank train HalfCheetah-v3 --algo guided --seed $(DEMO_SEED) --steps $(DEMO_STEPS) --eval-episodes 10 --confirm-episodes 100 --out runs/demo --resume
	@echo "learning curve: runs/demo/curve.png    policy: runs/demo/best.offrank"

test: $(VENV)/.installed-dev lint
	$(BIN)/python -m pytest

test-gpu: $(VENV)/.installed-dev  # the warp engine in full: needs an NVIDIA GPU
	$(BIN)/python -m pytest -rA --gpu tests/engines/test_warp.py tests/algorithms/test_batched.py tests/algorithms/test_batched_td3.py tests/algorithms/test_batched_actor_critic.py tests/algorithms/test_kernels.py tests/policies/test_policies.py

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy

docs: $(VENV)/.installed-docs  # runs the notebooks; fails if a cell does, or on a broken link
	rm -rf build/docs site && mkdir -p build/docs
	cp -R README.md CHANGELOG.md LICENSE docs examples results build/docs
	$(BIN)/jupyter nbconvert --to markdown --execute --log-level ERROR --output-dir build/docs/examples examples/*.ipynb
	find build/docs -name '*.md' -exec sed -i.bak 's/\.ipynb)/.md)/g' {} + && find build/docs -name '*.bak' -delete
	$(BIN)/zensical build --strict --clean

$(VENV)/.installed: $(SOURCES)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.installed-dev: $(SOURCES)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: $(SOURCES)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) runs build site .cache .pytest_cache .mypy_cache .ruff_cache
