/* Configurations as published models have them (tests/golden/configs.json, all fields): each is read as expected there, or
 * refused with the expected reason. Only what is named there is compared. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <math.h>

#include "model/model.h"
#include "tests/model/config_dir.h"

static enum pl_status read_config(const json_t *config, struct pl_model_config *c, struct pl_err *err) {
    char *text = json_dumps(config, JSON_COMPACT);
    struct pl_file *f;
    assert_non_null(text);
    write_file("config.json", text, strlen(text));
    free(text);
    *err = (struct pl_err){0};
    PL_TRY(pl_file_open(dir, &f, err));
    enum pl_status st = pl_file_check_readable(f, err);
    if (st == PL_OK) st = pl_model_config_read(f, c, err);
    pl_file_close(f);
    return st;
}

static double count(const bool *flags, uint32_t layers) {
    uint32_t n = 0;
    for (uint32_t l = 0; l < layers; l++) n += flags[l];
    return n;
}

/* A number of the configuration by the name that configs.json has for it. */
static double number(const struct pl_model_config *c, const char *name) {
    const struct {
        const char *name;
        double value;
    } all[] = {{"layers", c->layers},
               {"heads", c->heads},
               {"kv_heads", c->kv_heads},
               {"head_dim", c->head_dim},
               {"vocab", c->vocab},
               {"mlp_width", c->mlp_width},
               {"context", c->context_train},
               {"limit", c->context_limit},
               {"tied", c->tied_embeddings},
               {"qkv_bias", c->qkv_bias},
               {"qk_norm", c->qk_norm},
               {"windowed", count(c->layer_windowed, c->layers)},
               {"nope", count(c->layer_nope, c->layers)},
               {"rope_dim", c->rope_dim},
               {"rope_base", (double)c->rope_base},
               {"rope_base_local", (double)c->rope_base_local},
               {"rope_orig", c->rope_context_orig},
               {"attn_factor", (double)c->rope_attn_factor},
               {"truncate", c->rope_truncate},
               {"attn_scale", (double)c->attn_scale},
               {"embed_scale", (double)c->embed_scale},
               {"logit_scale", (double)c->logit_scale},
               {"softcap", (double)c->logit_softcap},
               {"experts", c->experts},
               {"experts_used", c->experts_used},
               {"expert_width", c->expert_width},
               {"shared", c->shared_width},
               {"groups", c->expert_groups},
               {"renormalise", c->experts_renormalise},
               {"moe_layers", count(c->layer_moe, c->layers)},
               {"query_rank", c->query_rank},
               {"latent", c->latent},
               {"state_layers", c->state_layers},
               {"kv_layers", c->kv_layers}};
    for (size_t i = 0; i < PL_COUNT_OF(all); i++)
        if (strcmp(all[i].name, name) == 0) return all[i].value;
    return NAN; /* no expectation of that name can hold */
}

static const char *word(const struct pl_model_config *c, const char *name) {
    static const char *const ropes[] = {[PL_ROPE_NONE] = "none", [PL_ROPE_LINEAR] = "linear", [PL_ROPE_LLAMA3] = "llama3",
                                        [PL_ROPE_YARN] = "yarn", [PL_ROPE_LONG] = "longrope", [PL_ROPE_DYNAMIC] = "dynamic"};
    return strcmp(name, "arch") == 0 ? pl_arch_name(c->arch) : strcmp(name, "rope") == 0 ? ropes[c->rope_scaling] : "";
}

static size_t differences(const char *model, const json_t *expect, const struct pl_model_config *c) {
    const char *name;
    json_t *v;
    size_t n = 0;
    json_object_foreach((json_t *)(uintptr_t)expect, name, v) {
        double want = json_is_boolean(v) ? json_is_true(v) : json_number_value(v), got = number(c, name);
        bool same = json_is_string(v) ? strcmp(word(c, name), json_string_value(v)) == 0
                                      : fabs(got - want) <= 2e-6 * fmax(1, fabs(want));
        if (!same) print_message("# %s: %s is %g '%s'\n", model, name, got, word(c, name));
        n += !same;
    }
    return n;
}

static void published_configurations(void **state) {
    json_error_t error;
    json_t *all = json_load_file("tests/golden/configs.json", JSON_REJECT_DUPLICATES, &error), *one;
    const char *model;
    size_t bad = 0, read = 0, refused = 0;
    (void)state;
    if (all == NULL) fail_msg("tests/golden/configs.json:%d: %s", error.line, error.text);
    json_object_foreach(all, model, one) {
        static struct pl_model_config c;
        struct pl_err err;
        const json_t *expect = json_object_get(one, "expect"), *reason = json_object_get(expect, "refused");
        enum pl_status st = read_config(json_object_get(one, "config"), &c, &err);
        if (reason != NULL && (st != PL_UNSUPPORTED || strstr(err.text, json_string_value(reason)) == NULL)) {
            print_message("# %s: %s %s\n", model, pl_status_name(st), err.text);
            bad++;
        }
        if (reason == NULL && st != PL_OK) print_message("# %s: %s\n", model, err.text);
        if (reason == NULL) bad += st == PL_OK ? differences(model, expect, &c) : 1;
        read += reason == NULL;
        refused += reason != NULL;
    }
    json_decref(all);
    print_message("# %zu read, %zu refused\n", read, refused);
    assert_int_equal(bad, 0);
    assert_true(read > 40 && refused > 15);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(published_configurations)};
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
