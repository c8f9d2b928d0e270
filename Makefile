# The front door. Each target is a few commands; the work is done by CMake, scripts/ and python/.
PYTHON := .venv/bin/python
CMAKE_FLAGS ?=
BENCH_FLAGS ?=
# The GPUs that `make cuda` is for, as CMake writes them: 80, or "75;120". Turing to Blackwell if empty.
CUDA_ARCHITECTURES ?=

.DEFAULT_GOAL := help
.PHONY: help setup build demo reproduce test lint compilers test-cpp test-python test-upstream test-upstream-gpu cuda test-gpu docker-test systems-test bench bench-peers clean

help: ## say what each target does
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 22

setup: ## install missing Debian packages and the Python environment
	@scripts/setup.sh

build: setup ## build libcaffe, the caffe tool and pycaffe into build/
	@test -f build/build.ninja || cmake -Wno-dev -S . -B build -G Ninja \
	  -DPYTHON_EXECUTABLE="$(CURDIR)/$(PYTHON)" $(CMAKE_FLAGS)
	@cmake --build build

cuda: setup ## build with CUDA into build-cuda/; what of CUDA the machine lacks is fetched
	@mkdir -p build-cuda && $(PYTHON) scripts/cuda_toolkit.py > build-cuda/toolkit.txt
	@xargs -d '\n' -a build-cuda/toolkit.txt cmake --log-level=WARNING -Wno-dev -S . -B build-cuda -G Ninja \
	  -DPYTHON_EXECUTABLE="$(CURDIR)/$(PYTHON)" -DCPU_ONLY=OFF -DUSE_NCCL=ON \
	  $(if $(CUDA_ARCHITECTURES),"-DCMAKE_CUDA_ARCHITECTURES=$(CUDA_ARCHITECTURES)") $(CMAKE_FLAGS)
	@cmake --build build-cuda --target bayescaffe bayes_tests
	@scripts/kernels.py report build-cuda

demo: build ## train a Bayesian LeNet on MNIST, and report how sure it is of what
	@.venv/bin/bayescaffe data mnist
	@scripts/demo.sh

reproduce: build ## repeat all experiments of the paper, and write RESULTS.md (an hour of two cores)
	@$(PYTHON) models/lenet/reproduce.py

test: build lint test-cpp test-python ## run all tests of ours

lint: setup ## check the formatting and style of our code
	@.venv/bin/ruff check -q .
	@.venv/bin/ruff format -q --check .
	@.venv/bin/hadolint docker/*/Dockerfile
	@git ls-files '*.hpp' '*.inl' '*.cpp' '*.cu' '*.cuh' | xargs -r .venv/bin/clang-format --dry-run -Werror

compilers: build ## compile our C++ files with the oldest GCC that we support and with clang
	@scripts/setup.sh --compilers
	@$(PYTHON) scripts/compilers.py

test-cpp: build
	@cmake --build build --target bayes_tests
	@build/bayes_tests
	@for set in avx2 plain; do BAYESCAFFE_ISA=$$set build/bayes_tests || exit 1; done
	@BAYESCAFFE_ENGINE=caffe build/bayes_tests
	@cmake --build build --target bayes_tests_simulated caffe_simulated_tool
# What is for the GPU. Its gradients are checked against the CPU's, and those by finite differences above,
# which would take minutes here.
	@for order in forwards backwards; do SIMULATED_CUDA_ORDER=$$order build/bayes_tests_simulated \
	  --gtest_filter='*/2.*:*/3.*:Devices*:Gpu*:Simulated*-BayesLayerTest/?.GradientsOf*' || exit 1; done

test-python: build
	@scripts/setup.sh --tests
	@$(PYTHON) -m pytest -q tests/python
	@BAYESCAFFE_ENGINE=caffe $(PYTHON) -m pytest -q tests/python

test-upstream: build ## build and run Caffe's own test suite on the fork (CPU)
	@cmake --build build --target test.testbin
	@cd build/caffe-src && ../caffe/test/test.testbin --gtest_filter=-*GPU*

# Without the gradients of recurrent layers over two steps and of convolutions as if in many dimensions, which take
# as long as all the rest.
test-upstream-gpu: build ## the same for the GPU, on a simulated one
	@cmake --build build --target upstream_tests_simulated
	@cd build/caffe-src && ../upstream_tests_simulated \
	  --gtest_filter='*/2.*:*/3.*:*GPU*:Im2col*:Gemm*-*BufferSize2*:*GradientForceND*'

test-gpu: cuda ## run our tests and Caffe's own on a machine with a GPU
	@build-cuda/caffe/tools/caffe device_query
	@build-cuda/bayes_tests
	@cmake --build build-cuda --target test.testbin
	@cd build-cuda/caffe-src && ../caffe/test/test.testbin

bench: build ## time ours beside other tools, and write build/bench.json
	@cmake --build build --target bench_noise bench_product
	@$(PYTHON) benchmarks/bench.py $(BENCH_FLAGS)

bench-peers: setup ## install the other tools that make bench compares with
	@.venv/bin/pip install -q --no-deps -r benchmarks/requirements-peers.txt

docker-test: setup ## build the Docker images without Docker, and try them (half an hour of two cores)
	@.venv/bin/bayescaffe data mnist
	@docker/test.sh

systems-test: setup ## run make test and make demo on fresh minimal Debian 12 and 13; needs root or sudo (hours)
	@scripts/systems_test.sh

clean: ## remove the builds and the Python environment, keep data and trained nets
	rm -rf build build-cuda .cuda .venv
