"""A CUDA driver, a compiler and a matrix library that compute nothing, built into one folder for PLUMB_CUDA_PATH."""
import os
import shutil
import subprocess

from tests.cmd.support import WORK
from tests.tap import Skip

SOURCES = {"libcuda.so.1": "fake_cuda.c", "libnvrtc.so.13": "fake_nvrtc.c", "libcublasLt.so.13": "fake_cublaslt.c"}


def build(name, *flags, libraries=tuple(SOURCES)):
    folder = os.path.join(WORK, name)
    if not os.path.isdir(folder):
        compiler = shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")
        if compiler is None:
            raise Skip("no C compiler")
        os.makedirs(folder)
        for library in libraries:
            subprocess.run([compiler, "-std=gnu17", "-shared", "-fPIC", "-w", *flags, "-o", f"{folder}/{library}",
                            "tests/device/" + SOURCES[library]], check=True)
    return folder


def env(folder, **more):
    # not LD_LIBRARY_PATH: real libraries, too, would load this driver, and call what it does not have
    return {**os.environ, "PLUMB_CUDA_PATH": folder, "XDG_CACHE_HOME": os.path.join(WORK, "cache-fake"), **more}
