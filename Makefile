# Two commands do everything: `make demo` and `make test`. `make help` lists the others.
TARGET := $(or $(CARGO_TARGET_DIR),target)

# Where `make install` puts things. mount(8) looks for its helpers in /sbin alone, which is /usr/sbin on Debian and Ubuntu.
PREFIX ?= /usr/local
SBINDIR ?= /usr/sbin

.PHONY: help demo test build install lint figure figures sim clean

help:
	@echo "make demo             install what is missing, build, show a cache of three members: warm, compare, restart, kill"
	@echo "                      S3=seaweedfs or S3=URL (with AWS_*) for another server"
	@echo "make test             install what is missing, lint, run all tests (what CI runs)"
	@echo "make build            optimised binaries in target/release"
	@echo "make install          what was built: PREFIX/bin/forebay and SBINDIR/mount.forebay; PREFIX=/usr/local, SBINDIR=/usr/sbin"
	@echo "                      (SBINDIR= leaves it out), DESTDIR= in front of both; STRIP=-s without debug information"
	@echo "make lint             formatting, clippy, crate arrows, licences"
	@echo "make figure F=NAME    measure one figure: fuse-null, amplification, one-fetch-local, idle,"
	@echo "                      device-4k, device-seq, fuse-disk, miss-ratio, overflow, restart, foyer,"
	@echo "                      tcp-1m, tcp-4k, rdma-bw, rdma-4k-rtt, rdma-rate, rdma-read,"
	@echo "                      rdma-vs-tcp, passthrough, one-fetch, join, spread, remote-share,"
	@echo "                      engine-4k, fuse-seq, fuse-rand, small-files, epoch, cold-stream,"
	@echo "                      ls-100k, safetensors, verify-cost, core-scaling,"
	@echo "                      engine-overhead, spdk-tcp, spdk-guest"
	@echo "make figures          measure all figures; updates docs/performance.md"
	@echo "make sim SEED=N       replay one seed of the simulator"
	@echo "make clean            remove what was built"

demo:
	@ci/demo

test:
	@ci/test

# Figures about SPDK take a build with it, where it is.
SPDK = $(if $(filter engine-overhead spdk-%,$(F)),$(shell pkg-config --exists spdk_nvme spdk_env_dpdk 2>/dev/null && echo --features forebay-perf/spdk))

build:
	@ci/setup
	cargo build --release --locked --workspace --bins $(SPDK)

# Builds nothing: it may run as root, and cargo should not.
install:
	@test -x "$(TARGET)/release/forebay" || { echo "nothing is built yet: run make build first" >&2; exit 1; }
	install -d "$(DESTDIR)$(PREFIX)/bin"
	install -m 755 $(STRIP) "$(TARGET)/release/forebay" "$(DESTDIR)$(PREFIX)/bin/forebay"
ifneq ($(SBINDIR),)
	install -d "$(DESTDIR)$(SBINDIR)"
	install -m 755 deploy/mount.forebay "$(DESTDIR)$(SBINDIR)/mount.forebay"
	ln -sf mount.forebay "$(DESTDIR)$(SBINDIR)/mount.fuse.forebay"
endif

lint:
	@ci/setup test
	@ci/lint

figure: build
	@test -n "$(F)" || { echo "make figure F=NAME; make help lists the names" >&2; exit 2; }
	$(TARGET)/release/forebay-perf figure $(F)

figures: build
	$(TARGET)/release/forebay-perf figures

sim:
	@test -n "$(SEED)" || { echo "make sim SEED=N" >&2; exit 2; }
	cargo run --locked -p forebay-tests --bin forebay-sim -- --seed $(SEED)

clean:
	cargo clean
