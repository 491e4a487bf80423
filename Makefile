# make setup    .venv with the pinned packages, torch_spyre installed editable, _C and the card's tests built
# make serve-setup  vLLM in .venv, built for no device: the card is its platform. Takes a minute or two
# make demo     the small model in the box writes on the card; how it agrees with the CPU, and how the real card would do
# make test     the card's C++ tests, pytest without the slow tests, every Python block of the documentation; its
#               budget is 8 minutes on two idle cores from a built tree
# make test-all the same with the slow tests
# make coverage PyTorch's own operator samples on the card, and docs/supported_operations.md with what they showed
# make generic  PyTorch's operator and module databases on the card, in all forms of the ops, with the rate that passes
# make fuzz     10,000 random programs on the card against the CPU, and 200 with many plans against each other
#               (COUNT=, SEED=); failures land in build/fuzz
# make mutation 2,000 damaged inputs of everything that is parsed (COUNT=, SEED=, KIND=); failures land in build/mutation
# make nightly  all that is too long for make test: slow tests, generic, coverage, fuzz, 50,000 damaged inputs, models.
#               Random programs and damages are others at every commit. Tests of the explorer need Chromium (Debian:
#               apt-get install chromium) and are skipped without it;
#               SHARD=i/n does a part of it, RETRY=1 what failed again; what is done stays done until the next commit;
#               build/nightly/COMMIT has the summary, as text, as JSON and as a page by level with what changed
#               since the night before, and a log for each job; LAYERS="models architectures": these alone
# make models   whole models on the card against the CPU, their full size timed, and docs/models.md with what that showed
# make bench    every program of benchmarks/, one after the other; writes benchmarks/RESULTS.md and docs/scaling_*.svg
#               (one case: .venv/bin/python benchmarks/speed.py softmax); wants a machine with nothing else to do
# make docs     the site of the documentation in build/docs, with search, to be opened as files; a warning is an error
# make lint     ruff, mypy, clang-format; make format rewrites what they would complain about
# make tidy     clang-tidy on the card's C++, with the checks of .clang-tidy
# make sanitize the card's C++ tests built with the address, undefined-behaviour and thread sanitizers; then, with address
#               and undefined behaviour together, SANITIZED: pytest over copies, views, storages, programs and hostile
#               programs, in processes that preload the sanitizers. PyTorch itself is not instrumented, leaks are not
#               looked for, and the thread sanitizer sees the card's own tests only
# make dist     an sdist, and a wheel built from it, in dist/
# make clean    removes what was built; .venv stays
#
# pip takes torch from wherever it is configured to look; point PIP_EXTRA_INDEX_URL at PyTorch's CPU index for the
# small build. Another interpreter: make PYTHON=/path/to/python3. Tests run in JOBS processes, 2 unless given.

PYTHON ?= $(shell for p in python3.11 python3; do $$p -c '' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
BUILD := build/dev
JOBS ?= 2
PYTEST := $(BIN)/python -m pytest --numprocesses $(JOBS) --dist worksteal
PIP := $(BIN)/python -m pip --disable-pip-version-check
cxx_files = $(shell find torch_spyre tests -name '*.cpp' -o -name '*.h' -o -name '*.inc')

.PHONY: setup serve-setup demo test test-all coverage generic fuzz mutation nightly models bench docs lint format tidy sanitize dist clean
MAKEFLAGS += --no-builtin-rules
# Tests start hundreds of processes: each would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

# C++ dependencies are ninja's business: with nothing to do it takes a tenth of a second.
setup: $(BUILD)/.installed
	@$(BIN)/cmake --build $(BUILD)

# Its wheels are for other devices; without a Rust compiler it leaves out a server of its own that nothing here needs.
serve-setup: setup
	$(PIP) install --quiet setuptools-rust setuptools-scm wheel
	$(PIP) install --quiet --no-deps --requirement requirements-serve.txt
	CARGO=false VLLM_TARGET_DEVICE=empty VLLM_SKIP_VERSION_SUFFIX=1 \
	$(PIP) install --quiet --no-deps --no-build-isolation --no-binary vllm vllm==0.32.0
# So that vLLM finds the platform also where the package was installed before it had one.
	$(PIP) install --quiet --no-build-isolation --no-deps --editable .

demo: setup
	$(BIN)/spyre run --compare cpu

test: setup
	$(BUILD)/card_tests
	$(PYTEST) -m "not slow"

test-all: setup
	$(BUILD)/card_tests
	$(PYTEST)

coverage: setup
	$(BIN)/python -m tests.coverage --jobs $(JOBS)

generic: setup
	$(PYTEST) tests/generic

fuzz: setup
	$(BIN)/python -m tests.fuzz --count $(or $(COUNT),10000) --seed $(or $(SEED),0) --jobs $(JOBS)
	$(BIN)/python -m tests.fuzz --plans --count $(or $(COUNT),200) --seed $(or $(SEED),0) --jobs $(JOBS)

mutation: setup
	$(BIN)/python -m tests.mutation --count $(or $(COUNT),2000) --seed $(or $(SEED),0) $(if $(KIND),--kind $(KIND))

nightly: setup
	$(BIN)/python -m tests.nightly $(LAYERS) --shard $(or $(SHARD),1/1) --jobs $(JOBS) $(if $(RETRY),--retry)

models: setup
	$(BIN)/python -m tests.models.tracker

bench: setup
	@set -e; for program in $(sort $(wildcard benchmarks/[!_]*.py)); do echo "== $$program"; $(BIN)/python $$program; done

docs: setup
	$(BIN)/python -m docs.generate
	$(BIN)/python -m docs.pictures
	$(BIN)/python -m sphinx -E -W --keep-going -q -b html docs build/docs

lint: .venv/.packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror $(cxx_files)
	$(BIN)/mypy

format: .venv/.packages
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(cxx_files)

# clang has no __builtin_shuffle: for its checks, a shuffle is the vector that it takes from.
tidy: setup
	$(BIN)/run-clang-tidy.py -quiet -j $(JOBS) -clang-tidy-binary $(BIN)/clang-tidy -p $(BUILD) \
	-extra-arg='-D__builtin_shuffle(x,...)=(x)' -checks='-bugprone-signed-bitwise,-performance-enum-size' \
	'torch_spyre/csrc/card/.*'

SANITIZED := $(addprefix tests/device/,memory/test_copies.py layouts/test_views.py memory/test_storage.py \
	programs/test_programs.py programs/test_untrusted_programs.py)
comma := ,
sanitizer = $(shell $(or $(CXX),g++) -print-file-name=lib$(1).so)

configure_sanitized = $(BIN)/cmake -S . -B build/$(1) -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
	-DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python -DSPYRE_SANITIZE=$(2) -DSPYRE_BUILD_TESTS=ON $(3) >/dev/null

sanitize: setup
	@echo "== card tests, thread"
	$(call configure_sanitized,thread,thread)
	$(BIN)/cmake --build build/thread --target card_tests
	build/thread/card_tests
	@echo "== card tests, address and undefined"
# As for a wheel, so that the _C of the working tree stays; the sources beside it are those of the commit's files.
	$(call configure_sanitized,sanitized,address$(comma)undefined,-DSKBUILD_STATE=wheel)
	$(BIN)/cmake --build build/sanitized
	build/sanitized/card_tests
	@echo "== pytest, address and undefined"
	rm -rf build/sanitized/tree && mkdir -p build/sanitized/tree
	git ls-files -z torch_spyre tests pyproject.toml README.md | tar --null -c -T - | tar -x -C build/sanitized/tree
	$(BIN)/cmake --install build/sanitized --prefix build/sanitized/tree
	cd build/sanitized/tree && PYTHONPATH=$$PWD ASAN_OPTIONS=detect_leaks=0:handle_segv=0:allow_user_segv_handler=1 \
	UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	LD_PRELOAD="$(call sanitizer,asan) $(call sanitizer,ubsan) $(call sanitizer,stdc++)" \
	$(CURDIR)/$(BIN)/python -m pytest --numprocesses $(JOBS) -q -m "not slow" $(SANITIZED)

dist: setup
	rm -rf dist
	$(BIN)/python -c 'from scikit_build_core.build import build_sdist; build_sdist("dist")'
	$(PIP) wheel --quiet --no-build-isolation --no-deps --wheel-dir dist dist/torch_spyre-*.tar.gz

clean:
	rm -rf build dist torch_spyre/_C*.so .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find torch_spyre tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# The stamp of the install lies in the build directory and depends on that of the packages: whichever of .venv and build
# is removed, the next make puts it back.
$(BUILD)/.installed: pyproject.toml .venv/.packages
	@echo "Building torch_spyre; the first time takes a minute or two."
	$(PIP) install --quiet --no-build-isolation --no-deps --editable .
	@touch $@

.venv/.packages: requirements-dev.txt | $(BIN)/python
	$(PIP) install torch==2.13.0 --constraint requirements-dev.txt
	$(PIP) install --quiet --requirement requirements-dev.txt
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' || { \
	echo "torch_spyre runs with Python 3.11, which its tests use, and 3.12; \
	install one and run make PYTHON=/path/to/it." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "This Python has no venv module; install it (python3-venv \
	on Debian and Ubuntu) and run make again." >&2; exit 1; }
	$(PYTHON) -m venv .venv
