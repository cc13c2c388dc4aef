/* Communicators are made and destroyed many times, with a split and a reshard in between: no descriptor, no segment,
 * and no growing memory is left. Their ranks are processes of a node, or mpirun's; or threads of each.
 *
 * usage: node_cycles RANKS CYCLES [THREADS], mpi_cycles CYCLES [THREADS]. RESHARD_TEST_SCALE scales CYCLES. */
#define _GNU_SOURCE
#include "base/base.h"
#include "bench/launch/rank_threads.h"
#include "support/fixtures/scale.h"
#include "support/processes/check_ranks.h"
#include "support/processes/world.h"

#include <reshard/reshard.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct usage {
  int64_t descriptors, mappings, segments, resident; /* resident: KiB */
} usage;

static usage read_usage(void) {
  usage u = {0};
  char line[512];
  DIR *list = opendir("/proc/self/fd");
  while (list != NULL && readdir(list) != NULL)
    u.descriptors++;
  if (list != NULL)
    closedir(list);
  FILE *maps = fopen("/proc/self/maps", "r");
  while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
    u.mappings++;
    u.segments += strstr(line, "memfd:reshard") != NULL;
  }
  if (maps != NULL)
    fclose(maps);
  FILE *memory = fopen("/proc/self/smaps_rollup", "r"); /* statm counts roughly where there are many cores */
  long long resident;
  while (memory != NULL && fgets(line, sizeof line, memory) != NULL)
    if (sscanf(line, "Rss: %lld kB", &resident) == 1)
      u.resident = resident;
  if (memory != NULL)
    fclose(memory);
  return u;
}

static void reshard_once(reshard_comm comm) {
  int64_t n = reshard_comm_size(comm), me = reshard_comm_rank(comm), shape[] = {8, n * 5};
  unsigned char src[8 * 5 * 32], dst[8 * 5 * 32];
  reshard_layout from = NULL, to = NULL;
  reshard_plan plan = NULL;
  reshard_transfer transfer = NULL;
  CHECK(reshard_layout_parse("rank(0)", 2, shape, n, &from) == RESHARD_SUCCESS, "from");
  CHECK(reshard_layout_parse("chunk(1)", 2, shape, n, &to) == RESHARD_SUCCESS, "to");
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = from, .dst = to, .dtype = RESHARD_U8};
  CHECK(reshard_plan_create(1, &entry, me, NULL, &plan) == RESHARD_SUCCESS, "plan");
  for (int64_t i = 0; i < 8 * 5 * n; i++)
    src[i] = (unsigned char)(7 * i + 1);
  memset(dst, 0, sizeof dst);
  reshard_arrays arrays = {RESHARD_ARRAYS_INIT, (void *[]){src}, (void *[]){dst}, NULL, NULL, 0, 0};
  CHECK(reshard_transfer_create(plan, comm, &arrays, NULL, &transfer) == RESHARD_SUCCESS, "transfer");
  CHECK(reshard_execute(transfer, NULL) == RESHARD_SUCCESS, "execute");
  for (int64_t i = 0; i < 40; i++)
    CHECK(dst[i] == (unsigned char)(7 * (i / 5 * 5 * n + me * 5 + i % 5) + 1), "byte %lld", (long long)i);
  reshard_transfer_destroy(transfer);
  reshard_plan_destroy(plan);
  reshard_layout_release(from);
  reshard_layout_release(to);
}

static void use_comm(reshard_comm comm, int64_t i) {
  reshard_comm half = NULL;
  if (i % 4 == 0)
    CHECK(reshard_comm_split(comm, reshard_comm_rank(comm) % 2, 0, &half) == RESHARD_SUCCESS, "split");
  reshard_once(half != NULL ? half : comm);
  if (i % 2 == 0)
    reshard_comm_destroy(half);
  reshard_comm_destroy(comm); /* at once: others may still be in their last call */
  if (i % 2 != 0)
    reshard_comm_destroy(half);
}

/* A cycle of ranks that are threads. */
typedef struct local_cycle {
  reshard_comm comms[64];
  int64_t number;
} local_cycle;

static void use_local(void *user, int64_t r) {
  local_cycle *c = user;
  use_comm(c->comms[r], c->number);
}

static void cycle(int64_t i, int64_t threads, rank_pool *pool) {
  local_cycle c = {.number = i};
  if (threads == 0) {
    CHECK(world_connect(60000, &c.comms[0]) == RESHARD_SUCCESS, "cycle %lld", (long long)i);
    use_comm(c.comms[0], i);
  } else {
    CHECK(reshard_comm_create_local(threads, NULL, c.comms) == RESHARD_SUCCESS, "cycle %lld", (long long)i);
    rank_pool_run(pool, threads, use_local, &c);
  }
}

int main(int argc, char **argv) {
  world_open(&argc, &argv, &rank, &size);
  int64_t cycles = test_scaled(argc > 1 ? atoll(argv[1]) : 1, 1), warm = 50;
  int64_t threads = rs_min(argc > 2 ? atoll(argv[2]) : 0, 64);
  rank_pool *pool = rank_pool_create();
  for (int64_t i = 0; i < warm; i++)
    cycle(i, threads, pool);
  usage before = read_usage();
  int64_t begun = rs_now_ns();
  for (int64_t i = 0; i < cycles && failures == 0; i++)
    cycle(i, threads, pool);
  double us = 1e-3 * (double)(rs_now_ns() - begun) / (double)cycles;
  usage after = read_usage();
  CHECK(after.descriptors == before.descriptors, "%lld descriptors, %lld before", (long long)after.descriptors,
        (long long)before.descriptors);
  CHECK(after.segments == 0, "%lld segments are left", (long long)after.segments);
#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__ /* which keep what is freed */
  CHECK(after.mappings <= before.mappings + 2, "%lld mappings, %lld before", (long long)after.mappings,
        (long long)before.mappings);
  CHECK(after.resident <= before.resident + 256, "%lld KiB, %lld before", (long long)after.resident,
        (long long)before.resident);
#endif
  rank_pool_destroy(pool);
  int64_t all = world_close(failures);
  if (rank == 0)
    printf("cycles: %s | %lld | %lld | %lld | %lld | %lld | %lld\n", threads > 0 ? "local" : world_name,
           (long long)(threads > 0 ? threads : size), (long long)cycles, (long long)before.resident,
           (long long)after.resident, (long long)after.descriptors, (long long)after.segments);
  if (rank == 0)
    printf("%lld cycles, %d ranks: %.0f us each, %lld KiB, %lld before, %lld descriptors: %lld checks failed\n",
           (long long)cycles, size, us, (long long)after.resident, (long long)before.resident,
           (long long)after.descriptors, (long long)all);
  return all > 0;
}
