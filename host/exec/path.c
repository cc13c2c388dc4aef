#include "exec/path.h"

#include <stddef.h>

/* The best first. */
static const rs_path_ops *const paths[] = {&rs_direct_path, &rs_mixed_path, &rs_packed_path};
enum { PATHS = sizeof paths / sizeof *paths };

const rs_path_ops *rs_path_find(reshard_comm comm, reshard_path asked) {
  for (int i = 0; i < PATHS; i++)
    if ((asked == RESHARD_PATH_AUTO || asked == paths[i]->number) && paths[i]->applicable(comm, asked))
      return paths[i];
  return NULL;
}
