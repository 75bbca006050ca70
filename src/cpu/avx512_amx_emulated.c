/* The same products with the tile instructions in C: what tests run where the CPU has none. */
#define PL_TILE_EMULATED
#define AMX_NAME(name) avx512_amx_emulated_##name
#include "cpu/avx512_amx_body.h"
#include "cpu/avx512_amx_float.h"
#include "cpu/avx512_amx_wide.h"
