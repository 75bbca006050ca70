# plumb - plain GNU make. `make help` lists the targets.
#
# Every src/<folder>/*.c goes into libplumb.a, src/cmd/main.c into the binary; tests/<folder>/test_*.c are programs of
# their own. Object files of one flavour (VARIANT) live together under build/<variant>: release, asan, tsan, fuzz.
# A change of compiler or flags rebuilds that flavour; headers are tracked by the compiler (-MMD).

VERSION := $(shell sed -n 's/^.define PLUMB_VERSION "\(.*\)"/\1/p' include/plumb.h)
ifeq ($(origin CC),default)
CC := gcc
endif
VARIANT ?= release
BUILD   ?= build
PREFIX  ?= /usr/local
DESTDIR ?=
O       := $(BUILD)/$(VARIANT)
GEN     := $(O)/gen
JOBS    ?= $(shell nproc 2>/dev/null || echo 2)

.DEFAULT_GOAL := all

ifeq ($(VARIANT),fuzz)
CC := clang
endif

# --- Optional libraries: tools/configure.sh looks once and says what is left out. ------------------------------------
CONFIG := $(BUILD)/gen/config.mk
NO_BUILD_GOALS := help clean deps deps-check demo check check-order soak fuzz format format-check
NEEDS_CONFIG := $(if $(MAKECMDGOALS),$(filter-out $(NO_BUILD_GOALS),$(MAKECMDGOALS)),all)
ifneq ($(NEEDS_CONFIG),)
-include $(CONFIG)
endif
$(CONFIG): tools/configure.sh
	@CC="$(CC)" sh tools/configure.sh $@

# --- Flags -----------------------------------------------------------------------------------------------------------
WARN     := -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wvla -Wstrict-prototypes -Wmissing-prototypes
CFLAGS_release := -O3 -g
CFLAGS_asan    := -O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
CFLAGS_tsan    := -O1 -g -fsanitize=thread
CFLAGS_fuzz    := -O1 -g -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -DPL_FUZZ
ifeq ($(CFLAGS_$(VARIANT)),)
$(error VARIANT=$(VARIANT) is not known: release, asan, tsan or fuzz)
endif
PL_CFLAGS  := -std=c17 -D_GNU_SOURCE -fvisibility=hidden -fPIC -ffp-contract=off $(WARN) $(CFLAGS_$(VARIANT)) \
              $(PL_FEATURES) -Isrc -Iinclude -I. -I$(GEN) $(CFLAGS)
PL_LDFLAGS := $(filter -fsanitize%,$(CFLAGS_$(VARIANT))) $(LDFLAGS)
LIBS       := -ljansson -lpcre2-8 -lutf8proc -ldl -lpthread -lm
CMD_LIBS   := $(PL_CMD_LIBS) $(LIBS)

# Instruction-set files: src/cpu/<isa>_*.c or src/cpu/<isa>.c get that set's flags, nothing else does.
isa_flags = $(if $(filter avx2%,$(notdir $1)),-mavx2 -mfma -mf16c -mbmi2$(if $(filter avx2_vnni%,$(notdir $1)), -mavxvnni,),)$(if $(filter avx512%,$(notdir $1)),\
            -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx2 -mfma -mf16c -mbmi2,)$(if \
            $(filter neon%,$(notdir $1)),-march=armv8.2-a+dotprod$(if $(filter neon_i8mm%,$(notdir $1)),+i8mm,),) $(isa_plain)
# No fuzz target reaches those files, and clang takes minutes for them with every sanitizer: there they go without.
isa_plain = $(if $(filter fuzz,$(VARIANT)),$(if $(filter avx2% avx512%,$(notdir $1)),-fno-sanitize=all,),)

# --- Sources ---------------------------------------------------------------------------------------------------------
SRCS      := $(sort $(wildcard src/*/*.c src/*/*/*.c))
ARCH      := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine 2>/dev/null)))
SRCS      := $(filter-out $(if $(filter x86_64,$(ARCH)),,src/cpu/avx%) $(if $(filter aarch64,$(ARCH)),,src/cpu/neon%),$(SRCS))
ifeq ($(filter microhttpd,$(PL_FEATURE_NAMES)),)
SRCS      := $(filter-out src/serve/% src/cmd/cmd_serve.c,$(SRCS))
endif
LIB_OBJS  := $(patsubst %.c,$(O)/%.o,$(filter-out src/cmd/main.c,$(SRCS)))
API_OBJS  := $(filter-out $(O)/src/audio/% $(O)/src/cmd/% $(O)/src/serve/% $(O)/src/verify/%,$(LIB_OBJS))
TEST_SRCS := $(sort $(wildcard tests/*/test_*.c))
ifeq ($(filter microhttpd,$(PL_FEATURE_NAMES)),)
TEST_SRCS := $(filter-out tests/serve/%,$(TEST_SRCS))
endif
TEST_BINS := $(patsubst %.c,$(O)/%,$(TEST_SRCS))
FUZZ_SRCS := $(sort $(wildcard fuzz/fuzz_*.c))
FUZZ_BINS := $(patsubst %.c,$(O)/%,$(FUZZ_SRCS))
REPLAY_BINS := $(patsubst fuzz/fuzz_%.c,$(O)/fuzz/replay_%,$(FUZZ_SRCS))
C_FILES   := $(sort $(wildcard include/*.h src/*/*.[ch] src/*/*/*.[ch] tests/*/*.[ch] fuzz/*.[ch] examples/*.[ch]))

.PHONY: all help lib tests fuzz-bins replay-bins clean check check-order check-gpu check-dist demo deps deps-check install \
        fuzz soak dist format format-check FORCE
.SECONDARY:
.DELETE_ON_ERROR:
all: $(BUILD)/plumb $(BUILD)/libplumb.so

help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)
	@echo "Variables: CC=gcc|clang  VARIANT=release|asan|tsan|fuzz  PREFIX=/usr/local  DESTDIR=  CFLAGS=  LDFLAGS=  V=1"

## make              build build/plumb and build/libplumb.so (release)
$(BUILD)/plumb: $(O)/plumb
	@ln -sfn $(VARIANT)/plumb $@
$(BUILD)/libplumb.so: $(O)/libplumb.so
	@ln -sfn $(VARIANT)/libplumb.so $@
	@ln -sfn $(VARIANT)/libplumb.so $@.0

Q := $(if $(V),,@)
$(O)/plumb: $(O)/src/cmd/main.o $(O)/libplumb.a
	@echo "  LD  $@"
	$(Q)$(CC) $(PL_CFLAGS) -o $@ $< -Wl,--whole-archive $(O)/libplumb.a -Wl,--no-whole-archive $(PL_LDFLAGS) $(CMD_LIBS)

# The same program with planted faults (PLUMB_FAULT=name, src/base/fault.h): a few objects again and a link. It is what the
# tests of the verification tools compare with; nobody installs it.
FAULT_SRCS := src/cmd/cmd_version.c src/cpu/attention.c src/engine/api.c src/engine/engine.c src/engine/generate.c \
              src/jit/jit.c src/meter/outcome.c src/ops/choose.c src/ops/ops.c src/ops/ops_cpu.c src/sample/sampler.c src/serve/metrics.c
FAULT_OBJS := $(patsubst %.c,$(O)/faults/%.o,$(filter $(FAULT_SRCS),$(SRCS)))
$(O)/faults/%.o: %.c $(O)/flags | $(GEN)/build_info.h
	@mkdir -p $(@D)
	@echo "  CC  $< (faults)"
	$(Q)$(CC) $(PL_CFLAGS) -DPL_FAULTS $(call isa_flags,$<) -MMD -MP -c -o $@ $<
$(O)/plumb-faults: $(O)/src/cmd/main.o $(FAULT_OBJS) $(O)/libplumb.a
	@echo "  LD  $@"
	$(Q)$(CC) $(PL_CFLAGS) -o $@ $^ $(PL_LDFLAGS) $(CMD_LIBS)
ifeq ($(VARIANT),release)
tests: $(O)/plumb-faults
endif

lib: $(O)/libplumb.so
$(O)/libplumb.so: $(API_OBJS)
	@echo "  LD  $@"
	$(Q)$(CC) $(PL_CFLAGS) -shared -Wl,-soname,libplumb.so.0 -o $@ $^ $(PL_LDFLAGS) $(LIBS)

$(O)/libplumb.a: $(LIB_OBJS)
	@rm -f $@
	$(Q)ar rcs $@ $^

# Diagnostics of each file stay beside its object, so that `make check` can prove that a build was free of warnings.
$(O)/%.o: %.c $(O)/flags | $(GEN)/build_info.h
	@mkdir -p $(@D)
	@echo "  CC  $<"
	$(Q)$(CC) $(PL_CFLAGS) $(call isa_flags,$<) -MMD -MP -c -o $@ $< 2>$@.warn || { cat $@.warn >&2; rm -f $@.warn; exit 1; }
	@if [ -s $@.warn ]; then cat $@.warn >&2; else rm -f $@.warn; fi

$(O)/src/serve/page.o: src/serve/page.html src/serve/openapi.json
# Kernel sources are embedded in the binary with .incbin, which the compiler does not track.
$(O)/src/jit/embedded.o: $(wildcard kernels/*.c kernels/*.h kernels/*/*.h kernels/*/*.c)

# A flavour is rebuilt when its compiler or flags change.
FLAGS_TEXT := $(CC) $(PL_CFLAGS)
$(O)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(FLAGS_TEXT)' | cmp -s - $@ || echo '$(FLAGS_TEXT)' > $@

# Only the file that includes it is rebuilt when it changes (-MMD records that); order-only for everyone else.
$(GEN)/build_info.h: FORCE
	@mkdir -p $(@D)
	@CC="$(CC)" FLAGS='$(PL_CFLAGS)' FEATURES='$(PL_FEATURE_NAMES)' sh tools/build_info.sh $@

$(O)/bench/%: $(O)/bench/%.o $(O)/libplumb.a
	@echo "  LD  $@"
	$(Q)$(CC) $(PL_CFLAGS) -o $@ $^ $(PL_LDFLAGS) $(CMD_LIBS) -lcmocka

$(O)/tests/%: $(O)/tests/%.o $(O)/libplumb.a
	@echo "  LD  $@"
	$(Q)$(CC) $(PL_CFLAGS) -o $@ $^ $(PL_LDFLAGS) $(CMD_LIBS) -lcmocka

# The AVX-512, AMX and AVX-VNNI tables made of AVX2 (tests/cpu/emulated/), and the tests of src/cpu linked with them in
# place of the library's own: tests/cpu/test_emulated.py runs them. Nothing else is linked with these objects.
EMU      := $(O)/emulated
EMU_OBJS := $(patsubst %.c,$(EMU)/%.o,$(filter src/cpu/avx512_%.c src/cpu/avx2_vnni.c src/cpu/cpu.c,$(SRCS)))
EMU_CC    = $(CC) $(PL_CFLAGS) -O1 -g0 -MMD -MP -c -o $@ $<
EMU_ISA  := -mavx2 -mfma -mf16c -mbmi2 -Wno-psabi -include tests/cpu/emulated/avx512.h
$(EMU)/src/cpu/avx%.o: src/cpu/avx%.c $(O)/flags
	@mkdir -p $(@D)
	@echo "  CC  $< (emulated)"
	$(Q)$(EMU_CC) $(EMU_ISA)
$(EMU)/wrong.o: src/cpu/avx512_groups.c $(O)/flags
	@mkdir -p $(@D)
	@echo "  CC  $< (emulated, with a wrong instruction)"
	$(Q)$(EMU_CC) $(EMU_ISA) -DPL_WRONG_INSTRUCTION
$(EMU)/%.o: %.c $(O)/flags
	@mkdir -p $(@D)
	@echo "  CC  $< (emulated)"
	$(Q)$(EMU_CC) -DPL_AVX512_EMULATED -DPL_TEST_EMULATED
$(EMU)/test_%: $(EMU)/tests/cpu/test_%.o $(EMU_OBJS) $(O)/libplumb.a
	@echo "  LD  $@"
	$(Q)$(CC) $(PL_CFLAGS) -o $@ $^ $(PL_LDFLAGS) $(CMD_LIBS) -lcmocka
$(EMU)/test_wrong: $(EMU)/tests/cpu/test_matmul.o $(EMU)/wrong.o $(filter-out %/avx512_groups.o,$(EMU_OBJS)) $(O)/libplumb.a
	@echo "  LD  $@"
	$(Q)$(CC) $(PL_CFLAGS) -o $@ $^ $(PL_LDFLAGS) $(CMD_LIBS) -lcmocka

$(O)/fuzz/fuzz_%: $(O)/fuzz/fuzz_%.o $(O)/libplumb.a
	@echo "  LD  $@"
	$(Q)$(CC) $(PL_CFLAGS) -fsanitize=fuzzer -o $@ $^ $(PL_LDFLAGS) $(CMD_LIBS)
$(O)/fuzz/replay_%: $(O)/fuzz/fuzz_%.o $(O)/fuzz/replay.o $(O)/libplumb.a
	@echo "  LD  $@"
	$(Q)$(CC) $(PL_CFLAGS) -o $@ $^ $(PL_LDFLAGS) $(CMD_LIBS)

# The same two files for an archive: libraries are found beside them. DT_RPATH, because it also holds for the libraries
# that those libraries need.
DIST_RPATH := -Wl,--disable-new-dtags,-rpath
$(O)/plumb-dist: $(O)/src/cmd/main.o $(O)/libplumb.a
	@echo "  LD  $@"
	$(Q)$(CC) $(PL_CFLAGS) -o $@ $< -Wl,--whole-archive $(O)/libplumb.a -Wl,--no-whole-archive $(PL_LDFLAGS) $(CMD_LIBS) \
	    $(DIST_RPATH),'$$ORIGIN/../lib'
$(O)/libplumb-dist.so: $(API_OBJS)
	@echo "  LD  $@"
	$(Q)$(CC) $(PL_CFLAGS) -shared -Wl,-soname,libplumb.so.0 -o $@ $^ $(PL_LDFLAGS) $(LIBS) $(DIST_RPATH),'$$ORIGIN'

# The other compiler's opinion of every source, without code: front-end warnings for a hundredth of a build's time.
CLANG_OKS := $(patsubst %.c,$(BUILD)/clang/%.o,$(SRCS) $(TEST_SRCS) $(FUZZ_SRCS) fuzz/replay.c)
.PHONY: clang-check
clang-check: $(CLANG_OKS)
	@echo clang -fsyntax-only > $(BUILD)/clang/flags
$(BUILD)/clang/%.o: %.c $(O)/flags | $(GEN)/build_info.h
	@mkdir -p $(@D)
	$(Q)clang $(PL_CFLAGS) $(call isa_flags,$<) -fsyntax-only -MMD -MP -MT $@ -MF $(@:.o=.d) $< 2>$@.warn || \
	    { cat $@.warn >&2; exit 1; }
	@if [ -s $@.warn ]; then cat $@.warn >&2; else rm -f $@.warn; fi; touch $@

tests: $(TEST_BINS)
fuzz-bins: $(FUZZ_BINS)
replay-bins: $(REPLAY_BINS)

## make install      binary, library, header, pkg-config file and man page under PREFIX (and DESTDIR)
install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/include \
	           $(DESTDIR)$(PREFIX)/share/man/man1
	install -m 755 $(O)/plumb $(DESTDIR)$(PREFIX)/bin/plumb
	install -m 755 $(O)/libplumb.so $(DESTDIR)$(PREFIX)/lib/libplumb.so.$(VERSION)
	ln -sfn libplumb.so.$(VERSION) $(DESTDIR)$(PREFIX)/lib/libplumb.so.0
	ln -sfn libplumb.so.0 $(DESTDIR)$(PREFIX)/lib/libplumb.so
	install -m 644 include/plumb.h $(DESTDIR)$(PREFIX)/include/plumb.h
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' tools/plumb.pc.in \
	    > $(DESTDIR)$(PREFIX)/lib/pkgconfig/plumb.pc
	install -m 644 docs/plumb.1 $(DESTDIR)$(PREFIX)/share/man/man1/plumb.1

## make deps         install the packages that building and testing need (apt), or say which
deps:
	@sh tools/install_deps.sh build
deps-check:
	@sh tools/install_deps.sh check

## make demo         packages, build, fetch a small model (98 MB), ask it a question, name the kernels that ran
demo:
	@sh tools/install_deps.sh demo
	@$(MAKE) --no-print-directory -j$(JOBS) all
	@sh tools/demo.sh $(BUILD)/plumb

## make check        every test that needs no GPU: sanitized and optimised, in parallel; TESTS=text picks by name
check: deps-check
	@sh tools/check.sh "$(BUILD)" "$(JOBS)" "$(TESTS)"

## make check-order  does a test depend on its predecessors? The optimised suite in order, shuffled, and each test alone
check-order: deps-check
	@$(MAKE) --no-print-directory -j$(JOBS) all tests replay-bins
	@sh tools/check_order.sh "$(BUILD)" "$(JOBS)" "$(TESTS)"

## make check-gpu    the tests that need a GPU
check-gpu:
	@$(MAKE) --no-print-directory -j$(JOBS) all tests
	@bash tools/check_gpu.sh

## make check-dist   unpack the archive of `make dist` into an empty root with only glibc and run it there (needs root)
check-dist: dist
	@sh tools/check_dist.sh $(BUILD)/dist/plumb-$(VERSION)-linux-$(shell uname -m).tar.xz

## make fuzz         libFuzzer on every target (clang): FUZZ=name picks one, RUNS=N (default 1000000), SEED=N
fuzz:
	@$(MAKE) --no-print-directory -j$(JOBS) VARIANT=fuzz fuzz-bins
	@sh tools/fuzz.sh $(BUILD)/fuzz/fuzz "$(FUZZ)" "$(or $(RUNS),1000000)" "$(SEED)"

## make soak         the whole suite again and again in shuffled order for SOAK_MINUTES (default 10)
soak: deps-check
	@sh tools/soak.sh "$(BUILD)" "$(JOBS)" "$(or $(SOAK_MINUTES),10)"

## make dist         one relocatable archive under build/dist: binary, bundled libraries, kernels, licences
dist:
	@$(MAKE) --no-print-directory -j$(JOBS) all $(O)/plumb-dist $(O)/libplumb-dist.so
	@sh tools/dist.sh "$(BUILD)" "$(VERSION)"

## make format       clang-format every C file in place; format-check only says which differ
format:
	clang-format -i $(C_FILES)
format-check:
	clang-format --dry-run -Werror $(C_FILES)

## make clean        remove build/
clean:
	rm -rf $(BUILD)

ifneq ($(NEEDS_CONFIG),)
-include $(shell find $(O) $(BUILD)/clang -name '*.d' 2>/dev/null)
endif
