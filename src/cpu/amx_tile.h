/* amx_tile - the few tile instructions that the AMX table uses, and the same in C for machines that lack them.
 *
 * Eight tiles by number (a literal). A file that defines PL_TILE_EMULATED before it includes this gets the C versions:
 * same results bit for bit by the manual's pseudo-code, and every use that the CPU would fault on is an assertion.
 *
 * Compilers are told everything by operands: what tile_load reads and what tile_store writes, with their true sizes, and
 * all 64 bytes of the configuration (gcc 12's own _tile_loadconfig names 8 of them, so stores to the others may sink below
 * it). The configuration is constant data besides, so there is no store that could. The statements are volatile: they stay
 * in order among themselves, which is all that tile registers need. */
#ifndef PL_CPU_AMX_TILE_H
#define PL_CPU_AMX_TILE_H

#include <stdint.h>

enum { TILE_MAX_ROWS = 16, TILE_ROW_BYTES = 64 };

struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16]; /* bytes of a row, by tile */
    uint8_t rows[16];
};
_Static_assert(sizeof(struct tile_config) == 64, "what LDTILECFG reads");

#ifdef PL_TILE_EMULATED
#include "cpu/amx_emulate.h"
#else
#define TILE_TEXT_(n) #n
#define TILE_TEXT(n)  TILE_TEXT_(n)

#define tile_configure(config) __asm__ volatile("ldtilecfg %0" : : "m"(*(config)))
#define tile_release()         __asm__ volatile("tilerelease" : :)
/* tile n = rows at p, `stride` bytes apart; `extent` names the bytes from p on that may be read. */
#define tile_load(n, p, stride, extent)                        \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" TILE_TEXT(n) \
                     :                                         \
                     : "r"((const void *)(p)), "r"((int64_t)(stride)), "m"(*(const char(*)[extent])(const void *)(p)))
/* The same from memory that nobody writes while it may be read here (a mapped file, activations made by an earlier call). */
#define tile_load_view(n, p, stride)                           \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" TILE_TEXT(n) \
                     :                                         \
                     : "r"((const void *)(p)), "r"((int64_t)(stride)), "m"(*(const char *)(const void *)(p)))
/* The same of what is soon replaced by what comes after it: the L1 cache is left to other operands. */
#define tile_load_stream(n, p, stride)                           \
    __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm" TILE_TEXT(n) \
                     :                                           \
                     : "r"((const void *)(p)), "r"((int64_t)(stride)), "m"(*(const char *)(const void *)(p)))
/* 64-byte rows, one behind the other, all 16 of them claimed. */
#define tile_store(n, p)                                                           \
    __asm__ volatile("tilestored %%tmm" TILE_TEXT(n) ", (%1,%2,1)"                 \
                     : "=m"(*(char(*)[TILE_MAX_ROWS * TILE_ROW_BYTES])(void *)(p)) \
                     : "r"((void *)(p)), "r"((int64_t)TILE_ROW_BYTES))
#define tile_zero(n)         __asm__ volatile("tilezero %%tmm" TILE_TEXT(n) : :)
/* c += a b: 32-bit sums of products of four bytes; a signed; b signed, or unsigned. Or f32 sums of pairs of bf16. */
#define tile_dpbssd(c, a, b) __asm__ volatile("tdpbssd %%tmm" TILE_TEXT(b) ", %%tmm" TILE_TEXT(a) ", %%tmm" TILE_TEXT(c) : :)
#define tile_dpbsud(c, a, b) __asm__ volatile("tdpbsud %%tmm" TILE_TEXT(b) ", %%tmm" TILE_TEXT(a) ", %%tmm" TILE_TEXT(c) : :)
#define tile_dpbf16ps(c, a, b) \
    __asm__ volatile("tdpbf16ps %%tmm" TILE_TEXT(b) ", %%tmm" TILE_TEXT(a) ", %%tmm" TILE_TEXT(c) : :)
#endif

#endif
