# Everything happens in .venv; nothing is installed elsewhere.
# A command's prerequisites set up what it needs: on a fresh machine `make test` is enough.

PYTHON ?= python3
BIN := .venv/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
MODEL ?=
MODEL_FP16 ?=
IMAGE ?= models/codes/demo.jpg
IMAGES ?= detcli/pictures
OUT ?= build/gpu-check
GPU_CHECK ?=
RUN ?= build/codes
PHOTOGRAPHS ?= build/photographs
TRAIN ?=
SEED ?= 0
REPOSITORY ?=

.DEFAULT_GOAL := help
.NOTPARALLEL: # they share .venv
unexport PYTHONDONTWRITEBYTECODE # the tests start hundreds of processes, and each would compile the package
.PHONY: help setup demo quick test mutants readers test-train check check-page docs bench gpu-check model test-lowest release clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

# opencv-python needs libraries of a desktop. Where they are missing, the headless build of the same
# version is installed over it; opencv-python stays, as the package that detcli requires. An import
# alone proves little: uninstalling one of the two leaves a folder that can be imported.
define load_opencv
@said=$$($(1)/python -c 'import cv2; cv2.imdecode' 2>&1) || { \
	version=$$($(1)/pip freeze | sed -n '/^opencv-python/s/.*==/==/p' | sed 1q); \
	echo "opencv-python does not load: $${said##*Error: }"; \
	echo "Installing opencv-python-headless$$version over it in $(1:/bin=)"; \
	$(1)/pip install --quiet --disable-pip-version-check --force-reinstall --no-deps \
		opencv-python-headless$$version && \
	$(1)/python -c 'import cv2; cv2.imdecode'; }
endef

# CI skips no test for want of a library, so it has the extra `dev-all`.
DEVELOPMENT := .venv/installed$(if $(CI),-all)

setup: $(DEVELOPMENT) ## Create .venv and install detcli with its development tools; with CI=1 what CI has
	$(call load_opencv,$(BIN))

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[dev]"
	touch $@

# It has all that `dev` has, so that both are there.
.venv/installed-all: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[dev-all]"
	touch .venv/installed $@

.venv/installed-user: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	touch $@

# What a user needs; where the development tools are, detcli is too.
demo: $(or $(wildcard .venv/installed),.venv/installed-user) ## Detect on an image: make demo [MODEL=yolov10n IMAGE=detcli/pictures/street.jpg]
	$(call load_opencv,$(BIN))
	$(BIN)/detcli predict '$(IMAGE)' $(if $(MODEL),--model '$(MODEL)',--model codes --read) --format table --save demo
	@printf '%s\n' 'The annotated image is in demo/. Next:' '' \
		'    . $(BIN)/activate                                 # puts detcli on the PATH of this shell' \
		'    detcli predict YOUR.jpg -m codes --read --save demo    # codes in an image of yours' \
		'    detcli predict YOUR.jpg --save demo                    # people, cars and so on; fetches a model of 9 MB' \
		'    detcli predict YOUR.jpg -m codes --read --report page  # an HTML report: page/index.html'

# Tests start many processes, none of which shall compile everything anew.
quick test: export PYTHONDONTWRITEBYTECODE =

quick: setup ## Run the quick tests, some of every area: what one runs while working
	$(BIN)/pytest -q -n auto --dist worksteal -m 'not slow'

test: setup ## Run all tests, in parallel
	$(BIN)/pytest -n auto --dist worksteal

mutants: setup ## Change 200 places of the code, and see whether the tests notice: make mutants [SEED=0]
	$(BIN)/python tests/mutants.py --seed $(SEED)

test-train: .venv/installed-train ## Run the tests of what trains the bundled model, which take PyTorch
	$(BIN)/pytest models/codes/tests
	MYPYPATH=models $(BIN)/mypy -p codes

# Label Studio's library requires another OpenCV than ours, and MegaDetector's PyTorch, so what their
# reader of tasks and their validator of results need is listed here.
READERS := label-studio-sdk==2.1.2 appdirs==1.4.4 faker==40.54.0 jsf==0.11.2 lxml==6.1.3 pyjwt==2.10.1 \
	rstr==3.2.2 smart-open==9.0.2 wrapt==2.5.2 xmljson==0.2.1 megadetector==10.0.28 jsonpickle==4.1.4

readers: .readers/installed ## Install what tests read files for Label Studio and Timelapse with

.readers/installed: Makefile | setup
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target .readers $(READERS)
	touch $@

check: setup ## Formatting, lint, types, also of the documentation's examples
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/clang-format --dry-run --Werror $(shell find detcli tests -name '*.cu' -o -name '*.cuh' -o -path '*/shim/*')
	$(BIN)/mypy
	$(BIN)/mypy --platform win32 --cache-dir .mypy_cache/win32 detcli
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin detcli
	$(BIN)/mypy --config-file tests/mypy.ini
	$(BIN)/python docs/check_examples.py
	@$(MAKE) --no-print-directory check-page

# What the scripts of the page are formatted and checked with; Python's tools do not come with npm.
PAGE_TOOLS := prettier@3.10.1 eslint@10.15.0 @eslint/js@10.0.1 globals@17.14.0
PAGE_FILES := detcli/page/files/*.js detcli/page/files/*.css detcli/page/files/*.html tests/page/eslint.config.mjs

.node/installed: Makefile
	npm install --prefix .node --silent --no-audit --no-fund $(PAGE_TOOLS)
	touch $@

check-page: ## Formatting and lint of the page's scripts, where npm is installed
	@if ! command -v npm >/dev/null; then \
		echo "npm is not installed: the scripts of the page are not checked"; \
	elif ! $(MAKE) --no-print-directory .node/installed; then \
		echo "npm cannot install prettier and eslint: the scripts of the page are not checked"; \
	else \
		.node/node_modules/.bin/prettier --check --log-level warn $(PAGE_FILES) && \
		.node/node_modules/.bin/eslint --config tests/page/eslint.config.mjs detcli/page/files/*.js; \
	fi

docs: setup ## Write docs/cli.md, docs/models.md and the JSON Schemas anew from the program
	$(BIN)/python docs/generate.py

bench: setup ## Measure the selection: make bench
	$(BIN)/python tests/benchmarks/selection.py

# Where PYTHON or BIN is named, that one is taken as it is and nothing is installed.
ifeq ($(filter command,$(origin PYTHON) $(origin BIN)),)
gpu-check: .venv/installed-cuda
endif
ifeq ($(origin PYTHON),command line)
GPU_PYTHON := $(PYTHON)
else
GPU_PYTHON := $(BIN)/python
endif

.venv/installed-cuda: $(DEVELOPMENT) | setup
	@$(BIN)/python -c 'from detcli.backend.nvidia import count_gpus as c; c() or exit("there is no NVIDIA GPU")'
	extra=$$($(BIN)/python -c 'from detcli.backend.nvidia import ask_driver, fitting_extra as f; e = f(ask_driver()); print(e.name if e else exit("no extra of detcli is for this GPU and its driver"))') && \
		$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[$$extra]"
	touch $@

gpu-check: ## Check and time the kernels on a GPU: make gpu-check [ONLY=PART] [MODEL=...] [OUT=build/gpu-check]
	PYTHONPATH="$(CURDIR):$(CURDIR)/tests$${PYTHONPATH:+:$$PYTHONPATH}" $(GPU_PYTHON) -m benchmarks.gpu --out '$(OUT)' \
		--model '$(MODEL)' --model-fp16 '$(MODEL_FP16)' --images $(IMAGES) $(addprefix --only ,$(ONLY)) $(GPU_CHECK)

.venv/installed-train: $(DEVELOPMENT) | setup
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[train]"
	touch $@

build/photographs: | .venv/installed-train
	PYTHONPATH=models $(BIN)/python -m codes.photographs $@.new
	mv $@.new $@

model: .venv/installed-train $(PHOTOGRAPHS) ## Train the bundled model anew: make model [RUN=build/codes] [PHOTOGRAPHS=] [TRAIN='--processes 2']
	PYTHONPATH=models $(BIN)/python -m codes.train --run '$(RUN)' --photographs '$(PHOTOGRAPHS)' $(TRAIN)
	PYTHONPATH=models $(BIN)/python -m codes.curves '$(RUN)/log.tsv' '$(RUN)/curves.png'
	PYTHONPATH=models $(BIN)/python -m codes.export '$(RUN)/last.pt' '$(RUN)/codes.onnx'
	PYTHONPATH=models $(BIN)/python -m codes.evaluate '$(RUN)/codes.onnx'
	@echo 'The model is $(RUN)/codes.onnx; detcli/model/bundled/codes.onnx is the one that ships'

test-lowest: ## Run the tests with the lowest versions that pyproject.toml admits
	$(PYTHON) -m venv --clear .venv-lowest
	.venv-lowest/bin/pip install --quiet uv
	.venv-lowest/bin/uv pip install --python .venv-lowest/bin/python --resolution lowest-direct --editable ".[dev-all]"
	$(call load_opencv,.venv-lowest/bin)
	.venv-lowest/bin/pytest -n auto --dist worksteal

release: .venv/installed-all ## Build what the package index gets: make release REPOSITORY=https://HOST/OWNER/detcli
	@case '$(REPOSITORY)' in https://?*/?*) ;; *) echo 'Say where the sources are: REPOSITORY=https://HOST/OWNER/detcli' >&2; exit 1 ;; esac
	rm -rf dist
	DETCLI_REPOSITORY='$(REPOSITORY)' $(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*

clean: ## Remove what the other targets made
	rm -rf .venv .venv-lowest .node .readers build dist demo .mypy_cache .pytest_cache .ruff_cache .hypothesis
