# EpochFS.  `make help` lists what there is to make.
#
# Meson and Ninja do the building; this file only gives the usual names to it.

BUILD     ?= build
PREFIX    ?= /usr/local
SBINDIR   ?= /usr/sbin
SYSCONFDIR ?= /etc
DESTDIR   ?=
JOBS      ?= $(shell nproc)

.DEFAULT_GOAL := build
.PHONY: build deps run stop test test-all bench lint docs install uninstall clean help

help:
	@echo 'make             build $(BUILD)/epochfs (and install what that needs, if it is missing)'
	@echo 'make run         start a server under ./run, mount a volume on ./mnt, and show around'
	@echo 'make stop        unmount and stop what make run started'
	@echo 'make test        run the tests (about 12 minutes); the last line is "N passed, N failed"'
	@echo 'make test-all    long and random runs, too, and mounts made in every way (hours); PART=3/8: a part of it'
	@echo 'make bench       compare a mount with ext4; writes $(BUILD)/bench.json'
	@echo 'make lint        check the style and the banned calls'
	@echo 'make docs        write docs/cli.md anew from the help texts'
	@echo 'make install     install to $$(DESTDIR)$$(PREFIX), with systemd units and the helper of mount(8)'
	@echo 'make uninstall   remove what make install installed; data and configuration stay'
	@echo 'make deps        install the Debian packages that building and testing need'
	@echo 'make clean       remove everything that was built'

build: $(BUILD)/build.ninja
	@ninja -C $(BUILD) -j $(JOBS) epochfs

$(BUILD)/build.ninja:
	@scripts/deps build
	@meson setup $(BUILD) -Dtests=false

deps:
	@scripts/deps build test

run: build
	@scripts/run $(BUILD)/epochfs

stop:
	@scripts/stop $(BUILD)/epochfs

test:
	@scripts/test

test-all:
	@scripts/test --all $(if $(PART),--part $(PART))

bench: build
	@scripts/deps bench
	@tests/bench/run $(BUILD)

lint: build
	@scripts/deps test
	@scripts/lint $(BUILD)

docs: build
	@scripts/cli-reference $(BUILD)/epochfs > docs/cli.md.new && mv docs/cli.md.new docs/cli.md

install: build
	@scripts/install "$(BUILD)" "$(DESTDIR)" "$(PREFIX)" "$(SBINDIR)" "$(SYSCONFDIR)"

uninstall:
	@scripts/install --remove "$(DESTDIR)" "$(PREFIX)" "$(SBINDIR)"

clean:
	@rm -rf build build-asan build-tsan build-fuzz
