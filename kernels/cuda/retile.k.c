/* retile - packed weights from the file's layout into strips (strips.h), once, when they are loaded. A warp makes a strip; bits
 * are moved, none is changed. in % 256 == 0, out % 16 == 0. */
#include "dialect.h"
#include "args/args.h"
#include "cuda/strips.h"

#ifdef WTYPE_Q6_K
/* Element e (0..255) of a block: its lower four and upper two bits. */
FN u32 lower(const u8 *b, u32 e) {
    u32 l = e & 31u, quarter = (e >> 5) & 3u;
    return (b[64u * (e >> 7) + 32u * (quarter & 1u) + l] >> (4u * (quarter >> 1))) & 15u;
}
FN u32 upper(const u8 *b, u32 e) { return (b[128u + 32u * (e >> 7) + (e & 31u)] >> (2u * ((e >> 5) & 3u))) & 3u; }
#endif

/* grid: (strips / warps); a.rows outputs */
KERNEL(retile)(const u8 *__restrict__ from, u8 *__restrict__ to, u32 *witness, const struct pl_args_linear a) {
    count_launch(witness);
    u32 blocks = a.in / 256u, strip = GROUP_X * (GROUP / 32u) + LOCAL_X / 32u, lane = LOCAL_X % 32u, g = lane >> 2, t = lane & 3u;
    if (strip >= a.rows / 16u * blocks) return;
    u8 *out = to + (u64)strip * STRIP_BYTES;
    for (u32 half = 0; half < 2u; half++) {
        u64 row = (u64)(strip / blocks) * 16u + g + 8u * half;
#ifdef WTYPE_Q6_K
        const u8 *b = from + row * a.row_bytes + (u64)(strip % blocks) * 210u;
        u32 high[4] = {0u, 0u, 0u, 0u}, scale = 0u;
        for (u32 w = 0; w < 8u; w++) {
            u32 word = 0u;
            for (u32 i = 0; i < 4u; i++) {
                u32 e = 64u * t + 4u * w + i, c = 4u * (w & 1u) + (i & 1u), side = 16u * (i >> 1);
                word |= (lower(b, e) | (lower(b, e + 32u) << 4)) << (8u * i);
                high[w >> 1] |= (upper(b, e) << (2u * c + side)) | (upper(b, e + 32u) << (2u * c + 4u + side));
            }
            *(u32 *)(out + 512u * (2u * half + (w >> 2)) + 16u * lane + 4u * (w & 3u)) = word;
        }
        for (u32 i = 0; i < 4u; i++) {
            *(u32 *)(out + STRIP_HIGH + 512u * half + 16u * lane + 4u * i) = high[i];
            scale |= (u32)b[192u + 4u * t + i] << (8u * i);
        }
        *(u32 *)(out + STRIP_SCALE + 8u * lane + 4u * half) = scale;
        if (t == 0u) *(u16 *)(out + STRIP_D + 4u * g + 2u * half) = *(const u16 *)(b + 208u);
#else
        const u8 *b = from + row * a.row_bytes + (u64)(strip % blocks) * 144u, *s = b + 4;
        for (u32 i = 0; i < 2u; i++) *(uint4 *)(out + 512u * (2u * half + i) + 16u * lane) = *(const uint4 *)(b + 16u + 32u * t + 16u * i);
        u32 scale[2], min[2];
        for (u32 i = 0; i < 2u; i++) {
            u32 n = 2u * t + i;
            scale[i] = n < 4u ? s[n] & 63u : (s[n + 4u] & 15u) | ((u32)(s[n - 4u] >> 6) << 4);
            min[i] = n < 4u ? s[n + 4u] & 63u : (u32)(s[n + 4u] >> 4) | ((u32)(s[n] >> 6) << 4);
        }
        *(u32 *)(out + STRIP_SCALE + 8u * lane + 4u * half) = scale[0] | (scale[1] << 8) | (min[0] << 16) | (min[1] << 24);
        if (t == 0u) *(u32 *)(out + STRIP_D + 8u * g + 4u * half) = *(const u32 *)b;
#endif
    }
}
