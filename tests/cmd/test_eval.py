"""plumb eval, inspect and bench over a tiny model."""
import json
import math
import os
import random
import struct
import subprocess

from tests.cmd.support import GOLDEN, PLUMB, WORK, path, run, tiny
from tests.tap import case, main
from tests.tiny_chat_model import write

IDS = [random.Random(4).randrange(96) for _ in range(100)]
FILE = path("ids.json", json.dumps(IDS))


def dump(*args, model=GOLDEN, ids=FILE):
    out = path("out.jsonl")
    run("eval", "-m", model, "--tokens", ids, "--dump", out, *args, check=0)
    return [json.loads(line) for line in open(out)]


@case
def rows_have_the_promised_shape():
    rows = dump()
    assert [r["pos"] for r in rows] == list(range(100)) and [r["id"] for r in rows] == IDS
    assert rows[0]["logprob"] is None and rows[0]["top"] == []
    for r in rows[1:]:
        assert r["logprob"] < 0 and len(r["top"]) == 5
        values = [lp for _, lp in r["top"]]
        assert values == sorted(values, reverse=True) and len({i for i, _ in r["top"]}) == 5
        assert sum(math.exp(v) for v in values) <= 1.000001
        named = dict(map(tuple, r["top"]))
        assert named.get(r["id"], r["logprob"]) == r["logprob"] and r["logprob"] <= values[0]


@case
def chunks_and_threads_do_not_change_them():
    want = [r["logprob"] for r in dump()[1:]]
    for more in (["--batch-rows", 1], ["--batch-rows", 7], ["-t", 1], ["-t", 3]):
        got = [r["logprob"] for r in dump(*more)[1:]]
        assert max(abs(a - b) for a, b in zip(want, got)) < 1e-4, more


@case
def the_future_does_not_change_the_past():
    changed = IDS[:60] + [(i + 1) % 96 for i in IDS[60:]]
    a, b = dump(), dump(ids=path("changed.json", json.dumps(changed)))
    assert a[:60] == b[:60] and a[60]["top"] == b[60]["top"] and a[61] != b[61]


@case
def the_sum_is_that_of_the_rows():
    rows = dump()
    out = json.loads(run("eval", "-m", GOLDEN, "--tokens", FILE, "--json", check=0).stdout)
    mean = sum(r["logprob"] for r in rows[1:]) / 99
    assert out["scored"] == 99 and abs(out["mean_logprob"] - mean) < 1e-6
    assert abs(out["perplexity"] - math.exp(-mean)) < 1e-4
    to_stdout = run("eval", "-m", GOLDEN, "--tokens", FILE, "--dump", "-", check=0).stdout
    assert [json.loads(line) for line in to_stdout.splitlines()] == rows


@case
def windows_score_every_token_once():
    whole = dump("--window", 100)
    for window, stride in ((32, 16), (32, 31), (30, 7), (100, 1), (2, 1), (99, 50)):
        rows = dump("--window", window, "--stride", stride)
        assert [r["pos"] for r in rows] == list(range(100)), (window, stride)
        assert all(abs(a["logprob"] - b["logprob"]) < 1e-4 for a, b in zip(rows[1:window], whole[1:window]))
    text = path("text.txt", "the hand and the other " * 40)
    out = json.loads(run("eval", "-m", tiny(), "-f", text, "--window", 64, "--json", check=0).stdout)
    assert out["scored"] == out["tokens"] - 1 and out["perplexity"] > 1
    for what, file in (("-f", text), ("--tokens", FILE)):
        assert json.loads(run("eval", "-m", tiny(), what, file, "--limit", 10, "--json", check=0).stdout)["tokens"] == 10


@case
def impossible_requests():
    for args, expect, code in (([], b"missing", 64), (["--tokens", FILE, "-f", FILE], b"exclude", 64),
                               (["-f", FILE, "--dump", "x"], b"--tokens", 64), (["--tokens", "no-such"], b"no-such", 1),
                               (["--tokens", path("e.json", "[]")], b"no ids", 1), (["--tokens", path("w.json", "[1,x]")], b"byte", 1),
                               (["--tokens", path("big.json", "[1,4000]")], b"4000", 1),
                               (["--tokens", path("huge.json", "[99999999999999]")], b"larger", 1),
                               (["--tokens", path("neg.json", "[-1]")], b"byte 1", 1),
                               (["--tokens", path("long.json", json.dumps(IDS * 2))], b"200", 1),
                               (["--tokens", FILE, "--dump", "-", "--tokens", path("bad.json", "[1,96]")], b"96", 1),
                               (["--tokens", path("cut.json", "[1,2,3")], b"]", 1),
                               (["--tokens", FILE, "--window", "1"], b"window", 64),
                               (["--tokens", FILE, "--window", "10", "--stride", "10"], b"stride", 64),
                               (["--tokens", FILE, "--dump", "/no/such/dir/x"], b"/no/such/dir", 1)):
        out = run("eval", "-m", GOLDEN, *args, check=code)
        assert expect in out.stderr and out.stdout == b"", (args, out)


@case
def logits_that_are_not_numbers_are_an_error():
    """One infinite weight: no 'nan' in the output, no perplexity, and a sentence that says why."""
    model = os.path.join(WORK, "broken")
    write(model)
    weights = os.path.join(model, "model.safetensors")
    with open(weights, "r+b") as f:
        head = struct.unpack("<Q", f.read(8))[0]
        spec = json.loads(f.read(head))["model.norm.weight"]
        bits = {"F32": b"\0\0\x80\x7f", "F16": b"\0\x7c", "BF16": b"\x80\x7f"}[spec["dtype"]]
        f.seek(8 + head + spec["data_offsets"][0])
        f.write(bits)
    for args in (["--dump", "-"], ["--json"], []):
        out = run("eval", "-m", model, "--tokens", FILE, *args, check=1)
        assert b"not numbers" in out.stderr and b"nan" not in out.stdout and b"perplexity" not in out.stdout, (args, out)


@case
def a_closed_stream_is_not_a_file():
    """The dump must not get the number of a stream that the caller closed, or messages would land in it."""
    want = dump()
    for closed, code in (("2>&-", 0), (">&-", 1), ("<&-", 0)):
        out = path("closed.jsonl")
        shell = f'exec "$0" eval -m "$1" --tokens "$2" --dump "$3" {closed}'
        done = subprocess.run(["sh", "-c", shell, PLUMB, GOLDEN, FILE, out], capture_output=True)
        assert done.returncode == code, (closed, done)
        assert [json.loads(line) for line in open(out)] == want, closed


@case
def a_reader_of_the_dump_that_leaves_is_no_error():
    ids = path("long-ids.json", json.dumps(IDS))
    read, write_end = os.pipe()
    os.close(read)
    done = subprocess.run([PLUMB, "eval", "-m", GOLDEN, "--tokens", ids, "--dump", "-"], stdout=write_end, stderr=subprocess.PIPE)
    os.close(write_end)
    assert done.returncode == 0 and b"Broken" not in done.stderr, done
    with open("/dev/full", "wb") as full:
        done = subprocess.run([PLUMB, "eval", "-m", GOLDEN, "--tokens", ids, "--dump", "-"], stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1 and b"No space" in done.stderr, done


@case
def inspect_tells_sizes_and_kernels():
    out = json.loads(run("inspect", "-m", GOLDEN, "--json", check=0).stdout)
    assert out["architecture"] == "llama" and out["sizes"]["layers"] == 2 and out["metadata"]["llama.block_count"] == 2
    total = sum(t["bytes"] for t in out["tensors"])
    assert total == sum(d["bytes"] for d in out["dtypes"].values()) == out["memory"]["weights_mapped_bytes"]
    assert out["dtypes"]["f16"]["kernels"]["1_row"]
    small = json.loads(run("inspect", GOLDEN, "--json", "--context", 64, check=0).stdout)
    double = json.loads(run("inspect", GOLDEN, "--json", "--context", 128, "--sessions", 3, check=0).stdout)
    assert double["memory"]["kv_bytes"] == 6 * small["memory"]["kv_bytes"]
    # 2 layers x 2 sides x 64 tokens x 2 heads x 16 x 2 bytes
    assert small["memory"]["kv_bytes"] == 2 * 2 * 64 * 2 * 16 * 2
    text = run("inspect", GOLDEN, "--tensors", check=0).stdout
    assert b"token_embd.weight" in text and b"KV cache" in text
    hf = json.loads(run("inspect", tiny(), "--json", check=0).stdout)
    assert hf["metadata"]["config.json"]["model_type"] == "llama"


def with_dtype(name, dtype, config=None):
    """The tiny model with its down projections stored in a type that plumb cannot compute with."""
    folder = path(name)
    write(folder)
    weights = os.path.join(folder, "model.safetensors")
    data = open(weights, "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    body, at = b"", 0
    for tensor, entry in header.items():
        begin, end = entry["data_offsets"]
        piece = data[8 + size + begin:8 + size + end]
        if "down_proj" in tensor:
            entry["dtype"], piece = dtype, piece[:len(piece) // 2]
        entry["data_offsets"] = [at, at + len(piece)]
        body, at = body + piece, at + len(piece)
    text = json.dumps(header).encode()
    with open(weights, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + body)
    if config:
        whole = json.load(open(os.path.join(folder, "config.json")))
        whole.update(config)
        json.dump(whole, open(os.path.join(folder, "config.json"), "w"))
    return folder


@case
def what_becomes_another_type_names_the_kernels_of_that():
    out = json.loads(run("inspect", "tests/golden/model/gpt-oss-mlx-mxfp4", "--json", check=0).stdout)
    assert "mxfp4x" in out["dtypes"]["mlx mxfp4"]["kernels"]["1_row"] and "refused" not in out


@case
def what_cannot_be_computed_with_is_shown_all_the_same():
    model = with_dtype("fp8", "F8_E4M3")
    out = json.loads(run("inspect", model, "--json", check=0).stdout)
    assert out["dtypes"]["F8_E4M3"]["tensors"] == 2 and "not readable" in out["dtypes"]["F8_E4M3"]["kernels"]["refused"]
    assert sum(t["dtype"] == "F8_E4M3" for t in out["tensors"]) == 2 and "F8_E4M3" in out["refused"]
    text = run("inspect", model, "--tensors", check=0).stdout
    assert b"F8_E4M3" in text and b"not readable for inference" in text and b"plumb cannot run it" in text
    for command in (["generate", "-p", "a", "-n", 1], ["eval", "--tokens", FILE], ["bench", "-p", 1, "-n", 1], ["serve"]):
        said = run(command[0], "-m", model, *command[1:], check=1).stderr
        assert b"down_proj" in said and b"F8_E4M3" in said and b"readable are" in said, said
    assert json.loads(run("tokenize", "-m", model, "-p", "hi", check=0).stdout)  # what needs no weights works
    for settings, named in (({"quantization_config": {"quant_method": "fp8"}}, b"'fp8'"),
                            ({"quantization_config": {"quant_method": "mxfp4"}}, b"'mxfp4'"),  # of gpt-oss alone
                            ({"quantization_config": {"quant_method": "bitnet"}}, b"'bitnet'"),
                            ({"quantization": {"group_size": 64, "bits": 5}}, None)):
        model = with_dtype("other", "F8_E5M2", settings)
        shown = run("inspect", model, check=0).stdout
        assert b"plumb cannot run it" in shown and (named is None or named in shown), shown


@case
def bench_gives_a_receipt():
    out = json.loads(run("bench", "-m", GOLDEN, "-p", 32, "-n", 8, "-r", 3, "-t", 1, "--json", check=0).stdout)
    assert len(out["prefill_tok_s_all"]) == len(out["decode_tok_s_all"]) == 3 and out["threads"] == 1
    assert out["prefill_tok_s"] == sorted(out["prefill_tok_s_all"])[1] and out["decode_tok_s"] > 0
    assert out["bytes_per_token"] > 50000 and out["read_ceiling_gb_s"] > 0 and out["backend"].startswith("cpu")
    decode = [k for k in out["kernels"] if k["stage"] == "decode" and k["op"] == "attention"]
    assert sum(k["launches"] for k in decode) == 2 * 8
    start = out["start"]
    parts = [start.pop(k) for k in ("file_s", "backend_s", "weights_s", "memory_s", "kernels_s")]
    assert min(parts) >= 0 < start["weights_gb_s"] and abs(sum(parts) - start["total_s"]) < 1e-9 < out["load_s"] - start["total_s"], out
    assert b"tok/s" in run("bench", "-m", GOLDEN, "-p", 0, "-n", 4, "-r", 1, "-d", 20, check=0).stdout
    run("bench", "-m", GOLDEN, "-p", 0, "-n", 0, check=64)
    assert b"128" in run("bench", "-m", GOLDEN, "-p", 500, "-n", 1, check=1).stderr
    run("bench", "-m", GOLDEN, "-r", 0, check=64)


@case
def one_value_has_no_interval():
    two = path("two.json", json.dumps(IDS[:2]))
    text = run("eval", "-m", GOLDEN, "--tokens", two, check=0).stdout
    assert b"1 of 2 tokens" in text and b"no interval" in text, text
    got = json.loads(run("eval", "-m", GOLDEN, "--tokens", two, "--json", check=0).stdout)["perplexity_interval"]
    assert got["value"] > 0 and got["low"] is None and got["high"] is None, got


@case
def many_sequences_get_the_rows_they_need():
    rows = json.loads(run("bench", "-m", GOLDEN, "--parallel", "512,8", "-p", 4, "-n", 12, "-r", 1, "--json", check=0).stdout)["parallel"]
    assert [r["sequences"] for r in rows] == [512, 8] and all(r["decode_tok_s"] > 0 for r in rows), rows
    few = run("bench", "-m", GOLDEN, "--parallel", 1000, "--batch-rows", 1100, "-p", 4, "-n", 2, "-r", 1, check=0).stdout
    assert b"decode not measured: too few tokens" in few or b"all running" in few, few

main()
