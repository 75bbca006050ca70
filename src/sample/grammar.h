/* grammar - GBNF text to an automaton over bytes with a stack, and the states it can be in.
 *
 * GBNF: rules `name ::= ...`, alternatives |, "literals", [character classes] (ranges, ^, escapes \n \t \\ \" \xHH \uHHHH
 * \UHHHHHHHH), ., groups, * + ? {m} {m,} {m,n}, # comments; the text begins at `root`. Characters are UTF-8.
 * Refused: undefined rules, rules that call themselves on their left, more than the limits below.
 *
 * A state is a set of positions with their stacks, kept once and numbered; steps are remembered, so walking many tokens
 * through one state costs a table look-up per byte. Memory is bounded: when the store of states is full it is emptied
 * except for the state in use. A grammar is immutable and may be shared; a run belongs to one thread. */
#ifndef PL_SAMPLE_GRAMMAR_H
#define PL_SAMPLE_GRAMMAR_H

#include "base/str.h"

enum {
    PL_GRAMMAR_TEXT_MAX = 1 << 20,
    PL_GRAMMAR_NODES_MAX = 1 << 19,
    PL_GRAMMAR_RULES_MAX = 1 << 14,
    PL_GRAMMAR_DEPTH_MAX = 200,   /* of groups */
    PL_GRAMMAR_REPEAT_MAX = 4096, /* in {m,n} */
#ifdef PL_FUZZ
    PL_GRAMMAR_BUDGET = 1 << 12, /* a fuzzer's inputs are to be many */
    PL_GRAMMAR_WORK_MAX = 1 << 14,
#else
    PL_GRAMMAR_BUDGET = 1 << 22,    /* positions looked at between two refills: some tens of milliseconds */
    PL_GRAMMAR_WORK_MAX = 64 << 20, /* bytes of its text read, repetitions included */
#endif
};

struct pl_grammar;
enum pl_status pl_grammar_parse(const char *text, size_t len, struct pl_grammar **out, struct pl_err *err) PL_MUST_CHECK;
/* Immutable once parsed, so that any number of runs on any threads may share it: each holder takes a reference. */
struct pl_grammar *pl_grammar_ref(struct pl_grammar *g);
void pl_grammar_destroy(struct pl_grammar *g); /* gives one reference back */

struct pl_grammar_run;
/* g must outlive it. */
enum pl_status pl_grammar_run_create(const struct pl_grammar *g, struct pl_grammar_run **out,
                                     struct pl_err *err) PL_MUST_CHECK;
void pl_grammar_run_destroy(struct pl_grammar_run *r);

/* States are numbers of this run; PL_GRAMMAR_DEAD accepts nothing. They stay valid until pl_grammar_run_trim. */
enum { PL_GRAMMAR_DEAD = 0 };
uint32_t pl_grammar_start(const struct pl_grammar_run *r);
/* PL_NO_MEMORY, or PL_LIMIT when a state would hold too many positions or the budget of work is spent: a grammar that allows
 * too many ways at once must not hold up whoever shares the step. */
enum pl_status pl_grammar_step(struct pl_grammar_run *r, uint32_t state, unsigned char byte, uint32_t *next) PL_MUST_CHECK;
void pl_grammar_run_refill(struct pl_grammar_run *r);                    /* once per token */
bool pl_grammar_accepts(const struct pl_grammar_run *r, uint32_t state); /* the text may end here */
/* When the store is large it is emptied; *state is renumbered. True when that happened: other numbers are void. */
bool pl_grammar_run_trim(struct pl_grammar_run *r, uint32_t *state);

#endif
