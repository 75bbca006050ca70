"""What the tests of commands share: running the binary, a tiny chat model, a minimal GGUF writer."""
import atexit
import os
import shutil
import struct
import subprocess
import tempfile

from tests.tiny_chat_model import write

PLUMB = os.path.abspath(os.environ.get("PLUMB", "build/plumb"))
GOLDEN = "tests/golden/model/llama3.gguf"
WORK = tempfile.mkdtemp(prefix="plumb-cmd-")
atexit.register(shutil.rmtree, WORK, ignore_errors=True)


def run(*args, stdin=b"", timeout=400, check=None, **more):
    """Bytes in and out; check: the exit code that must come."""
    argv = [PLUMB] + [a if isinstance(a, bytes) else str(a) for a in args]
    out = subprocess.run(argv, input=stdin, capture_output=True, timeout=timeout, **more)
    if check is not None:
        assert out.returncode == check, (argv, out.returncode, out.stdout[:2000], out.stderr[-2000:])
    if out.returncode != 0:
        said = [line for line in out.stderr.splitlines() if not line.startswith(b"plumb: compil")]  # where no test came before
        assert b"plumb" in out.stderr and len(said) < 8, out.stderr  # a sentence, not a crash
    return out


def tiny(name="tiny", **options):
    path = os.path.join(WORK, name)
    if not os.path.exists(path):
        write(path, **options)
    return path


def path(name, data=None):
    full = os.path.join(WORK, name)
    if data is not None:
        with open(full, "wb") as f:
            f.write(data if isinstance(data, bytes) else data.encode())
    return full


def gguf_text(s):
    b = s.encode()
    return struct.pack("<Q", len(b)) + b


def gguf(meta, tensors):
    """The head of a GGUF file: meta is {key: int | float | str}, tensors [(name, shape fastest first, ggml type, bytes)].
    Returns (head, size of the whole file)."""
    out, at = b"", 0
    for key, value in meta.items():
        out += gguf_text(key)
        if isinstance(value, str):
            out += struct.pack("<I", 8) + gguf_text(value)
        elif isinstance(value, float):
            out += struct.pack("<If", 6, value)
        else:
            out += struct.pack("<II", 4, value)
    for name, shape, kind, size in tensors:
        out += gguf_text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", n) for n in shape)
        out += struct.pack("<IQ", kind, at)
        at += (size + 31) // 32 * 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(meta)) + out
    head += b"\0" * (-len(head) % 32)
    return head, len(head) + at
