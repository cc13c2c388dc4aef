/* Running groups of copies through partial lines. */
#ifndef RS_DEVICE_CPU_COPY_PARTIAL_LINES_H
#define RS_DEVICE_CPU_COPY_PARTIAL_LINES_H

#include "device/cpu/copy/program.h"

/* Memory of a thread that runs a task. */
typedef struct rs_task_buffers {
  _Alignas(RS_LINE) char buffer[RS_BUFFER + 3 * RS_LINE * RS_GROUP_COPIES];
  rs_cursor cursors[RS_GROUP_COPIES];
  rs_partial_line lines[RS_GROUP_COPIES];
} rs_task_buffers;

/* Runs steps [at, at + n) of a group of RS_MODE_PARTIAL_LINES or RS_MODE_BUFFER. */
void rs_run_partial_lines(const rs_program *program, const rs_kernels *kernels, const rs_copy_group *group, int64_t at,
                          int64_t n, rs_task_buffers *buffers);
/* Sets cursors to a step of a group; returns how many steps they go on from there. */
int64_t rs_copy_group_cursors(const rs_program *program, const rs_copy_group *group, int64_t at, rs_cursor *cursors);

#endif
