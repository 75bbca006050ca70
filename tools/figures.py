#!/usr/bin/env python3
"""The figures of docs/perf/h200.md, all in one run: `plumb bench` of each model that is there, one process after the other, and
llama.cpp's programs beside it when they are given.

    python3 tools/figures.py --models DIR [--plumb build/plumb] [--backend cuda] [--peer DIR] [--out DIR]
    python3 tools/figures.py --list
    python3 tools/figures.py --models DIR --only q4- --seconds 500

DIR holds GGUF files, or directories, by the names that --list shows; what is not there is told as skipped. Each figure's whole report (kernels,
bytes, ceiling, parts of the start) stays in --out as JSON, with what the program wrote on stderr; the table is also printed. With
--seconds nothing begins that the time left cannot hold (by what --list says it takes). Exit 1 when a run failed. Standard library
only.
"""
import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ONE = "-p 512 -n 128 -r 2"
PROMPT = "-p 4096 -n 0 -r 3 --batch-rows 4096 -c 4200"
MANY = "--parallel 8,64 -p {} -n {} --batch-rows 4096"
# name: (model, arguments of plumb bench, seconds at most on an H200), the most telling first.
FIGURES = {
    "q4-one": ("8b-q4_k", ONE, 40), "bf16-one": ("8b-bf16", ONE, 60), "moe-one": ("moe-q4_k", "-p 0 -n 128 -r 2", 60),
    "q4-prompt": ("8b-q4_k", PROMPT, 40), "bf16-prompt": ("8b-bf16", PROMPT, 60), "moe-prompt": ("moe-q4_k", PROMPT, 60),
    "q4-many": ("8b-q4_k", MANY.format(512, 64), 60), "bf16-many": ("8b-bf16", MANY.format(512, 48), 90),
    "moe-many": ("moe-q4_k", MANY.format(512, 64), 90), "moe-many-128": ("moe-q4_k", MANY.format(128, 64), 90),
    "mamba2-one": ("mamba2-2.7b", "-p 0 -n 128 -r 2", 60), "bitnet-one": ("bitnet-2b", "-p 0 -n 128 -r 2", 60),
    "smollm2-one": ("smollm2-135m", ONE, 30), "gemma3-one": ("gemma3-270m", ONE, 30),
}
# name: (model, llama.cpp's program, its arguments, seconds)
PEER = {
    "peer-q4-one": ("8b-q4_k", "llama-bench", "-ngl 99 -fa 1 -p 512 -n 128 -r 2 -o json", 90),
    "peer-bf16-one": ("8b-bf16", "llama-bench", "-ngl 99 -fa 1 -p 512 -n 128 -r 2 -o json", 120),
    "peer-moe-one": ("moe-q4_k", "llama-bench", "-ngl 99 -fa 1 -p 512 -n 128 -r 2 -o json", 120),
    "peer-q4-prompt": ("8b-q4_k", "llama-bench", "-ngl 99 -fa 1 -p 4096 -n 0 -b 4096 -ub 4096 -r 3 -o json", 60),
    "peer-q4-many": ("8b-q4_k", "llama-batched-bench", "-ngl 99 -fa on -npp 512 -ntg 64 -npl 8,64 -c 40000 --output-format jsonl", 90),
    "peer-bf16-many": ("8b-bf16", "llama-batched-bench", "-ngl 99 -fa on -npp 512 -ntg 48 -npl 8,64 -c 40000 --output-format jsonl", 120),
}


def plumb_row(report):
    """What the table says of a report of `plumb bench --json`."""
    start = report["start"]
    parts = [f"start {start['total_s']:.2f} s, {start['total_s'] - start['weights_s']:.2f} s beyond weights"]
    made = report.get("kernels_made_within", {})
    for many in report.get("parallel", ()):
        parts.append(f"{many['sequences']}: {many['decode_tok_s']:,.0f} tok/s, all running {many['full_tok_s']:,.0f}, "
                     f"gap p50 {many['gap_ms_p50']:.2f} ms, prompts {many['prefill_tok_s']:,.0f}")
        made = many["kernels_made_within"] if any(many["kernels_made_within"].values()) else made
    if report.get("decode_tok_s"):
        parts.append(f"decode {report['decode_tok_s']:,.1f} tok/s, {report['decode_gb_s']:,.0f} GB/s, "
                     f"{report['decode_percent_of_ceiling']:.1f} % of {report['read_ceiling_gb_s']:,.0f}")
    if report.get("prefill_tok_s"):
        parts.append(f"prefill {report['prefill_tok_s']:,.0f} tok/s")
    if any(made.values()):
        parts.append(f"KERNELS WERE MADE WITHIN THE MEASUREMENT: {made}")
    return "; ".join(parts)


def kernels(report):
    stages = [report] if "kernels" in report else report.get("parallel", ())
    found = dict.fromkeys(k["kernel"] for stage in stages for k in stage["kernels"] if k["launches"] > 0)
    return ", ".join(found)


def peer_row(text):
    """llama-bench prints one list, llama-batched-bench a line for each number of sequences."""
    rows = json.loads(text) if text.lstrip().startswith("[") else [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    if not rows:
        raise ValueError("no result in its output")
    parts = []
    for r in rows:
        if "avg_ts" in r:
            parts.append(f"{'prefill' if r['n_prompt'] else 'decode'} {r['avg_ts']:,.1f} tok/s")
        else:
            parts.append(f"{r['pl']}: {r['speed_tg']:,.0f} tok/s, prompts {r['speed_pp']:,.0f}")
    return "; ".join(parts)


def run(name, command, out, seconds, env):
    with open(out / f"{name}.stderr", "wb") as errors:
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, timeout=seconds, env=env)
        except subprocess.TimeoutExpired:
            return None, f"did not end within {seconds:.0f} s"
    (out / f"{name}.json").write_bytes(done.stdout)
    if done.returncode != 0:
        lines = (out / f"{name}.stderr").read_text(errors="replace").strip().splitlines()
        return None, f"exit code {done.returncode}: {lines[-1][:200] if lines else 'nothing on stderr'}"
    return done.stdout.decode(errors="replace"), None


def work(a):
    """Names of what there is to run, in the order of the tables."""
    for name, (model, arguments, seconds) in FIGURES.items():
        yield name, model, [a.plumb, "bench", "--backend", a.backend, *arguments.split(), "--json", "-m"], seconds
    for name, (model, program, arguments, seconds) in PEER.items():
        if a.peer is not None:
            yield name, model, [os.path.join(a.peer, program), *arguments.split(), "-m"], seconds


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--models", type=Path, help="folder of GGUF files or models' directories")
    p.add_argument("--plumb", default="build/plumb")
    p.add_argument("--backend", default="cuda")
    p.add_argument("--peer", help="folder of llama-bench and llama-batched-bench")
    p.add_argument("--out", type=Path, default=Path("build/figures"))
    p.add_argument("--only", default="", metavar="TEXT,..", help="names that contain one of these")
    p.add_argument("--seconds", type=float, default=float("inf"), help="of the whole run")
    p.add_argument("--list", action="store_true", help="only list names, models and commands")
    a = p.parse_args()
    if a.models is None and not a.list:
        p.error("--models says where the GGUF files are")
    return a


def main():
    a, rows, failed = parse(), [], 0
    a.peer = a.peer or ("PEER" if a.list else None)
    wanted = [w for w in work(a) if any(part in w[0] for part in a.only.split(","))]
    if a.list:
        for name, model, command, seconds in wanted:
            print(f"{name:16} {seconds:4} s  {' '.join(command)} {model}.gguf")
        return 0
    if not wanted:
        sys.exit(f"figures: no name contains {a.only!r}; --list shows them")
    a.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + a.seconds
    env = {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, (a.peer, os.environ.get("LD_LIBRARY_PATH"))))}
    for name, model, command, seconds in wanted:
        path, left = a.models / f"{model}.gguf", end - time.monotonic()
        if not path.exists() and (a.models / model).is_dir():
            path = a.models / model
        if not path.exists():
            row = f"skipped: no {path}"
        elif left < seconds:
            row = f"skipped: takes up to {seconds} s and {max(left, 0):.0f} are left"
        else:
            peer = name.startswith("peer-")
            text, fault = run(name, [*command, str(path)], a.out, min(seconds * 3, left), env if peer else None)
            try:
                row = f"FAILED: {fault}" if fault else peer_row(text) if peer else plumb_row(json.loads(text))
                if fault is None and not peer:
                    row += f"\n    {kernels(json.loads(text))}"
            except (ValueError, KeyError, TypeError) as e:
                row = f"FAILED: its output is not what this reads: {e!r}"
            failed += row.startswith("FAILED")
        rows.append(f"{name}: {row}")
        print(rows[-1], flush=True)
    (a.out / "table.txt").write_text("\n".join(rows) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
