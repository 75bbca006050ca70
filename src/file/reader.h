/* reader - what the parts of this folder share: the open file, its parts (mapped files), and message helpers.
 * Nothing outside src/file includes this.
 *
 * Ownership: pl_file owns its parts, the arena (names, string tables) and the JSON documents; everything it hands out
 * is a view into those. A part's bytes are read-only and may be any garbage: every read goes through a bounds check. */
#ifndef PL_FILE_READER_H
#define PL_FILE_READER_H

#include <sys/stat.h>

#include "base/arena.h"
#include "base/map.h"
#include "file/file.h"
#include "file/show.h"

enum { PL_LABEL_BYTES = 200 };

struct pl_part {
    char *path;
    char label[PL_LABEL_BYTES]; /* the path, or its end, fit for messages */
    const uint8_t *data;
    uint64_t len;
    bool mapped;                        /* munmap at close; otherwise borrowed */
    struct stat opened;                 /* mapped: what the file was then */
    uint64_t table_end;                 /* bytes [0, table_end) are metadata and tensor table */
    uint64_t data_start;                /* weights begin here */
    uint64_t split_number, split_count; /* GGUF parts: split.no and split.count; count 0 when absent */
};

struct pl_template_text {
    struct pl_str name, text; /* the default template has the name "default" */
};

struct pl_file {
    enum pl_file_kind kind;
    char *path;
    struct pl_arena arena;
    struct pl_part *parts;
    size_t part_count, part_cap;
    struct pl_tensor *tensors;
    size_t tensor_count, tensor_cap;
    uint32_t *tensor_part; /* which part a tensor lies in; same order and capacity rules as tensors */
    size_t tensor_part_cap;
    struct pl_map tensor_by_name;
    struct pl_unread_tensor *unread; /* owned; until pl_file_set_aside the first of each is also in tensors */
    uint32_t *unread_index;          /* where */
    size_t unread_count, unread_cap, unread_index_cap, set_aside;
    struct pl_err refusal;        /* of the weights as a whole; status PL_OK: none */
    struct pl_gguf_value *values; /* owned */
    size_t value_count;
    struct pl_map value_by_key;
    json_t *json[PL_JSON_COUNT];
    json_t *template_json; /* chat_template.json */
    struct pl_template_text *templates;
    size_t template_count, template_cap;
    char fingerprint[33];
};

/* --- io.c: regular files only, never blocks on a FIFO or device --- */
/* Maps a whole file. An empty file, a directory, a device, a FIFO and a socket are refused by name. */
enum pl_status pl_part_map(const char *path, struct pl_part *out, struct pl_err *err) PL_MUST_CHECK;
void pl_part_unmap(struct pl_part *part);
/* PL_IO when the mapped file itself has been written to since. One that took its name, or that nobody can find any more,
 * leaves the mapping whole. */
enum pl_status pl_part_check_unchanged(const struct pl_part *part, struct pl_err *err) PL_MUST_CHECK;
/* A part over borrowed memory. */
enum pl_status pl_part_borrow(const char *label, const void *data, size_t len, struct pl_part *out,
                              struct pl_err *err) PL_MUST_CHECK;
/* Reads a whole small file into out (appended). */
enum pl_status pl_read_file(const char *path, size_t max_bytes, struct pl_buf *out, struct pl_err *err) PL_MUST_CHECK;
/* The n-th system call of this file from now fails once with EIO (1 = the next, 0 = off); for tests. */
void pl_io_fail_at(uint64_t nth);
uint64_t pl_io_calls(void);

/* --- table.c: the tensor table --- */
enum pl_status pl_file_create(enum pl_file_kind kind, const char *path, struct pl_file **out,
                              struct pl_err *err) PL_MUST_CHECK;
/* Takes the part over on success. */
enum pl_status pl_file_add_part(struct pl_file *f, const struct pl_part *part, struct pl_err *err) PL_MUST_CHECK;
/* Adds a tensor whose name is in the arena. A name that is there already is a PL_FORMAT error that names both places. */
enum pl_status pl_file_add_tensor(struct pl_file *f, const struct pl_tensor *t, size_t part,
                                  struct pl_err *err) PL_MUST_CHECK;
/* The tensor that is added next has a type without a reader. */
enum pl_status pl_file_note_unread(struct pl_file *f, const struct pl_tensor *t, const char *dtype,
                                   struct pl_err *err) PL_MUST_CHECK;
/* Takes those out of the table, once their spans are checked. */
enum pl_status pl_file_set_aside(struct pl_file *f, struct pl_err *err) PL_MUST_CHECK;
/* Drops the marked entries and builds the name table again. */
enum pl_status pl_file_drop_tensors(struct pl_file *f, const bool *drop, struct pl_err *err) PL_MUST_CHECK;
/* Refuses spans that overlap within one part; with no_holes also gaps between data_start and the end of the part. */
enum pl_status pl_file_check_spans(const struct pl_file *f, size_t part, bool no_holes, struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_file_finish(struct pl_file *f, struct pl_err *err) PL_MUST_CHECK; /* fingerprint */
enum pl_status pl_no_memory(const struct pl_part *part, const char *what, struct pl_err *err);
/* Text of the types plumb reads: "f32, f16, ...", for messages. */
void pl_readable_types(bool gguf, char *out, size_t size);

/* --- gguf.c, gguf_split.c --- */
enum pl_status pl_gguf_read_part(struct pl_file *f, size_t part, struct pl_err *err) PL_MUST_CHECK;
/* The end of every way to open one: templates, fingerprint. Takes f: closed unless all, status included, went well. */
enum pl_status pl_gguf_finish(struct pl_file *f, enum pl_status status, struct pl_file **out,
                              struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_gguf_open(const char *path, struct pl_file **out, struct pl_err *err) PL_MUST_CHECK;

/* --- safetensors.c, hf.c, mlx.c --- */
enum pl_status pl_safetensors_read_part(struct pl_file *f, size_t part, struct pl_err *err) PL_MUST_CHECK;
/* path: the directory; weights NULL or the name of the weights file to use. */
enum pl_status pl_hf_open(const char *dir, const char *weights, struct pl_file **out, struct pl_err *err) PL_MUST_CHECK;
/* From config.json alone: notes a quantisation method that plumb cannot read as the file's refusal. */
enum pl_status pl_mlx_check_config(struct pl_file *f, struct pl_err *err) PL_MUST_CHECK;
/* Joins MLX triplets to tensors of PL_MLX. */
enum pl_status pl_mlx_join(struct pl_file *f, struct pl_err *err) PL_MUST_CHECK;

/* --- templates.c --- */
enum pl_status pl_templates_from_gguf(struct pl_file *f, struct pl_err *err) PL_MUST_CHECK;
/* From the documents that are loaded already: chat_template.json, then tokenizer_config.json. */
enum pl_status pl_templates_from_json(struct pl_file *f, struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_templates_from_dir(struct pl_file *f, const char *dir, struct pl_err *err) PL_MUST_CHECK;

#endif
