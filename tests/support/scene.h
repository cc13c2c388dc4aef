/* One tensor from rows to columns over some ranks: the stage for tests of what can go wrong. Tests change what a rank
 * brings (plan, arrays, options) before the ranks make their calls, each on its own thread. */
#ifndef TESTS_SCENE_H
#define TESTS_SCENE_H

#include "support/crew.h"

#include <reshard/reshard.h>

#include <stdbool.h>

enum { SCENE_MOST = 8, SCENE_ROWS = 12, SCENE_COLUMNS = 20 };

typedef struct scene {
  int64_t n;
  reshard_comm comms[SCENE_MOST];
  reshard_layout src, dst; /* chunk(0), chunk(1) */
  reshard_plan plans[SCENE_MOST];
  uint32_t *rows[SCENE_MOST], *columns[SCENE_MOST]; /* source and destination memory, and one element more */
  void *src_list[SCENE_MOST], *dst_list[SCENE_MOST];
  reshard_arrays arrays[SCENE_MOST];
  reshard_transfer_options options[SCENE_MOST];
  reshard_transfer transfers[SCENE_MOST];
  crew_result results[SCENE_MOST]; /* of each rank's last call */
} scene;

/* Communicator, plans (options may be NULL) and memory for n ranks. */
void scene_open(scene *s, int64_t n, int64_t timeout_ms, reshard_path path, const reshard_plan_options *options);
void scene_close(scene *s); /* destroys transfers and plans that are there */

/* Sources get the data of a generation, destinations poison. */
void scene_fill(scene *s, uint32_t generation);
/* Every destination has the data of a generation; nothing has come to any. */
bool scene_right(const scene *s, uint32_t generation);
bool scene_untouched(const scene *s);

/* All ranks at once. The results are in s->results; transfers of failed creates must be as they were (checked). */
void scene_create(scene *s);
void scene_execute(scene *s);
void scene_rebind(scene *s);
void scene_destroy(scene *s); /* the transfers */

/* Creates, and fails the test when that fails on any rank. */
void scene_ready(scene *s);
/* Fills, executes and checks, with another generation each time. */
void scene_works(scene *s);

/* Every rank has this status; where it is an error, all have the same text, with every part in it (NULL ends). */
void scene_assert_all(const scene *s, reshard_status status, ...) __attribute__((sentinel));
void scene_assert_text(const char *text, const char *part);

#endif
