/* Numbers for distinct byte strings, in the order in which they come: names of tensors, keys of things made once. */
#ifndef RS_FILE_NAMES_H
#define RS_FILE_NAMES_H

#include "base/base.h"

typedef struct rs_name {
  const void *at; /* borrowed */
  size_t size;
} rs_name;

/* All zero: none. */
typedef struct rs_names {
  RS_VEC(rs_name) all; /* by number */
  uint64_t *slot;
  int64_t slots;
} rs_names;

/* Number of a name, -1 when it was not put. */
int64_t rs_names_find(const rs_names *names, const void *at, size_t size);
/* Number of the equal name that is there, else the next one (all.n before the call). The bytes must then live as long
 * as the names. */
reshard_status rs_names_put(rs_names *names, const void *at, size_t size, int64_t *number);
/* Room for that many in all: until then rs_names_put does not fail. */
reshard_status rs_names_reserve(rs_names *names, int64_t n);
void rs_names_free(rs_names *names);
void rs_names_free_all(rs_names *names); /* with the bytes, each from malloc */

#endif
