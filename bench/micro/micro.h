/* Micro-benchmarks in C. A case makes its state once, then run is timed; items counts the things (intersections, boxes,
 * executes) that one run handles. */
#ifndef MICRO_H
#define MICRO_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct micro_case {
  const char *name;
  int64_t parameter;
  int64_t iterations; /* 0: as many as take half a second */
  /* Returns the state, NULL when the case cannot be made; writes how many items a run handles. */
  void *(*make)(int64_t parameter, int64_t *items);
  int (*run)(void *state); /* non-zero: it failed */
  void (*drop)(void *state);
} micro_case;

/* All cases, a table for each file, ended by one without a name. */
extern const micro_case micro_plans[], micro_metadata[], micro_sharded[], micro_dtensor[], micro_module[],
    micro_storage[], micro_trees[], micro_cast[], micro_copies[], micro_layouts[], micro_convert[], micro_gpu[];
/* Bytes of a run of these tables' cases, for a rate beside that of a sibling NAME_memcpy: copied; read and written;
 * of the tensor that is converted. */
int64_t micro_copies_bytes(const void *state), micro_cast_bytes(const void *state),
    micro_convert_bytes(const void *state), micro_gpu_bytes(const void *state);
/* The GPU's time of the last run, by its events. */
double micro_gpu_seconds(const void *state);
/* Whether there is a GPU; without one, micro_gpu has nothing to run on. */
int micro_gpu_here(void);
/* The instruction set that copies use. */
const char *micro_isa(void);
/* Runs the cases that the arguments ask for. Returns the exit status. */
int micro_main(int argc, char **argv);

#ifdef __cplusplus
}
#endif
#endif
