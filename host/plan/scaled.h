/* Entries that convert: f8_e4m3 with a scale for each block of values, and what a plan tells of them all. */
#ifndef RS_PLAN_SCALED_H
#define RS_PLAN_SCALED_H

#include "base/json.h"
#include "plan/plan.h"

/* Checks `block` of an entry whose space and dtypes are right, and makes what its classes have; *out is
 * freed by rs_scaling_free, or NULL where the entry has no blocks. */
reshard_status rs_scaling_create(const char *label, const reshard_entry *entry, const rs_space *space,
                                 rs_scaling **out);
reshard_status rs_scaling_copy(const rs_scaling *scaling, rs_scaling **out);
void rs_scaling_free(rs_scaling *scaling); /* NULL is allowed */
/* Orders blocks and dtypes, whatever the layouts, and what travels; NULL comes first. */
int rs_scaling_compare(const rs_scaling *a, const rs_scaling *b);
bool rs_scaling_equal(const rs_scaling *a, const rs_scaling *b);
/* Sets layouts, space and formats of a class of part i, from 0 on, and *extent; false behind the last part. */
bool rs_scaling_part(rs_scaling *scaling, reshard_dtype from, reshard_dtype to, int i, rs_class *out);
enum { RS_SCALING_PARTS = 4 }; /* at most */
/* "bf16", or "f8_e4m3/128x128:e8m0" with the blocks of all dims. */
void rs_class_dtype_text(char *text, size_t size, const rs_class *c, bool source, reshard_dtype dtype);

/* Entries that convert alike, and travel alike. */
typedef struct rs_conversion {
  const rs_class *class_; /* of one of them, in the plan */
  int64_t entries, bytes; /* bytes: of messages, if nothing of the entries stayed where it is */
} rs_conversion;
/* The caller frees the list. */
reshard_status rs_plan_conversions(const struct reshard_plan_s *plan, rs_conversion **list, int64_t *n);
/* Where numbers of messages are converted: "pack", "unpack". */
const char *rs_conversion_place(const rs_conversion *conversion);
enum { RS_CONVERSION_TEXT = 96 };
/* Dtypes of the source, of the destination and of messages. */
void rs_conversion_dtypes(const rs_conversion *conversion, char text[3][RS_CONVERSION_TEXT]);
void rs_conversions_json(const rs_conversion *list, int64_t n, rs_json *j);

#endif
