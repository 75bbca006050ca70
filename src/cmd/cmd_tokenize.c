/* tokenize and detokenize - text to ids and back, without loading weights. */
#include <string.h>

#include "cmd/cmd.h"
#include "cmd/common.h"
#include "cmd/out.h"

struct tokens_cmd {
    struct pl_model_opts model;
    const char *text, *file;
    bool add_special, parse_special, show_special;
    struct pl_file *f;
    struct pl_tokenizer *tok;
    struct pl_buf in, out;
    struct pl_ids ids;
};

static enum pl_status open_tokenizer(struct tokens_cmd *c, struct pl_err *err) {
    PL_TRY(pl_cmd_open_file(&c->model, &c->f, err));
    return pl_tokenizer_create(c->f, &c->tok, err);
}

/* Text from -p, -f or, when neither is given, standard input. */
static enum pl_status read_input(struct tokens_cmd *c, struct pl_err *err) {
    if (c->text == NULL && c->file == NULL) c->file = "-";
    return pl_cmd_read_text(c->text, c->file, &c->in, err);
}

static enum pl_status tokenize(struct tokens_cmd *c, struct pl_err *err) {
    struct pl_encode_options opt = {.add_special = c->add_special, .parse_special = c->parse_special};
    PL_TRY(open_tokenizer(c, err));
    PL_TRY(read_input(c, err));
    PL_TRY(pl_tokenizer_encode(c->tok, pl_buf_cstr(&c->in), c->in.len, &opt, &c->ids, err));
    pl_cmd_print_ids(c->ids.data, c->ids.len);
    return PL_OK;
}

static enum pl_status detokenize(struct tokens_cmd *c, struct pl_err *err) {
    PL_TRY(open_tokenizer(c, err));
    PL_TRY(read_input(c, err));
    PL_TRY(pl_cmd_parse_ids(pl_buf_cstr(&c->in), c->in.len, &c->ids, err));
    for (size_t i = 0; i < c->ids.len; i++) {
        if (c->ids.data[i] >= pl_tokenizer_vocab_size(c->tok))
            PL_FAIL(err, PL_INVALID, "id %zu of the list is %u but the vocabulary has %u tokens", i, c->ids.data[i],
                    pl_tokenizer_vocab_size(c->tok));
    }
    enum pl_status s = pl_tokenizer_decode(c->tok, c->ids.data, c->ids.len, c->show_special, &c->out);
    if (s != PL_OK) PL_FAIL(err, s, "the ids could not be turned into text: %s", pl_status_text(s));
    if (!pl_buf_ok(&c->out)) PL_FAIL(err, PL_NO_MEMORY, "out of memory for the text");
    pl_out_write(pl_buf_cstr(&c->out), c->out.len);
    return PL_OK;
}

static int run(struct tokens_cmd *c, struct pl_args *args, enum pl_status (*work)(struct tokens_cmd *, struct pl_err *),
               int argc, char **argv) {
    struct pl_err err = {0};
    int code = pl_args_parse(args, argc, argv);
    if (code != -1) return code;
    enum pl_status s = work(c, &err);
    if (c->tok != NULL) pl_tokenizer_destroy(c->tok);
    if (c->f != NULL) pl_file_close(c->f);
    pl_buf_deinit(&c->in);
    pl_buf_deinit(&c->out);
    pl_ids_deinit(&c->ids);
    if (s == PL_OK) return pl_out_close();
    err.status = s;
    return pl_cmd_fail(args->command, &err);
}

int pl_cmd_tokenize(int argc, char **argv) {
    struct tokens_cmd c = {.add_special = true, .parse_special = true};
    const struct pl_arg own[] = {
        {'m', "model", "MODEL", PL_ARG_STR, &c.model.model, "file, directory, stored name or hf:owner/repo[:file]", 0, 0,
         NULL},
        {'p', "prompt", "TEXT", PL_ARG_STR, &c.text, "the text (default: standard input)", 0, 0, NULL},
        {'f', "file", "FILE", PL_ARG_STR, &c.file, "the text is this file's bytes", 0, 0, NULL},
        {0, "no-special", NULL, PL_ARG_NOFLAG, &c.add_special, "add no BOS or EOS", 0, 0, NULL},
        {0, "parse-special", NULL, PL_ARG_FLAG, &c.parse_special, "names of special tokens become those tokens (default)", 0,
         0, NULL},
        {0, "no-parse-special", NULL, PL_ARG_NOFLAG, &c.parse_special, "names of special tokens are only text", 0, 0, NULL},
        {0},
    };
    struct pl_args args = {
        .command = "tokenize",
        .synopsis = "[-m] MODEL [-p TEXT | -f FILE] [OPTIONS]",
        .about =
            "Prints the token ids of a text as a JSON array. As the model's own tokenizer does by default, BOS and EOS are\n"
            "added where its settings say so, and names of special tokens in the text become those tokens.",
        .examples = "  plumb tokenize -m smollm2.gguf -p 'Hello world'\n"
                    "  plumb tokenize -m smollm2.gguf -f book.txt --no-special > ids.json\n"
                    "  echo -n hi | plumb tokenize -m smollm2.gguf\n",
        .groups = (const struct pl_arg *const[]){own, NULL},
    };
    return run(&c, &args, tokenize, argc, argv);
}

int pl_cmd_detokenize(int argc, char **argv) {
    struct tokens_cmd c = {.show_special = true};
    const struct pl_arg own[] = {
        {'m', "model", "MODEL", PL_ARG_STR, &c.model.model, "file, directory, stored name or hf:owner/repo[:file]", 0, 0,
         NULL},
        {'p', "prompt", "IDS", PL_ARG_STR, &c.text, "the ids: [1,2,3] or '1 2 3' (default: standard input)", 0, 0, NULL},
        {'f', "file", "FILE", PL_ARG_STR, &c.file, "the ids are in this file", 0, 0, NULL},
        {0, "no-special", NULL, PL_ARG_NOFLAG, &c.show_special, "leave special tokens out", 0, 0, NULL},
        {0},
    };
    struct pl_args args = {
        .command = "detokenize",
        .synopsis = "[-m] MODEL [-p IDS | -f FILE] [OPTIONS]",
        .about = "Prints the text of token ids, nothing added. Special tokens appear by name.",
        .examples = "  plumb detokenize -m smollm2.gguf -p '[19556, 905]'\n"
                    "  plumb tokenize -m smollm2.gguf -p hi | plumb detokenize -m smollm2.gguf\n",
        .groups = (const struct pl_arg *const[]){own, NULL},
    };
    return run(&c, &args, detokenize, argc, argv);
}
