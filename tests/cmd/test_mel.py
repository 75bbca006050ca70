"""plumb mel: numbers, a picture, and what it refuses."""
import struct
import zlib

from tests.cmd.support import path, run
from tests.tap import Skip, case, main

SOUND = "tests/golden/mel/sound.wav"


def golden(name, bands):
    data = open(f"tests/golden/mel/{name}.bin", "rb").read()
    values = struct.unpack(f"<{len(data) // 4}f", data)
    frames = len(values) // bands
    return [[values[b * frames + f] for b in range(bands)] for f in range(frames)]


def mel(*args):
    out = run("mel", *args)
    if b"libkissfft" in out.stderr:
        raise Skip("built without libkissfft-dev")
    assert out.returncode == 0, out.stderr
    return out


@case
def a_line_for_each_frame():
    for bands in (80, 128):
        out = mel(SOUND, "--whole", "--bands", bands)
        got = [[float(v) for v in line.split()] for line in out.stdout.decode().splitlines()]
        want = golden(f"whole-{bands}", bands)
        assert len(got) == len(want) == 50 and all(len(row) == bands for row in got)
        assert max(abs(a - b) for g, w in zip(got, want) for a, b in zip(g, w)) < 1e-4
        assert b"0.50 s, 1 channel of 16-bit PCM" in out.stderr and b"KissFFT" in out.stderr


@case
def thirty_seconds_unless_whole():
    assert mel(SOUND).stdout.count(b"\n") == 3000


def chunks(data):
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, out = 8, []
    while at < len(data):
        size, name = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size:at + 12 + size])[0] == zlib.crc32(name + body)
        out.append((name, body))
        at += 12 + size
    return out


@case
def a_picture():
    made = path("out.png")
    out = mel(SOUND, "--whole", "--png", made)
    assert out.stdout == b""
    (head, ihdr), (kind, packed), (end, nothing) = chunks(open(made, "rb").read())
    assert (head, kind, end, nothing) == (b"IHDR", b"IDAT", b"IEND", b"")
    assert struct.unpack(">IIBBBBB", ihdr) == (50, 80, 8, 0, 0, 0, 0)
    plain = zlib.decompress(packed)
    rows = [plain[y * 51 + 1:y * 51 + 51] for y in range(80)]
    assert len(plain) == 80 * 51 and all(plain[y * 51] == 0 for y in range(80))
    want = golden("whole-80", 80)
    top = max(map(max, want))
    for f, row in enumerate(want):
        for band, v in enumerate(row):
            assert abs(rows[79 - band][f] - 255 * (1 - (top - v) / 2)) <= 1, (f, band)


def wav(rate=16000, samples=b"\0\0" * 400):
    fmt = struct.pack("<HHIIHH", 1, 1, rate, 2 * rate, 2, 16)
    body = b"WAVEfmt " + struct.pack("<I", 16) + fmt + b"data" + struct.pack("<I", len(samples)) + samples
    return b"RIFF" + struct.pack("<I", len(body)) + body


@case
def refusals_say_why():
    mel(path("good.wav", wav()), "--whole")
    out = run("mel", path("fast.wav", wav(44100)), check=1)
    assert b"44100 samples a second" in out.stderr and b"16000" in out.stderr and out.stdout == b""
    assert b"not a WAV" in run("mel", path("text.wav", "hello, this is no sound"), check=1).stderr
    out = run("mel", "--whole", path("short.wav", wav(samples=b"\0\0" * 200)), check=1)
    assert b"201 to" in out.stderr and b"short.wav" in out.stderr
    assert b"1 sample:" in run("mel", "--whole", path("one.wav", wav(samples=b"\0\0")), check=1).stderr
    for more in ([], ["--whole"]):
        out = run("mel", path("none.wav", wav(samples=b"")), *more, check=1)
        assert b"no sound" in out.stderr and out.stdout == b""
    assert b"no-such" in run("mel", "no-such.wav", check=1).stderr
    assert b"cannot write" in run("mel", SOUND, "--png", "/no/such/folder/x.png", check=1).stderr
    assert b"80 or 128" in run("mel", SOUND, "--bands", 81, check=64).stderr
    assert b"cpu, cuda or rocm" in run("mel", SOUND, "--backend", "metal", check=64).stderr
    run("mel", check=64)
    run("mel", SOUND, SOUND, check=64)


main()
