"""Writes tests/golden/mel: a short sound, and what transformers' WhisperFeatureExtractor makes of it.

Needs numpy and transformers (with torch): python3 tools/make_mel_golden.py tests/golden/mel

  sound.wav        0.5 s, 16 kHz, 16-bit mono: two sweeps, a click, noise, and a silent end
  whole-80.bin     float32 [80, 50]: the sound alone, 80 bands
  whole-128.bin    float32 [128, 50]: the same with 128 bands
  window-80.bin    float32 [80, 56]: the first 56 of the 3,000 frames when it is filled up to 30 s; the others are equal
                   to the last of these
Also seeds for the fuzzer: fuzz/corpus/wav/seed-*.
"""
import struct
import sys
import wave
from pathlib import Path

import numpy as np

RATE = 16000


def sound():
    rng = np.random.default_rng(9)
    t = np.arange(RATE // 2) / RATE
    x = 0.4 * np.sin(2 * np.pi * (200 * t + 1200 * t * t)) + 0.1 * np.sin(2 * np.pi * (7000 * t - 5000 * t * t))
    x += 0.002 * rng.standard_normal(len(t))
    x[3000] += 0.5
    x[6500:] = 0
    return np.round(x * 32767).astype("<i2")


def chunk(name, data):
    return name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)


def wav(tag, bits, channels, data, extra=b"", rate=RATE):
    align = channels * bits // 8
    fmt = struct.pack("<HHIIHH", tag, channels, rate, rate * align, align, bits) + extra
    body = b"WAVE" + chunk(b"fmt ", fmt) + chunk(b"data", data)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def seeds(folder):
    folder.mkdir(parents=True, exist_ok=True)
    guid = bytes([0, 0, 0, 0, 0x10, 0, 0x80, 0, 0, 0xAA, 0, 0x38, 0x9B, 0x71])
    ramp = bytes(range(1, 97))
    made = {"pcm8": wav(1, 8, 1, ramp), "pcm16": wav(1, 16, 2, ramp), "pcm24": wav(1, 24, 1, ramp), "pcm32": wav(1, 32, 1, ramp),
            "float32": wav(3, 32, 1, np.linspace(-1, 1, 260, dtype="<f4").tobytes()),
            "float64": wav(3, 64, 1, np.linspace(-1, 1, 12).tobytes()),
            "extensible": wav(0xFFFE, 16, 1, ramp, struct.pack("<HHIH", 22, 16, 0, 1) + guid),
            "nan": wav(3, 32, 1, struct.pack("<ff", 0.5, float("nan"))), "alaw": wav(6, 8, 1, ramp)}
    for name, data in made.items():
        (folder / f"seed-{name}").write_bytes(data)


def main(folder):
    from transformers import WhisperFeatureExtractor
    folder.mkdir(parents=True, exist_ok=True)
    x = sound()
    with wave.open(str(folder / "sound.wav"), "wb") as f:
        f.setparams((1, 2, RATE, len(x), "NONE", ""))
        f.writeframes(x.tobytes())
    samples = x.astype(np.float32) / 32768
    for bands in (80, 128):
        made = WhisperFeatureExtractor(feature_size=bands)
        whole = made(samples, sampling_rate=RATE, padding=False, return_tensors="np").input_features[0]
        assert whole.shape == (bands, 50), whole.shape
        whole.astype("<f4").tofile(folder / f"whole-{bands}.bin")
    window = WhisperFeatureExtractor(feature_size=80)(samples, sampling_rate=RATE, return_tensors="np").input_features[0]
    assert window.shape == (80, 3000) and (window[:, 55:] == window[0, 55]).all()
    window[:, :56].astype("<f4").tofile(folder / "window-80.bin")
    seeds(Path("fuzz/corpus/wav"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
