#!/usr/bin/env python3
"""Registers, stack (what is spilled, and arrays) and shared memory of every kernel of the compile gates, as a Markdown table.

  PLUMB_TEST_GATES=DIR PLUMB_TEST_ONLY=sm_90 build/release/tests/kernels/test_gates
  kernel_resources.py DIR sm_90 > docs/perf/kernel-resources-sm_90.md

Needs cuobjdump on the PATH or in /usr/local/cuda/bin. DIR is empty before the first command."""
import os, re, shutil, subprocess, sys

CUOBJDUMP = shutil.which("cuobjdump") or "/usr/local/cuda/bin/cuobjdump"
SKIPPED = {"KERNEL_ABI"}  # the same for all of them


def variant(source):
    """The values a kernel was made with: the definitions before its text."""
    words = []
    for line in open(source, encoding="utf-8", errors="replace"):
        m = re.match(r"#define (\w+) ?(.*)$", line)
        if m is None:
            if line.strip() and not line.startswith("#line"):
                break
            continue
        name, value = m.group(1), m.group(2).strip()
        if name not in SKIPPED:
            words.append(name if value == "1" else f"{name}={re.sub(r'(?<=[0-9])u$', '', value)}")
    return " ".join(words)


def main():
    folder, target = sys.argv[1:3]
    prefix = {"sm_90": "sm_90a"}.get(target, target) + "."
    rows = []
    for name in os.listdir(folder):
        if not (name.startswith(prefix) and name.endswith(".bin")):
            continue
        out = subprocess.run([CUOBJDUMP, "--dump-resource-usage", os.path.join(folder, name)], capture_output=True, text=True, check=True).stdout
        found = re.findall(r"Function (\w+):\s*REG:(\d+) STACK:(\d+) SHARED:(\d+)", out)
        if not found:
            sys.exit(f"{name}: no resources in\n{out}")
        for kernel, registers, stack, shared in found:
            rows.append((kernel.removeprefix("pk_"), variant(os.path.join(folder, name[:-4] + ".cu")), int(registers), int(stack), int(shared)))
    if not rows:
        sys.exit(f"{folder} has no kernels of {target}")
    version = subprocess.run([CUOBJDUMP, "--version"], capture_output=True, text=True).stdout.strip().splitlines()[-1]
    print(f"# Kernel resources, {target}\n\n`tools/kernel_resources.py` (its head says how), {version}: {len(set(rows))} kernels, each with the values it was compiled with"
          " by NVRTC in `tests/kernels/test_gates`. Stack is what is spilled, and arrays; shared memory is the static part.\n")
    print("| kernel | made with | registers | stack, bytes | shared, bytes |\n|---|---|---|---|---|")
    for kernel, made, registers, stack, shared in sorted(set(rows)):
        print(f"| {kernel} | {made} | {registers} | {stack} | {shared} |")


main()
