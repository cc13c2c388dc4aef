/* Texts by key, in the order in which they come: what the owner of a checkpoint has written about it, in "__metadata__"
 * of its files. */
#ifndef RS_FILE_TEXT_PAIRS_H
#define RS_FILE_TEXT_PAIRS_H

#include "file/ground/names.h"

typedef struct rs_text_pair {
  char *key;         /* owned, the value behind it */
  const char *value; /* NULL: it had two */
} rs_text_pair;

/* All zero: none. */
typedef struct rs_text_pairs {
  RS_VEC(rs_text_pair) all;
  rs_names names; /* the keys */
} rs_text_pairs;

/* Entries of "__metadata__" that are this library's and PyTorch's, about one set of files, and never carried on. */
bool rs_text_pairs_own(const char *key);
/* Adds a pair. A key that is there with another value has none from now on: *differs, the first time. */
reshard_status rs_text_pairs_put(rs_text_pairs *pairs, const char *key, const char *value, bool *differs);
/* The value of a key; NULL: it has none. */
const char *rs_text_pairs_find(const rs_text_pairs *pairs, const char *key);
/* Takes out the keys without a value. */
reshard_status rs_text_pairs_settle(rs_text_pairs *pairs);
void rs_text_pairs_free(rs_text_pairs *pairs);

#endif
