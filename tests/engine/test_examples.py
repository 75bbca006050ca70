"""The C and Python examples build against the public header and library alone and hold a conversation."""
import atexit
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile

from tests.tap import Skip, case, main
from tests.tiny_chat_model import write

LIB = os.path.abspath(os.environ.get("PLUMB_LIB", "build/libplumb.so"))
WORK = tempfile.mkdtemp(prefix="plumb-examples-")
atexit.register(shutil.rmtree, WORK, ignore_errors=True)
MODEL = os.path.join(WORK, "model")
write(MODEL, seed=3)


def talk(argv, lines):
    out = subprocess.run(argv, input="".join(line + "\n" for line in lines).encode(), capture_output=True, timeout=120,
                         env={**os.environ, "PLUMB_LIB": LIB})
    assert out.returncode == 0, out.stderr.decode()
    assert b"plumb: kernel backend: cpu (" in out.stderr
    return out.stdout


def build_c():
    cc = next((x for x in (os.environ.get("CC"), "gcc", "clang", "cc") if x and shutil.which(x)), None)
    if cc is None:
        raise Skip("no C compiler")
    binary = os.path.join(WORK, "chat")
    folder = os.path.abspath(os.path.dirname(LIB))  # as the example's own header says
    subprocess.run([cc, "-std=c17", "-Wall", "-Wextra", "-Werror", "-o", binary, "examples/chat.c", "-Iinclude", "-L" + folder,
                    "-lplumb", "-Wl,-rpath," + folder], check=True, timeout=120)
    return binary


@case
def c_and_python_say_the_same():
    lines = ["Hello there", "and the other?"]
    in_c = talk([build_c(), MODEL, "12"], lines)
    in_python = talk([sys.executable, "examples/chat.py", MODEL, "12"], lines)
    assert in_c == in_python and len(in_c) > 2, (in_c, in_python)


@case
def a_missing_model_is_a_sentence():
    for argv in ([build_c(), "no-such.gguf"], [sys.executable, "examples/chat.py", "no-such.gguf"]):
        out = subprocess.run(argv, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
                             env={**os.environ, "PLUMB_LIB": LIB})
        assert out.returncode == 1 and "no-such.gguf" in out.stderr and "Traceback" not in out.stderr, out


@case
def ids_beyond_the_vocabulary_are_refused():
    lib = ctypes.CDLL(LIB)

    class Options(ctypes.Structure):
        _fields_ = [("size", ctypes.c_size_t), ("model", ctypes.c_char_p), ("rest", ctypes.c_uint64 * 11)]

    engine, text = ctypes.c_void_p(), ctypes.c_void_p()
    options = Options(ctypes.sizeof(Options), MODEL.encode())
    assert lib.plumb_engine_create(ctypes.byref(options), ctypes.byref(engine), None) == 0
    for ids, status in (([5, 6], 0), ([5, 2**32 - 1], 2), ([100000], 2), ([], 0)):
        array = (ctypes.c_uint32 * max(1, len(ids)))(*ids)
        got = lib.plumb_detokenize(engine, array, ctypes.c_size_t(len(ids)), True, ctypes.byref(text), None)
        assert got == status, (ids, got)
        if status == 0:
            lib.plumb_string_free(text)
    lib.plumb_engine_destroy(engine)


main()
