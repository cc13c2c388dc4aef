/* Inside of rules: their lines. */
#ifndef RS_FILE_RULES_H
#define RS_FILE_RULES_H

#include "base/base.h"

#include <reshard/file.h>

/* PATTERN LAYOUT [DTYPE] */
typedef struct rs_rule {
  const char *pattern, *layout; /* in `text`; layout: or own */
  char *own;                    /* layout with sizes put in, or NULL */
  reshard_dtype dtype;          /* NONE: the rule says none */
  reshard_blocks blocks;        /* of it */
  bool refuses;                 /* layout: "refuse(TEXT)" */
  /* rank(experts.#/128), mesh(2x16@0-31;R,experts.#/128): the layout goes by the number behind `key`, "experts.", in
   * the tensor's name. */
  const char *key;
  size_t key_length;
  int64_t pieces;   /* 0: it does not */
  int64_t world;    /* that a mesh of these names; else 0 */
  char **each;      /* [pieces], "rank(0/128)" and so on, one allocation */
  const char *tail; /* plain text at the end of the pattern */
  size_t tail_length;
  int64_t line, pattern_column, layout_column;
} rs_rule;

/* blocks SUFFIX 128x128: of the last dims of NAME, which is cut between blocks, and NAME SUFFIX has their scales */
typedef struct rs_rule_blocks {
  const char *suffix, *shown; /* "_scale_inv 128x128", "128x128" */
  size_t suffix_length;
  int ndim;
  int64_t extent[RESHARD_MAX_DIMS], line, column;
} rs_rule_blocks;

struct reshard_rules_s {
  char *name; /* of the file, for errors */
  char *text; /* the rules' own copy, cut in strings */
  RS_VEC(rs_rule) rules;
  RS_VEC(rs_rule_blocks) blocks;
  int64_t world;
};

/* Puts "NAME:LINE:COLUMN: " of a rule, or of blocks, before the last error. */
reshard_status rs_rules_error(const struct reshard_rules_s *rules, int64_t line, reshard_status status);
/* The blocks whose scales a tensor has by its name; NULL: it has none. */
const rs_rule_blocks *rs_rules_blocks(const struct reshard_rules_s *rules, const char *tensor);

#endif
