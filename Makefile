# The front door: each target is a few commands. CMake, scripts/ and python/ do the work.
PYTHON := .venv/bin/python
CMAKE_FLAGS ?=
BENCH_FLAGS ?=
FAULT_FLAGS ?=
# The GPUs that `make cuda` builds for, as CMake writes them: 80, or "75;120". Empty: Turing to Blackwell.
CUDA_ARCHITECTURES ?=

.DEFAULT_GOAL := help
.PHONY: help setup build demo reproduce kl-rule suite test test-packages lint compilers test-cpp test-python test-machines test-upstream test-upstream-gpu test-faults fuzz test-tsan cuda test-gpu docker-test systems-test wheel wheels sdist wheel-test install bench bench-nets bench-scale bench-peers clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 28

setup: ## install missing Debian packages and the Python environment
	@scripts/setup.sh

build: setup ## build libcaffe, the caffe tool and pycaffe into build/
	@test -f build/build.ninja || cmake -Wno-dev -S . -B build -G Ninja \
	  -DPYTHON_EXECUTABLE="$(CURDIR)/$(PYTHON)" $(CMAKE_FLAGS)
	@cmake --build build

cuda: setup ## build with CUDA into build-cuda/; downloads missing parts of CUDA
	@mkdir -p build-cuda && $(PYTHON) scripts/cuda_toolkit.py > build-cuda/toolkit.txt
	@xargs -d '\n' -a build-cuda/toolkit.txt cmake --log-level=WARNING -Wno-dev -S . -B build-cuda -G Ninja \
	  -DPYTHON_EXECUTABLE="$(CURDIR)/$(PYTHON)" -DCPU_ONLY=OFF -DUSE_NCCL=ON \
	  $(if $(CUDA_ARCHITECTURES),"-DCMAKE_CUDA_ARCHITECTURES=$(CUDA_ARCHITECTURES)") $(CMAKE_FLAGS)
	@cmake --build build-cuda --target bayescaffe bayes_tests
	@scripts/kernels.py report build-cuda

wheel: build ## build dist/bayescaffe-….whl for pip
	@$(PYTHON) scripts/wheel.py

wheels: wheel ## build a wheel for each Python from 3.10 to 3.13 that this system can; tell which are missing
	@$(PYTHON) scripts/wheel.py missing

sdist: setup ## build dist/bayescaffe-….tar.gz, which pip compiles
	@$(PYTHON) scripts/wheel.py sdist

wheel-test: wheel ## use the wheel on a fresh minimal Debian; needs root or sudo (5 minutes)
	@.venv/bin/bayescaffe data mnist --quiet
	@scripts/wheel_test.sh

# Where `make install` puts bin/, lib/, include/ and share/.
PREFIX ?= /usr/local
install: build ## install Caffe's headers, library, tool and CMake config for C++ programs: PREFIX=/usr/local
	@cmake --build build --target help_files > /dev/null
	@cmake --install build --component sdk --prefix "$(PREFIX)" > /dev/null
	@echo "installed below $(PREFIX); CMake finds it with -DCMAKE_PREFIX_PATH=$(PREFIX)"

demo: build ## train a Bayesian LeNet on MNIST and report its uncertainty
	@.venv/bin/bayescaffe data mnist
	@scripts/demo.sh

reproduce: build ## repeat the experiments of the paper and write RESULTS.md (one to two hours on two cores)
	@$(PYTHON) models/lenet/reproduce.py

kl-rule: build ## measure which KL scale nets need, and write the tables of docs/kl.md (hours on two cores)
	@for set in mnist fashion-mnist cifar10; do .venv/bin/bayescaffe data $$set; done
	@$(PYTHON) models/kl_rule/measure.py

suite: build ## compare the Bayesian nets with other methods, tuned alike, and write their part of RESULTS.md (16 hours on two cores)
	@for set in mnist fashion-mnist cifar10; do .venv/bin/bayescaffe data $$set; done
	@$(PYTHON) models/suite/suite.py

test: test-packages build lint test-cpp test-python ## run our tests

# Before the build, which finds MPI or does without it.
test-packages: setup
	@scripts/setup.sh --mpi
	@test ! -f build/build.ninja || cmake --log-level=WARNING -Wno-dev build
	@scripts/setup.sh --tests

lint: setup ## check formatting and style
	@.venv/bin/ruff check -q .
	@.venv/bin/ruff format -q --check .
	@.venv/bin/hadolint docker/*/Dockerfile
	@git ls-files '*.hpp' '*.inl' '*.cpp' '*.cu' '*.cuh' | xargs -r .venv/bin/clang-format --dry-run -Werror

compilers: build ## compile our C++ files with the oldest GCC that we support and with clang
	@scripts/setup.sh --compilers
	@$(PYTHON) scripts/compilers.py

# One target for each way to run the C++ tests. Two run at a time.
cpp_runs := cpp-best cpp-avx2 cpp-plain cpp-caffe simulated-forwards simulated-backwards
.PHONY: $(cpp_runs)
# Those that share work among threads.
team_tests := Engine*:Team*:Update*:*TeamError*:NetError*
# All in which several threads run: the team, data layers that read ahead, Monte Carlo inference.
thread_tests := $(team_tests):Prefetch*:BayesNet*

test-cpp: build
	@echo "== building the C++ tests"
	@cmake --build build --target bayes_tests bayes_tests_simulated caffe_simulated_tool
	@$(MAKE) --no-print-directory -j2 --output-sync=target $(cpp_runs)

cpp-best:
	@echo "== C++ tests"
	@build/bayes_tests
# On a CPU without AVX-512, cpp-best is this.
cpp-avx2:
	@! grep -qw avx512f /proc/cpuinfo || { echo "== C++ tests held back to AVX2"; BAYESCAFFE_ISA=avx2 build/bayes_tests; }
cpp-plain:
	@echo "== C++ tests without vector instructions"
	@BAYESCAFFE_ISA=plain build/bayes_tests
cpp-caffe:
	@echo "== C++ tests with upstream's CPU code"
	@BAYESCAFFE_ENGINE=caffe build/bayes_tests
# The simulated GPU's gradients are compared with the CPU's; checking them by finite differences takes minutes.
simulated-forwards simulated-backwards: simulated-%:
	@echo "== GPU tests on the simulated GPU, its threads run $*"
	@SIMULATED_CUDA_ORDER=$* build/bayes_tests_simulated \
	  --gtest_filter='*/2.*:*/3.*:Devices*:Gpu*:Simulated*-BayesLayerTest/?.GradientsOf*'

test-python: test-packages build
	@echo "== Python tests"
	@$(PYTHON) -m pytest -q tests/python
	@echo "== Python tests that compute with nets, with upstream's CPU code"
	@BAYESCAFFE_ENGINE=caffe $(PYTHON) -m pytest -q -m engine tests/python

test-machines: build ## run what depends on the machine as on others: BLAS for AVX2, seven threads, one core
	@cmake --build build --target bayes_tests
	@echo "== Python tests that compute with nets, with the BLAS of an AVX2 CPU"
	@OPENBLAS_CORETYPE=Haswell BAYESCAFFE_ENGINE=caffe $(PYTHON) -m pytest -q -m engine tests/python
	@echo "== the same, our engine with seven threads"
	@OMP_NUM_THREADS=7 $(PYTHON) -m pytest -q -m engine tests/python
	@echo "== C++ tests of the engine with seven threads"
	@OMP_NUM_THREADS=7 build/bayes_tests --gtest_filter='$(team_tests)'
	@echo "== C++ tests of the engine on one core"
	@taskset -c $$($(PYTHON) -c 'import os; print(min(os.sched_getaffinity(0)))') \
	  build/bayes_tests --gtest_filter='$(team_tests)'

test-upstream: build ## run Caffe's own CPU tests on the fork
	@cmake --build build --target test.testbin
	@cd build/caffe-src && ../caffe/test/test.testbin --gtest_filter=-*GPU*

# Leaves out the gradients of recurrent layers over two steps and of n-dimensional convolutions: they take as long as
# all the rest.
test-upstream-gpu: build ## run Caffe's own GPU tests on the simulated GPU
	@cmake --build build --target upstream_tests_simulated
	@cd build/caffe-src && ../upstream_tests_simulated \
	  --gtest_filter='*/2.*:*/3.*:*GPU*:Im2col*:Gemm*-*BufferSize2*:*GradientForceND*'

test-gpu: cuda ## run our tests and Caffe's own on a GPU
	@build-cuda/caffe/tools/caffe device_query
	@build-cuda/bayes_tests
	@cmake --build build-cuda --target test.testbin
	@cd build-cuda/caffe-src && ../caffe/test/test.testbin

test-faults: build ## try faults on every command and file format: kills, full disks, damaged files (20 minutes)
	@$(PYTHON) tests/faults/run.py $(FAULT_FLAGS)

# Seconds for each target.
SECONDS ?= 60
fuzz: setup ## look for inputs that crash Caffe: nets, caffemodels and records; SECONDS=60 for each
	@scripts/setup.sh --fuzz
	@test -f build-fuzz/build.ninja || cmake --log-level=WARNING -Wno-dev -S . -B build-fuzz -G Ninja \
	  -DPYTHON_EXECUTABLE="$(CURDIR)/$(PYTHON)" -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ \
	  -DCMAKE_CXX_FLAGS_RELEASE="-O1 -DNDEBUG" -DSANITIZE=fuzzer-no-link,address,undefined
	@cmake --build build-fuzz --target fuzz_net fuzz_weights fuzz_datum
	@tests/fuzz/run.sh build-fuzz $(SECONDS)

test-tsan: setup ## run the C++ tests of threads with ThreadSanitizer
	@test -f build-tsan/build.ninja || cmake --log-level=WARNING -Wno-dev -S . -B build-tsan -G Ninja \
	  -DPYTHON_EXECUTABLE="$(CURDIR)/$(PYTHON)" -DSANITIZE=thread
	@cmake --build build-tsan --target bayes_tests
	@OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=4 TSAN_OPTIONS=halt_on_error=0:suppressions=tests/fuzz/tsan.txt \
	  build-tsan/bayes_tests --gtest_filter='$(thread_tests)'

bench: build ## time Bayesian Caffe and other tools, and write build/bench.json
	@cmake --build build --target bench_noise bench_product
	@$(PYTHON) benchmarks/bench.py $(BENCH_FLAGS)

bench-nets: build ## time AlexNet, GoogLeNet, VGG-16, ResNets and MobileNet beside PyTorch; goes on where it stopped (an estimated 1.5 hours)
	@$(PYTHON) benchmarks/bench_nets.py $(BENCH_FLAGS)

bench-scale: build ## time training on ranks and sampling on workers, beside one process (25 minutes)
	@$(PYTHON) benchmarks/bench_scale.py $(BENCH_FLAGS)
	@$(PYTHON) benchmarks/bench_workers.py

bench-peers: setup ## install the other tools for make bench
	@scripts/setup.sh --peers
	@.venv/bin/pip install -q --no-deps -r benchmarks/requirements-peers.txt
	@test ! -f build/build.ninja || cmake --log-level=WARNING -Wno-dev build

docker-test: setup ## build and test the Docker images, without Docker (half an hour on two cores)
	@.venv/bin/bayescaffe data mnist
	@docker/test.sh

systems-test: setup ## run make test and make demo on fresh minimal Debian 12 and 13; needs root or sudo (hours)
	@scripts/systems_test.sh

clean: ## remove builds and the Python environment; keep data and trained nets
	rm -rf build dist build-cuda build-fuzz build-tsan .cuda .venv
