#!/usr/bin/env python3
"""A streaming chat on the public API of plumb, through ctypes and nothing else.

    python3 examples/chat.py model.gguf            (type messages; Ctrl-D ends)
    echo 'What is the capital of France?' | python3 examples/chat.py model.gguf

The library is build/libplumb.so unless PLUMB_LIB names another.
"""
import ctypes as c
import json
import os
import sys

lib = c.CDLL(os.environ.get("PLUMB_LIB") or os.path.join(os.path.dirname(__file__), "..", "build", "libplumb.so"))


class Error(c.Structure):
    _fields_ = [("status", c.c_int), ("text", c.c_char * 1024)]


class EngineOptions(c.Structure):
    _fields_ = [("size", c.c_size_t), ("model", c.c_char_p), ("backend", c.c_char_p), ("device", c.c_int32),
                ("threads", c.c_int32), ("isa", c.c_char_p), ("context", c.c_uint32), ("max_sessions", c.c_uint32),
                ("batch_rows", c.c_uint32), ("kv_dtype", c.c_char_p), ("page_tokens", c.c_uint32), ("strict", c.c_bool),
                ("memory_limit", c.c_uint64), ("progress", c.c_void_p), ("progress_user", c.c_void_p),
                ("logit_rows", c.c_uint32)]


class Sampling(c.Structure):
    _fields_ = [("size", c.c_size_t), ("temperature", c.c_float), ("top_p", c.c_float), ("min_p", c.c_float),
                ("typical_p", c.c_float), ("repetition_penalty", c.c_float), ("presence_penalty", c.c_float),
                ("frequency_penalty", c.c_float), ("top_k", c.c_uint32), ("penalty_last_n", c.c_int32), ("seed", c.c_uint64),
                ("bias", c.c_void_p), ("bias_count", c.c_size_t)]


ON_TOKEN = c.CFUNCTYPE(c.c_bool, c.c_void_p, c.c_uint32, c.c_void_p, c.c_size_t, c.c_double, c.c_void_p, c.c_void_p, c.c_size_t)


class GenerateOptions(c.Structure):
    _fields_ = [("size", c.c_size_t), ("sampling", Sampling), ("max_tokens", c.c_uint32), ("ignore_eos", c.c_bool),
                ("show_special", c.c_bool), ("logprob", c.c_bool), ("logprobs", c.c_uint32), ("on_token", ON_TOKEN),
                ("user", c.c_void_p)]


def call(function, *args):
    err = Error()
    if function(*args, c.byref(err)) != 0:
        raise RuntimeError(err.text.decode("utf-8", "replace"))


class Chat:
    """A conversation with one engine. Each turn runs only the tokens that the last prompt did not have."""

    def __init__(self, model, max_tokens=256):
        self.engine, self.session = c.c_void_p(), c.c_void_p()
        self.messages = [{"role": "system", "content": "You are a helpful assistant."}]
        self.held, self.max_tokens = [], max_tokens
        options = EngineOptions(size=c.sizeof(EngineOptions), model=os.fsencode(model))
        call(lib.plumb_engine_create, c.byref(options), c.byref(self.engine))
        call(lib.plumb_session_create, self.engine, c.byref(self.session))

    def close(self):
        lib.plumb_session_destroy(self.session)
        lib.plumb_engine_destroy(self.engine)

    def _prompt(self):
        text, count = json.dumps(self.messages).encode(), c.c_size_t()
        args = (self.engine, text, None, c.c_bool(True))
        call(lib.plumb_chat_tokenize, *args, None, c.c_size_t(0), c.byref(count))
        ids = (c.c_uint32 * count.value)()
        call(lib.plumb_chat_tokenize, *args, ids, c.c_size_t(count.value), c.byref(count))
        return list(ids)

    def ask(self, text, write):
        self.messages.append({"role": "user", "content": text})
        ids, common = self._prompt(), 0
        while common < len(self.held) and common + 1 < len(ids) and ids[common] == self.held[common]:
            common += 1
        call(lib.plumb_session_truncate, self.session, c.c_uint32(common))
        rest = (c.c_uint32 * (len(ids) - common))(*ids[common:])
        call(lib.plumb_session_append, self.session, rest, c.c_size_t(len(rest)))
        self.held, answer = ids, []

        def on_token(_user, _id, piece, length, *_rest):
            answer.append(c.string_at(piece, length).decode())
            write(answer[-1])
            return True

        options = GenerateOptions(size=c.sizeof(GenerateOptions), max_tokens=self.max_tokens, on_token=ON_TOKEN(on_token))
        lib.plumb_sampling_default(c.byref(options.sampling))
        options.sampling.temperature = 0.0
        call(lib.plumb_session_generate, self.session, c.byref(options), None, None)
        self.messages.append({"role": "assistant", "content": "".join(answer)})


lib.plumb_engine_destroy.argtypes = lib.plumb_session_destroy.argtypes = [c.c_void_p]
lib.plumb_engine_destroy.restype = lib.plumb_session_destroy.restype = None


def main():
    if len(sys.argv) < 2:
        sys.exit("usage: chat.py MODEL [MAX_TOKENS]")
    try:
        chat = Chat(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 256)
        for line in sys.stdin:
            if line.strip():
                chat.ask(line.rstrip("\n"), lambda s: print(s, end="", flush=True))
                print()
        chat.close()
    except RuntimeError as problem:
        sys.exit(f"chat.py: {problem}")


if __name__ == "__main__":
    main()
