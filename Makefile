# make alone lists the targets. demo and test first install what they need (tools/cargo, tools/packages). ARGS="..." is
# passed on where the help says so.

.DEFAULT_GOAL := help
.PHONY: help demo build install uninstall deb test vm soak bench peers fuzz lint audit clean

CARGO := tools/cargo
ARGS ?=
# Bugs that tests can switch on, to show that they are found: one build for all tests.
PLANTED := --features flaz-pool/planted-bugs,flaz-fuzz/planted-bugs
# The program with the tasks of developers. Tests have built it, too, with these features; another build takes a minute.
XTASK := $(CARGO) run --quiet --locked --package xtask --
XTASK_OF_TESTS := CARGO=$(CARGO) $(or $(CARGO_TARGET_DIR),target)/debug/xtask

help: ## List the targets
	@echo 'flaz: a compressed SSD cache for block devices'
	@echo
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r target text; do \
		printf '    make %-9s %s\n' "$$target" "$$text"; done

demo: ## Compare a compressed cache with an uncompressed one: a minute, no root (ARGS: options of flaz demo)
	@$(CARGO) run --release --locked --package flaz-cli -- demo $(ARGS)

build: ## Build the program: target/release/flaz
	@$(CARGO) build --release --locked --package flaz-cli

# The program may have been built by another user: `make build && sudo make install`.
install: ## Install program, man pages, completions, systemd unit, udev rule (PREFIX, default /usr/local; DESTDIR)
	@program="$${CARGO_TARGET_DIR:-target}/release/flaz"; [ -x "$$program" ] || $(MAKE) --no-print-directory build; \
		tools/install "$$program"

uninstall: ## Remove what `make install` installed, but no configuration
	@tools/install --uninstall

deb: build ## Build a Debian package in target/debian; needs cargo-deb
	@command -v cargo-deb >/dev/null || { echo 'cargo-deb is not installed; install it with: cargo install --locked cargo-deb'; exit 1; }
	@rm -rf target/package
	@DESTDIR=target/package PREFIX=/usr tools/install "$${CARGO_TARGET_DIR:-target}/release/flaz"
	@$(CARGO) deb --quiet --no-build --package flaz-cli --output target/debian/

# For root, missing packages are installed, and a package that is still missing is a failure, not a skipped test. In CI
# this includes PostgreSQL, FUSE, loop devices, a browser if the distribution has one, and the images of the virtual machine.
test: ## Run all tests and the lint; as root, install missing Debian packages (ARGS: options of cargo test)
	@if [ "$$(id -u)" -eq 0 ]; then : "$${FLAZ_REQUIRE_TOOLS=1}"; export FLAZ_REQUIRE_TOOLS; fi; \
	if [ "$$(id -u)" -eq 0 ] && [ -n "$${CI:-}" ]; then : "$${FLAZ_REQUIRE_KERNEL=1}" "$${FLAZ_REQUIRE_POSTGRES=1}"; \
		export FLAZ_REQUIRE_KERNEL FLAZ_REQUIRE_POSTGRES; fi; \
	if ! tools/packages test && [ "$${FLAZ_REQUIRE_TOOLS:-0}" = 1 ]; then exit 1; fi; \
	if [ "$$(id -u)" -eq 0 ] && [ -n "$${CI:-}" ] && tools/packages browser; then \
		: "$${FLAZ_REQUIRE_BROWSER=1}"; export FLAZ_REQUIRE_BROWSER; fi; \
	$(CARGO) test --workspace --locked --no-fail-fast $(PLANTED) $(ARGS)
	@if [ "$$(id -u)" -eq 0 ] && [ -n "$${CI:-}" ]; then : "$${FLAZ_REQUIRE_VM=1}"; export FLAZ_REQUIRE_VM; fi; \
	if [ -z "$(ARGS)" ]; then tools/vm quick "$${CARGO_TARGET_DIR:-target}/debug/flaz"; fi
	@$(MAKE) --no-print-directory lint $(if $(ARGS),,XTASK='$(XTASK_OF_TESTS)')

# Debian packages are installed for root; the images of the machine are built once, in target/vm.
vm: ## Test the program on a virtual machine with a real kernel: ublk, NBD, power cuts, systemd (ARGS: names in tests/vm)
	@$(CARGO) build --release --locked --package flaz-cli
	@tools/vm test "$${CARGO_TARGET_DIR:-target}/release/flaz" $(ARGS)

soak: ## Run crash tests for an hour: simulation, kills, power cuts; print losses (ARGS="--minutes N")
	@tools/packages test || true
	@$(CARGO) run --locked --package xtask -- soak $(ARGS)

bench: ## Benchmark flaz against other servers, on an idle machine (ARGS: options of xtask bench)
	@$(CARGO) run --release --locked --package xtask -- bench $(ARGS)

peers: ## Measure flaz beside dm-cache, bcache and dm-vdo on the virtual machine, hours (ARGS: options of xtask peers)
	@$(CARGO) run --release --locked --package xtask -- peers $(ARGS)

# With cargo-fuzz installed, libFuzzer with coverage (no sanitizer, hence no nightly toolchain); otherwise the driver of
# flaz-fuzz, which runs the same targets without coverage.
fuzz: ## Fuzz all parsers with hostile caches and clients until something is found (ARGS: a target)
	@if command -v cargo-fuzz >/dev/null; then tools/fuzz $(ARGS); else \
		echo 'running without coverage: cargo-fuzz is not installed; install it with: cargo install --locked cargo-fuzz'; \
		$(CARGO) run --release --locked --package flaz-fuzz -- $(ARGS); fi

lint: ## Check formatting, clippy, shell scripts, licences, sources and directions of dependencies
	@$(CARGO) fmt --all --check
	@$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	@if command -v shellcheck >/dev/null; then shellcheck -x tools/cargo tools/packages tools/fuzz tools/vm \
		tools/install dist/flaz-generator dist/debian/* \
		tests/vm/*.sh tests/vm/peers/measure.sh tests/vm/figures/hits.sh tests/vm/boot/before-boot \
		tests/vm/rig/lib.sh tests/vm/rig/build tests/vm/rig/init tests/vm/rig/session crates/lab/evaluate/recordings/record.sh .ci/run; \
	else echo 'skipped: shellcheck is not installed; install it with: apt-get install shellcheck'; fi
	@$(XTASK) dependencies

audit: ## Check dependencies with cargo-deny, including the advisory database (needs network access)
	@command -v cargo-deny >/dev/null || { echo 'cargo-deny is not installed; install it with: cargo install --locked cargo-deny'; exit 1; }
	@$(CARGO) deny check

clean: ## Remove build outputs
	@$(CARGO) clean
