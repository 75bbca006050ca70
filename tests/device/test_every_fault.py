"""Every call of the driver fails once, and every allocation of the host, in the whole life of a model on a device: loaded,
prompt, tokens. By a driver that computes nothing (tests/device/fake_cuda.c); the cases are tests/model/test_device_faults.c.

test-timeout: 900
test-sanitized: yes"""
import os
import subprocess

from tests.cmd.support import PLUMB, path
from tests.device import fakes
from tests.tap import Skip, case, main
from tools.craft_model import Gguf

PROGRAM = os.path.join(os.path.dirname(os.path.realpath(PLUMB)), "tests/model/test_device_faults")
E, HEADS, KV, D, VOCAB, LAYERS = 256, 4, 2, 64, 64, 2
SANITIZED = "/asan/" in os.path.realpath(PLUMB)


def model(weight, output, F=8192):
    """A Llama with heads of 64 and rows of 256: every kernel of its own for CUDA takes them. Some weights are large: staged."""
    g = Gguf().key("general.architecture", "string", "llama")
    for name, value in (("context_length", 128), ("embedding_length", E), ("block_count", LAYERS), ("feed_forward_length", F),
                        ("attention.head_count", HEADS), ("attention.head_count_kv", KV), ("vocab_size", VOCAB)):
        g.key("llama." + name, "u32", value)
    g.key("llama.attention.layer_norm_rms_epsilon", "f32", 1e-5)
    g.tensor("token_embd.weight", [E, VOCAB], weight).tensor("output.weight", [E, VOCAB], output)
    g.tensor("output_norm.weight", [E], "f32")
    for i in range(LAYERS):
        b = f"blk.{i}."
        g.tensor(b + "attn_norm.weight", [E], "f32").tensor(b + "ffn_norm.weight", [E], "f32")
        for name, rows, cols in (("attn_q", HEADS * D, E), ("attn_k", KV * D, E), ("attn_v", KV * D, E), ("attn_output", E, HEADS * D),
                                 ("ffn_gate", F, E), ("ffn_up", F, E), ("ffn_down", E, F)):
            g.tensor(f"{b}{name}.weight", [cols, rows], weight)
    return path(f"{weight}-{F}.gguf", g.bytes())


def run(file, which):
    if not os.path.exists(PROGRAM):
        raise Skip("tests/model/test_device_faults is not built")
    e = fakes.env(fakes.build("fake"), PLUMB_TEST_FAKE="1", PLUMB_TEST_DEVICE="cuda", PLUMB_TEST_MODEL=file, PLUMB_TEST_ONLY=which,
                  CMOCKA_MESSAGE_OUTPUT="TAP")
    out = subprocess.run([PROGRAM], capture_output=True, text=True, timeout=800, env=e)
    assert out.returncode == 0 and f"ok 1 - {which}\n" in out.stdout, out.stdout[-3000:] + out.stderr[-3000:]
    print("".join(line + "\n" for line in out.stdout.splitlines() if line.startswith("# every")), end="")


@case
def every_driver_call_quantised():
    run(model("q4_k", "q6_k"), "every_driver_call")


@case
def every_driver_call_bf16():
    if SANITIZED:
        raise Skip("the same code as with quantised weights")
    run(model("bf16", "bf16"), "every_driver_call")


@case
def every_allocation():
    run(model("q4_k", "q6_k", 512), "every_allocation")


if __name__ == "__main__":
    main()
