# Thin: each target calls cmake, ctest or a script; see docs/testing.md.
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc)
PREFIX ?= /usr/local
OUT := out

.PHONY: writable test-fresh help setup build run test check-full bench asan tsan fuzz format format-check tidy avx512-emulated check-aarch64 install clean \
  wheel wheel-aarch64 test-python test-python-oldest test-integrations fuzz-python lint-python test-rust

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9 -]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install the tools that are missing (Debian packages)
	scripts/setup

writable:
	@test -w . || { echo "This checkout is read-only: copy it to a folder you can write to." >&2; exit 1; }

build: writable ## build/flashwave, build/libflashwave.so and the tests; FLASHWAVE_AMD_TARGETS=gfx942 chooses GPUs
	scripts/setup --for build
	cmake --preset release
	cmake --build --preset release

run: writable ## from nothing to a checked, measured and plotted result in out/bench.svg, and two emulated GPUs
	scripts/setup --for run
	cmake --preset run --log-level=NOTICE
	cmake --build --preset run
	scripts/run build-run $(OUT)

test: writable ## everything CI runs
	scripts/setup
	scripts/test

test-fresh: writable ## the README's commands on bare Debian systems (long; needs root)
	scripts/test-fresh

check-full: build ## the whole conformance suite (long)
	build/flashwave check --suite full

bench: build ## every benchmark suite, plots in out/
	scripts/bench $(OUT)

asan tsan fuzz format-check tidy: ## one stage of `make test`
	scripts/test $@

format: ## rewrite every C, C++ and Python file in the project's style
	scripts/format
	scripts/format-python

wheel: writable ## the Python package: out/wheel/flashwave-*.whl
	scripts/setup --for build
	scripts/wheel

wheel-aarch64: writable ## the same for aarch64, cross-compiled, and a check of it by qemu-user: out/wheel-aarch64/flashwave-*.whl
	scripts/setup --for aarch64
	scripts/wheel --aarch64
	scripts/check-wheel-aarch64

test-python: ## the Python tests on that wheel
	scripts/test-python

test-python-oldest: ## the same with the oldest Python and PyTorch that are supported
	scripts/test-python --oldest

test-integrations: ## flashwave under accelerate, DeepSpeed, diffusers and others from PyPI, in an environment of their own
	scripts/test-integrations

fuzz-python: ## random sequences of calls of the Python package, for an hour (FLASHWAVE_FUZZ_PYTHON_SECONDS); prints the seed
	scripts/fuzz-python

lint-python: ## style and likely mistakes in the Python files
	scripts/test python-lint

test-rust: build ## the Rust crates: style, documentation, tests
	scripts/test-rust

avx512-emulated: build ## the conformance suite on an emulated AVX-512 CPU (slow; fetches Bochs and a kernel)
	scripts/check-avx512-emulated

check-aarch64: writable ## compile for aarch64; the tests and the conformance suite by qemu-user (long)
	scripts/check-aarch64

install: build ## library, header and command line under PREFIX
	cmake --install build --prefix $(PREFIX)

clean: ## remove every build folder and out/
	rm -rf build build-run build-asan build-tsan build-aarch64 build-wheel build-wheel-aarch64 rust/target $(OUT)
