/* kit - what kernel tests share: every device present, buffers with a poisoned body between two sentinels, random data. */
#ifndef KIT_H
#define KIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/launch.h"
#include "ref/ref.h"
#include "tensor/convert.h"
#include "tensor/quant.h"
#include "tests/devices.h"

enum { KIT_HEAD = PL_DEVICE_VIEW_ALIGN, KIT_TAIL = 64 * 4, KIT_BUFFERS = 64 };

static struct pl_kernels ks; /* the device under test */
static struct pl_err err;
static uint64_t rng = 88172645463325252ull;

#define CHECK(expr)                                                       \
    do {                                                                  \
        enum pl_status st_ = (expr);                                      \
        if (st_ != PL_OK) {                                               \
            print_message("# %s: %s %s\n", #expr, err.text, ks.err.text); \
            fail();                                                       \
        }                                                                 \
    } while (0)

static inline uint32_t kit_u32(void) {
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (uint32_t)(rng >> 16);
}
static inline float kit_f32(void) { return (float)(kit_u32() >> 8) * 0x1p-23f - 1.0f; }
static inline float *kit_random(size_t n, float scale) {
    float *p = malloc((n + 1) * sizeof *p);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++) p[i] = kit_f32() * scale;
    return p;
}

/* What kernels get is the middle of an allocation. */
static struct {
    void *view;
    struct pl_device_buffer whole;
} kit_whole[KIT_BUFFERS];

/* A device copy of host bytes between two sentinels. The last KIT_TAIL bytes of the buffer given back are the second. */
static inline struct pl_device_buffer kit_up(const void *p, size_t bytes) {
    struct pl_device_buffer b = {0};
    unsigned char guard[KIT_HEAD];
    size_t slot = 0;
    memset(guard, 0xA5, sizeof guard);
    while (slot < KIT_BUFFERS && kit_whole[slot].view != NULL) slot++;
    assert_true(slot < KIT_BUFFERS);
    struct pl_device_buffer *whole = &kit_whole[slot].whole;
    CHECK(pl_device_alloc(ks.device, KIT_HEAD + bytes + KIT_TAIL, whole, &err));
    CHECK(pl_device_upload(ks.device, ks.stream, whole, 0, guard, KIT_HEAD, &err));
    CHECK(pl_device_upload(ks.device, ks.stream, whole, KIT_HEAD, p, bytes, &err));
    CHECK(pl_device_upload(ks.device, ks.stream, whole, KIT_HEAD + bytes, guard, KIT_TAIL, &err));
    CHECK(pl_device_stream_wait(ks.device, ks.stream, &err));
    CHECK(pl_device_view(ks.device, whole, KIT_HEAD, bytes + KIT_TAIL, &b, &err));
    kit_whole[slot].view = b.handle;
    return b;
}
/* An output of NaNs between two sentinels. */
static inline struct pl_device_buffer kit_out(size_t bytes) {
    void *p = malloc(bytes + 1);
    assert_non_null(p);
    memset(p, 0xFF, bytes);
    struct pl_device_buffer b = kit_up(p, bytes);
    free(p);
    return b;
}
/* What a buffer holds now; fails when a sentinel was touched. Frees the buffer. */
static inline void *kit_down(struct pl_device_buffer *b) {
    size_t slot = 0;
    while (slot < KIT_BUFFERS && kit_whole[slot].view != b->handle) slot++;
    assert_true(slot < KIT_BUFFERS);
    struct pl_device_buffer *whole = &kit_whole[slot].whole;
    size_t size = whole->bytes;
    unsigned char *p = malloc(size);
    assert_non_null(p);
    CHECK(pl_device_download(ks.device, ks.stream, p, whole, 0, size, &err));
    CHECK(pl_device_stream_wait(ks.device, ks.stream, &err));
    for (size_t i = 0; i < KIT_HEAD; i++) assert_int_equal(p[i], 0xA5);
    for (size_t i = size - KIT_TAIL; i < size; i++) assert_int_equal(p[i], 0xA5);
    pl_device_view_drop(ks.device, b);
    pl_device_free(ks.device, whole);
    kit_whole[slot].view = NULL;
    memmove(p, p + KIT_HEAD, size - KIT_HEAD);
    return p;
}
static inline void kit_drop(struct pl_device_buffer *b) { free(kit_down(b)); }

/* |got - want| <= tolerance * (magnitude + |want|), and never NaN. */
static inline void kit_near(const char *what, const float *got, const float *want, size_t n, double tolerance,
                            double floor) {
    for (size_t i = 0; i < n; i++) {
        double off = fabs((double)got[i] - (double)want[i]);
        if (off <= tolerance * (fabs((double)want[i]) + floor)) continue;
        print_message("# %s: element %zu of %zu is %.9g, expected %.9g\n", what, i, n, (double)got[i], (double)want[i]);
        fail();
    }
}

/* Runs fn on every device this machine has; skips where there is none. */
static inline void kit_each(void (*fn)(void)) {
    int ran = 0;
    for (int kind = 0; kind < PL_DEVICE_KIND_COUNT; kind++) {
        int index = test_device_of((enum pl_device_kind)kind);
        if (index < 0) continue;
        struct pl_jit_options jit = {.mode = PL_JIT_ON, .dir = "build/test-jit"};
        CHECK(pl_kernels_open((enum pl_device_kind)kind, index, &jit, &ks, &err));
        ks.every_lane = getenv("PLUMB_TEST_RACECHECK") != NULL;
        fn();
        pl_kernels_close(&ks);
        ran++;
    }
    if (ran == 0) SKIP("no such device here");
}

#endif
