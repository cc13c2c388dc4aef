/* Layouts from the command line. */
#ifndef BENCH_WORKLOAD_LAYOUTS_H
#define BENCH_WORKLOAD_LAYOUTS_H

#include "bench/cli/util.h"

#include <reshard/file.h>

/* Sizes of --mesh, for mesh dims that layouts name without one. */
typedef struct workload_mesh {
  int n;
  struct workload_mesh_dim {
    char name[64];
    int64_t size, used; /* used: layouts that it has gone into */
  } dim[RESHARD_MAX_DIMS];
} workload_mesh;
/* Reads "fsdp=8,tp=2"; NULL: none. Ends the program where something is wrong. */
void workload_read_mesh(const char *text, workload_mesh *out);
/* Ends the program where a size has gone into no layout. */
void workload_check_mesh(const workload_mesh *mesh);

/* The argument of --src or --dst: a layout string, or the rules of "@FILE", with the sizes of --mesh. A bare name, with
 * ".rules" or without, is looked up among the program's own rules too. The caller frees it. Ends the program where
 * something is wrong. */
typedef struct workload_layouts {
  char *text;          /* a layout string, or NULL */
  reshard_rules rules; /* or rules */
  int64_t world;       /* that it names */
} workload_layouts;
void workload_read_layouts(const char *option, const char *text, workload_mesh *mesh, workload_layouts *out);
void workload_free_layouts(workload_layouts *l);

#endif
