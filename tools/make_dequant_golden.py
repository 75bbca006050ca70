#!/usr/bin/env python3
"""Golden files for src/tensor: packed blocks and the floats two independent implementations make of them.

Needs the PyPI packages numpy, gguf and mlx; the repository keeps the results, so only whoever changes the cases runs
this:  python3 tools/make_dequant_golden.py tests/golden/dequant

<type>.bin   u32 block count, packed bytes, f32 values (gguf.quants.dequantize)
mlx.bin      u32 case count, then per case u32 bits, group, scale type (0 f16, 1 bf16, 2 f32), rows, cols;
             packed rows, scales, biases, f32 values (mlx.core.dequantize on its CPU backend)
quantize.bin u32 element count, f32 input, then per type in QUANTIZERS the packed bytes (gguf.quants.quantize)
All little-endian.
"""
import struct
import sys
from pathlib import Path

import gguf
import mlx.core as mx
import numpy as np
from gguf import GGMLQuantizationType as Q

# byte offsets of the f16 scale fields in one block
SCALES = {
    "F32": (), "F16": (), "BF16": (), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,),
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,),
    "IQ4_XS": (0,), "MXFP4": (), "TQ1_0": (52,), "TQ2_0": (64,),
    "IQ1_S": (0,), "IQ1_M": (), "IQ2_XXS": (0,), "IQ2_XS": (0,), "IQ2_S": (0,), "IQ3_XXS": (0,), "IQ3_S": (0,),
}
# f16 bit patterns: zero, minus zero, smallest and largest subnormal, smallest normal, one, minus two, largest, ...
EDGES = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x3C00, 0xC000, 0x7BFF, 0xFBFF, 0x2E66, 0x9C01]
QUANTIZERS = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]


def finite_f16(rng, n):
    v = rng.integers(0, 0x7C00, n).astype(np.uint16)
    return v | (rng.integers(0, 2, n).astype(np.uint16) << 15)


def block_case(name, rng):
    qtype = Q[name]
    elems, size = gguf.GGML_QUANT_SIZES[qtype]
    if elems == 1:
        return plain_case(name, rng)
    count = 40 if elems == 32 else 14
    packed = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for at in SCALES[name]:
        scales = finite_f16(rng, count)
        scales[: len(EDGES)] = np.roll(EDGES, at)
        packed[:, at : at + 2] = scales.view(np.uint8).reshape(count, 2)
    if name == "IQ1_M":  # the digits of d stand above the scales of four words
        scales = finite_f16(rng, count)
        scales[: len(EDGES)] = EDGES
        for i in range(4):
            packed[:, 49 + 2 * i] = packed[:, 49 + 2 * i] & 15 | ((scales >> (4 * i) & 15) << 4).astype(np.uint8)
    if name == "MXFP4":
        packed[:6, 0] = [0, 1, 2, 127, 128, 252]
        packed[6:, 0] = rng.integers(110, 140, count - 6)
    with np.errstate(all="ignore"):
        values = gguf.quants.dequantize(packed, qtype)
    return count, packed, values


def plain_case(name, rng):
    if name == "F32":
        packed = rng.standard_normal(64).astype(np.float32)
        packed[:4] = [0.0, -0.0, 1e-42, -3e38]
        return 64, packed.view(np.uint8), packed
    bits = finite_f16(rng, 512) if name == "F16" else (rng.standard_normal(512).astype(np.float32).view(np.uint32) >> 16)
    bits = bits.astype(np.uint16)
    bits[: len(EDGES)] = EDGES
    packed = bits.view(np.uint8)
    return 512, packed, gguf.quants.dequantize(packed, Q[name])


def mlx_case(bits, group, scale_type, rng):
    dtype = [mx.float16, mx.bfloat16, mx.float32][scale_type]
    rows, cols = 3, max(128, group * 2)
    w = rng.standard_normal((rows, cols)).astype(np.float32) * 0.05
    w[0, :group] = 0.0  # a group without range
    w[1, :group] = np.abs(w[1, :group]) + 1  # all positive
    packed, scales, biases = mx.quantize(mx.array(w).astype(dtype), group_size=group, bits=bits)
    if bits not in (3, 5):  # random words beside quantised data
        packed = mx.array(np.concatenate([np.array(packed)[:2], rng.integers(0, 2**32, (1, packed.shape[1]), dtype=np.uint32)]))
    values = np.array(mx.dequantize(packed, scales, biases, group_size=group, bits=bits).astype(mx.float32))
    raw = lambda a: np.array(a.view(mx.uint16) if scale_type < 2 else a).tobytes()
    head = struct.pack("<5I", bits, group, scale_type, rows, cols)
    return head + np.array(packed).tobytes() + raw(scales) + raw(biases) + values.astype("<f4").tobytes()


def quantize_input(rng):
    x = rng.standard_normal(32 * 24).astype(np.float32) * np.repeat(10.0 ** rng.uniform(-6, 3, 24), 32).astype(np.float32)
    x[:32] = 0.0
    x[32:64] = np.arange(-16, 16) / 2.0  # many exact halves
    x[64:96] = 1e-9
    x[96:128] = -3.0
    return x


def main():
    mx.set_default_device(mx.cpu)
    out = Path(sys.argv[1])
    rng = np.random.default_rng(20240501)
    iq = np.random.default_rng(7)  # draws of their own, so that the older cases stay as they were
    for name in SCALES:
        count, packed, values = block_case(name, iq if name[:3] in ("IQ1", "IQ2", "IQ3") else rng)
        assert np.isfinite(values).all(), name
        (out / f"{name.lower()}.bin").write_bytes(
            struct.pack("<I", count) + packed.tobytes() + values.astype("<f4").tobytes())
    cases = [mlx_case(b, g, s, rng) for b in (2, 3, 4, 6, 8) for g in (32, 64, 128) for s in range(3)]
    late = np.random.default_rng(5)  # a draw of its own, so that the older cases stay as they were
    cases += [mlx_case(5, g, s, late) for g in (32, 64, 128) for s in range(3)]
    (out / "mlx.bin").write_bytes(struct.pack("<I", len(cases)) + b"".join(cases))
    x = quantize_input(rng)
    with np.errstate(all="ignore"):
        packed = [gguf.quants.quantize(x, Q[name]).tobytes() for name in QUANTIZERS]
    (out / "quantize.bin").write_bytes(struct.pack("<I", x.size) + x.tobytes() + b"".join(packed))


main()
