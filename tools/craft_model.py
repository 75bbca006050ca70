#!/usr/bin/env python3
"""Writes small GGUF and safetensors files, valid or deliberately broken. Standard library only.

As a module: Gguf().key("general.name", "string", "x").tensor("w", [32, 2], "q8_0").bytes(), safetensors({...}).
As a program: `python3 tools/craft_model.py seeds fuzz/corpus` writes the seed corpora of the file fuzzers.
"""
import json
import struct
import sys
from pathlib import Path

VALUE_TYPES = ["u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"]
PACK = {"u8": "<B", "i8": "<b", "u16": "<H", "i16": "<h", "u32": "<I", "i32": "<i", "f32": "<f", "bool": "<B",
        "u64": "<Q", "i64": "<q", "f64": "<d"}
# name: (type number, elements of a block, bytes of a block)
TENSOR_TYPES = {
    "f32": (0, 1, 4), "f16": (1, 1, 2), "q4_0": (2, 32, 18), "q4_1": (3, 32, 20), "q5_0": (6, 32, 22),
    "q5_1": (7, 32, 24), "q8_0": (8, 32, 34), "q2_k": (10, 256, 84), "q3_k": (11, 256, 110), "q4_k": (12, 256, 144),
    "q5_k": (13, 256, 176), "q6_k": (14, 256, 210), "iq4_nl": (20, 32, 18), "iq4_xs": (23, 256, 136),
    "i8": (24, 1, 1), "i32": (26, 1, 4), "bf16": (30, 1, 2), "tq1_0": (34, 256, 54), "tq2_0": (35, 256, 66),
    "mxfp4": (39, 32, 17), "iq1_s": (19, 256, 50), "iq1_m": (29, 256, 56), "iq2_xxs": (16, 256, 66), "iq2_xs": (17, 256, 74),
    "iq2_s": (22, 256, 82), "iq3_xxs": (18, 256, 98), "iq3_s": (21, 256, 110),
}


def string(s):
    raw = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(raw)) + raw


def scalar(kind, v):
    return string(v) if kind == "string" else struct.pack(PACK[kind], v)


class Gguf:
    """Every method returns self; bytes() lays the file out. Fields may be overridden to break it."""

    def __init__(self, version=3, alignment=32):
        self.version, self.alignment = version, alignment
        self.values, self.tensors = [], []
        self.magic = b"GGUF"
        self.value_count = self.tensor_count = None  # None: the true ones

    def key(self, name, kind, v):
        self.values.append(string(name) + struct.pack("<I", VALUE_TYPES.index(kind)) + scalar(kind, v))
        return self

    def array(self, name, kind, items):
        head = struct.pack("<IIQ", VALUE_TYPES.index("array"), VALUE_TYPES.index(kind), len(items))
        self.values.append(string(name) + head + b"".join(scalar(kind, v) for v in items))
        return self

    def tensor(self, name, extents, kind, data=None, offset=None):
        """extents: fastest first, as in the file."""
        number, elems, size = TENSOR_TYPES[kind]
        count = 1
        for e in extents:
            count *= e
        self.tensors.append((name, extents, number, data if data is not None else bytes(count // elems * size), offset))
        return self

    def bytes(self):
        n_t = len(self.tensors) if self.tensor_count is None else self.tensor_count
        n_v = len(self.values) if self.value_count is None else self.value_count
        out = self.magic + struct.pack("<IQQ", self.version, n_t, n_v) + b"".join(self.values)
        pad = lambda n: -n % self.alignment
        weights = b""
        for name, extents, number, data, offset in self.tensors:
            at = len(weights) if offset is None else offset
            out += string(name) + struct.pack(f"<I{len(extents)}QIQ", len(extents), *extents, number, at)
            weights += data + bytes(pad(len(data)))
        return out + bytes(pad(len(out))) + weights


ELEMENT_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "U32": 4, "I32": 4, "I64": 8, "U8": 1}


def safetensors(tensors, metadata=None, pad_to=8):
    """tensors: {name: (dtype, shape)} or {name: (dtype, shape, data)}."""
    header, data = {}, b""
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, (dtype, shape, *given) in tensors.items():
        count = ELEMENT_BYTES[dtype]
        for e in shape:
            count *= e
        raw = given[0] if given else bytes(count)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % pad_to)
    return struct.pack("<Q", len(text)) + text + data


def every_value(g):
    for kind in PACK:
        g.key("k." + kind, kind, 1).array("a." + kind, kind, [0, 1, 1])
    return g.key("k.string", "string", "text").array("a.string", "string", ["a", "", "bc"])


def gguf_seeds():
    yield "empty", Gguf().bytes()
    yield "values", every_value(Gguf()).bytes()
    g = Gguf(version=2).key("general.architecture", "string", "llama").key("general.alignment", "u32", 8)
    g.alignment = 8
    yield "aligned8", g.tensor("w", [32, 3], "q8_0").tensor("b", [5], "f32").bytes()
    g = Gguf().key("tokenizer.chat_template", "string", "{{ x }}").key("tokenizer.chat_template.tool_use", "string", "t")
    for kind, (_, elems, _) in TENSOR_TYPES.items():
        g.tensor("t." + kind, [max(elems, 4), 1], kind)
    yield "types", g.bytes()
    yield "split", Gguf().key("split.no", "u16", 0).key("split.count", "u16", 2).key("split.tensors.count", "i32", 9).bytes()
    yield "overlap", Gguf().tensor("a", [16], "f32").tensor("b", [16], "f32", offset=32).bytes()
    yield "twice", Gguf().tensor("a", [8], "f32").tensor("a", [8], "f32").bytes()
    g = Gguf()
    g.tensor_count, g.value_count = 2**62, 2**63
    yield "counts", g.bytes()


def safetensors_seeds():
    yield "empty", safetensors({})
    yield "plain", safetensors({"a": ("F32", [2, 3]), "b": ("BF16", [4])}, {"format": "pt"})
    yield "scalar", safetensors({"s": ("F32", [])}, pad_to=1)
    yield "mlx", safetensors({"l.weight": ("U32", [2, 8]), "l.scales": ("F16", [2, 1]), "l.biases": ("F16", [2, 1])})
    yield "types", safetensors({d.lower(): (d, [1, 2]) for d in ELEMENT_BYTES})
    yield "hole", safetensors({"a": ("F32", [2])}) + b"xx"
    yield "deep", struct.pack("<Q", 200) + b'{"a":' + b"[" * 195


def config_seeds():
    yield "llama", b'{"model_type":"llama","architectures":["LlamaForCausalLM"],"hidden_size":64,"num_hidden_layers":2,' \
        b'"num_attention_heads":4,"num_key_value_heads":2,"intermediate_size":128,"vocab_size":256,"rms_norm_eps":1e-5,' \
        b'"rope_theta":10000.0,"max_position_embeddings":512,"tie_word_embeddings":true,"rope_scaling":null}'
    yield "mlx", b'{"model_type":"qwen3","quantization":{"group_size":64,"bits":4,"mode":"affine","l":{"group_size":32,"bits":8}}}'
    yield "gptq", b'{"quantization_config":{"quant_method":"gptq","bits":4}}'
    yield "templates", b'{"chat_template":[{"name":"default","template":"a"},{"name":"tool_use","template":"b"}]}'
    yield "numbers", b'{"a":[-1,0,1.5,1e308,9223372036854775807,true,false,null,"\\u00e9\\ud83d\\ude00"]}'
    yield "gemma", b'{"model_type":"gemma3","text_config":{"model_type":"gemma3_text","head_dim":256,"sliding_window":512,' \
        b'"layer_types":["sliding_attention","full_attention"],"rope_parameters":{"full_attention":{"rope_type":"default"}}}}'


def main():
    if len(sys.argv) != 3 or sys.argv[1] != "seeds":
        sys.exit(__doc__)
    for target, seeds in (("gguf", gguf_seeds), ("safetensors", safetensors_seeds), ("json_config", config_seeds)):
        folder = Path(sys.argv[2]) / target
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in seeds():
            (folder / ("seed-" + name)).write_bytes(data)


if __name__ == "__main__":
    main()
