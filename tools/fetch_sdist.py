"""The source archive of llama-cpp-python 0.3.36, which carries llama.cpp's vocabularies and published chat templates.

It is looked up in the index that pip is set up for and downloaded as it is: pip itself would first build the package's
metadata, which takes a build system. Kept in ~/.cache/plumb (or $XDG_CACHE_HOME/plumb) and checked against a pinned hash.
"""
import hashlib
import json
import os
import pathlib
import ssl
import subprocess
import sys
import tarfile
import urllib.parse
import urllib.request

NAME, VERSION = "llama-cpp-python", "0.3.36"
FILE = f"llama_cpp_python-{VERSION}.tar.gz"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"


def cache():
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "plumb" / FILE


def setting(name):
    run = subprocess.run([sys.executable, "-m", "pip", "config", "get", "global." + name], capture_output=True, text=True)
    return os.environ.get("PIP_" + name.replace("-", "_").upper()) or run.stdout.strip()


def index():
    chosen = setting("index-url")
    if not chosen:
        from pip._internal.models.index import PyPI  # pip's own default
        chosen = PyPI.simple_url
    return chosen.rstrip("/") + "/"


def opened(url, accept="*/*"):
    request = urllib.request.Request(url, headers={"Accept": accept, "User-Agent": "plumb-fetch"})
    context = ssl.create_default_context(cafile=setting("cert") or None)
    return urllib.request.urlopen(request, timeout=120, context=context)


def download(path):
    page = urllib.parse.urljoin(index(), NAME + "/")
    with opened(page, "application/vnd.pypi.simple.v1+json") as answer:
        files = json.load(answer)["files"]
    url = next(urllib.parse.urljoin(page, f["url"]) for f in files if f["filename"] == FILE)
    part = path.with_name(path.name + ".part")
    with opened(url) as answer, open(part, "wb") as out:
        while block := answer.read(1 << 20):
            out.write(block)
    os.replace(part, path)


def archive():
    path = cache()
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        try:
            download(path)
        except (OSError, ValueError, KeyError, StopIteration, ImportError) as e:
            raise SystemExit(f"cannot download {FILE} from pip's index: {e!r}")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != SHA256:
        path.unlink()
        raise SystemExit(f"{path}: its SHA-256 is {found}, expected {SHA256}; it is removed, try again")
    return path


def extract(folder, inside, suffix=""):
    """Writes the files whose name holds `inside` and ends with `suffix` into folder; returns how many."""
    folder = pathlib.Path(folder).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    with tarfile.open(archive()) as tar:
        for member in tar:
            if not member.isfile() or inside not in member.name or not member.name.endswith(suffix):
                continue
            target = folder / pathlib.PurePosixPath(member.name).name
            part = target.with_name(target.name + ".part")
            part.write_bytes(tar.extractfile(member).read())
            os.replace(part, target)
            count += 1
    return count
