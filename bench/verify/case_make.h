/* A random case: from a 64-bit seed a world, layouts, entries, strides, options. A seed gives the same case on every
 * machine. */
#ifndef BENCH_CASE_MAKE_H
#define BENCH_CASE_MAKE_H

#include "bench/cli/util.h"
#include "bench/verify/oracle.h"
#include "bench/verify/random.h"

/* A random description for a shape, and the library's layout for it. */
void case_describe(rng *r, int ndim, const int64_t *shape, int64_t world, bool source, oracle_layout *out);
/* One of replicas, of a few parts each. */
void case_describe_replicas(rng *r, int ndim, const int64_t *shape, int64_t world, oracle_layout *out);
void case_describe_free(oracle_layout *what);
/* No ranks share parts of a dim any more, so that each rank has one array. */
void case_describe_unshared(oracle_layout *what);
/* The layout, by string or by constructor; *text receives how. Errors of the library are returned. */
reshard_status case_build(rng *r, const oracle_layout *what, reshard_layout *layout, char **text);

/* Dtypes that casts know; cases draw pairs of them. */
enum { CASE_NUMBERS = 6 };
extern const reshard_dtype case_numbers[CASE_NUMBERS];

/* One side of an entry. */
typedef struct case_side {
  oracle_layout described;
  reshard_layout layout;
  oracle_buffers buffers; /* destination: after oracle_reshard source elements, or -1 */
  char *text;             /* how the layout was made: its string, or "kind by constructor" */
  /* Of the side with scales, else without buffers: the number of the block of each scale, in buffers as those of
   * values, and for each value the place of its scale in its buffer. */
  oracle_buffers scales, places;
  int64_t factor[RESHARD_MAX_DIMS]; /* by which the shape was multiplied, where the entry has blocks */
} case_side;

typedef struct case_entry {
  case_side src, dst;
  oracle_region region;
  unsigned given; /* which pointers of the reshard_entry are passed: GIVEN_* */
  reshard_dtype dtype, dst_dtype;
  reshard_dtype scales; /* NONE: the entry has no blocks */
  int64_t block[RESHARD_MAX_DIMS];
  reshard_blocks wanted; /* where the cuts allow them; rows 0: any */
  bool whole;            /* values and scales travel */
  char name[24];
} case_entry;

enum {
  GIVEN_SRC_OFFSET = 1,
  GIVEN_SRC_EXTENT = 2,
  GIVEN_DST_OFFSET = 4,
  GIVEN_DST_EXTENT = 8,
  GIVEN_PERMUTATION = 16,
  GIVEN_NAME = 32,
};

typedef struct case_plan {
  uint64_t seed;
  int64_t world;
  int64_t nentries;
  case_entry *entry;
  reshard_plan_options options;
  int64_t nodes[ORACLE_WORLD];
  reshard_topology topology; /* with a domain for each node; domain NULL: none */
  int64_t least_limit;       /* of workspace_limit for this world; 0 where there is no limit */
  oracle_counts counts;      /* of all entries, in bytes */
  int64_t bytes;             /* of all regions, as they travel */
  oracle_counts least, most; /* of what direct copies read; scales of parts of blocks are read more than once */
  oracle_counts mixed_least, mixed_most; /* where each element comes in a message, or is read */
  bool plain;                            /* every array is contiguous; else as the seed has it */
  bool casts;                            /* some entry's sides differ in dtype */
  bool scaled;                           /* some entry has blocks */
  bool reversible;                       /* every destination is whole, without gap, halo or replica */
} case_plan;

/* Fixed choices; 0 or AUTO leave a choice to the seed. */
typedef struct case_choices {
  int64_t ranks;
  int threads;
  reshard_path path;       /* AUTO: direct, packed and auto in turn */
  bool describe;           /* print what each case is before it runs */
  bool rounds;             /* always under a limit, the least or little more */
  int64_t bytes;           /* of all entries at least, but for the empty and the scalars */
  bool topologies;         /* three cases in five have one; the destinations of most of these are replicas */
  const char *topology;    /* of --topology, which every case has then; NULL: drawn */
  bool gpus;               /* plans tell of transfers on GPUs */
  bool graph;              /* on GPUs: each execute is launched from a graph */
  bool casts;              /* entries whose sides differ in dtype, in one case in three */
  bool blocks;             /* entries of f8_e4m3 with scales, in some cases */
  reshard_dtype dst_dtype; /* of every entry, whose source then has numbers */
  reshard_dtype dtype;     /* of every source, beside dst_dtype */
  reshard_blocks scaled;   /* of the side of every entry that is f8_e4m3 */
  struct session
      *session; /* the devices, and a communicator where it is not a local one; NULL: local ranks on the CPU */
} case_choices;

/* Bits of a source element in its lowest bytes; those of a number are any, or one that most dtypes have. */
void case_stamp(const case_entry *e, uint64_t key, int64_t index, unsigned char *bytes);

/* Entries with blocks (case_blocks.c): whether entry i is one in one case of `odds`, with its dtypes; what a shape, its
 * region and a description are multiplied by; blocks that the cuts of both layouts allow, whose scales are then listed.
 */
void case_draw_scaled(const case_plan *c, int64_t i, int64_t odds, case_entry *e);
void case_fix_scaled(const case_plan *c, int64_t i, const case_choices *fixed, case_entry *e);
void case_draw_factors(uint64_t seed, case_entry *e, int ndim, const int64_t *shape, int dst_ndim,
                       const int64_t *dst_shape);
void case_describe_multiplied(const int64_t *factor, oracle_layout *what);
void case_draw_blocks(uint64_t seed, case_entry *e);
void case_list_scales(const case_entry *e, case_side *side);
int64_t case_block_of(const case_entry *e, const case_side *side, int64_t index);
/* Adds what the entry moves to the counts of the case; returns its bytes. */
int64_t case_count_scaled(case_plan *c, const case_entry *e);
/* True where a source element is part of the region. */
bool case_in_region(const case_entry *e, int64_t index);

/* Makes the case of a seed; on failure false, with the reason in why. */
bool case_make(uint64_t seed, const case_choices *fixed, case_plan *out, rs_text *why);
void case_free(case_plan *plan);
/* The entries as reshard_plan_create takes them; free()d by the caller, and not used after the case. */
reshard_entry *case_entries(const case_plan *plan);

/* Plans compared with the oracle's counts. Nothing is added to why where all is right. */
void case_check_plan(const case_plan *c, int64_t rank, reshard_plan plan, const reshard_plan_info *info, rs_text *why);
/* Checks that the ranks' plans fit together: every byte that one sends another receives. */
void case_check_world(const case_plan *c, const reshard_plan *plans, rs_text *why);
/* Checks the public queries of a layout: arrays, their index sets, buffers, and the holders that meet a random box. */
void case_check_layout(rng *r, const case_side *side, rs_text *why);
/* Adds a line that describes an entry. */
void case_describe_entry(const case_entry *e, int64_t number, rs_text *out);

#endif
