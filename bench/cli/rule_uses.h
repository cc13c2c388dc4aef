/* Uses of the rules of --src and --dst: what they took of a model: told at the end of a command. */
#ifndef BENCH_RULE_USES_H
#define BENCH_RULE_USES_H

#include "bench/cli/workload.h"

typedef struct rule_use {
  const char *side; /* "src" or "dst" */
  bool shipped;     /* of rules that come with the program */
  char *file, *pattern, *layout, *largest;
  reshard_dtype dtype; /* NONE: the line says none */
  reshard_blocks blocks;
  int64_t line, tensors, bytes, largest_bytes;
} rule_use;

/* All zero: none. */
typedef struct rule_uses {
  rule_use *at;
  int64_t n;
} rule_uses;

/* Appends the lines of a side's rules, with what they take of a model; nothing where the side has one layout. */
void rule_uses_add(rule_uses *uses, const char *side, const workload_layouts *layouts, reshard_model model);
/* Those of both sides of a workload. */
rule_uses rule_uses_of(const workload *w);
/* Prints all that took something, the others in one line, and the largest tensor of one that takes any. */
void rule_uses_print(const rule_uses *uses);
/* Adds "rules", where there are any. */
void rule_uses_json(const rule_uses *uses, rs_json *json);
/* Names on standard error each line of the user's own rules that took nothing. */
void rule_uses_warn(const rule_uses *uses);
/* That alone, of both sides of a workload. */
void rule_uses_warn_of(const workload *w);
void rule_uses_free(rule_uses *uses);

#endif
