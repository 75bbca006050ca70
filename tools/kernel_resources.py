#!/usr/bin/env python3
"""Registers, spills and shared memory of the CUDA kernels as ptxas reports them, as a Markdown table.

  kernel_resources.py [sm_90] > docs/perf/kernel-resources-sm_90.md

Needs nvcc on the PATH or in /usr/local/cuda/bin; run from the repository's root."""
import os, re, shutil, subprocess, sys, tempfile

TARGET = sys.argv[1] if len(sys.argv) > 1 else "sm_90"
ARCH = "sm_90a" if TARGET == "sm_90" else TARGET  # what such a device gets
NVCC = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"


def paste(name, seen):
    """The text of a kernel file with its own includes pasted in once, as src/jit/source.c does it."""
    out = []
    for line in open(os.path.join("kernels", name)):
        m = re.match(r'#include "(.*)"', line)
        if not m:
            out.append(line)
        elif m.group(1) not in seen:
            seen.add(m.group(1))
            out.append(paste(m.group(1), seen))
    return "".join(out)


def resources(file, values, entry):
    text = "".join(f"#define {k} {v}\n" for k, v in values.items()) + paste(file, set())
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "k.cu")
        open(path, "w").write(text)
        run = subprocess.run([NVCC, "-std=c++17", f"-gencode=arch=compute_{ARCH[3:]},code={ARCH}", "-cubin", "-Xptxas", "-v", "-DPL_TARGET_CUDA=1",
                              "--diag-suppress=177", "-o", os.path.join(d, "k.cubin"), path], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{file}: {run.stderr}")
    part = run.stderr.split(f"Compiling entry function '{entry}'")[1]
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", part)
    used = re.search(r"Used (\d+) registers", part)
    smem = re.search(r"(\d+) bytes smem", part)
    return used.group(1), f"{spills.group(1)}/{spills.group(2)}", smem.group(1) if smem else "0"


def main():
    weights = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K"]
    rows = []
    for w in weights:
        for n in (1, 8):
            v = {"GROUP": "256u", "PER_WARP": "2u", "ROWS": f"{n}u", f"WTYPE_{w}": 1}
            rows.append((f"gemv {w.lower()}, {n} row{'s' if n > 1 else ''}", resources("cuda/gemv.k.c", v, "pk_gemv")))
    for w in ("Q4_K", "Q6_K"):
        few = [(8, 1, 1, 8, 2, None), (16, 2, 2, 8, 2, None)]
        bulk = [(32, 4, 8, 1, 3, 3), (64, 8, 8, 1, 4, 3)]  # copies by the engine of sm_90
        registers = [(32, 4, 4, 4, 2, None), (64, 8, 4, 2, 2, None)]
        wide = [(32, 4, 8, 1, 4, 3), (64, 8, 8, 1, 4, 3)]  # four warps together
        for most, n, wm, wk, depth, x in (few + wide if ARCH == "sm_90a" else few + (bulk if int(TARGET[3:]) >= 90 else registers)):
            v = {"GROUP": f"{32 * wm * wk}u", "ROWS_8": f"{n}u", "WM": wm, "WK": wk, "EACH": "1u", "DEPTH": f"{depth}u",
                 "HOLD": "8u" if n == 1 else "2u", f"WTYPE_{w}": 1}
            if x is not None:
                v.update({"BULK": 1, "X_STAGES": x, "HOLD": "1u"})
            is_wide = ARCH == "sm_90a" and x is not None
            if is_wide:
                v["WIDE"] = 1
            name = f"mma {w.lower()}, up to {most} rows{', wide' if is_wide else ''}"
            rows.append((name, resources("cuda/mma.k.c", v, "pk_mma")))
        for most, n, wm, wk, depth, x in few + (bulk if int(TARGET[3:]) >= 90 else []):
            v = {"GROUP": f"{32 * wm * wk}u", "ROWS_8": f"{n}u", "WM": wm, "WK": wk, "EACH": "1u", "DEPTH": f"{depth}u",
                 "HOLD": "8u" if n == 1 else "2u", f"WTYPE_{w}": 1, "FIXED": 1}
            if x is not None:
                v.update({"BULK": 1, "X_STAGES": x, "HOLD": "1u"})
            rows.append((f"mma {w.lower()}, up to {most} rows, fixed order", resources("cuda/mma.k.c", v, "pk_mma")))
        rows.append((f"retile {w.lower()}", resources("cuda/retile.k.c", {"GROUP": "128u", f"WTYPE_{w}": 1}, "pk_retile")))
    if ARCH == "sm_90a":
        for most, n, depth, x in ((8, 1, 3, 2), (16, 2, 2, 4), (32, 4, 2, 4), (64, 8, 2, 2)):
            v = {"GROUP": "256u", "ROWS_8": f"{n}u", "WM": 8, "WK": 1, "EACH": "1u", "DEPTH": f"{depth}u", "HOLD": "1u", "WTYPE_BF16": 1,
                 "BULK": 1, "X_STAGES": x, "WIDE": 1}
            rows.append((f"mma bf16, up to {most} rows, wide", resources("cuda/mma.k.c", v, "pk_mma")))
            rows.append((f"mma bf16, up to {most} rows, fixed order", resources("cuda/mma.k.c", {**v, "FIXED": 1}, "pk_mma")))
    if int(TARGET[3:]) >= 90:
        for w in ("Q4_K", "Q6_K", "BF16", "F16"):
            for more in ((), ("HAS_NORM",), ("HAS_NORM", "HAS_GLU")):
                v = {"GROUP": "288u", f"WTYPE_{w}": 1, **{m: 1 for m in more}}
                name = "".join(", " + m[4:].lower() for m in more)
                rows.append((f"stream {w.lower()}{name}", resources("cuda/stream.k.c", v, "pk_stream")))
        for w in ("Q4_K", "Q6_K", "BF16", "F16"):
            group = "288u" if w in ("BF16", "F16") else "544u"
            rows.append((f"chain {w.lower()}", resources("cuda/chain.k.c", {"GROUP": group, f"WTYPE_{w}": 1}, "pk_chain")))
        rows.append(("chain q4_k and q6_k", resources("cuda/chain.k.c", {"GROUP": "544u", "WTYPE_STRIPS": 1}, "pk_chain")))
    if int(TARGET[3:]) >= 90:
        for w in ("BF16", "F16"):
            v = {"GROUP": "352u", "WIDTH": "2560u", "INNER": "5120u", "STATE": "128u", "K": "4u", "EACH": "4u", "HAS_CONV_BIAS": 1, "HAS_BIAS": 1,
                 "HAS_SKIP": 1, f"WTYPE_{w}": 1}
            rows.append((f"ssm_layers {w.lower()}", resources("cuda/ssm_layers.k.c", v, "pk_ssm_layers")))
    for n, split, width, more in (("qkv", 8, 2560, {}), ("gate and up", 4, 2560, {"HAS_GLU": 1, "ACT_RELU2": 1}), ("down", 8, 6912, {"HAS_ADD": 1})):
        v = {"GROUP": "256u", "TERNARY_ONE": 1, "HAS_NORM": 1, "IN": f"{width}u", "SPLIT": f"{split}u",
             "GROUPS_HELD": 4 if width <= 4096 else 2, **more}
        rows.append((f"ternary, one row of {width} with its norm, {n}", resources("cuda/ternary.k.c", v, "pk_ternary_one")))
    for most, n, each, split in ((8, 1, 1, 8), (16, 2, 1, 8), (32, 4, 2, 4)):
        v = {"GROUP": "256u", "TERNARY_ROWS": 1, "IN": "2560u", "SPLIT": f"{split}u", "ROWS_8": f"{n}u", "EACH": f"{each}u"}
        rows.append((f"ternary, {most} rows", resources("cuda/ternary.k.c", v, "pk_ternary_rows")))
    for part in ("scan", "climb", "weigh", "gather", "choose"):
        v = {"GROUP": "256u", f"DRAW_{part.upper()}": 1, "LOGITS_F32": 1}
        rows.append((f"draw f32 (portable), {part}", resources("draw.k.c", v, f"pk_draw_{part}")))
    for kind in ("COPY", "NORM", "GLU", "MERGE"):
        v = {"GROUP": "512u" if kind == "NORM" else "256u", f"PREPARE_{kind}": 1}
        rows.append((f"prepare, {kind.lower()}", resources("cuda/prepare.k.c", v, "pk_prepare")))
    for d, h in ((64, 8), (128, 4), (256, 4)):
        v = {"GROUP": "128u", "HEADS": f"{h}u", "HEAD_DIM": f"{d}u", "PAGE_TOKENS": "32u", "KV_F16": 1}
        rows.append((f"attention_group f16, D {d}, {h} heads together",
                      resources("cuda/attention_group.k.c", v, "pk_attention_group")))
        v = {**v, "GROUP": "256u", "WHOLE": 1, "ROPE_HALVES": 1}
        rows.append((f"attention_group with rotation, append and merge, f16, D {d}, {h} heads together",
                      resources("cuda/attention_group.k.c", v, "pk_attention_group")))
        rows.append(("the same, parts merged in a cluster",
                      resources("cuda/attention_group.k.c", {**v, "CLUSTER": 8}, "pk_attention_group")))
    for d, h in ((64, 8), (128, 4), (256, 4)):
        v = {"GROUP": "128u", "HEADS": f"{h}u", "HEAD_DIM": f"{d}u", "PAGE_TOKENS": "32u", "KV_F16": 1}
        rows.append((f"attention_split f16, D {d}, {h} heads together",
                     resources("cuda/attention_split.k.c", v, "pk_attention_split")))
    for w in ("BF16", "Q4_K", "Q6_K"):
        v = {"GROUP": "128u", "TEAM": "32u", "ROWS": "8u", f"WTYPE_{w}": 1}
        rows.append((f"linear {w.lower()} (portable), 8 rows", resources("linear.k.c", v, "pk_linear")))
    for d, h, tiles in ((64, 3, 0), (128, 4, 0), (128, 16, 0), (256, 4, 0), (64, 3, 1), (128, 4, 1), (256, 4, 1)):
        v = {"GROUP": "128u", "KV_BF16": 1, "HEAD_DIM": f"{d}u", "PAGE_TOKENS": "32u", "HEADS": f"{h}u", "TILES_M": f"{tiles}u",
             "ROWS": f"{tiles * 64 // h * h or h}u", "STAGES": "2u" if tiles else "3u"}
        if tiles:
            v["TWICE"] = 1
        name = f"paged_mma bf16, D {d}, {h} heads together" + (f", up to {64 * tiles} rows of several sequences" if tiles else "")
        rows.append((name, resources("cuda/paged_mma.k.c", v, "pk_paged_mma")))
    v = {"GROUP": "128u", "HEAD_DIM": "128u", "PAGE_TOKENS": "32u", "KV_F16": 1}
    rows.append(("attention f16 (portable), D 128", resources("attention.k.c", v, "pk_attention")))
    rows.append(("norm (portable)", resources("norm.k.c", {"GROUP": "1024u"}, "pk_norm")))
    version = subprocess.run([NVCC, "--version"], capture_output=True, text=True).stdout.strip().splitlines()[-1]
    print(f"# Kernel resources, {TARGET}\n\n`python3 tools/kernel_resources.py {TARGET}`, {version}. Static shared memory only;"
          " gemv of quantised types adds 1.375 bytes an input and row.\n")
    print("| kernel | registers | spill stores/loads, bytes | shared, bytes |\n|---|---|---|---|")
    for name, r in rows:
        print(f"| {name} | {r[0]} | {r[1]} | {r[2]} |")


main()
