#include "exec/path.h"

#include <stddef.h>
#include <string.h>

/* The best first. */
static const rs_path_ops *const paths[] = {&rs_direct_path, &rs_mixed_path, &rs_packed_path};
enum { PATHS = sizeof paths / sizeof *paths };

const rs_path_ops *rs_path_find(reshard_comm comm, reshard_path asked) {
  for (int i = 0; i < PATHS; i++)
    if ((asked == RESHARD_PATH_AUTO || asked == paths[i]->number) && paths[i]->applicable(comm, asked))
      return paths[i];
  return NULL;
}

static const char *const names[] = {"auto", "direct", "packed", "mixed"}; /* by reshard_path */
enum { NAMES = sizeof names / sizeof *names };

const char *reshard_path_string(reshard_path path) {
  return (int)path >= 0 && (int)path < NAMES ? names[path] : "unknown";
}

reshard_status reshard_path_parse(const char *text, reshard_path *path) {
  RS_TRY(RS_GIVEN("reshard_path_parse", text, path));
  for (int i = 0; i < NAMES; i++)
    if (strcmp(text, names[i]) == 0) {
      *path = (reshard_path)i;
      return RESHARD_SUCCESS;
    }
  return rs_error(RESHARD_ERROR_INVALID, "unknown path '%.64s': auto, direct, packed or mixed", text);
}
