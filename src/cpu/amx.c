#include "cpu/amx.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cpu/avx512_chunk.h"
#include "cpu/avx512_terms.h"
#include "cpu/wide.h"

enum { REQ_XCOMP_PERM = 0x1023, XTILECFG = 17, XTILEDATA = 18 };

static const struct cpu_amx_kernels real = {avx512_amx_groups, avx512_amx_float_groups, avx512_wide_group,
                                            avx512_amx_wide_tiles},
                                    plain = {avx512_amx_groups, avx512_amx_float_groups, NULL, NULL},
                                    emulated = {avx512_amx_emulated_groups, avx512_amx_emulated_float_groups,
                                                avx512_wide_group_emulated, avx512_amx_emulated_wide_tiles};

/* The instruction that rounds to bf16; not part of the tiles' own. */
static bool rounds(void) {
    uint32_t a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 5) != 0;
}

/* The CPU names the instructions, with tiles of the size that the kernels assume. */
static bool is_named(void) {
    uint32_t a, b, c, d;
    const uint32_t bf16 = 1u << 22, tile = 1u << 24, int8 = 1u << 25;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (bf16 | tile | int8)) != (bf16 | tile | int8)) return false;
    if (!__get_cpuid_count(0x1D, 1, &a, &b, &c, &d)) return false;
    return a >> 16 == 1024 && (b & 0xFFFF) == 64 && b >> 16 >= 8 && (c & 0xFFFF) >= 16;
}

static bool is_saved(void) {
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    const uint32_t both = 1u << XTILECFG | 1u << XTILEDATA;
    return (lo & both) == both;
}

static struct {
    bool available;
    char why[200];
} found;

static void probe_once(void) {
    if (!is_named()) return;
    if (!is_saved())
        snprintf(found.why, sizeof found.why, "the system does not save the CPU's tile registers");
    else if (syscall(SYS_arch_prctl, REQ_XCOMP_PERM, XTILEDATA) != 0)
        snprintf(found.why, sizeof found.why, "the system refuses the CPU's tile registers: %s", strerror(errno));
    else
        found.available = cpu_amx_check(rounds() ? &real : &plain, found.why, sizeof found.why);
}

static _Atomic bool emulating;
static const char *_Atomic pretended;
void cpu_amx_emulate(bool on) { emulating = on; }
void cpu_amx_pretend_declined(const char *why) { pretended = why; }

static void probe(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, probe_once);
}
bool cpu_amx_available(void) {
    if (pretended != NULL) return false;
    if (emulating) return true;
    probe();
    return found.available;
}
const char *cpu_amx_declined(void) {
    if (pretended != NULL) return pretended;
    if (emulating) return NULL;
    probe();
    return found.why[0] != 0 ? found.why : NULL;
}

/* The AVX-512 table but for products of many rows. */
static struct cpu_table tables[2];
static void fill_tables(void) {
    const struct cpu_amx_kernels *k[2] = {rounds() ? &real : &plain, &emulated};
    for (int i = 0; i < 2; i++) {
        tables[i] = cpu_table_avx512;
        tables[i].isa = PL_ISA_AMX;
        tables[i].q8_groups = k[i]->groups;
        tables[i].float_terms = avx512_float_terms;
        tables[i].float_groups = k[i]->float_groups;
        tables[i].wide_group = k[i]->wide_group;
        tables[i].wide_tiles = k[i]->wide_tiles;
    }
}
const struct cpu_table *cpu_amx_table(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_tables);
    return &tables[emulating];
}

#else
bool cpu_amx_available(void) { return false; }
const char *cpu_amx_declined(void) { return NULL; }
const struct cpu_table *cpu_amx_table(void) { return NULL; }
void cpu_amx_emulate(bool on) { (void)on; }
void cpu_amx_pretend_declined(const char *why) { (void)why; }
#endif
