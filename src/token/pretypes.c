/* The table of pre-tokenizers. Patterns are those of the models' own tokenizer.json. Where llama.cpp works with an
 * approximation (letters by ASCII case in tekken and gpt-4o, scripts in kimi-k2) the model's pattern stands here. */
#include "token/pretypes.h"

#include <string.h>

#define GPT2     "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define ANY_CASE "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define TAIL     "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CL100K   ANY_CASE "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}" TAIL
#define QWEN2    ANY_CASE "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" TAIL
#define UPPER    "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER    "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(contraction) \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" contraction "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" contraction
#define CASED_TAIL    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define PUNCT_WORD    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
#define BLOOM         " ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})]+"
#define NOT_HAN_UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define NOT_HAN_LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define LATIN_GREEK_CYRILLIC                                                                                       \
    "\\s?[A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}\\x{1c4}-\\x{293}\\x{295}"   \
    "-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}\\x{37f}\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}" \
    "-\\x{3a1}\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}\\x{13a0}"    \
    "-\\x{13f5}\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}"    \
    "\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}"     \
    "-\\x{1f57}\\x{1f59}\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}"      \
    "\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}\\x{1ff2}"     \
    "-\\x{1ff4}\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}"      \
    "\\x{2126}\\x{2128}\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}"      \
    "\\x{214e}\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}"       \
    "\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}\\x{ab70}"     \
    "-\\x{abbf}\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}"  \
    "\\x{104b0}-\\x{104d3}\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}"    \
    "\\x{1e900}-\\x{1e943}]+"
#define CJK "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"

static const struct pl_pretype table[] = {
    {"llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
     {CL100K},
     PL_PRETYPE_IGNORE_MERGES | PL_PRETYPE_ADD_BOS},
    {"dbrx smaug-bpe chatglm-bpe", {CL100K}, 0},
    {"glm4 glm5", {CL100K}, PL_PRETYPE_IGNORE_MERGES},
    {"gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe gigachat a.x-4.0 mellum "
     "modern-bert "
     "mpt olmo jais trillion granite-docling exaone4",
     {GPT2},
     0},
    {"smollm starcoder refact command-r codeshell exaone minerva-7b mellum2", {"\\p{N}", GPT2}, 0},
    {"qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2", {QWEN2}, 0},
    {"qwen35",
     {ANY_CASE
      "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
     0},
    {"ufakzeka", {"[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" TAIL}, 0},
    {"minicpm5", {"\\p{N}{1,3}", ANY_CASE "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}+" TAIL}, PL_PRETYPE_IGNORE_MERGES},
    {"seed-coder",
     {ANY_CASE "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
     0},
    {"bailingmoe bailingmoe2 llada-moe",
     {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| "
      "?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"},
     0},
    {"exaone-moe",
     {ANY_CASE "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}| "
               "?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"},
     0},
    {"falcon", {"[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]"}, 0},
    {"default", {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}, 0},
    {"deepseek-llm",
     {"[\r\n]", LATIN_GREEK_CYRILLIC,
      "\\s?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+", "\\s+$", CJK, "\\p{N}+"},
     0},
    {"deepseek-coder", {"[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", CJK, "\\p{N}"}, 0},
    {"deepseek-v3 hunyuan-dense joyai-llm hy_v4",
     {"\\p{N}{1,3}", "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+",
      PUNCT_WORD "| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
     0},
    {"spark2_5",
     {"\\p{N}{1,3}", "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+",
      PUNCT_WORD "| ?[\\p{P}\\p{S}]+|[\\r\\n]|\\s+(?!\\S)|\\s+", "\\p{N}"},
     0},
    {"youtu",
     {"[\\x{ac00}-\\x{d7a3}\\x{3131}-\\x{318e}]+|[\\x{ff01}\\x{2026}\\x{201c}\\x{201d}\\x{2018}\\x{2019}\\x{2014}\\x{ff1a}"
      "\\x{ff1b}\\x{ff0c}\\x{3001}-\\x{303f}\\x{fe30}-\\x{fe4f}]+|[\\x{3105}-\\x{312f}]+|[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{"
      "309f}\\x{30a0}-\\x{30ff}]+",
      CASED(ANY_CASE "?") "|\\p{N}" CASED_TAIL},
     PL_PRETYPE_IGNORE_MERGES},
    {"tekken", {CASED("") "|\\p{N}" CASED_TAIL}, PL_PRETYPE_IGNORE_MERGES | PL_PRETYPE_ADD_BOS},
    {"gpt-4o llama4 kanana2 talkie minimax-m2", {CASED(ANY_CASE "?") "|\\p{N}{1,3}" CASED_TAIL}, 0},
    {"granite-embed-multi-97m", {CASED(ANY_CASE "?") "|\\p{N}{1,3}" CASED_TAIL}, PL_PRETYPE_IGNORE_MERGES},
    {"tiny_aya cohere2moe", {"\\d{1,3}(?=(?:\\d{3})*\\b)", CASED(ANY_CASE "?") "|\\p{N}{1,3}" CASED_TAIL}, 0},
    {"kimi-k2",
     {"\\p{Han}+|[^\\r\\n\\p{L}\\p{N}]?" NOT_HAN_UPPER "*" NOT_HAN_LOWER "+" ANY_CASE
      "?|[^\\r\\n\\p{L}\\p{N}]?" NOT_HAN_UPPER "+" NOT_HAN_LOWER "*" ANY_CASE "?|\\p{N}{1,3}" TAIL},
     0},
    {"superbpe", {"\\p{N}+", "(?=(\\d{3})+(?!\\d))"}, 0},
    {"poro-chat bloom gpt3-finnish", {BLOOM}, 0},
    {"viking", {BLOOM, "\\p{N}"}, 0},
    {"jais-2",
     {ANY_CASE
      "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
      "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s{512}(?!\\S)|\\s{256}(?!\\S)|"
      "\\s{128}(?!\\S)|\\s{64}(?!\\S)|\\s{32}(?!\\S)|\\s{16}(?!\\S)|\\s{8}(?!\\S)|\\s{4}(?!\\S)|\\s{1,2}(?!\\S)|\\s{1}"},
     0},
    {"chameleon",
     {"<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", "([\\t\\n]|    |  )", "\\p{N}", "[\\p{P}!-/:-@\\[-`{-~]",
      GPT2},
     PL_PRETYPE_ADD_BOS},
    {"laguna", {"[^\\n]+|[\\n]+", QWEN2}, 0},
    {"gemma4 granite-embed-multi-311m", {"[^\\n]+|[\\n]+"}, PL_PRETYPE_RAW | PL_PRETYPE_NEWLINES | PL_PRETYPE_ADD_BOS},
    {"sarvam-moe", {"[^\\n]+|[\\n]+"}, PL_PRETYPE_RAW},
};

/* Calls the next space-separated name of a list. */
static struct pl_str next_name(const char **p) {
    while (**p == ' ') ++*p;
    size_t n = strcspn(*p, " ");
    struct pl_str s = {*p, n};
    *p += n;
    return s;
}

const struct pl_pretype *pl_pretype_find(struct pl_str name) {
    for (size_t i = 0; i < PL_COUNT_OF(table); i++) {
        const char *p = table[i].names;
        for (struct pl_str s = next_name(&p); s.len > 0; s = next_name(&p))
            if (pl_str_eq(s, name)) return &table[i];
    }
    return NULL;
}

void pl_pretype_list(struct pl_buf *out) {
    for (size_t i = 0; i < PL_COUNT_OF(table); i++) {
        const char *p = table[i].names;
        for (struct pl_str s = next_name(&p); s.len > 0; s = next_name(&p)) {
            if (out->len > 0) pl_buf_add_c(out, ", ");
            pl_buf_add(out, s.data, s.len);
        }
    }
}
