/* plumb - public C API. Two handles: an engine is a loaded model on one backend, a session is one timeline of tokens.
 *
 * Usable from any language through FFI: plain structs, C strings in UTF-8, no callbacks but the streaming one.
 * Threads: an engine may be used from one thread at a time; different engines are independent.
 * Ownership: every *_create has its *_destroy; strings returned through char ** are released with plumb_string_free.
 * Sessions are destroyed before their engine. A NULL handle or out-pointer is PLUMB_INVALID; destroying NULL does nothing.
 * Errors: functions return 0 or a plumb_status code; the sentence is in struct plumb_error, which may be NULL. Out-pointers
 * are written on success only, unless said otherwise.
 * Structs that may grow carry their own size first: set it with sizeof, zero the rest, defaults apply.
 * stderr: creating an engine says which kernel backend it took and how its KV cache is laid out; nothing goes to stdout. */
#ifndef PLUMB_H
#define PLUMB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PLUMB_API     __attribute__((visibility("default")))
#define PLUMB_VERSION "0.1.0"

struct plumb_engine;
struct plumb_session;

/* The codes of src/base/status.h, same numbers. */
enum plumb_status {
    PLUMB_OK,
    PLUMB_USAGE,       /* of the command line: not from these functions */
    PLUMB_INVALID,     /* an argument or option that cannot be */
    PLUMB_FORMAT,      /* a file is damaged or not what it claims to be */
    PLUMB_NOT_FOUND,   /* a file, library or device */
    PLUMB_UNSUPPORTED, /* a model, type or kernel that plumb has no code for; with strict also one that is not the planned */
    PLUMB_IO,
    PLUMB_NO_MEMORY,
    PLUMB_LIMIT, /* something does not fit: tokens into the context, ids into a buffer, a model into memory */
    PLUMB_BUSY,  /* of the server, as is the next: not from these functions */
    PLUMB_CANCELLED,
    PLUMB_DEVICE, /* the device failed: the engine can only be destroyed */
    PLUMB_INTERNAL
};
struct plumb_error {
    int status;
    char text[1024]; /* UTF-8: one sentence, then "while ..." notes on lines of their own; empty when status is 0 */
};

PLUMB_API const char *plumb_version(void);
PLUMB_API const char *plumb_build_id(void); /* compiler, flags and source hash of this library */

struct plumb_engine_options {
    size_t size;           /* sizeof(struct plumb_engine_options) */
    const char *model;     /* file or directory */
    const char *backend;   /* "auto" (NULL), "cpu", "cuda", "rocm", "opencl" */
    int32_t device;        /* index on that backend */
    int32_t threads;       /* 0 = one for each core that may be used */
    const char *isa;       /* CPU instruction set by name; NULL = best */
    uint32_t context;      /* tokens a session may hold; 0 = the smaller of the model's own and 4096 */
    uint32_t max_sessions; /* 0 = 1 */
    uint32_t batch_rows;   /* rows of one prefill step; 0 = 512 */
    const char *kv_dtype;  /* "f16" (NULL), "bf16", "f32", "int8", "fp8", "k8v4" */
    uint32_t page_tokens;  /* 0 = 32 */
    bool strict;           /* any kernel that is not the planned one is an error */
    uint64_t memory_limit; /* bytes; 0 = what the machine has */
    void (*progress)(void *user, uint64_t done_bytes, uint64_t total_bytes); /* while loading; may be NULL */
    void *progress_user;
    uint32_t logit_rows;         /* most rows of logits one step may give; 0 = max_sessions */
    const char *force_kernels;   /* "operation=implementation,..."; NULL = by plan */
    const char *disable_kernels; /* likewise: these are passed over */
    const char *jit_cache;       /* devices: "on" (NULL), "off", "verify" */
    bool uncounted;              /* devices: kernels do not count their launches (to measure what that costs) */
    uint64_t kv_memory;          /* bytes of KV pages, at least one session's; 0 = all sessions at full context */
    const char *attention;       /* decode attention: "auto" (NULL), "v1", "v2", "cascade", "gather" */
    const char *attention_off;   /* forms of it that are switched off: "cascade,v2"; NULL: none */
    const char *kv_layout;       /* "paged", "dense" (one run of memory a session, nothing shared), "auto" (NULL) */
    bool invariant;              /* a session's logits do not depend on what else runs in a step; slower */
    bool no_graphs;              /* devices: kernels are launched one by one instead of as a graph; slower */
    bool pin;                    /* CPU: each thread stays on one CPU; so does a thread that calls the engine */
    bool no_ahead; /* devices: a step is launched only when the last one's tokens were read (to measure what that costs) */
    float sparse_values; /* in [0, 1): attention does not read values whose weight is below this; 0: it reads all */
};
PLUMB_API int plumb_engine_create(const struct plumb_engine_options *opt, struct plumb_engine **out,
                                  struct plumb_error *err);
PLUMB_API void plumb_engine_destroy(struct plumb_engine *e);
/* A JSON object: model, architecture, sizes, memory budget, backend, kernels. */
PLUMB_API int plumb_engine_info(struct plumb_engine *e, char **json, struct plumb_error *err);
/* A JSON object (schema plumb-witness-1, docs/verify.md): every kernel that ran since the last reset, with launches
 * counted by the host and by the device, and how each choice of an implementation ended. */
PLUMB_API int plumb_engine_witness(struct plumb_engine *e, bool reset, char **json, struct plumb_error *err);
PLUMB_API void plumb_string_free(char *s);

/* ids: call with capacity 0 to learn *count. Fewer than that are PLUMB_LIMIT, with *count set. text may hold zero bytes.
 * add_special: BOS and EOS as the model's settings say; parse_special: names of special tokens in text become those. */
PLUMB_API int plumb_tokenize(struct plumb_engine *e, const char *text, size_t len, bool add_special, bool parse_special,
                             uint32_t *ids, size_t capacity, size_t *count, struct plumb_error *err);
PLUMB_API int plumb_detokenize(struct plumb_engine *e, const uint32_t *ids, size_t count, bool show_special, char **text,
                               struct plumb_error *err);
/* messages_json: [{"role","content",...}]; tools_json may be NULL. The prompt text; the ids that a session should get
 * (user content never becomes a special token) come from plumb_chat_tokenize. */
PLUMB_API int plumb_chat_render(struct plumb_engine *e, const char *messages_json, const char *tools_json,
                                bool add_generation_prompt, char **text, struct plumb_error *err);
PLUMB_API int plumb_chat_tokenize(struct plumb_engine *e, const char *messages_json, const char *tools_json,
                                  bool add_generation_prompt, uint32_t *ids, size_t capacity, size_t *count,
                                  struct plumb_error *err);

/* PLUMB_LIMIT when max_sessions of the engine exist. */
PLUMB_API int plumb_session_create(struct plumb_engine *e, struct plumb_session **out, struct plumb_error *err);
PLUMB_API void plumb_session_destroy(struct plumb_session *s);
PLUMB_API uint32_t plumb_session_length(const struct plumb_session *s); /* tokens it holds; 0 of NULL */
/* Forgets all but the first length tokens (PLUMB_INVALID when it holds fewer) and, if there were more, the logits. Where
 * layers have a sliding window (by more than 256 tokens), or a recurrent state, the next append first computes what is left
 * again. */
PLUMB_API int plumb_session_truncate(struct plumb_session *s, uint32_t length, struct plumb_error *err);
/* Appends ids (prefill in chunks). Afterwards plumb_session_logits holds the logits of the last one. On failure the session
 * is as before, but may have lost its logits; PLUMB_LIMIT when the context has no room for all of them. */
PLUMB_API int plumb_session_append(struct plumb_session *s, const uint32_t *ids, size_t count, struct plumb_error *err);
/* [V] f32, valid until the next call on the session's engine; NULL before any append. */
PLUMB_API const float *plumb_session_logits(const struct plumb_session *s, uint32_t *vocab);

struct plumb_logit_bias {
    uint32_t id;
    float bias; /* added to the logit: -1000 to 1000, or -INFINITY, which bans the token */
};
/* plumb_sampling_default fills it with what stands in brackets. The same seed and tokens give the same choice. */
struct plumb_sampling {
    size_t size;
    float temperature;        /* 0 = the most likely token, the lowest id of equals; up to 100 [0.8] */
    float top_p;              /* above 0, 1 = off [0.95] */
    float min_p;              /* below 1, 0 = off [0.05] */
    float typical_p;          /* above 0, 1 = off [1] */
    float repetition_penalty; /* above 0, 1 = off [1] */
    float presence_penalty;   /* -2 to 2 [0] */
    float frequency_penalty;  /* likewise [0] */
    uint32_t top_k;           /* 0 = off [40] */
    int32_t penalty_last_n;   /* tokens that the three penalties look back on; -1 = all, 0 = none [64] */
    uint64_t seed;            /* [0] */
    const struct plumb_logit_bias *bias;
    size_t bias_count;
};
PLUMB_API void plumb_sampling_default(struct plumb_sampling *s);

/* max_tokens reached; the model ended its turn (that token is not reported or appended); on_token said stop (its token was
 * appended); the session holds as many tokens as its context allows. */
enum plumb_finish { PLUMB_FINISH_LENGTH, PLUMB_FINISH_STOP, PLUMB_FINISH_CALLBACK, PLUMB_FINISH_CONTEXT };
struct plumb_generate_options {
    size_t size;                    /* must be sizeof(struct plumb_generate_options) */
    struct plumb_sampling sampling; /* sampling.size 0: defaults */
    uint32_t max_tokens;            /* 0 = none */
    bool ignore_eos;                /* tokens that end a turn do not end it */
    bool show_special;              /* special tokens are text, by their names */
    bool logprob;      /* report the chosen token's log-probability even when logprobs is 0; otherwise it is NaN */
    uint32_t logprobs; /* how many alternatives to report, 0..20 */
    /* Called for every token, before it is appended; text is the bytes that became complete characters (may be empty).
     * logprob is of the model's own distribution, before penalties and filters. Return false to stop. When the text ends
     * inside a character, one more call with id UINT32_MAX brings U+FFFD. */
    bool (*on_token)(void *user, uint32_t id, const char *text, size_t len, double logprob, const uint32_t *top_ids,
                     const double *top_logprobs, size_t top_count);
    void *user;
};
/* Samples from the session's logits, appends, repeats. generated and finish may be NULL; *generated tokens were appended,
 * told also when a step failed. PLUMB_INVALID when there are no logits: append something first. */
PLUMB_API int plumb_session_generate(struct plumb_session *s, const struct plumb_generate_options *opt, uint32_t *generated,
                                     enum plumb_finish *finish, struct plumb_error *err);

#ifdef __cplusplus
}
#endif
#endif
