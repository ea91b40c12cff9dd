# Thin: each target calls cmake, ctest or a script; see docs/testing.md.
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc)
PREFIX ?= /usr/local
OUT := out

.PHONY: help setup build run test check-full bench asan tsan fuzz format format-check tidy avx512-emulated install clean \
  wheel test-python test-python-oldest fuzz-python lint-python test-rust

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9 -]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install the tools that are missing (Debian packages)
	scripts/setup

build: ## build/flashwave, build/libflashwave.so and the tests
	cmake --preset release
	cmake --build --preset release

run: ## from nothing to a checked, measured and plotted result in out/bench.svg
	scripts/setup --for run
	cmake --preset release -DFLASHWAVE_BUILD_TESTS=OFF && cmake --build --preset release
	mkdir -p $(OUT) && build/flashwave check --suite smoke
	build/flashwave bench --suite quick --plot $(OUT)/bench.svg

test: ## everything CI runs
	scripts/setup
	scripts/test

check-full: build ## the whole conformance suite (long)
	build/flashwave check --suite full

bench: build ## every benchmark suite, plots in out/
	scripts/bench $(OUT)

asan tsan fuzz format-check tidy: ## one stage of `make test`
	scripts/test $@

format: ## rewrite every C, C++ and Python file in the project's style
	scripts/format
	scripts/format-python

wheel: ## the Python package: out/wheel/flashwave-*.whl
	scripts/wheel

test-python: ## the Python tests on that wheel
	scripts/test-python

test-python-oldest: ## the same with the oldest Python and PyTorch that are supported
	scripts/test-python --oldest

fuzz-python: ## random sequences of calls of the Python package, for an hour (FLASHWAVE_FUZZ_PYTHON_SECONDS); prints the seed
	scripts/fuzz-python

lint-python: ## style and likely mistakes in the Python files
	scripts/test python-lint

test-rust: build ## the Rust crates: style, documentation, tests
	scripts/test-rust

avx512-emulated: build ## the conformance suite on an emulated AVX-512 CPU (slow; fetches Bochs and a kernel)
	scripts/check-avx512-emulated

install: build ## library, header and command line under PREFIX
	cmake --install build --prefix $(PREFIX)

clean: ## remove every build folder and out/
	rm -rf build build-asan build-tsan build-wheel rust/target $(OUT)
