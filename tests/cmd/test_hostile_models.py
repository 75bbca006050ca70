"""What is no model, or half of one, ends in one sentence: never a crash, never a guess."""
import json
import os
import random
import struct

from tests.cmd.support import GOLDEN, gguf, path, run, tiny
from tests.tap import Skip, case, main

COMMANDS = (["generate", "-p", "hi", "-n", "1"], ["eval", "--tokens", path("one.json", "[1,2,3]")], ["inspect"],
            ["tokenize", "-p", "hi"], ["bench", "-p", "1", "-n", "1", "-r", "1"])


def refused(model, command=COMMANDS[0], expect=b""):
    out = run(*command, "-m", model, timeout=60, check=1)
    assert expect in out.stderr, (expect, out.stderr)
    assert out.stdout == b"", out.stdout
    return out.stderr


@case
def things_that_are_no_models():
    for command in COMMANDS:
        refused(path("empty.gguf", b""), command, b"empty")
        refused("/dev/zero", command, b"/dev/zero")
        refused(os.path.dirname(path("x")), command)
        refused("no-such-model", command, b"no-such-model")
        refused(path("noise.gguf", random.Random(1).randbytes(5000)), command)
        refused(path("text.gguf", b"this is a text\n" * 100), command)


@case
def a_file_cut_anywhere():
    whole = open(GOLDEN, "rb").read()
    for percent in range(0, 100, 2):
        refused(path("cut.gguf", whole[: len(whole) * percent // 100]), COMMANDS[percent // 2 % 2 + 1])


@case
def a_directory_cut_anywhere():
    source = tiny()
    for name in os.listdir(source):
        data = open(os.path.join(source, name), "rb").read()
        for part in (0, 1, len(data) // 2, len(data) - 1):
            folder = path("cutdir")
            os.makedirs(folder, exist_ok=True)
            for other in os.listdir(source):
                content = open(os.path.join(source, other), "rb").read()
                with open(os.path.join(folder, other), "wb") as f:
                    f.write(content[:part] if other == name else content)
            out = run("generate", "-m", folder, "-p", "hi", "-n", "1", timeout=60)
            assert out.returncode in (0, 1), (name, part, out)  # generation_config.json is optional, but must be JSON
            if out.returncode == 0:
                raise AssertionError((name, part, "was accepted"))


@case
def unreadable():
    if os.geteuid() == 0:
        raise Skip("root can read everything")
    p = path("secret.gguf", open(GOLDEN, "rb").read())
    os.chmod(p, 0)
    refused(p, expect=b"Permission denied")


def giant():
    """A Llama of 350 GB, made of one hole."""
    e, v = 65536, 1 << 20
    tensors = [("token_embd.weight", (e, v), 0, e * v * 4), ("output_norm.weight", (e,), 0, e * 4)]
    for name in ("attn_norm", "ffn_norm"):
        tensors.append((f"blk.0.{name}.weight", (e,), 0, e * 4))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        tensors.append((f"blk.0.{name}.weight", (e, e), 1, e * e * 2))
    meta = {"general.architecture": "llama", "llama.block_count": 1, "llama.context_length": 128, "llama.embedding_length": e,
            "llama.feed_forward_length": e, "llama.attention.head_count": e // 256, "llama.attention.head_count_kv": e // 256,
            "llama.rope.dimension_count": 256, "llama.vocab_size": v, "llama.attention.layer_norm_rms_epsilon": 1e-5}
    return gguf(meta, tensors)


@case
def a_model_bigger_than_memory():
    head, size = giant()
    p = path("giant.gguf", head)
    try:
        os.truncate(p, size)
    except OSError as why:
        raise Skip(f"no sparse file of {size >> 30} GB here: {why}")
    message = refused(p, COMMANDS[1], b"MB")
    assert b"may be used" in message
    out = run("inspect", "-m", p, timeout=60, check=0)
    assert b"would refuse" in out.stdout
    os.remove(p)


@case
def embeddings_that_are_no_numbers():
    """Tables that are not the output matrix too are never given to a product, which would look."""
    for name in ("nemotron-h", "granite-hybrid-moe", "deepseek2-lite-q"):
        bad = bytearray(open(f"tests/golden/model/{name}.gguf", "rb").read())
        at = bad.find(b"token_embd.weight") + len(b"token_embd.weight")
        dims, = struct.unpack_from("<I", bad, at)
        struct.pack_into("<I", bad, at + 4 + 8 * dims, 24)  # i8
        message = refused(path("i8.gguf", bytes(bad)), COMMANDS[1], b"token_embd.weight")
        assert b"i8 cannot be a table of embeddings" in message, message


@case
def decays_that_are_turned():
    """As many values in another order would be a result like any other."""
    bad = path("turned")
    os.makedirs(bad, exist_ok=True)
    for name in os.listdir("tests/golden/model/jamba"):
        data = open(f"tests/golden/model/jamba/{name}", "rb").read()
        if name.endswith(".safetensors"):
            size, = struct.unpack_from("<Q", data)
            head = json.loads(data[8:8 + size])
            head["model.layers.0.mamba.A_log"]["shape"].reverse()
            text = json.dumps(head).encode()
            data = struct.pack("<Q", len(text)) + text + data[8 + size:]
        with open(os.path.join(bad, name), "wb") as f:
            f.write(data)
    assert b"A_log has shape [16, 64]" in refused(bad, COMMANDS[1], b"heads first")


@case
def names_that_would_command_a_terminal():
    """Text of a file is shown, never acted on: no control character of it comes through, nor half a character."""
    bad = "a\n\x1b]0;title\x07\x1b[31m\u009b31m"
    shown = "a??]0;title??[31m?31m".encode()
    head, size = gguf({"general.architecture": bad}, [("token_embd.weight", (32, 32), 0, 4096)])
    model = path("named.gguf", head + b"\0" * (size - len(head)))
    for command in (COMMANDS[1], COMMANDS[2]):
        assert b"architecture '" + shown + b"'" in refused(model, command)
    source, folder = "tests/golden/model/bitnet", path("named")
    os.makedirs(folder, exist_ok=True)
    config = json.load(open(f"{source}/config.json"))
    for name in os.listdir(source):
        if name != "config.json" and os.path.isfile(f"{source}/{name}") and not os.path.exists(f"{folder}/{name}"):
            os.symlink(os.path.abspath(f"{source}/{name}"), f"{folder}/{name}")
    quant = config["quantization_config"]
    plain = {"quantization_config": None}  # another family's bitnet is told before its name is
    for change in ({"model_type": bad} | plain, {"hidden_act": bad}, {"architectures": [bad]}, {"rope_scaling": {"rope_type": bad}},
                   {"quantization_config": quant | {"modules_to_not_convert": [bad]}},
                   {"quantization_config": quant | {"linear_class": bad}}, {"quantization_config": {"quant_method": bad}},
                   {"model_type": "\u2603" * 99} | plain):
        path("named/config.json", json.dumps(config | change))
        message = refused(folder, COMMANDS[1])
        message.decode()
        assert shown in message or "\u2603" * 30 in message.decode(), (change, message)
        assert not any(c < 32 and c != 10 or c == 127 for c in message) and b"a\n" not in message, (change, message)
    template = path("red.jinja", "{{ raise_exception('\x1b[31m' + '\u009b31m no') }}")
    chat = path("red.json", json.dumps([{"role": "user", "content": "x"}]))
    assert b"?[31m?31m no" in run("render", "--messages", chat, "--template", template, check=1).stderr


@case
def sizes_that_overflow():
    tensors = [("token_embd.weight", (1 << 32, 1 << 31), 0, 64)]
    head, size = gguf({"general.architecture": "llama"}, tensors)
    refused(path("overflow.gguf", head + b"\0" * (size - len(head))), COMMANDS[2])
    whole = bytearray(open(GOLDEN, "rb").read())
    for field in (8, 16):  # tensor count, metadata count
        for value in (0, 1 << 31, (1 << 63) - 1, (1 << 64) - 1):
            bad = bytearray(whole)
            bad[field:field + 8] = struct.pack("<Q", value)
            out = run("inspect", "-m", path("count.gguf", bytes(bad)), timeout=60)
            assert out.returncode == 1, (field, value, out.stdout[:500])


main()
