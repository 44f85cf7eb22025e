# The two commands that most people want: make demo, make test. Both see to what they need first (tools/cargo,
# tools/packages); make alone lists all of them. ARGS="..." is handed on where the help says so.

.DEFAULT_GOAL := help
.PHONY: help demo build test soak bench fuzz lint audit clean

CARGO := tools/cargo
ARGS ?=

help: ## List the targets
	@echo 'flaz: a transparent, compressed SSD cache for block devices'
	@echo
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r target text; do \
		printf '    make %-7s %s\n' "$$target" "$$text"; done

demo: ## Show on files of this machine what compressing the cache gains: about a minute, no root (ARGS: options of flaz demo)
	@$(CARGO) run --release --locked --package flaz-cli -- demo $(ARGS)

build: ## Build the program: target/release/flaz
	@$(CARGO) build --release --locked --package flaz-cli

# Root gets every package installed, so a missing one is a failure there, not a skipped test; in CI PostgreSQL as
# well, the kernel must have FUSE and loop devices, and a browser must be there if the system's archive has one.
test: ## Run every test and the lint; root gets missing Debian packages installed (ARGS: options of cargo test)
	@if [ "$$(id -u)" -eq 0 ]; then : "$${FLAZ_REQUIRE_TOOLS=1}"; export FLAZ_REQUIRE_TOOLS; fi; \
	if [ "$$(id -u)" -eq 0 ] && [ -n "$${CI:-}" ]; then : "$${FLAZ_REQUIRE_KERNEL=1}" "$${FLAZ_REQUIRE_POSTGRES=1}"; \
		export FLAZ_REQUIRE_KERNEL FLAZ_REQUIRE_POSTGRES; fi; \
	if ! tools/packages test && [ "$${FLAZ_REQUIRE_TOOLS:-0}" = 1 ]; then exit 1; fi; \
	if [ "$$(id -u)" -eq 0 ] && [ -n "$${CI:-}" ] && tools/packages browser; then \
		: "$${FLAZ_REQUIRE_BROWSER=1}"; export FLAZ_REQUIRE_BROWSER; fi; \
	$(CARGO) test --workspace --locked --no-fail-fast $(ARGS)
	@if [ -z "$(ARGS)" ]; then $(CARGO) test --package flaz-engine --package flaz-fuzz --locked --features planted-bugs --test crash --test faults --test planted -- planted seen; fi
	@$(MAKE) --no-print-directory lint

soak: ## Crash simulated caches, kill the program and cut its power for an hour (ARGS="--minutes N"); prints what was lost
	@tools/packages test || true
	@$(CARGO) run --locked --package xtask -- soak $(ARGS)

bench: ## Measure against the peers, reported as ratios; wants an idle machine (ARGS: options of xtask bench)
	@$(CARGO) run --release --locked --package xtask -- bench $(ARGS)

# libFuzzer with coverage where cargo-fuzz is installed (no nightly toolchain is needed: no sanitizer is used), else
# the driver of flaz-fuzz, which has the same targets and knows nothing of coverage.
fuzz: ## Feed hostile caches and clients to every parser until something is found (ARGS: a target)
	@if command -v cargo-fuzz >/dev/null; then tools/fuzz $(ARGS); else \
		echo 'without coverage, for cargo-fuzz is not installed; get it with: cargo install --locked cargo-fuzz'; \
		$(CARGO) run --release --locked --package flaz-fuzz -- $(ARGS); fi

lint: ## Check formatting, clippy, shell scripts, licences and sources of dependencies
	@$(CARGO) fmt --all --check
	@$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	@if command -v shellcheck >/dev/null; then shellcheck tools/cargo tools/packages tools/fuzz .ci/run; \
	else echo 'skipped: shellcheck is not installed; get it with: apt-get install shellcheck'; fi
	@$(CARGO) run --quiet --locked --package xtask -- dependencies

audit: ## Check dependencies with cargo-deny, the advisory database included: needs the network
	@command -v cargo-deny >/dev/null || { echo 'cargo-deny is not installed; get it with: cargo install --locked cargo-deny'; exit 1; }
	@$(CARGO) deny check

clean: ## Remove what was built
	@$(CARGO) clean
