# plumb - plain GNU make. `make help` lists the targets.
# Every src/<folder>/*.c goes into libplumb.a, src/cmd/main.c into the binary; tests/<folder>/test_*.c are programs
# of their own. Object files of one flavour (VARIANT) live together: release, asan, tsan, fuzz.

CC      ?= gcc
VARIANT ?= release
BUILD   ?= build
PREFIX  ?= /usr/local
O       := $(BUILD)/$(VARIANT)

WARN     := -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wvla -Wstrict-prototypes -Wmissing-prototypes
CFLAGS_release := -O3 -g
CFLAGS_asan    := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
CFLAGS_tsan    := -O1 -g -fsanitize=thread
CFLAGS_fuzz    := -O1 -g -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -DPL_FUZZ
ifeq ($(VARIANT),fuzz)
CC := clang
endif
PL_CFLAGS  := -std=c17 -D_GNU_SOURCE -fvisibility=hidden -fPIC -ffp-contract=off $(WARN) $(CFLAGS_$(VARIANT)) \
              -Isrc -Iinclude -I. -I$(BUILD)/gen $(CFLAGS)
PL_LDFLAGS := $(filter -fsanitize%,$(CFLAGS_$(VARIANT))) $(LDFLAGS)
LIBS       := -ljansson -lpcre2-8 -lutf8proc -lcurl -ledit -ldl -lpthread -lm

# Instruction-set files: src/cpu/<isa>_*.c or src/cpu/<isa>.c get that set's flags, nothing else does.
isa_flags = $(if $(filter avx2%,$(notdir $1)),-mavx2 -mfma -mf16c -mbmi2,)$(if $(filter avx512%,$(notdir $1)),\
            -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx2 -mfma -mf16c -mbmi2,)

SRCS      := $(sort $(wildcard src/*/*.c src/*/*/*.c))
LIB_OBJS  := $(patsubst %.c,$(O)/%.o,$(filter-out src/cmd/main.c,$(SRCS)))
TEST_SRCS := $(sort $(wildcard tests/*/test_*.c))
TEST_BINS := $(patsubst %.c,$(O)/%,$(TEST_SRCS))
FUZZ_SRCS := $(sort $(wildcard fuzz/fuzz_*.c))
FUZZ_BINS := $(patsubst %.c,$(O)/%,$(FUZZ_SRCS))

.PHONY: all help tests fuzz-bins clean check demo deps install
all: $(BUILD)/plumb

help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)

## make              build build/plumb (release)
$(BUILD)/plumb: $(O)/plumb
	@ln -sf $(VARIANT)/plumb $@
$(O)/plumb: $(O)/src/cmd/main.o $(O)/libplumb.a
	@echo "  LD  $@"
	@$(CC) $(PL_CFLAGS) -o $@ $< -Wl,--whole-archive $(O)/libplumb.a -Wl,--no-whole-archive $(PL_LDFLAGS) $(LIBS)

$(O)/libplumb.a: $(LIB_OBJS)
	@rm -f $@
	@ar rcs $@ $^

$(O)/%.o: %.c
	@mkdir -p $(@D)
	@echo "  CC  $<"
	@$(CC) $(PL_CFLAGS) $(call isa_flags,$<) -MMD -MP -c -o $@ $<

$(O)/tests/%: $(O)/tests/%.o $(O)/libplumb.a
	@echo "  LD  $@"
	@$(CC) $(PL_CFLAGS) -o $@ $^ $(PL_LDFLAGS) $(LIBS) -lcmocka

$(O)/fuzz/%: $(O)/fuzz/%.o $(O)/libplumb.a
	@echo "  LD  $@"
	@$(CC) $(PL_CFLAGS) -fsanitize=fuzzer -o $@ $^ $(PL_LDFLAGS) $(LIBS)

tests: $(TEST_BINS)
fuzz-bins: $(FUZZ_BINS)

## make clean        remove build/
clean:
	rm -rf $(BUILD)

-include $(shell find $(O) -name '*.d' 2>/dev/null)
.SECONDARY:

## make check        every test that needs no GPU
check: tests
	@p=0; f=0; for t in $(TEST_BINS); do if $$t; then p=$$((p+1)); else f=$$((f+1)); fi; done; echo "$$p passed, $$f failed"; test $$f = 0
