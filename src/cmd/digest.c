/* FIPS 180-4. */
#include "cmd/digest.h"

#include <stdio.h>
#include <string.h>

static const uint32_t K256[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
    0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
    0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
    0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotr(uint32_t v, int n) { return (v >> n) | (v << (32 - n)); }
static uint32_t rotl(uint32_t v, int n) { return (v << n) | (v >> (32 - n)); }

static void load_block(const uint8_t *p, uint32_t w[16]) {
    for (int i = 0; i < 16; i++, p += 4)
        w[i] = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | (uint32_t)p[3];
}

static void sha256_block(uint32_t h[8], const uint8_t *p) {
    uint32_t w[64], v[8];
    load_block(p, w);
    for (int i = 16; i < 64; i++) {
        uint32_t s0 = rotr(w[i - 15], 7) ^ rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
        uint32_t s1 = rotr(w[i - 2], 17) ^ rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    memcpy(v, h, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t s1 = rotr(v[4], 6) ^ rotr(v[4], 11) ^ rotr(v[4], 25), ch = (v[4] & v[5]) ^ (~v[4] & v[6]);
        uint32_t s0 = rotr(v[0], 2) ^ rotr(v[0], 13) ^ rotr(v[0], 22), maj = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
        uint32_t t1 = v[7] + s1 + ch + K256[i] + w[i], t2 = s0 + maj;
        memmove(v + 1, v, 7 * sizeof v[0]);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) h[i] += v[i];
}

static void sha1_block(uint32_t h[8], const uint8_t *p) {
    uint32_t w[80];
    load_block(p, w);
    for (int i = 16; i < 80; i++) w[i] = rotl(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    uint32_t a = h[0], b = h[1], c = h[2], d = h[3], e = h[4];
    for (int i = 0; i < 80; i++) {
        uint32_t f, k;
        if (i < 20)
            f = (b & c) | (~b & d), k = 0x5A827999;
        else if (i < 40)
            f = b ^ c ^ d, k = 0x6ED9EBA1;
        else if (i < 60)
            f = (b & c) | (b & d) | (c & d), k = 0x8F1BBCDC;
        else
            f = b ^ c ^ d, k = 0xCA62C1D6;
        uint32_t t = rotl(a, 5) + f + e + k + w[i];
        e = d, d = c, c = rotl(b, 30), b = a, a = t;
    }
    h[0] += a, h[1] += b, h[2] += c, h[3] += d, h[4] += e;
}

void pl_digest_init(struct pl_digest *d, enum pl_digest_kind kind) {
    static const uint32_t start256[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    static const uint32_t start1[8] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0, 0, 0, 0};
    *d = (struct pl_digest){.kind = kind};
    memcpy(d->h, kind == PL_SHA256 ? start256 : start1, sizeof d->h);
}

static void one_block(struct pl_digest *d, const uint8_t *p) {
    if (d->kind == PL_SHA256)
        sha256_block(d->h, p);
    else
        sha1_block(d->h, p);
}

void pl_digest_add(struct pl_digest *d, const void *data, size_t len) {
    const uint8_t *p = data;
    size_t used = d->bytes % 64;
    d->bytes += len;
    if (used > 0) {
        size_t n = len < 64 - used ? len : 64 - used;
        memcpy(d->block + used, p, n);
        p += n, len -= n;
        if (used + n < 64) return;
        one_block(d, d->block);
    }
    for (; len >= 64; p += 64, len -= 64) one_block(d, p);
    if (len > 0) memcpy(d->block, p, len);
}

void pl_digest_hex(struct pl_digest *d, char out[65]) {
    uint64_t bits = d->bytes * 8;
    uint8_t tail[72] = {0x80}, *length = tail;
    size_t used = d->bytes % 64, pad = used < 56 ? 56 - used : 120 - used;
    length += pad;
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)(bits >> (56 - 8 * i));
    pl_digest_add(d, tail, pad + 8);
    int words = d->kind == PL_SHA256 ? 8 : 5;
    for (int i = 0; i < words; i++) snprintf(out + (size_t)i * 8, 9, "%08x", d->h[i]);
}
