/* file - a model on disk, untrusted bytes in, a checked table out.
 *
 * Promise: after pl_file_open every tensor handed out has a known dtype, a shape whose element count and byte count
 * do not overflow, and a span inside its mapping that overlaps no other tensor; names are unique. Anything else is a
 * PL_FORMAT error that names file, field, byte offset, what was found and what was expected. Weights are memory
 * mapped and never copied here. Views stay valid until pl_file_close. In a GGUF data is aligned to 8 bytes or more; in
 * safetensors it may lie at any byte (MLX does not pad its headers): read it through pl_dequant_row, memcpy or
 * unaligned loads.
 * A tensor of a type that plumb cannot read does not stop the opening: pl_file_check_readable is asked before a run.
 *
 * Two kinds: GGUF v2/v3 (one file or -00001-of-0000N splits) and directories of Hugging Face or MLX
 * (config.json, safetensors with or without index, tokenizer files). MLX affine triplets (x.weight u32, x.scales,
 * x.biases) appear as one tensor x.weight of dtype PL_MLX. */
#ifndef PL_FILE_FILE_H
#define PL_FILE_FILE_H

#include <jansson.h>

#include "base/str.h"
#include "tensor/tensor.h"

struct pl_file;
struct pl_pool;

enum pl_file_kind { PL_FILE_GGUF, PL_FILE_HF };

enum pl_file_json {
    PL_JSON_CONFIG,
    PL_JSON_TOKENIZER,
    PL_JSON_TOKENIZER_CONFIG,
    PL_JSON_GENERATION,
    PL_JSON_TOKENIZER_LINES, /* an array, of the document on each line of tokenizer.jsonl */
    PL_JSON_COUNT
};

/* path: a .gguf file (any part of a split), a directory, or a config.json/safetensors inside one. */
enum pl_status pl_file_open(const char *path, struct pl_file **out, struct pl_err *err) PL_MUST_CHECK;
void pl_file_close(struct pl_file *f);

enum pl_file_kind pl_file_kind(const struct pl_file *f);
const char *pl_file_path(const struct pl_file *f);
uint64_t pl_file_bytes(const struct pl_file *f); /* of all parts */
/* Hash of metadata and tensor table (not of weights): 32 hex digits. */
const char *pl_file_fingerprint(const struct pl_file *f);

size_t pl_file_tensor_count(const struct pl_file *f);
const struct pl_tensor *pl_file_tensor_at(const struct pl_file *f, size_t i);
const struct pl_tensor *pl_file_tensor(const struct pl_file *f, const char *name); /* NULL: not there */
/* Tells the system that all weights will be read soon (madvise); harmless. */
void pl_file_will_need(const struct pl_file *f);
/* PL_IO when a part has been written to since it was opened: asked when all was read. */
enum pl_status pl_file_check_unchanged(const struct pl_file *f, struct pl_err *err) PL_MUST_CHECK;
/* The tensor's pages may leave this process's memory until somebody reads them again: for a weight that has been copied.
 * Does nothing for files in memory. */
void pl_file_forget(const struct pl_file *f, const struct pl_tensor *t);

/* Refuses NaN and infinite scales of quantised blocks anywhere in the file: reads all quantised weights once, spread over
 * the pool (NULL: this thread). The first bad tensor in file order is named, whatever the thread count. */
enum pl_status pl_file_check_scales(const struct pl_file *f, struct pl_pool *pool, struct pl_err *err) PL_MUST_CHECK;

/* Tensors whose type has a name and a size but no reader here (F8_E4M3, nvfp4 ...): checked like the others, but not
 * in the table above, so that nothing computes with them. */
struct pl_unread_tensor {
    const char *name, *dtype; /* as the file calls them */
    uint32_t ndim;
    uint64_t shape[PL_MAX_DIMS];
    uint64_t bytes;
};
size_t pl_file_unread_count(const struct pl_file *f);
const struct pl_unread_tensor *pl_file_unread_at(const struct pl_file *f, size_t i);
/* PL_UNSUPPORTED when the weights are not whole without them, or packed by a method that plumb does not know. */
enum pl_status pl_file_check_readable(const struct pl_file *f, struct pl_err *err) PL_MUST_CHECK;

/* --- GGUF metadata. On PL_FILE_HF all return PL_NOT_FOUND. --- */
enum pl_gguf_type {
    PL_GGUF_U8,
    PL_GGUF_I8,
    PL_GGUF_U16,
    PL_GGUF_I16,
    PL_GGUF_U32,
    PL_GGUF_I32,
    PL_GGUF_F32,
    PL_GGUF_BOOL,
    PL_GGUF_STRING,
    PL_GGUF_ARRAY,
    PL_GGUF_U64,
    PL_GGUF_I64,
    PL_GGUF_F64,
    PL_GGUF_TYPE_COUNT
};
struct pl_gguf_value {
    struct pl_str key;
    enum pl_gguf_type type;       /* PL_GGUF_ARRAY for arrays */
    enum pl_gguf_type elem_type;  /* of an array (never an array of arrays: refused) */
    uint64_t count;               /* elements of an array, 1 otherwise */
    const struct pl_str *strings; /* string or array of strings: count views into the mapping */
    const void *data;             /* unaligned little-endian scalars of any other type, count of them */
};
size_t pl_gguf_count(const struct pl_file *f);
const struct pl_gguf_value *pl_gguf_at(const struct pl_file *f, size_t i);
const struct pl_gguf_value *pl_gguf_find(const struct pl_file *f, const char *key);
/* Scalars with conversion: integers from any integer type in range, floats from any number. PL_NOT_FOUND when the
 * key is absent (err untouched), PL_FORMAT when its type is wrong (err says which). */
enum pl_status pl_gguf_u64(const struct pl_file *f, const char *key, uint64_t *out, struct pl_err *err);
enum pl_status pl_gguf_f64(const struct pl_file *f, const char *key, double *out, struct pl_err *err);
enum pl_status pl_gguf_bool(const struct pl_file *f, const char *key, bool *out, struct pl_err *err);
enum pl_status pl_gguf_str(const struct pl_file *f, const char *key, struct pl_str *out, struct pl_err *err);
const char *pl_gguf_type_name(enum pl_gguf_type t);
bool pl_gguf_is_integer(enum pl_gguf_type t); /* of any width; a bool is none */
/* Element i of a scalar array as a number; the caller has checked i < count and that it is no string array. */
double pl_gguf_elem_f64(const struct pl_gguf_value *v, uint64_t i);
int64_t pl_gguf_elem_i64(const struct pl_gguf_value *v, uint64_t i);

/* --- Hugging Face side. NULL: the file is not there (or the model is a GGUF). Borrowed references. --- */
const json_t *pl_file_json(const struct pl_file *f, enum pl_file_json which);

/* The chat template's source text, from GGUF metadata (tokenizer.chat_template, or .chat_template.NAME), from
 * chat_template.jinja, from chat_template.json or tokenizer_config.json (string or list of {name, template}).
 * name NULL or "default" picks the default. False: there is none. */
bool pl_file_chat_template(const struct pl_file *f, const char *name, struct pl_str *out);

/* The two parsers over memory, for fuzzing; data must outlive the file. */
enum pl_status pl_gguf_open_memory(const void *data, size_t len, struct pl_file **out, struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_safetensors_open_memory(const void *data, size_t len, struct pl_file **out,
                                          struct pl_err *err) PL_MUST_CHECK;
/* Bounded JSON: depth <= 64 nested levels unless told, duplicate keys refused, whole input consumed, valid UTF-8. */
enum pl_status pl_json_parse(const char *what, const char *data, size_t len, json_t **out, struct pl_err *err) PL_MUST_CHECK;
/* Integers beyond 64 bits, which the parser refuses, become real numbers of the same size in place. */
void pl_json_soften_integers(char *text, size_t len);
enum pl_status pl_json_load(const char *path, size_t max_bytes, json_t **out, struct pl_err *err) PL_MUST_CHECK;

#endif
