# make demo    the main job: Celery, Node and C share one limit; STORE=redis or STORE=postgres simulates two machines
# make test    all tests of all languages, one summary
# make quick   the contributor's loop: formats, lints, core tests and a smoke test per language
# make lint    formats, lints and spelling; nothing is built. make format writes the formats
# make check   lint, then clippy, header, stubs, types, references, pictures, instructions
# make docs    target/docs: the reference of each language, from its doc comments
# make site    target/site: the guides, the references and a playground as one website
# make playground  site/playground: records again what the playground replays
# make bench   what a decision costs, compared with other limiters; ROUNDS=2 is quick, ONLY=rust,python chooses programs
# make bench-publish  the same, and writes docs/benchmarks.md and the README's tables
# make bench-fleet  what a fleet on Redis uses and asks for, compared with others, and what keys cost there: 20 minutes
# make instructions  the instructions of each call, compared with the bounds in bench/instructions.toml
# make pictures  draws docs/pictures
# make fleet   real queues under a limit, compared with their own limiters: Celery, BullMQ, pg-boss, Graphile Worker, Workglow
# make storm   kills in every language, for 40 s
# make torture the long tests: storms on one machine and in a fleet, models with planted bugs
# make dist    target/dist: a wheel, an npm tarball, a C prefix
# make web     bindings/node/dist/web: limits for browsers and edge runtimes, and their tests
# make dist-all  target/dist/all: what will be published, as far as this machine can build it
# make foreign  tests of the algorithms and of the packages on musl and on arm64; SHORT=1: fewer; TARGET=aarch64-unknown-linux-gnu: there alone; TARGET=pages: stores with larger pages
# make install PREFIX=/usr/local DESTDIR=  the C library, its headers and the command; make uninstall removes them

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.SILENT:
.PHONY: demo test quick quick-tools lint clippy format check types docs site playground bench bench-fleet instructions pictures fleet storm torture web foreign foreign-check dist dist-all wheel lowest node queues packages c install \
    uninstall members peers bench-tools bench-publish tools test-tools gone clean help

VENV := target/venv
PYTHON := $(VENV)/bin/python
DIST := target/dist
OUT := target/demo
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)

help:
	sed -n '/^#/s/^# //p;/^$$/q' Makefile

# ---- what there is to install ----

tools:
	.ci/need build

# What lint needs, so that it begins at once.
$(VENV)/lint: bindings/python/requirements-dev.txt | tools
	test -x $(PYTHON) || python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check $$(grep -E '^(ruff|typos)==' $<)
	touch $@

$(VENV)/ready: bindings/python/requirements-dev.txt examples/fleet/requirements.txt $(wildcard tests/fleet/requirements*.txt) | tools $(VENV)/lint
	echo "setting up $(VENV)"
	$(PYTHON) -m pip install --quiet --disable-pip-version-check $(foreach f,$(filter-out %-alone.txt,$^),-r $(f))
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps -r tests/fleet/requirements-alone.txt
	touch $@

# What is built for other languages is built again when one of its files has changed, or when the package is gone.
CORE := Cargo.toml Cargo.lock core/Cargo.toml core/algorithms/Cargo.toml $(shell find core/src core/algorithms/src -type f)

wheel: $(VENV)/wheel
$(VENV)/wheel: $(VENV)/ready $(CORE) bindings/python/Cargo.toml bindings/python/pyproject.toml bindings/python/README.md \
    $(shell find bindings/python/src bindings/python/python -type f -not -name '*.pyc') $(if $(wildcard $(DIST)/*.whl),,gone)
	rm -f $(DIST)/*.whl
	mkdir -p $(DIST)
	echo "building the wheel"
	cp LICENSE-* bindings/python/
	scripts/notices workglow-limit-python >bindings/python/LICENSE-THIRD-PARTY
	$(VENV)/bin/maturin build --quiet --release --manifest-path bindings/python/Cargo.toml --out $(DIST)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps $(DIST)/*.whl
	touch $@

gone:

# The libraries of the extras at the lowest versions that these promise, and our package as others install it.
LOWEST := target/lowest/python
$(LOWEST)/ready: bindings/python/pyproject.toml tests/lowest/python.txt | tools
	echo "setting up $(LOWEST)"
	python3 -m venv --clear $(LOWEST)
	sed -n '/^\[project.optional-dependencies\]/,/^$$/p' $< | grep -o '[a-z0-9-]*>=[0-9.]*' | sed 's/>=/==/' >$(LOWEST)/extras.txt
	grep -v '^arq==' $(LOWEST)/extras.txt | $(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check -r /dev/stdin -r tests/lowest/python.txt
	# arq asks for a redis older than 6, and the others for a newer one. It works with both.
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps $$(grep '^arq==' $(LOWEST)/extras.txt)
	touch $@

lowest: $(LOWEST)/wheel
$(LOWEST)/wheel: $(LOWEST)/ready $(VENV)/wheel
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps $(DIST)/*.whl
	touch $@

# The locked dependencies of a package.
%/node_modules/.package-lock.json: %/package-lock.json | tools
	npm ci --silent --no-audit --no-fund --prefix $*

NPM := npm install --silent --no-audit --no-fund --no-save --prefix
TARBALL := $(DIST)/workglow-limit-$(VERSION).tgz

node: $(OUT)/node_modules/workglow-limit/package.json
$(TARBALL): bindings/node/node_modules/.package-lock.json $(CORE) $(filter-out %/package-lock.json,$(wildcard bindings/node/*.*)) \
    $(shell find bindings/node/{src,lib,scripts} bindings/web -type f)
	rm -f $(DIST)/*.tgz
	mkdir -p $(DIST)
	echo "building the npm package"
	cp LICENSE-* bindings/node/
	scripts/notices workglow-limit-node >bindings/node/LICENSE-THIRD-PARTY
	cargo build --quiet --release -p workglow-limit-node
	cd bindings/node && npm run --silent build -- $(abspath target/release/libworkglow_limit_node.so) && npm pack --silent --pack-destination ../../$(DIST) >/dev/null
	touch $@

NODE_TOOLS := bindings/node/node_modules/.package-lock.json

# The entry for browsers and edge runtimes. It says so if this machine's Rust cannot compile for WebAssembly.
web: $(NODE_TOOLS)
	cd bindings/node && node scripts/web.mjs && node --test --test-timeout=900000 test/web/*.test.mjs

# The fleets of Node's queues, an app of Next's, and the tools that test and bundle Node's programs: each as it is locked, and our
# package as others install it.
QUEUES := $(patsubst %/package-lock.json,%,$(wildcard $(addsuffix /package-lock.json,tests/fleet/* tests/next tests/node-tools)))
INSTALLED := $(QUEUES:%=%/node_modules/workglow-limit/package.json)

queues: $(INSTALLED)
$(INSTALLED): %/node_modules/workglow-limit/package.json: %/node_modules/.package-lock.json
$(OUT)/node_modules/workglow-limit/package.json $(INSTALLED): %/node_modules/workglow-limit/package.json: $(TARBALL)
	mkdir -p $*
	$(NPM) $* $(abspath $(TARBALL))
	touch $@

# Everything that the tests take from PyPI and npm.
packages: $(VENV)/ready $(LOWEST)/ready $(addsuffix /node_modules/.package-lock.json,$(QUEUES) bindings/node docs/api site tests/lowest tests/page tests/site)

# Celery at the lowest version that our extra promises, and our package as others install it.
packages: target/lowest/celery/ready
lowest: target/lowest/celery/wheel
target/lowest/celery/ready: tests/lowest/celery.txt | tools
	python3 -m venv --clear $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	touch $@
target/lowest/celery/wheel: target/lowest/celery/ready $(VENV)/wheel
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps $(DIST)/*.whl
	touch $@

# ---- C and C++ ----

PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
SO := libworkglow_limit.so
# Rebuilt only when its sources change, so that `make c && sudo make install` builds nothing as root.
C := target/c
C_LIBRARY := $(C)/libworkglow_limit.a
# The build command, its packages, its directory, the linker, and how the names of the binary tools begin: `make dist-all` passes other values.
C_BUILD := cargo build --quiet --release
C_PACKAGES := -p workglow-limit-ffi -p workglow-limit-cli
C_BUILT := target/release
C_LINK := $(CC)
C_TOOLS :=
C_LIBS := -lutil -lrt -lpthread -lm -ldl

# The static library is one object whose only global names are ours: a program may have an SQLite of its own. The shared library is
# linked from that object, because rustc exports its symbols with a version script that cannot be combined with one of ours.
$(C_LIBRARY): $(CORE) ffi/Cargo.toml ffi/build.rs ffi/libworkglow_limit.map $(shell find ffi/src -type f)
	echo "building the C library"
	$(C_BUILD) $(C_PACKAGES)
	mkdir -p $(C)
	$(C_TOOLS)ld -r -o $(C)/all.o --whole-archive $(C_BUILT)/libworkglow_limit.a
	$(C_TOOLS)objcopy --wildcard --keep-global-symbol='wgl_*' --strip-debug -R .llvmbc -R .llvmcmd $(C)/all.o
	$(C_LINK) -shared -o $(C)/$(SO) $(C)/all.o -Wl,-soname,$(SO).0 -Wl,--version-script=ffi/libworkglow_limit.map \
	    -Wl,--gc-sections -Wl,--no-undefined -Wl,-z,relro -Wl,-z,now -Wl,-z,nodelete $(C_LIBS)
	$(C_TOOLS)strip --strip-unneeded $(C)/$(SO)
	scripts/notices workglow-limit-ffi workglow-limit-cli >$(C)/LICENSE-THIRD-PARTY
	rm -f $@
	$(C_TOOLS)ar rcs $@ $(C)/all.o

# The command, and what a shell and a reader get with it: pages and completions are written by the command itself, or by C_RUN where
# this machine cannot run it.
C_COMMAND := $(C)/workglow-limit
C_RUN := $(C_COMMAND)
MANDIR := $(PREFIX)/share/man/man1
BASH := $(PREFIX)/share/bash-completion/completions
ZSH := $(PREFIX)/share/zsh/site-functions
FISH := $(PREFIX)/share/fish/vendor_completions.d
# What the library is, and the licences; suppressions for helgrind and ThreadSanitizer.
DOCDIR := $(PREFIX)/share/doc/workglow_limit
SUPPRESSIONS := $(PREFIX)/share/workglow_limit

$(C_COMMAND): $(CORE) cli/Cargo.toml $(shell find cli/src -type f)
	echo "building the command"
	$(C_BUILD) $(C_PACKAGES)
	rm -rf $(C)/man $(C)/completions
	mkdir -p $(C)/completions
	$(C_TOOLS)strip --strip-unneeded -o $@ $(C_BUILT)/workglow-limit
	$(C_RUN) man --out $(C)/man >/dev/null
	for shell in bash zsh fish; do $(C_RUN) completions $$shell > $(C)/completions/$$shell; done

# Files refer to each other by relative paths, so the tree may be moved.
install: $(C_LIBRARY) $(C_COMMAND)
	install -d "$(DESTDIR)$(PREFIX)/bin" "$(DESTDIR)$(MANDIR)" "$(DESTDIR)$(BASH)" "$(DESTDIR)$(ZSH)" "$(DESTDIR)$(FISH)"
	install -m 755 $(C_COMMAND) "$(DESTDIR)$(PREFIX)/bin"
	install -m 644 $(C)/man/workglow-limit*.1 "$(DESTDIR)$(MANDIR)"
	install -m 644 $(C)/completions/bash "$(DESTDIR)$(BASH)/workglow-limit"
	install -m 644 $(C)/completions/zsh "$(DESTDIR)$(ZSH)/_workglow-limit"
	install -m 644 $(C)/completions/fish "$(DESTDIR)$(FISH)/workglow-limit.fish"
	install -d "$(DESTDIR)$(DOCDIR)" "$(DESTDIR)$(SUPPRESSIONS)"
	install -m 644 ffi/README.md LICENSE-APACHE LICENSE-MIT $(C)/LICENSE-THIRD-PARTY "$(DESTDIR)$(DOCDIR)"
	install -m 644 ffi/helgrind.supp ffi/tsan.supp "$(DESTDIR)$(SUPPRESSIONS)"
	install -d "$(DESTDIR)$(PREFIX)/include" "$(DESTDIR)$(LIBDIR)/pkgconfig" "$(DESTDIR)$(LIBDIR)/cmake/workglow_limit"
	install -m 644 include/workglow_limit.h include/workglow_limit.hpp "$(DESTDIR)$(PREFIX)/include"
	install -m 644 $(C_LIBRARY) "$(DESTDIR)$(LIBDIR)"
	install -m 755 $(C)/$(SO) "$(DESTDIR)$(LIBDIR)/$(SO).$(VERSION)"
	ln -sf $(SO).$(VERSION) "$(DESTDIR)$(LIBDIR)/$(SO).0"
	ln -sf $(SO).0 "$(DESTDIR)$(LIBDIR)/$(SO)"
	up=$$(realpath -ms --relative-to="$(LIBDIR)" "$(PREFIX)"); \
	for file in pkgconfig/workglow_limit.pc cmake/workglow_limit/workglow_limit-config{,-version}.cmake; do \
	    sed -e "s|@UP@|$$up|; s|@VERSION@|$(VERSION)|" "ffi/$$(basename $$file).in" > "$(DESTDIR)$(LIBDIR)/$$file"; \
	    chmod 644 "$(DESTDIR)$(LIBDIR)/$$file"; \
	done

uninstall:
	rm -f "$(DESTDIR)$(PREFIX)"/include/workglow_limit.{h,hpp} "$(DESTDIR)$(LIBDIR)"/libworkglow_limit.{a,so,so.0,so.$(VERSION)} \
	    "$(DESTDIR)$(LIBDIR)/pkgconfig/workglow_limit.pc"
	rm -rf "$(DESTDIR)$(LIBDIR)/cmake/workglow_limit" "$(DESTDIR)$(DOCDIR)" "$(DESTDIR)$(SUPPRESSIONS)"
	rm -f "$(DESTDIR)$(PREFIX)/bin/workglow-limit" "$(DESTDIR)$(MANDIR)"/workglow-limit{,-*}.1 "$(DESTDIR)$(BASH)/workglow-limit" \
	    "$(DESTDIR)$(ZSH)/_workglow-limit" "$(DESTDIR)$(FISH)/workglow-limit.fish"

c: $(C_LIBRARY) $(C_COMMAND)
	rm -rf $(DIST)/c
	$(MAKE) --no-print-directory install PREFIX="$(abspath $(DIST)/c)" LIBDIR="$(abspath $(DIST)/c/lib)" DESTDIR=

dist: wheel node c
	find $(DIST) -type f -not -path '$(DIST)/all/*' | sort

dist-all: $(VENV)/zig node
	PATH="$(abspath $(VENV))/bin:$$PATH" node scripts/dist-all.mjs $(ONLY)
	find $(DIST)/all -type f | sort

$(VENV)/zig: scripts/requirements.txt bindings/python/requirements-dev.txt | $(VENV)/lint
	$(PYTHON) -m pip install --quiet --disable-pip-version-check -r $< $$(grep -E '^maturin==' bindings/python/requirements-dev.txt)
	touch $@

# dist-all needs the npm package of this machine, for the command's man pages: one that compiles fast is enough.
foreign: $(VENV)/zig $(NODE_TOOLS)
ifneq ($(TARGET),pages)
	cp LICENSE-* bindings/node/
	scripts/notices workglow-limit-node >bindings/node/LICENSE-THIRD-PARTY
	rm -f $(TARBALL) # It is made from the folder that this writes.
	cd bindings/node && npm run --silent build -- quick
endif
	$(PYTHON) scripts/foreign $(if $(SHORT),short) $(TARGET)

# Says so if the cache has no compilers: it fetches nothing.
foreign-check: $(VENV)/ready
	$(PYTHON) scripts/foreign check

# Says so if the cache has no compilers: it fetches nothing.
foreign-check: $(VENV)/ready
	$(PYTHON) scripts/foreign check

# ---- what there is to do ----

# A C program against the prefix, which finds its library wherever it is started.
LINK := -I$(DIST)/c/include -L$(DIST)/c/lib -Wl,-rpath,$(abspath $(DIST)/c/lib) -lworkglow_limit -pthread

members: dist
	$(CC) -O2 -Wall -Wextra -Werror examples/fleet/c_member.c -o $(OUT)/c_member $(LINK)
	$(CC) -O2 -Wall -Wextra -Werror tests/torture/storm/member.c -o $(OUT)/storm_member $(LINK)
	$(CC) -O2 -Wall -Wextra -Werror tests/together/member.c -o $(OUT)/together_member $(LINK)

# ---- the contributor's loop ----

lint: $(VENV)/lint $(NODE_TOOLS)
	cargo fmt --all --check
	cargo fmt --check --manifest-path bench/rust/Cargo.toml
	$(VENV)/bin/ruff format --quiet --check
	$(VENV)/bin/ruff check --quiet
	cd bindings/node && npm run --silent lint
	$(VENV)/bin/typos --quiet
	scripts/versions
	scripts/features
	scripts/compatible
	git apply --check tests/torture/planted.patch

# Warnings are errors with the Rust whose lints the code was last mended for. A newer one may know more: it prints them, and fails nobody.
LINTED := 1.95
DENY = $(if $(filter $(LINTED).%,$(shell rustc --version)),-D warnings)

# In release, so that macros and build scripts are compiled once for the packages, the tests and this. The second run is of the core
# with its default features, as a plain `cargo test` compiles it.
clippy:
	cargo clippy --quiet --release --workspace --all-targets --features workglow-limit/fault-points,workglow-limit/tower -- $(DENY)
	cargo clippy --quiet --release -p workglow-limit --tests -- $(DENY)

format: $(VENV)/lint $(NODE_TOOLS)
	cargo fmt --all
	cargo fmt --manifest-path bench/rust/Cargo.toml
	$(VENV)/bin/ruff format --quiet
	$(VENV)/bin/ruff check --quiet --fix
	cd bindings/node && npm run --silent format

# The core with fault points, compiled once for all of it, by a profile that compiles fast.
QUICK := --profile quick --features workglow-limit/fault-points,workglow-limit/tower -p workglow-limit-cli -p workglow-limit-node -p workglow-limit-python

quick: quick-tools lint $(VENV)/ready
	cargo clippy --quiet $(QUICK) -p workglow-limit -p workglow-limit-algorithms -p workglow-limit-ffi --all-targets -- $(DENY)
	cargo clippy --quiet --profile quick -p workglow-limit --tests -- $(DENY)
	cargo build --quiet $(QUICK) -p workglow-limit-ffi
	rm -f $(TARBALL) # It is made from the folder that this writes.
	cd bindings/node && npm run --silent build -- $(abspath target/quick/libworkglow_limit_node.so)
	ln -sf libworkglow_limit.so target/quick/$(SO).0
	$(CC) -std=c11 -D_DEFAULT_SOURCE -Wall -Wextra -Werror -Iinclude tests/c/family.c -o target/quick/c target/quick/$(SO) -pthread \
	    -Wl,-rpath,$(abspath target/quick)
	rm -rf target/quick/python
	cp -r bindings/python/python target/quick/python
	ln -s ../../libworkglow_limit_python.so target/quick/python/workglow_limit/_native.abi3.so
	$(PYTHON) tests/run.py --quick

quick-tools:
	.ci/need quick

demo: members
	$(PYTHON) examples/fleet/conductor.py --out $(OUT) --store $(or $(STORE),sqlite)

test-tools:
	.ci/need test

test: test-tools packages members queues lowest
	$(PYTHON) tests/run.py

fleet: test-tools members queues
	failed=0; $(PYTHON) tests/fleet/celery/run.py || failed=1; $(PYTHON) tests/fleet/queues/run.py || failed=1; \
	for queue in $(QUEUES); do npm --silent --prefix $$queue run --if-present fleet || failed=1; done; exit $$failed

storm: members
	$(PYTHON) tests/torture/storm/storm.py --out $(OUT) --limit 100 --window 2 --seconds 20
	$(PYTHON) tests/torture/storm/storm.py --out $(OUT) --limit 10 --window 0.5 --seconds 20

# The pictures of docs/limiters.md: by a manual clock, so every run draws the same.
pictures:
	cargo run --quiet -p workglow-limit-bench --bin pictures docs/pictures

# What needs no build comes first.
check: test-tools lint clippy types docs instructions foreign-check

types: wheel node
	$(VENV)/bin/mypy --strict bindings/python/python bindings/python/tests/typed.py \
	    examples/fleet/{celery_member,conductor,evidence,picture}.py
	$(VENV)/bin/pyright --pythonpath $(PYTHON) --project bindings/python
	$(VENV)/bin/stubtest workglow_limit._native
	$(PYTHON) scripts/stub
	cd bindings/node && npx tsc --project test && npx tsc --project test/koa-types && npx tsc --project test/pg-boss-types && npx tsc --project test/workglow-types

# Node's fails where a public name has no comment, as Rust's and C's do; a test checks Python's. Python's comments are in its native
# half, so that is built; the others are read from the sources.
docs: wheel $(addsuffix /node_modules/.package-lock.json,docs/api bindings/node)
	rm -rf target/docs
	mkdir -p target/docs
	echo "reading the doc comments"
	$(PYTHON) -W error docs/api/python.py target/docs/python.json
	node docs/api/node.mjs target/docs/node.json
	node docs/api/headers.mjs target/docs
	RUSTDOCFLAGS="$(DENY)" cargo doc --quiet --release --no-deps -p workglow-limit --features tower
	cp -r target/doc target/docs/rust
	node docs/api/rust.mjs target/docs/rust target/docs/rust.json

# BASE=/path/ is where the site will lie on its server.
site: docs site/node_modules/.package-lock.json
	echo "building the site"
	npm --silent --prefix site run build
	echo "target/site/index.html; to look at it: npm --prefix site run preview"

# By a manual clock, so every run records the same.
playground:
	cargo run --quiet -p workglow-limit-bench --bin playground site/playground/traces.json

# ---- the bench, and its peers, which stay out of every other build and environment ----

BENCH := target/bench

$(BENCH)/venv/ready: bench/requirements.txt bench/python/requirements.txt | tools
	test -x $(BENCH)/venv/bin/python || python3 -m venv $(BENCH)/venv
	echo "setting up $(BENCH)/venv"
	$(BENCH)/venv/bin/python -m pip install --quiet --disable-pip-version-check $(foreach f,$^,-r $(f))
	touch $@

# This library is installed next to them, as users install it.
peers: dist $(BENCH)/venv/ready bench/node/node_modules/.package-lock.json
	$(BENCH)/venv/bin/python -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps $(DIST)/*.whl
	$(NPM) bench/node $(abspath $(TARBALL))
	cargo build --quiet --release --manifest-path bench/rust/Cargo.toml --target-dir target
	$(CC) -O2 -Wall -Wextra -Werror bench/c/bench.c -o $(BENCH)/c $(LINK)

bench-tools:
	.ci/need bench

bench: bench-tools peers
	$(BENCH)/venv/bin/python bench/run.py

bench-publish: bench-tools peers
	PUBLISH=1 $(BENCH)/venv/bin/python bench/run.py

bench-fleet: bench-tools test-tools peers
	$(BENCH)/venv/bin/python bench/fleet/measure.py
	$(BENCH)/venv/bin/python bench/fleet/rivals.py
	$(BENCH)/venv/bin/python bench/fleet/keys.py

instructions: | test-tools
	cargo build --quiet --release -p workglow-limit-bench --bin instructions
	python3 bench/instructions.py

# Eight sites of one server; and a server that forgets, or that is killed and knows nothing. SECONDS=10 is quick.
FLEET_STORM := $(PYTHON) tests/torture/storm/fleet.py --out $(OUT) --seconds $(or $(SECONDS),60)

torture: test-tools storm
	$(FLEET_STORM) --limit 100 --window 2
	$(FLEET_STORM) --limit 1000 --window 1
	$(FLEET_STORM) --limit 20000 --window 10
	for loss in forget restart; do \
	    $(FLEET_STORM) --limit 100 --window 2 --server $$loss || exit 1; \
	    $(FLEET_STORM) --limit 1000 --window 1 --server $$loss || exit 1; \
	done
	$(FLEET_STORM) --kind postgres --limit 1000 --window 1
	$(FLEET_STORM) --kind postgres --limit 100 --window 2 --server forget
	tests/torture/models
	SECONDS=60 cargo test --quiet --release -p workglow-limit --features fault-points --test stores processes::
	ROUNDS=300 cargo test --quiet --release -p workglow-limit --features fault-points --test stores torments:: -- --nocapture
	SECONDS=60 cargo test --quiet --release -p workglow-limit --features fault-points --test stores storms:: -- --skip at_most_five_run
	SECONDS=600 cargo test --quiet --release -p workglow-limit --features fault-points --test stores at_most_five_run
	CHANGES=10000 KEYS=100000 cargo test --quiet --release -p workglow-limit --features fault-points --test stores killed_changes -- --nocapture

clean:
	rm -rf target bindings/node/node_modules bindings/node/dist tests/fleet/*/node_modules tests/next/{node_modules,.next} tests/{lowest,node-tools,page,site}/node_modules {site,docs/api,bench/node}/node_modules
