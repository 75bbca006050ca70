/* amx_emulate - tile instructions in C, by the pseudo-code of the manual. Included by amx_tile.h only.
 *
 * Where the CPU raises #UD or #GP an assertion stops: no configuration, shapes that do not fit each other, one tile in two
 * roles. What the CPU clears it clears: rows and bytes beyond the configured shape. */
#ifndef PL_CPU_AMX_EMULATE_H
#define PL_CPU_AMX_EMULATE_H

#include <math.h>
#include <string.h>

#include "base/status.h"

#define EMULATED __attribute__((noinline, unused)) static

struct emulated_tiles {
    bool configured;
    struct tile_config config;
    _Alignas(64) unsigned char t[8][TILE_MAX_ROWS][TILE_ROW_BYTES];
};
static _Thread_local struct emulated_tiles emulated;

EMULATED void tile_configure(const struct tile_config *config) {
    PL_ASSERT((uintptr_t)config % 64 == 0);
    PL_ASSERT(config->palette == 1 && config->start_row == 0);
    for (int i = 0; i < 8; i++) {
        PL_ASSERT(config->rows[i] <= TILE_MAX_ROWS && config->row_bytes[i] <= TILE_ROW_BYTES);
        PL_ASSERT((config->rows[i] == 0) == (config->row_bytes[i] == 0) && config->row_bytes[i] % 4 == 0);
    }
    for (int i = 8; i < 16; i++) PL_ASSERT(config->rows[i] == 0 && config->row_bytes[i] == 0);
    for (int i = 0; i < 14; i++) PL_ASSERT(config->reserved[i] == 0);
    memset(&emulated, 0, sizeof emulated);
    emulated.config = *config;
    emulated.configured = true;
}
EMULATED void tile_release(void) { emulated.configured = false; }

static inline void emulated_check(int n) { PL_ASSERT(emulated.configured && emulated.config.rows[n] > 0); }

EMULATED void tile_load(int n, const void *p, size_t stride, size_t extent) {
    emulated_check(n);
    PL_ASSERT((emulated.config.rows[n] - 1u) * stride + emulated.config.row_bytes[n] <= extent);
    memset(emulated.t[n], 0, sizeof emulated.t[n]);
    for (size_t r = 0; r < emulated.config.rows[n]; r++)
        memcpy(emulated.t[n][r], (const unsigned char *)p + r * stride, emulated.config.row_bytes[n]);
}
EMULATED void tile_load_view(int n, const void *p, size_t stride) { tile_load(n, p, stride, SIZE_MAX); }
EMULATED void tile_load_stream(int n, const void *p, size_t stride) { tile_load(n, p, stride, SIZE_MAX); }
EMULATED void tile_store(int n, void *p) {
    emulated_check(n);
    for (size_t r = 0; r < emulated.config.rows[n]; r++)
        memcpy((unsigned char *)p + r * TILE_ROW_BYTES, emulated.t[n][r], emulated.config.row_bytes[n]);
}
EMULATED void tile_zero(int n) {
    emulated_check(n);
    memset(emulated.t[n], 0, sizeof emulated.t[n]);
}

static inline void emulated_shapes(int c, int a, int b) {
    emulated_check(c), emulated_check(a), emulated_check(b);
    const struct tile_config *f = &emulated.config;
    PL_ASSERT(c != a && c != b && a != b && f->rows[c] == f->rows[a]);
    PL_ASSERT(f->row_bytes[c] == f->row_bytes[b] && f->row_bytes[a] == 4 * f->rows[b]);
}
EMULATED void emulated_bytes(int c, int a, int b, bool b_signed) {
    emulated_shapes(c, a, b);
    for (int m = 0; m < emulated.config.rows[c]; m++) {
        int32_t sum[16];
        memcpy(sum, emulated.t[c][m], sizeof sum);
        for (int k = 0; k < emulated.config.rows[b]; k++) {
            const int8_t *x = (const int8_t *)emulated.t[a][m] + 4 * k;
            const unsigned char *w = emulated.t[b][k];
            for (int n = 0; n < 16; n++)
                for (int i = 0; i < 4; i++) sum[n] += x[i] * (b_signed ? (int8_t)w[4 * n + i] : w[4 * n + i]);
        }
        memcpy(emulated.t[c][m], sum, emulated.config.row_bytes[c]);
    }
}
EMULATED void tile_dpbssd(int c, int a, int b) { emulated_bytes(c, a, b, true); }
EMULATED void tile_dpbsud(int c, int a, int b) { emulated_bytes(c, a, b, false); }

/* Numbers below the normal range are zeros, on the way in and on the way out. */
static inline float emulated_flush(float v) { return fabsf(v) < 0x1p-126f ? copysignf(0.0f, v) : v; }
static inline float emulated_bf16(const unsigned char *p) {
    uint32_t bits = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 24;
    float v;
    memcpy(&v, &bits, 4);
    return emulated_flush(v);
}
EMULATED void tile_dpbf16ps(int c, int a, int b) {
    emulated_shapes(c, a, b);
    for (int m = 0; m < emulated.config.rows[c]; m++) {
        float even[16] = {0}, odd[16] = {0}, sum[16];
        memcpy(sum, emulated.t[c][m], sizeof sum);
        for (int k = 0; k < emulated.config.rows[b]; k++) {
            float x0 = emulated_bf16(emulated.t[a][m] + 4 * k), x1 = emulated_bf16(emulated.t[a][m] + 4 * k + 2);
            for (int n = 0; n < 16; n++) {
                even[n] = emulated_flush(fmaf(x0, emulated_bf16(emulated.t[b][k] + 4 * n), even[n]));
                odd[n] = emulated_flush(fmaf(x1, emulated_bf16(emulated.t[b][k] + 4 * n + 2), odd[n]));
            }
        }
        for (int n = 0; n < 16; n++) sum[n] = emulated_flush(emulated_flush(sum[n]) + emulated_flush(even[n] + odd[n]));
        memcpy(emulated.t[c][m], sum, emulated.config.row_bytes[c]);
    }
}

#endif
