/* grammar_internal - nodes of the automaton, shared by grammar.c (text to nodes) and grammar_run.c (states); ranges of
 * characters, as classes of grammars and of patterns (schema_text.c) have them. */
#ifndef PL_SAMPLE_GRAMMAR_INTERNAL_H
#define PL_SAMPLE_GRAMMAR_INTERNAL_H

#include <stdatomic.h>

#include "sample/grammar.h"

enum node_kind { NODE_BYTES, NODE_SPLIT, NODE_CALL, NODE_RETURN };
struct node {
    uint8_t kind, low, high; /* BYTES: low..high, then a */
    uint32_t a, b;           /* SPLIT: a or b; CALL: rule a, then b */
};
struct rule {
    char *name;
    uint32_t start; /* node; NODE_NONE while undefined */
};
#define NODE_NONE UINT32_MAX

struct pl_grammar {
    _Atomic uint32_t more; /* references beyond the first */
    struct node *nodes;
    size_t node_count, node_cap;
    struct rule *rules;
    size_t rule_count, rule_cap;
    uint32_t root;
};

/* Orders ranges {first, last} of characters by their beginning, for qsort. */
int pl_range_order(const void *a, const void *b);

#endif
