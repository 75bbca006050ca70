/* A Hugging Face or MLX directory: config.json, weights with or without an index, tokenizer files. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "file/reader.h"

static const char index_name[] = "model.safetensors.index.json";
static const char single_name[] = "model.safetensors";

enum { MAX_SHARDS = 10000, MAX_INDEX_BYTES = 256 << 20 };

static const struct {
    const char *name;
    size_t max_bytes;
} json_files[PL_JSON_COUNT] = {
    [PL_JSON_CONFIG] = {"config.json", 16u << 20},
    [PL_JSON_TOKENIZER] = {"tokenizer.json", 512u << 20},
    [PL_JSON_TOKENIZER_CONFIG] = {"tokenizer_config.json", 128u << 20},
    [PL_JSON_GENERATION] = {"generation_config.json", 16u << 20},
    [PL_JSON_TOKENIZER_LINES] = {"tokenizer.jsonl", 128u << 20},
};

/* The directory being opened, and a buffer for paths in it. */
struct dir {
    struct pl_file *file;
    const char *path;
    struct pl_buf buf;
    struct pl_err *err;
};

static enum pl_status join(struct dir *d, const char *name, const char **out) {
    pl_buf_clear(&d->buf);
    pl_buf_printf(&d->buf, "%s/%s", d->path, name);
    if (!pl_buf_ok(&d->buf)) PL_FAIL(d->err, PL_NO_MEMORY, "%s: no memory for a path", PL_SHOWN_C(d->path));
    *out = pl_buf_cstr(&d->buf);
    return PL_OK;
}

static enum pl_status exists(struct dir *d, const char *name, bool *out) {
    const char *path = NULL;
    struct stat st;
    PL_TRY(join(d, name, &path));
    *out = stat(path, &st) == 0;
    return PL_OK;
}

/* Loads a JSON object if the file is there; *out stays NULL when it is not. */
static enum pl_status load_object(struct dir *d, const char *name, size_t max_bytes, json_t **out) {
    const char *path = NULL;
    json_t *root = NULL;
    struct pl_err inner = {0};
    PL_TRY(join(d, name, &path));
    enum pl_status status = pl_json_load(path, max_bytes, &root, &inner);
    if (status == PL_NOT_FOUND) return PL_OK;
    if (status != PL_OK) {
        if (d->err != NULL) *d->err = inner;
        return status;
    }
    if (!json_is_object(root)) {
        json_decref(root);
        PL_FAIL(d->err, PL_FORMAT, "%s: the top of the document (byte 0) is not an object", PL_SHOWN_C(path));
    }
    *out = root;
    return PL_OK;
}

static enum pl_status add_lines(const char *path, const struct pl_buf *text, json_t *all, struct pl_err *err) {
    for (size_t at = 0, number = 1; at < text->len; number++) {
        const char *from = text->data + at, *end = memchr(from, '\n', text->len - at);
        size_t n = end != NULL ? (size_t)(end - from) : text->len - at;
        json_t *one = NULL;
        at += n + 1;
        if (n == 0 || (n == 1 && from[0] == '\r')) continue;
        enum pl_status st = pl_json_parse(path, from, n, &one, err);
        if (st != PL_OK) {
            (void)pl_err_note(err, "reading line %zu", number);
            return st;
        }
        if (json_array_append_new(all, one) != 0)
            PL_FAIL(err, PL_NO_MEMORY, "%s: no memory for its lines", PL_SHOWN_C(path));
    }
    return PL_OK;
}

/* The document of every line, as one array; *out stays NULL when the file is not there. */
static enum pl_status load_lines(struct dir *d, const char *name, size_t max_bytes, json_t **out) {
    const char *path = NULL;
    struct pl_buf text = {0};
    bool there = false;
    PL_TRY(exists(d, name, &there));
    if (!there) return PL_OK;
    PL_TRY(join(d, name, &path));
    enum pl_status st = pl_read_file(path, max_bytes, &text, d->err);
    json_t *all = json_array();
    if (st == PL_OK && all == NULL) st = pl_err_set(d->err, __FILE__, __LINE__, PL_NO_MEMORY, "no memory for %s", name);
    if (st == PL_OK) st = add_lines(path, &text, all, d->err);
    pl_buf_deinit(&text);
    if (st == PL_OK)
        *out = all;
    else
        json_decref(all);
    return st;
}

/* The first name in the directory, in byte order, that ends in one of two ways; "" when there is none. */
static void find_name(const char *path, const char *end1, const char *end2, char *out, size_t size) {
    out[0] = '\0';
    DIR *dir = opendir(path);
    if (dir == NULL) return;
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
        struct pl_str name = pl_str_from(e->d_name);
        if (!pl_str_ends(name, end1) && !pl_str_ends(name, end2)) continue;
        if (out[0] == '\0' || strcmp(e->d_name, out) < 0) snprintf(out, size, "%s", e->d_name);
    }
    closedir(dir);
}

/* Other things that hold weights, the first that is there counts: how their names end, and what to do about them. */
static const struct {
    const char *end1, *end2, *advice;
} others[] = {
    {".gguf", ".gguf", ": name that file"},
    {"adapter_config.json", "adapter_model.safetensors",
     ": an adapter holds only what it changes in another model; merge it into that one"},
    {"params.json", "consolidated.safetensors", ": Mistral's own layout is not read; take the files with config.json"},
    {".safetensors", ".safetensors", ": name that file if it is the whole model; shards need their index"},
    {".bin", ".pth", ", but pickled weights are not read: convert them to safetensors"},
};

/* What else there is in the directory, to say something useful. */
static void find_other(const char *path, char *out, size_t size) {
    char name[256];
    out[0] = '\0';
    for (size_t i = 0; i < PL_COUNT_OF(others); i++) {
        find_name(path, others[i].end1, others[i].end2, name, sizeof name);
        if (name[0] == '\0') continue;
        snprintf(out, size, "; it holds %s%s", PL_SHOWN_C(name), others[i].advice);
        return;
    }
}

static enum pl_status load_documents(struct dir *d) {
    struct pl_file *f = d->file;
    for (int i = 0; i < PL_JSON_TOKENIZER_LINES; i++)
        PL_TRY(load_object(d, json_files[i].name, json_files[i].max_bytes, &f->json[i]));
    if (f->json[PL_JSON_TOKENIZER] == NULL)
        PL_TRY(load_lines(d, json_files[PL_JSON_TOKENIZER_LINES].name, json_files[PL_JSON_TOKENIZER_LINES].max_bytes,
                          &f->json[PL_JSON_TOKENIZER_LINES]));
    PL_TRY(load_object(d, "chat_template.json", 16u << 20, &f->template_json));
    if (f->json[PL_JSON_CONFIG] != NULL) return PL_OK;
    char other[256];
    find_other(d->path, other, sizeof other);
    PL_FAIL(d->err, PL_NOT_FOUND, "%s is a directory without config.json; looked for config.json, %s, %s, tokenizer.json%s",
            PL_SHOWN_C(d->path), index_name, single_name, other);
}

static enum pl_status add_shard(struct dir *d, const char *name) {
    struct pl_part part;
    const char *path = NULL;
    PL_TRY(join(d, name, &path));
    PL_TRY(pl_part_map(path, &part, d->err));
    enum pl_status status = pl_file_add_part(d->file, &part, d->err);
    if (status != PL_OK) {
        pl_part_unmap(&part);
        return status;
    }
    return pl_safetensors_read_part(d->file, d->file->part_count - 1, d->err);
}

/* A shard is a file of this directory: no separators, no dot files, nothing that could lead elsewhere. */
static enum pl_status check_shard_name(struct dir *d, const char *tensor, const json_t *file) {
    struct pl_str name = pl_str_from(json_is_string(file) ? json_string_value(file) : "");
    if (name.len != json_string_length(file) || name.len > 255 || !pl_str_ends(name, ".safetensors") ||
        name.data[0] == '.' || strchr(name.data, '/') != NULL) {
        PL_FAIL(d->err, PL_FORMAT,
                "%s: weight_map entry %s is '%s'; expected the name of a .safetensors file in the same directory",
                index_name, PL_SHOWN_C(tensor), pl_shown(name).s);
    }
    return PL_OK;
}

static enum pl_status open_shards(struct dir *d, const json_t *map, struct pl_map *shards) {
    const char *tensor;
    json_t *file;
    json_object_foreach((json_t *)(uintptr_t)map, tensor, file) {
        PL_TRY(check_shard_name(d, tensor, file));
        const char *name = json_string_value(file);
        bool existed;
        if (pl_map_put(shards, name, strlen(name), (uint32_t)shards->count, &existed) != PL_OK) {
            PL_FAIL(d->err, PL_NO_MEMORY, "%s: no memory for the list of shards", index_name);
        }
        if (existed) continue;
        if (shards->count > MAX_SHARDS) PL_FAIL(d->err, PL_LIMIT, "%s: more than %d shards", index_name, MAX_SHARDS);
        enum pl_status status = add_shard(d, name);
        if (status != PL_OK) {
            pl_err_note(d->err, "reading shard %s, which %s lists for tensor %s", PL_SHOWN_C(name), index_name,
                        PL_SHOWN_C(tensor));
            return status;
        }
    }
    return PL_OK;
}

static enum pl_status check_index(struct dir *d, const json_t *map, const struct pl_map *shards) {
    const struct pl_file *f = d->file;
    const char *tensor;
    json_t *file;
    json_object_foreach((json_t *)(uintptr_t)map, tensor, file) {
        uint32_t shard = 0, at = 0;
        const char *name = json_string_value(file);
        bool known = pl_map_get(shards, name, strlen(name), &shard);
        PL_ASSERT(known);
        bool found = pl_map_get(&f->tensor_by_name, tensor, strlen(tensor), &at);
        if (found && f->tensor_part[at] == shard) continue;
        PL_FAIL(
            d->err, PL_FORMAT,
            "%s is stale: it says tensor %s is in %s, but it is %s%s; download the directory again so that all files are of "
            "one revision",
            index_name, PL_SHOWN_C(tensor), PL_SHOWN_C(name), found ? "in " : "in no shard",
            found ? f->parts[f->tensor_part[at]].label : "");
    }
    return PL_OK;
}

static enum pl_status open_index(struct dir *d, const json_t *index) {
    const json_t *map = json_object_get(index, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0) {
        PL_FAIL(d->err, PL_FORMAT, "%s: weight_map is missing, empty or no object; expected {tensor: file}", index_name);
    }
    struct pl_map shards;
    pl_map_init(&shards);
    enum pl_status status = open_shards(d, map, &shards);
    if (status == PL_OK) status = check_index(d, map, &shards);
    pl_map_deinit(&shards);
    return status;
}

static bool index_lists(const json_t *index, const char *weights) {
    const char *tensor;
    json_t *file;
    json_object_foreach(json_object_get(index, "weight_map"), tensor, file) {
        if (json_is_string(file) && strcmp(json_string_value(file), weights) == 0) return true;
    }
    return false;
}

/* With an index, weights NULL or one of its shards means all shards; any other named file stands alone. */
static enum pl_status open_weights(struct dir *d, const char *weights, const json_t *index) {
    bool names_index = weights != NULL && pl_str_ends(pl_str_from(weights), ".index.json");
    if (names_index || (index != NULL && weights != NULL && index_lists(index, weights))) {
        if (index == NULL || (names_index && strcmp(weights, index_name) != 0)) {
            PL_FAIL(d->err, PL_NOT_FOUND, "%s: no %s in %s", PL_SHOWN_C(weights), index_name, PL_SHOWN_C(d->path));
        }
        return open_index(d, index);
    }
    if (weights != NULL) {
        if (strstr(weights, "-of-0") != NULL && strstr(weights, "-00001-of-00001") == NULL) {
            PL_FAIL(d->err, PL_NOT_FOUND, "%s is one shard of several; expected %s beside it that lists it",
                    PL_SHOWN_C(weights), index_name);
        }
        return add_shard(d, weights);
    }
    bool single = false;
    PL_TRY(exists(d, single_name, &single));
    if (index != NULL && single && !index_lists(index, single_name)) {
        PL_FAIL(d->err, PL_FORMAT, "%s holds both %s and an %s that does not list it; name one of the two files",
                PL_SHOWN_C(d->path), single_name, index_name);
    }
    if (index != NULL) return open_index(d, index);
    if (single) return add_shard(d, single_name);
    char other[256];
    find_other(d->path, other, sizeof other);
    PL_FAIL(d->err, PL_NOT_FOUND, "%s has config.json but no weights; looked for %s and %s%s", PL_SHOWN_C(d->path),
            index_name, single_name, other);
}

static enum pl_status read_all(struct dir *d, const char *weights) {
    json_t *index = NULL;
    PL_TRY(load_documents(d));
    PL_TRY(pl_mlx_check_config(d->file, d->err)); /* before the weights: its message is the clearer one */
    PL_TRY(load_object(d, index_name, MAX_INDEX_BYTES, &index));
    enum pl_status status = open_weights(d, weights, index);
    json_decref(index);
    PL_TRY(status);
    PL_TRY(pl_mlx_join(d->file, d->err));
    PL_TRY(pl_templates_from_dir(d->file, d->path, d->err));
    return pl_file_finish(d->file, d->err);
}

enum pl_status pl_hf_open(const char *path, const char *weights, struct pl_file **out, struct pl_err *err) {
    struct dir d = {.path = path, .err = err};
    PL_TRY(pl_file_create(PL_FILE_HF, path, &d.file, err));
    enum pl_status status = read_all(&d, weights);
    pl_buf_deinit(&d.buf);
    if (status != PL_OK) {
        pl_file_close(d.file);
        return status;
    }
    *out = d.file;
    return PL_OK;
}
