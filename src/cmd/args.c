#include "cmd/args.h"

#include <stdio.h>
#include <string.h>

#include "base/str.h"
#include "cmd/cmd.h"
#include "cmd/out.h"

const char *pl_args_nearest(const char *typed, const char *const *candidates, size_t count) {
    const char *best = NULL;
    size_t best_distance = 3 < strlen(typed) / 2 ? 3 : strlen(typed) / 2;
    if (best_distance == 0) best_distance = 1;
    for (size_t i = 0; i < count; i++) {
        if (strlen(typed) >= 3 && strncmp(typed, candidates[i], strlen(typed)) == 0) return candidates[i];
        size_t d = pl_edit_distance(typed, candidates[i]);
        if (d <= best_distance && (best == NULL || d < best_distance)) {
            best = candidates[i];
            best_distance = d;
        }
    }
    return best;
}

static bool takes_value(const struct pl_arg *arg) { return arg->kind != PL_ARG_FLAG && arg->kind != PL_ARG_NOFLAG; }

static const struct pl_arg *find_long(const struct pl_args *a, const char *name, size_t len) {
    for (const struct pl_arg *const *g = a->groups; *g != NULL; g++) {
        for (const struct pl_arg *o = *g; o->name != NULL; o++) {
            if (strlen(o->name) == len && memcmp(o->name, name, len) == 0) return o;
        }
    }
    return NULL;
}

static const struct pl_arg *find_short(const struct pl_args *a, char c) {
    for (const struct pl_arg *const *g = a->groups; *g != NULL; g++) {
        for (const struct pl_arg *o = *g; o->name != NULL; o++) {
            if (o->short_name == c) return o;
        }
    }
    return NULL;
}

/* Names that other programs have for the same. */
static const char *known_elsewhere(const struct pl_args *a, const char *typed) {
    static const char *const names[][2] = {{"ctx-size", "context"},
                                           {"num-ctx", "context"},
                                           {"max-model-len", "context"},
                                           {"n-predict", "count"},
                                           {"num-predict", "count"},
                                           {"max-tokens", "count"},
                                           {"temperature", "temp"},
                                           {"system-prompt", "system"},
                                           {"n-gpu-layers", "backend"},
                                           {"gpu-layers", "backend"},
                                           {"repetition-penalty", "repeat-penalty"},
                                           {"cache-type-k", "kv-dtype"},
                                           {"kv-cache-dtype", "kv-dtype"},
                                           {"batch-size", "batch-rows"},
                                           {"text", "prompt"}};
    for (size_t i = 0; i < PL_COUNT_OF(names); i++)
        if (strcmp(typed, names[i][0]) == 0 && find_long(a, names[i][1], strlen(names[i][1])) != NULL) return names[i][1];
    return NULL;
}

static int unknown_option(const struct pl_args *a, const char *name, size_t len) {
    const char *names[128];
    size_t count = 0;
    char typed[64];
    snprintf(typed, sizeof typed, "%.*s", (int)PL_MIN(len, sizeof typed - 1), name);
    for (const struct pl_arg *const *g = a->groups; *g != NULL; g++) {
        for (const struct pl_arg *o = *g; o->name != NULL && count < PL_COUNT_OF(names); o++) names[count++] = o->name;
    }
    const char *near = known_elsewhere(a, typed);
    if (near == NULL) near = pl_args_nearest(typed, names, count);
    if (near != NULL) return pl_cmd_usage(a->command, "unknown option --%s: did you mean --%s?", typed, near);
    return pl_cmd_usage(a->command, "unknown option --%s", typed);
}

static bool store_number(const struct pl_arg *o, const char *value) {
    bool whole = o->min == 0 && o->max == 0;
    int64_t i;
    double d;
    switch (o->kind) {
    case PL_ARG_U32:
        if (!pl_parse_i64(value, whole ? 0 : (int64_t)o->min, whole ? UINT32_MAX : (int64_t)o->max, &i)) return false;
        *(uint32_t *)o->out = (uint32_t)i;
        return true;
    case PL_ARG_I32:
        if (!pl_parse_i64(value, whole ? INT32_MIN : (int64_t)o->min, whole ? INT32_MAX : (int64_t)o->max, &i)) return false;
        *(int32_t *)o->out = (int32_t)i;
        return true;
    case PL_ARG_U64: return pl_parse_u64(value, UINT64_MAX, (uint64_t *)o->out);
    case PL_ARG_F32:
        if (!pl_parse_f64(value, whole ? -3.4e38 : o->min, whole ? 3.4e38 : o->max, &d)) return false;
        *(float *)o->out = (float)d;
        return true;
    default: return false;
    }
}

static enum pl_status bad_number(const struct pl_arg *o, const char *value, struct pl_err *err) {
    const char *kind = o->kind == PL_ARG_F32 ? "a number" : "a whole number";
    double min = o->min, max = o->max;
    if (min == 0 && max == 0 && o->kind == PL_ARG_U32) max = UINT32_MAX;
    if (o->kind == PL_ARG_U64)
        PL_FAIL(err, PL_USAGE, "%s is '%.100s' but must be %s from 0 to 18446744073709551615", o->name, value, kind);
    int digits = o->kind == PL_ARG_F32 ? 7 : 20; /* as many as are exact */
    if (min != 0 || max != 0)
        PL_FAIL(err, PL_USAGE, "%s is '%.100s' but must be %s from %.*g to %.*g", o->name, value, kind, digits, min, digits,
                max);
    PL_FAIL(err, PL_USAGE, "%s is '%.100s' but must be %s", o->name, value, kind);
}

enum pl_status pl_arg_store(const struct pl_arg *o, const char *value, struct pl_err *err) {
    switch (o->kind) {
    case PL_ARG_FLAG: *(bool *)o->out = true; return PL_OK;
    case PL_ARG_NOFLAG: *(bool *)o->out = false; return PL_OK;
    case PL_ARG_STR: *(const char **)o->out = value; return PL_OK;
    case PL_ARG_EACH: return o->each(o->out, value, err);
    default: return store_number(o, value) ? PL_OK : bad_number(o, value, err);
    }
}

/* typed: the option as it stands in the command, "--count" or "-n". */
static int store(const struct pl_args *a, const struct pl_arg *o, const char *typed, const char *value) {
    struct pl_err err = {0};
    if (pl_arg_store(o, value, &err) == PL_OK) return -1;
    if (o->kind == PL_ARG_EACH) return pl_cmd_usage(a->command, "%s: %s", typed, err.text);
    return pl_cmd_usage(a->command, "%s%s", typed, err.text + strlen(o->name)); /* which began with the name */
}

static void print_option(const struct pl_arg *o) {
    char left[64];
    char lead[4] = "   ";
    if (o->short_name != 0) snprintf(lead, sizeof lead, "-%c,", o->short_name);
    snprintf(left, sizeof left, "%s --%s%s%s", lead, o->name, o->value != NULL ? " " : "", o->value != NULL ? o->value : "");
    pl_out_printf("  %-32s %s\n", left, o->help);
}

static void print_help(const struct pl_args *a) {
    pl_out_printf("usage: plumb %s %s\n\n%s\n\n", a->command, a->synopsis, a->about);
    for (const struct pl_arg *const *g = a->groups; *g != NULL; g++) {
        for (const struct pl_arg *o = *g; o->name != NULL; o++) print_option(o);
    }
    pl_out_printf("  -h, --help                       this text\n");
    if (a->examples == NULL) return;
    pl_out_printf("\nExamples:\n");
    for (const char *line = a->examples; *line != '\0';) { /* each two spaces in, each ended */
        size_t lead = strspn(line, " "), len = strcspn(line + lead, "\n");
        pl_out_printf("  %.*s\n", (int)len, line + lead);
        line += lead + len + (line[lead + len] == '\n');
    }
}

static int parse_long(const struct pl_args *a, char **argv, int argc, int *i) {
    const char *body = argv[*i] + 2, *eq = strchr(body, '=');
    size_t len = eq != NULL ? (size_t)(eq - body) : strlen(body);
    const struct pl_arg *o = find_long(a, body, len);
    if (o == NULL) return unknown_option(a, body, len);
    if (!takes_value(o)) {
        if (eq != NULL) return pl_cmd_usage(a->command, "--%s takes no value", o->name);
        return store(a, o, NULL, NULL);
    }
    char typed[64];
    snprintf(typed, sizeof typed, "--%s", o->name);
    if (eq != NULL) return store(a, o, typed, eq + 1);
    if (*i + 1 >= argc) return pl_cmd_usage(a->command, "--%s needs a value (%s)", o->name, o->value);
    return store(a, o, typed, argv[++*i]);
}

static int parse_short(const struct pl_args *a, char **argv, int argc, int *i) {
    for (const char *p = argv[*i] + 1; *p != '\0'; p++) {
        const struct pl_arg *o = find_short(a, *p);
        const char typed[] = {'-', *p, '\0'};
        if (o == NULL) return pl_cmd_usage(a->command, "unknown option -%c", *p);
        if (takes_value(o)) {
            if (p[1] != '\0') return store(a, o, typed, p + 1);
            if (*i + 1 >= argc) return pl_cmd_usage(a->command, "-%c needs a value (%s)", *p, o->value);
            return store(a, o, typed, argv[++*i]);
        }
        int code = store(a, o, typed, NULL);
        if (code != -1) return code;
    }
    return -1;
}

/* Where a command names its model by -m and nothing else without a name, the first such word is the model. */
static bool take_model(const struct pl_args *a, const char *word, bool *taken) {
    const struct pl_arg *o = a->positional_max == 0 ? find_long(a, "model", 5) : NULL;
    if (o == NULL || o->kind != PL_ARG_STR || *taken) return false;
    *taken = true;
    const char **model = o->out;
    if (*model != NULL) return false; /* -m came before */
    *model = word;
    return true;
}

int pl_args_parse(struct pl_args *a, int argc, char **argv) {
    bool only_positional = false, model_taken = false;
    a->positional_count = 0;
    for (int i = 1; i < argc; i++) {
        const char *s = argv[i];
        int code = -1;
        if (!only_positional && strcmp(s, "--") == 0) {
            only_positional = true;
        } else if (!only_positional && (strcmp(s, "--help") == 0 || strcmp(s, "-h") == 0)) {
            print_help(a);
            return pl_out_close();
        } else if (!only_positional && strncmp(s, "--", 2) == 0) {
            code = parse_long(a, argv, argc, &i);
        } else if (!only_positional && s[0] == '-' && s[1] != '\0') {
            code = parse_short(a, argv, argc, &i);
        } else if (a->positional_count < a->positional_max) {
            a->positional[a->positional_count++] = s;
        } else if (!take_model(a, s, &model_taken)) {
            return pl_cmd_usage(a->command, "unexpected argument '%.100s'", s);
        }
        if (code != -1) return code;
    }
    return -1;
}
