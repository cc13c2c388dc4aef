/* Leaves of a state that are no tensors: numbers, texts, nothing. Files have them beside their tensors. */
#ifndef RS_FILE_LEAVES_H
#define RS_FILE_LEAVES_H

#include "base/json.h"
#include "file/ground/names.h"

typedef enum rs_leaf_kind { RS_LEAF_NULL, RS_LEAF_BOOL, RS_LEAF_INT, RS_LEAF_FLOAT, RS_LEAF_BYTES } rs_leaf_kind;

typedef struct rs_leaf {
  rs_leaf_kind kind;
  int64_t name;    /* first character of its path, in the text */
  int64_t integer; /* INT, BOOL; BYTES: the first, in the text */
  int64_t size;    /* BYTES: how many */
  double real;     /* FLOAT */
} rs_leaf;

/* All zero: none. */
typedef struct rs_leaves {
  RS_VEC(rs_leaf) all;
  RS_VEC(char) text; /* paths, each with a NUL; bytes */
} rs_leaves;

/* Appends a leaf; path and bytes are copied. */
reshard_status rs_leaves_add(rs_leaves *leaves, const char *path, const rs_leaf *leaf, const char *bytes);
/* Keeps the last leaf of each path, in the order of their first, and none of a path that `taken` has. *dropped: grows
 * by those that go. */
reshard_status rs_leaves_settle(rs_leaves *leaves, const rs_names *taken, int64_t *dropped);
void rs_leaves_free(rs_leaves *leaves);
static inline int64_t rs_leaves_memory(const rs_leaves *leaves) {
  return leaves->all.cap * (int64_t)sizeof(rs_leaf) + leaves->text.cap;
}

/* state.json: {"version": 1, "leaves": {path: value}}. Appends a value: as JSON has it; {"float": "nan"} of numbers
 * that JSON lacks; {"bytes": base64}. */
void rs_leaf_json(rs_text *text, const rs_leaf *leaf, const char *bytes);
/* Begins the next leaf of a text, which is all zero before the first; ends it. digest: at the end of the text stands
 * that of all of it. */
void rs_leaves_json_key(rs_json *json, const char *path);
void rs_leaves_json_end(rs_json *json, bool digest);
/* The whole text of one leaf or more. The caller frees it, also after an error. */
reshard_status rs_leaves_json(const rs_leaves *leaves, bool digest, rs_json *json);

#endif
