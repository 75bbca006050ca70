/* avx512_terms - f32 values as sums of bf16 terms, for products of float weights with tiles.
 *
 * A value cut after its first eight significant bits is a bf16; what is left is exact in f32, and cut again. Three terms
 * are any f32 exactly, two any f16, one any bf16 (numbers below the normal range apart, which the tile product takes as
 * zeros). Products of terms are exact in f32; those of weight term i and activation term k with i + k > 2 are below
 * 2^-22 of the whole and left out.
 *
 * Activations of a group of n <= 16 rows: for each block of 32 inputs three tiles of 16 rows of n pairs, first terms first:
 * pair (input 2k and 2k+1 of activation row r) at dword k * n + r. So a tile row is two inputs of all n rows. */
#ifndef PL_CPU_AVX512_TERMS_H
#define PL_CPU_AVX512_TERMS_H

#include "cpu/internal.h"

enum { TERMS = 3, TERM_BLOCK = 32, TERM_CHUNK = 8, TERM_RUN = 4 };

/* table.h: float_terms, float_groups */
void avx512_float_terms(const float *x, size_t stride, size_t rows, size_t in, unsigned char *dst);
void avx512_amx_float_groups(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, size_t n, float *y,
                             size_t y_stride, const float *bias, bool accumulate);
void avx512_amx_emulated_float_groups(const struct pl_cpu_weight *w, size_t tile, const struct cpu_act_group *g, size_t n,
                                      float *y, size_t y_stride, const float *bias, bool accumulate);

/* Blocks [first, first + count) of a tile of weights: for each block its terms, each 16 rows of 32 inputs. Rows and inputs
 * that are not there are zeros. Returns the number of terms. */
size_t avx512_weight_terms(const struct pl_cpu_weight *w, size_t tile, size_t first, size_t count, unsigned char *dst);
/* 16 x 16 dwords, in place. */
void avx512_turn(uint32_t (*m)[16]);

#endif
