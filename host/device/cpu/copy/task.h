/* Tasks of a program, run by threads of the CPU device. */
#ifndef RS_DEVICE_CPU_COPY_TASK_H
#define RS_DEVICE_CPU_COPY_TASK_H

#include "device/cpu/copy/program.h"

/* Position in the bytes that a program reads, run by run, to have them in the second-level cache before it runs. */
typedef struct rs_ahead {
  const rs_program *program; /* NULL: nothing */
  int64_t copy, at;          /* copy, and byte of its run */
  const char *src;           /* of the run; NULL: the copy is not begun */
  int64_t index[RS_AHEAD_LOOPS];
} rs_ahead;
/* Prefetches the next `bytes`. */
void rs_program_ahead(rs_ahead *ahead, int64_t bytes);

/* Bytes by which what a program reads, and what it writes, is further on than the program says. */
typedef struct rs_shift {
  int64_t src, dst;
} rs_shift;

/* Runs one task by the calling thread. Stores past the cache are not ordered yet. A program that stores past the cache
 * is shifted by whole lines in the destination. ahead: what is prefetched meanwhile, as many bytes as it copies; NULL:
 * nothing. */
void rs_program_run_task(const rs_program *program, const rs_kernels *kernels, int64_t task, rs_shift shift,
                         rs_ahead *ahead);

/* True where a program that stores plainly could store past the cache, to memory that is `dst` bytes further on. */
bool rs_program_streams_elsewhere(const rs_program *program, int64_t dst);
/* Does so, by the calling thread. Stores are not ordered yet. */
void rs_program_stream_elsewhere(const rs_program *program, const rs_kernels *kernels, int64_t dst);

/* Memory of a thread that runs a task. */
typedef struct rs_task_buffers {
  _Alignas(RS_LINE) char buffer[RS_BUFFER + 3 * RS_LINE * RS_GROUP_COPIES];
  rs_cursor cursors[RS_GROUP_COPIES];
  rs_partial_line lines[RS_GROUP_COPIES];
} rs_task_buffers;

/* Runs steps [at, at + n) of a group of RS_MODE_PARTIAL_LINES or RS_MODE_BUFFER. */
void rs_run_partial_lines(const rs_program *program, const rs_kernels *kernels, const rs_copy_group *group, int64_t at,
                          int64_t n, rs_shift shift, rs_task_buffers *buffers);
/* A block of a transpose. */
typedef struct rs_transposed_block {
  char *dst;
  const char *src;
  int64_t ni, nj;
} rs_transposed_block;
rs_transposed_block rs_transpose_block(const rs_program *program, const rs_ordered_copy *copy, int64_t at,
                                       rs_shift shift);

/* Runs steps [at, at + n) of a group of RS_MODE_CONVERT, or blocks of a transpose that converts. ahead: as above, and
 * asked piece by piece on the way. */
void rs_run_convert(const rs_program *program, const rs_kernels *kernels, const rs_copy_group *group, int64_t at,
                    int64_t n, rs_shift shift, bool streaming, rs_ahead *ahead);
/* Sets cursors to a step of a group; returns how many steps they go on from there. */
int64_t rs_copy_group_cursors(const rs_program *program, const rs_copy_group *group, int64_t at, rs_shift shift,
                              rs_cursor *cursors);

#endif
