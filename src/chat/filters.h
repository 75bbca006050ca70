/* filters - the table that filters.c dispatches over; each group of filters has its own file. */
#ifndef PL_CHAT_FILTERS_H
#define PL_CHAT_FILTERS_H

#include "chat/rt.h"

typedef struct tj_val (*tj_filter_fn)(struct tj_rt *R, struct tj_val v, const struct tj_args *a);

struct tj_val tj_f_abs(struct tj_rt *R, struct tj_val v, const struct tj_args *a);
struct tj_val tj_f_filesizeformat(struct tj_rt *R, struct tj_val v, const struct tj_args *a);
struct tj_val tj_f_float(struct tj_rt *R, struct tj_val v, const struct tj_args *a);
struct tj_val tj_f_int(struct tj_rt *R, struct tj_val v, const struct tj_args *a);
struct tj_val tj_f_round(struct tj_rt *R, struct tj_val v, const struct tj_args *a);
struct tj_val tj_f_sum(struct tj_rt *R, struct tj_val v, const struct tj_args *a);

struct tj_val tj_f_capitalize(struct tj_rt *R, struct tj_val v, const struct tj_args *a);
struct tj_val tj_f_center(struct tj_rt *R, struct tj_val v, const struct tj_args *a);
struct tj_val tj_f_escape(struct tj_rt *R, struct tj_val v, const struct tj_args *a);
struct tj_val tj_f_forceescape(struct tj_rt *R, struct tj_val v, const struct tj_args *a);
struct tj_val tj_f_format(struct tj_rt *R, struct tj_val v, const struct tj_args *a);
struct tj_val tj_f_indent(struct tj_rt *R, struct tj_val v, const struct tj_args *a);
struct tj_val tj_f_lower(struct tj_rt *R, struct tj_val v, const struct tj_args *a);
struct tj_val tj_f_replace(struct tj_rt *R, struct tj_val v, const struct tj_args *a);
struct tj_val tj_f_safe(struct tj_rt *R, struct tj_val v, const struct tj_args *a);
struct tj_val tj_f_string(struct tj_rt *R, struct tj_val v, const struct tj_args *a);
struct tj_val tj_f_striptags(struct tj_rt *R, struct tj_val v, const struct tj_args *a);
struct tj_val tj_f_title(struct tj_rt *R, struct tj_val v, const struct tj_args *a);
struct tj_val tj_f_trim(struct tj_rt *R, struct tj_val v, const struct tj_args *a);
struct tj_val tj_f_truncate(struct tj_rt *R, struct tj_val v, const struct tj_args *a);
struct tj_val tj_f_upper(struct tj_rt *R, struct tj_val v, const struct tj_args *a);
struct tj_val tj_f_urlencode(struct tj_rt *R, struct tj_val v, const struct tj_args *a);
struct tj_val tj_f_wordcount(struct tj_rt *R, struct tj_val v, const struct tj_args *a);
struct tj_val tj_f_wordwrap(struct tj_rt *R, struct tj_val v, const struct tj_args *a);
struct tj_val tj_f_xmlattr(struct tj_rt *R, struct tj_val v, const struct tj_args *a);
struct tj_val tj_f_pprint(struct tj_rt *R, struct tj_val v, const struct tj_args *a);

/* The part of map, select and their kin that runs at the generator's first step. */
void tj_prepare(struct tj_rt *R, struct tj_iter *it);

#endif
