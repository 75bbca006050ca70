/* Products with the tile instructions. Only runs where cpu/amx.c has found, asked for and tried them. */
#define AMX_NAME(name) avx512_amx_##name
#include "cpu/avx512_amx_body.h"
#include "cpu/avx512_amx_float.h"
#include "cpu/avx512_amx_wide.h"
