# caloscale. `make` prints the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PRESET ?= flow
SET    ?=
NAME   ?=
CONTEXT   ?=
OVERLAY   ?= kind
IMAGE     ?=
TRAINER   ?=
SOLVER    ?=
NAMESPACE ?= caloscale-system
FORCE     ?=
ON        ?=
PART      ?= spec
SAMPLE    ?=
PROCESSES ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help
help: ## Print the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z%-]+:.*## / {printf "  \033[1m%-19s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  variables    PYTHON=$(PYTHON)  PRESET=$(PRESET)  SET='train.epochs=3 data.showers=500'  NAME=my-run"
	@$(MAKE) --no-print-directory check-machine

.PHONY: check-machine
check-machine:
	@command -v $(PYTHON) >/dev/null || { echo "missing: $(PYTHON). Get it: apt-get install python3 python3-venv, or set PYTHON=/path/to/python3.12"; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if (3, 11) <= v < (3, 14) else f"missing: Python 3.11 to 3.13, $(PYTHON) is {v.major}.{v.minor}. Get it: apt-get install python3.12 python3.12-venv, then make PYTHON=python3.12")'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "missing: the venv module. Get it: apt-get install python3-venv"; exit 1; }

# What running needs. The stamp is remade when the pins change.
$(VENV)/.run: pyproject.toml constraints.txt
	@$(MAKE) --no-print-directory check-machine
	@echo "installing into $(VENV) (once, about 2 GB, two to five minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --progress-bar off --constraint constraints.txt --editable '.[train,cpu,simulate,pipeline,solver,cluster,buckets]'
	@touch $@

# What developing needs on top.
$(VENV)/.dev: $(VENV)/.run
	@echo "installing the development tools into $(VENV)"
	@$(BIN)/pip install --quiet --progress-bar off --no-compile --constraint constraints.txt --editable '.[train,cpu,simulate,infer,cluster,buckets,azure,operator,pipeline,solver,studies,scikit-hep,docs,dev]'
	@touch $@

# What planning and deploying need: no TensorFlow, no kfp.
$(VENV)/.base: pyproject.toml constraints.txt
	@$(MAKE) --no-print-directory check-machine
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --progress-bar off --constraint constraints.txt --editable '.[plan,cluster,buckets]'
	@touch $@

.PHONY: run
run: $(VENV)/.run ## Simulate, train, validate and report on this machine: the pipeline, locally (about 5 minutes)
	@$(BIN)/python -m pipelines.train_calorimeter_gan --preset '$(PRESET)' $(if $(NAME),--name '$(NAME)') $(foreach s,$(SET),--set '$(s)')

.PHONY: install
install: $(VENV)/.dev ## Install everything for development into .venv

# A process that dies is not replaced: pytest-xdist 3.8 then hands out the files that are done as well, and never ends.
.PHONY: test
test: $(VENV)/.dev ## Run the tests (at most 10 minutes)
	@$(BIN)/pytest --numprocesses auto --dist loadfile --max-worker-restart 0 --durations=15
	@$(BIN)/python -m tools.cluster built || \
	echo "the operator's tests on a real control plane were left out: make test-control-plane (builds it once, up to half an hour)"

.PHONY: control-plane-build
control-plane-build: $(VENV)/.dev ## Build etcd, API server, operators... once into the cache (up to half an hour)
	@$(BIN)/python -m tools.cluster build

.PHONY: test-control-plane
test-control-plane: control-plane-build ## Run the operator's tests on a real control plane
	@$(BIN)/pytest tests/control_plane -m 'control_plane and not long' --durations=10

.PHONY: cluster-up
cluster-up: $(VENV)/.dev ## Start three real nodes on this machine, until Ctrl-C (root on Linux)
	@$(BIN)/python -m tools.cluster nodes

.PHONY: deploy
deploy: $(VENV)/.base ## Install the operator on a cluster: CONTEXT= OVERLAY= IMAGE= TRAINER= SOLVER= NAMESPACE= DRY_RUN=1
	@$(BIN)/python -m tools.deploy deploy --context '$(CONTEXT)' --overlay '$(OVERLAY)' --image '$(IMAGE)' --trainer '$(TRAINER)' --solver '$(SOLVER)' --namespace '$(NAMESPACE)' $(if $(filter-out 0,$(DRY_RUN)),--dry-run)

.PHONY: undeploy
undeploy: $(VENV)/.base ## Remove the operator from a cluster: CONTEXT= OVERLAY= NAMESPACE= (FORCE=--force: with all runs)
	@$(BIN)/python -m tools.deploy undeploy --context '$(CONTEXT)' --overlay '$(OVERLAY)' --namespace '$(NAMESPACE)' $(FORCE)

.PHONY: images
images: $(VENV)/.dev ## Build the images with Buildah: TARGETS= BASE_IMAGE= EXTRAS= ARCHIVE=1, PUSH=1 REGISTRY=
	@$(BIN)/python -m tools.images build $(TARGETS) --registry '$(REGISTRY)' --base '$(BASE_IMAGE)' \
	  $(if $(filter-out 0,$(PUSH)),--push) $(if $(filter-out 0,$(ARCHIVE)),--archive) $(if $(filter undefined,$(origin EXTRAS)),,--extras '$(EXTRAS)')

.PHONY: base-image
base-image: $(VENV)/.dev ## Make a base for images from Debian's packages, where no registry can be reached (root, buildah)
	@$(BIN)/python -m tools.images base $(if $(filter-out 0,$(REFRESH)),--refresh)

.PHONY: smoke
smoke: $(VENV)/.dev ## Train on real nodes while nodes and workers are lost (root); on a cluster of yours: CONTEXT= REGISTRY= OVERLAY=
	@$(if $(CONTEXT),true,$(MAKE) --no-print-directory images ARCHIVE=1 TARGETS='trainer-cpu solver operator storage')
	@SMOKE=1 CONTEXT='$(CONTEXT)' REGISTRY='$(REGISTRY)' OVERLAY='$(OVERLAY)' $(BIN)/pytest tests/smoke -m long --timeout 3600 --durations=10

.PHONY: smoke-short
smoke-short: $(VENV)/.dev ## Run two of these tests: from apply to report, and a lost node (ten minutes)
	@$(MAKE) --no-print-directory images ARCHIVE=1 TARGETS='trainer-cpu operator storage'
	@SMOKE=1 $(BIN)/pytest tests/smoke/test_training.py -m long -k 'apply_to_report or lose_a_node' --timeout 3600

.PHONY: test-integration
test-integration: $(VENV)/.dev ## Run the tests of several parts together, as continuous integration does (eleven minutes)
	@$(BIN)/pytest -m 'integration and not long' --numprocesses auto --dist loadfile --max-worker-restart 0 --durations=15

.PHONY: test-docs
test-docs: $(VENV)/.dev ## Run every command of the pages, and those that need a cluster on the control plane if it is built
	@$(BIN)/pytest tests/pipelines/test_documentation.py tests/pipelines/test_notebook.py tests/planning/test_documentation.py \
	  tests/control_plane/operator/test_documentation.py -m 'long or not long' --timeout 3600 --durations=15

.PHONY: test-long
test-long: $(VENV)/.dev ## Run all tests that `make test` leaves out: integration tests, and those that take minutes each
	@$(BIN)/pytest -m 'integration or long' --timeout 3600 --durations=15

.PHONY: test-mutants
test-mutants: $(VENV)/.dev ## Run mutation tests: PART=spec, billing, physics or operator; SAMPLE=300 mutants by SEED; resumable
	@$(BIN)/python -m tools.mutants '$(PART)' $(if $(SAMPLE),--sample '$(SAMPLE)') $(if $(SEED),--seed '$(SEED)') --processes '$(PROCESSES)'

.PHONY: lint
lint: $(VENV)/.dev ## Check style, types, imports and words: ruff, mypy, import-linter
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports && $(BIN)/python -m tools.language

.PHONY: format
format: $(VENV)/.dev ## Format the code, and fix what ruff can fix
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

.PHONY: generate
generate: $(VENV)/.dev ## Make the generated files: compiled pipelines and components, JSON schemas, custom resource
	@$(BIN)/python -m tools.generate

.PHONY: chart
chart: $(VENV)/.dev ## Write the Helm chart of an overlay into build/chart (OVERLAY=)
	@$(BIN)/python -m tools.chart write build/chart '$(OVERLAY)'

.PHONY: release-check
release-check: ## Build sdist and wheel, check them, and run the wheel outside the clone on each supported Python
	@$(PYTHON) -m tools.release

.PHONY: bundle
bundle: $(VENV)/.dev ## Write the bundle for the Operator Lifecycle Manager into build/bundle
	@$(BIN)/python -m tools.manifests build/bundle

.PHONY: docs
docs: $(VENV)/.dev ## Build the site from docs/ into build/site; broken links, missing images and orphans fail
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict && echo "site: build/site/index.html; with search: make docs-serve"

.PHONY: docs-serve
docs-serve: docs ## Serve the site on http://127.0.0.1:8000; browsers do not search pages that are opened as files
	@$(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site 8000

.PHONY: verify
verify: generate docs ## Fail when generated files are not what `make generate` makes, or the site cannot be built
	@changed=$$(git status --porcelain -- $$($(BIN)/python -m tools.generate --list)); \
	if [ -n "$$changed" ]; then echo "generated files differ; commit the result of make generate:"; echo "$$changed"; exit 1; fi; \
	echo "generated files are up to date"

.PHONY: bench
bench: $(VENV)/.dev ## Measure what has no result in runs/bench and write docs/benchmarks.md (hours; BENCH=step)
	@$(BIN)/python -m tools.benchmark $(BENCH)

study-%: $(VENV)/.dev ## Run a study at its real size; SET='train.epochs=3'; ON=cluster: its pipeline as study-NAME.yaml
	@$(if $(filter cluster,$(ON)),$(BIN)/python -m pipelines.run_study '$*' --compile 'study-$*.yaml',$(BIN)/caloscale study '$*') \
	  $(foreach s,$(SET),--set '$(s)')

.PHONY: clean
clean: ## Remove the environment and all caches of tools (not runs/)
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache src/*.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
