/* What the CPU device compiles copies into.
 *
 * An op is one box copy with its loops in the order of the destination. Ops whose loops have the same lengths and
 * whose runs alternate, in the source or in the destination, are a family: it is walked step by step, and each step
 * copies one run of every op. A piece is a range of a family's steps, a task a range of pieces. So a program is small
 * however many runs it copies. */
#ifndef RS_DEVICE_CPU_PROGRAM_H
#define RS_DEVICE_CPU_PROGRAM_H

#include "device/cpu/copy/kernels.h"
#include "device/device.h"

enum {
  RS_LINE = 64,
  RS_BUFFER = 16 << 10,   /* bytes that are put together in the first-level cache before they are stored past it */
  RS_FAMILY = RS_STRANDS, /* most ops of a family */
  RS_OP_LOOPS = 32,       /* loops of an op that is asked for ahead; of a deeper one nothing is */
};

typedef struct rs_loop {
  int64_t n, src, dst;
  int64_t inner; /* steps of the family, or blocks, within one step of this loop */
} rs_loop;

typedef struct rs_op {
  const char *src;
  char *dst;
  int64_t run;
  int64_t loops; /* first in rs_program.loop */
  int32_t nloops;
  bool blocked; /* the last loop leaps in the source, the one before does not: a transpose, in blocks */
  int8_t width; /* of a blocked op: rs_width_index for the transpose kernels, or -1 for a walk */
} rs_op;

/* Ops of a family whose runs follow one another in the destination: each step fills `width` contiguous bytes. */
typedef struct rs_group {
  uint32_t nops;
  uint32_t width;
} rs_group;

typedef enum rs_mode {
  RS_MODE_PLAIN,   /* ordinary stores, some steps of each op in turn */
  RS_MODE_FAN,     /* past the cache, a run of each op in turn */
  RS_MODE_GATHER,  /* past the cache, a line of narrow runs of each op in turn */
  RS_MODE_CARRY,   /* past the cache, a run of each op in turn, through a line for each group */
  RS_MODE_WEAVE,   /* past the cache, some steps of each group in turn, put together in a buffer for each group */
  RS_MODE_SQUARES, /* a blocked op; steps are its blocks */
} rs_mode;

typedef struct rs_family {
  uint32_t first, nops;
  uint32_t first_group, ngroups; /* RS_MODE_CARRY, RS_MODE_WEAVE; the ops are sorted by group */
  int64_t steps;
  int64_t step_bytes; /* of all ops together; of a block at most */
  int64_t block;      /* RS_MODE_PLAIN, RS_MODE_WEAVE: steps that are done together */
  rs_mode mode;
  bool rows;      /* RS_MODE_WEAVE: the innermost loop is short and continues the one around it in the destination */
  bool streaming; /* RS_MODE_SQUARES: past the cache */
} rs_family;

typedef struct rs_piece {
  int64_t first;
  uint32_t steps;
  uint32_t family;
} rs_piece;

/* Where a piece reads first. */
typedef struct rs_place {
  const char *src;
  rs_piece piece;
} rs_place;

struct rs_program {
  RS_VEC(rs_op) op;
  RS_VEC(rs_loop) loop;
  RS_VEC(rs_family) family;
  RS_VEC(rs_group) group;
  RS_VEC(rs_piece) piece;
  RS_VEC(int64_t) task; /* first piece of each, and the end */
  int64_t bytes;
  int64_t count;
  RS_VEC(char) room;      /* for rs_program_join */
  RS_VEC(rs_place) place; /* for rs_program_divide */
};

/* The loops of an op, outermost first. */
static inline rs_loop *rs_op_loops(const rs_program *program, const rs_op *op) {
  return op->nloops == 0 ? NULL : program->loop.at + op->loops;
}

/* Appends the op of a copy to a program, or several that make it up. */
reshard_status rs_program_add(rs_program *program, const rs_copies *copies, const rs_copy *copy);
/* Blocks of a blocked op along its last two loops. Block (a, b) has indices from a * ni - skew_i and b * nj - skew_j.
 */
typedef struct rs_blocks {
  int64_t ni, nj;
  int64_t skew_i, skew_j; /* indices before the first: blocks begin with lines */
  int64_t down, across;   /* how many */
} rs_blocks;
rs_blocks rs_op_blocks(const rs_op *op, const rs_loop *loops);

/* Sorts the ops into families. streaming: past the cache where the pattern allows. */
reshard_status rs_program_join(rs_program *program, bool streaming);
/* Divides the families into pieces and tasks. */
reshard_status rs_program_divide(rs_program *program, int threads);
/* A program without ops, in the memory that it has. */
void rs_program_clear(rs_program *program);
/* What only making it needs. */
void rs_program_free_room(rs_program *program);
void rs_program_free(rs_program *program);

/* What a thread needs beside the program. */
typedef struct rs_scratch {
  _Alignas(RS_LINE) char buffer[RS_BUFFER + 3 * RS_LINE * RS_FAMILY];
  rs_strand strands[RS_FAMILY];
  rs_carry carries[RS_FAMILY];
} rs_scratch;

/* Steps [at, at + n) of a family of RS_MODE_CARRY or RS_MODE_WEAVE. */
void rs_run_carried(const rs_program *program, const rs_kernels *kernels, const rs_family *family, int64_t at,
                    int64_t n, rs_scratch *scratch);
/* Strands of a family at a step; returns how many steps they go on from there. */
int64_t rs_family_strands(const rs_program *program, const rs_family *family, int64_t at, rs_strand *strands);

/* A walk through what a program reads, run by run, to have it in the second-level cache before the program runs. */
typedef struct rs_ahead {
  const rs_program *program; /* NULL: nothing */
  int64_t op, at;            /* op, and byte of its run */
  const char *src;           /* of the run; NULL: the op is not begun */
  int64_t index[RS_OP_LOOPS];
} rs_ahead;
/* Asks for the next `bytes` of it. */
void rs_program_ahead(rs_ahead *ahead, int64_t bytes);

/* Runs one task by the calling thread. Stores past the cache are not ordered yet. */
void rs_program_run_task(const rs_program *program, const rs_kernels *kernels, int64_t task);

#endif
