/* Programs of the CPU device: compiled copies.
 *
 * An ordered copy is one box copy with its loops in the order of the destination. Copies whose loops have the same
 * lengths and whose runs interleave, in the source or in the destination, are a group. A group is done step by step,
 * and each step copies one run of every copy. A task is some ranges of steps. So a program is small however many runs
 * it copies. */
#ifndef RS_DEVICE_CPU_COPY_PROGRAM_H
#define RS_DEVICE_CPU_COPY_PROGRAM_H

#include "device/cpu/copy/kernels.h"
#include "device/device.h"

enum {
  RS_LINE = 64,
  RS_BUFFER = 16 << 10, /* bytes that are put together in the first-level cache before they are stored past it */
  RS_GROUP_COPIES = RS_CURSORS, /* most copies of a group */
  RS_SMALL = 8 << 10,  /* bytes of a program whose source and destination stay in that cache, in whatever order */
  RS_AHEAD_LOOPS = 32, /* most loops of a copy that is prefetched */
  RS_TILE = 64 << 10,  /* bytes of the buffer for a block of a transpose that converts */
  RS_TILE_ROW = 256,   /* bytes of its rows in the destination, half of those in the source */
};

typedef struct rs_loop {
  int64_t n, src, dst;
  int64_t inner; /* steps of the group, or blocks, within one step of this loop */
} rs_loop;

typedef struct rs_ordered_copy {
  const char *src;
  char *dst;
  int64_t run;   /* bytes of the source */
  int64_t loops; /* first in rs_program.loop */
  int32_t nloops;
  bool transpose;  /* the last loop leaps in the source, the one before does not: done in blocks */
  int8_t width;    /* of a transpose: rs_width_index for the transpose kernels, or -1 for the kernels of runs */
  int8_t from, to; /* as in rs_copy */
  int32_t scaled;  /* likewise, in rs_program.scaled */
} rs_ordered_copy;

static inline bool rs_copy_converts(const rs_ordered_copy *copy) { return copy->from != copy->to; }
/* Contiguous bytes of the destination. */
static inline int64_t rs_copy_dst_run(const rs_ordered_copy *copy) {
  return rs_converted_bytes((reshard_dtype)copy->from, (reshard_dtype)copy->to, copy->run);
}

/* Runs of a group that follow one another in the destination: each step fills `width` contiguous bytes. */
typedef struct rs_merged_run {
  uint32_t ncopies;
  uint32_t width;
} rs_merged_run;

typedef enum rs_mode {
  RS_MODE_PLAIN,         /* ordinary stores, some steps of each copy in turn */
  RS_MODE_STREAM,        /* past the cache, a run of each copy in turn */
  RS_MODE_GATHER,        /* past the cache, a line of narrow runs of each copy in turn */
  RS_MODE_PARTIAL_LINES, /* past the cache, a run of each copy in turn, through a partial line for each merged run */
  RS_MODE_BUFFER,        /* past the cache, some steps of each merged run in turn, interleaved in a buffer for each */
  RS_MODE_TRANSPOSE,     /* one transpose; steps are its blocks */
  RS_MODE_CONVERT,       /* one copy that converts numbers, a transpose or not */
} rs_mode;

typedef struct rs_copy_group {
  uint32_t first, ncopies;
  uint32_t first_merged, nmerged; /* RS_MODE_PARTIAL_LINES, RS_MODE_BUFFER: copies are sorted by merged run */
  int64_t steps;
  int64_t step_bytes; /* of all copies together; of a block at most */
  int64_t block;      /* RS_MODE_PLAIN, RS_MODE_BUFFER: steps that are done together */
  rs_mode mode;
  bool rows;      /* RS_MODE_BUFFER: the innermost loop is short and continues the one around it in the destination */
  bool streaming; /* RS_MODE_TRANSPOSE, RS_MODE_CONVERT: past the cache */
  bool lines;     /* runs of whole lines, or long ones: RS_MODE_STREAM would do */
} rs_copy_group;

typedef struct rs_step_range {
  int64_t first;
  uint32_t steps;
  uint32_t group;
} rs_step_range;

/* A range with the address that it reads first. */
typedef struct rs_sorted_range {
  const char *src;
  rs_step_range range;
} rs_sorted_range;

struct rs_program {
  RS_VEC(rs_ordered_copy) copy;
  RS_VEC(rs_loop) loop;
  RS_VEC(rs_scaled) scaled;
  rs_copies turned; /* of the copy that is added */
  RS_VEC(rs_copy_group) group;
  RS_VEC(rs_merged_run) merged;
  RS_VEC(rs_step_range) range;
  RS_VEC(int64_t) task; /* first range of each, and the end */
  int64_t bytes;
  int64_t count;
  RS_VEC(char) temporary;               /* for rs_program_interleave */
  RS_VEC(rs_sorted_range) sorted_range; /* for rs_program_divide */
};

/* The loops of a copy, outermost first. */
static inline rs_loop *rs_copy_loops(const rs_program *program, const rs_ordered_copy *copy) {
  return copy->nloops == 0 ? NULL : program->loop.at + copy->loops;
}

/* Appends a copy to a program, as one ordered copy or as two for a long run. */
reshard_status rs_program_add(rs_program *program, const rs_copies *copies, const rs_copy *copy);
/* Blocks of a transpose along its last two loops. Block (a, b) has indices from a * ni - skew_i and b * nj - skew_j.
 */
typedef struct rs_blocks {
  int64_t ni, nj;
  int64_t skew_i, skew_j; /* indices before the first: blocks begin with lines */
  int64_t down, across;   /* how many */
} rs_blocks;
rs_blocks rs_copy_blocks(const rs_ordered_copy *copy, const rs_loop *loops);

/* Sorts the copies into groups that interleave. streaming: past the cache where the pattern allows. */
reshard_status rs_program_interleave(rs_program *program, bool streaming);
/* Divides the groups into ranges and tasks. */
reshard_status rs_program_divide(rs_program *program, int threads);
/* Empties a program, keeping the memory that it has. */
void rs_program_clear(rs_program *program);
/* Frees memory that only compiling needs. */
void rs_program_free_temporary(rs_program *program);
void rs_program_free(rs_program *program);

#endif
