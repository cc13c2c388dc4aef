/* Random conversions of files: from a seed a checkpoint in one format and layout, perhaps a map, and what another
 * format and layout make of it. A seed gives the same case on every machine. */
#ifndef TESTS_FILE_CASE_H
#define TESTS_FILE_CASE_H

#include "support/oracles/file_random.h"

#ifdef RS_HAVE_JANSSON

typedef enum file_source {
  FROM_NPY = 0,
  FROM_FORTRAN,
  FROM_SAFETENSORS,
  FROM_WHOLE,
  FROM_INDEX,
  FROM_SHARDS,
  FROM_TORCH, /* shards without the "reshard" metadata */
  SOURCES
} file_source;

typedef enum file_target { TO_NPY = 0, TO_SAFETENSORS, TO_INDEX, TO_SHARDS, TO_DEDUP, TARGETS } file_target;

extern const char *const file_source_name[SOURCES], *const file_target_name[TARGETS];

typedef struct file_case {
  uint64_t seed;
  rng r;
  file_source in;
  file_target out;
  naive_set src, dst;
  naive_side *from; /* per tensor of src: how it is held, and cut where it is shards; NULL: whole, and nothing said */
  naive_side *to;   /* per tensor of dst; whole targets: single */
  char *map;        /* text, or NULL */
  reshard_dtype dtype;         /* of all numbers of dst; NONE: their own */
  char *src_rules, *dst_rules; /* texts; NULL: the layout of the only tensor is given as it is, or nothing */
  int64_t world;               /* that is asked for; 0: what the layouts name */
  int64_t in_world;            /* of a source of shards */
  int64_t out_world;           /* that comes of it */
  int64_t index_bytes;
  bool verify, force, cancel, by_writer;
  bool owner; /* files of safetensors have FILE_CASE_KEY in their metadata */
  int threads;
} file_case;

#define FILE_CASE_KEY   "who"
#define FILE_CASE_VALUE "\xc3\xa9\""

/* A case that writes no digests. */
#define FILE_CASE_NO_DIGESTS(c) ((c)->seed % 4 == 3)

/* file_make.c */
bool file_case_make(uint64_t seed, file_case *out, rs_text *why);
void file_case_free(file_case *c);
void file_case_describe(const file_case *c, rs_text *out);
/* Casts the numbers of a set, exactly. */
void file_cast_set(naive_set *set, reshard_dtype dtype);
/* From what this case has made to something else. */
bool file_case_next(file_case *c, file_case *next, rs_text *why);
/* Writes the source. */
void file_write_source(file_case *c, const char *path);

/* file_map.c: a random map, the tensors that it takes and those that it makes. one_source, one_target: no more than
 * one of either; the source is then "tensor". */
void file_draw_map(rng *r, bool (*allowed)(reshard_dtype), bool one_source, bool one_target, int64_t most,
                   rs_text *text, naive_set *src, naive_set *dst);
/* A name with something odd in it. */
void file_draw_name(rng *r, int64_t number, rs_text *name);

/* Counts of cases. */
typedef struct file_totals {
  int64_t cases, mapped, cast, verified, by_writer, reads, cancelled, refused, unreadable, whole_arrays, bytes, tensors;
  int64_t formats[SOURCES][TARGETS];
  int64_t kinds[RESHARD_LAYOUT_KIND_COUNT][RESHARD_LAYOUT_KIND_COUNT]; /* tensors */
} file_totals;
/* file_run.c: the case in a directory of its own, which is empty before and after. */
bool file_case_run(file_case *c, const char *directory, file_totals *totals, rs_text *why);

/* file_read.c: what the library reads of a checkpoint: all that `set` has, in random layouts. */
bool file_read_back(rng *r, const char *path, const naive_set *set, file_totals *totals, rs_text *why);
/* The target as it must be, file by file. */
bool file_check_target(const file_case *c, const char *path, rs_text *why);

#endif
#endif
