/* reshard verify: random cases on this machine, with the command that reproduces what fails. */
#include "bench/verify/verify.h"
#include "base/dtype.h"
#include "bench/cli/topology.h"
#include "bench/cli/workload.h"
#include "bench/launch/session.h"
#include "bench/verify/case_run.h"
#include "exec/path.h"

#include <stdlib.h>
#include <string.h>

/* Few threads make each case quicker; several runners keep the cores busy while ranks wait for one another. */
#define MOST_WORKERS 16

/* --dtype and --dst-dtype. */
typedef struct converted {
  reshard_dtype from, to;
  reshard_blocks blocks; /* of the one that is f8_e4m3; rows 0: there are no scales */
} converted;

static converted read_dtypes(const cli_options *o) {
  converted c = {0};
  reshard_blocks had = {0};
  if (o->dtype != NULL && o->dst_dtype == NULL)
    cli_exit(EXIT_USAGE, "--dtype %s: --dst-dtype is needed, too", o->dtype);
  c.from = o->dtype != NULL ? workload_dtype("--dtype", o->dtype, &had) : RESHARD_DTYPE_NONE;
  c.to = o->dst_dtype != NULL ? workload_dtype("--dst-dtype", o->dst_dtype, &c.blocks) : RESHARD_DTYPE_NONE;
  if (c.to != RESHARD_DTYPE_NONE && !rs_cast_knows(c.to))
    cli_exit(EXIT_LACKING, "--dst-dtype %s: there are no casts to it", o->dst_dtype);
  if (c.from != RESHARD_DTYPE_NONE && !rs_cast_knows(c.from))
    cli_exit(EXIT_LACKING, "--dtype %s: no cast from it to %s", o->dtype, o->dst_dtype);
  if (c.blocks.rows > 0 && c.from != RESHARD_DTYPE_NONE && !rs_blocks_know(c.from))
    cli_exit(EXIT_LACKING, "--dst-dtype %s: of f32, f16 and bf16, not of %s", o->dst_dtype, o->dtype);
  if (had.rows > 0 && !rs_blocks_know(c.to))
    cli_exit(EXIT_LACKING, "--dtype %s: to f32, f16 and bf16, not to %s", o->dtype, o->dst_dtype);
  c.blocks = had.rows > 0 ? had : c.blocks;
  return c;
}

int command_verify(int argc, char **argv) {
  cli_options o;
  cli_read_options(
      argc, argv, COMMAND_VERIFY,
      "usage: reshard verify [--cases N] [--seconds S] [--seed S] [OPTION]...\n\n"
      "Runs random cases (layouts of all kinds, shapes, element types, strides, regions, permutations, "
      "limits) and compares\n"
      "every byte with a naive reshard, on whatever device and communicator it is told. What failed before "
      "runs first.\n",
      &o);
  converted given = read_dtypes(&o);
  session where;
  int64_t asked = o.ranks;
  session_begin(&where, &o);
  bool remote = strcmp(where.comm, "local") != 0;
  if (!remote && o.ranks_per_gpu == 0)
    o.ranks = asked; /* worlds of any size on the GPUs of -g */
  bool reached = strcmp(where.comm, "nccl") != 0;
  if (!reached && o.path == RESHARD_PATH_DIRECT)
    cli_exit(EXIT_LACKING, "--path direct: ranks of --comm %s do not reach each other's memory", where.comm);
  if (remote && o.ranks == 0)
    o.ranks = 1;
  if (o.ranks > ORACLE_WORLD)
    cli_exit(EXIT_USAGE, "--ranks %lld: random cases have at most %d ranks", (long long)o.ranks, ORACLE_WORLD);
  if (o.seconds > 0 && where.processes.n > 1)
    cli_exit(EXIT_USAGE, "--seconds: %lld processes would not end with the same case", (long long)where.processes.n);
  session_connect(&where, remote ? o.ranks : 0);
  if (remote && reached && rs_path_find(where.comms[0], o.path) == NULL)
    cli_exit(EXIT_LACKING, "--path %s: the ranks that --comm %s connects here have none", reshard_path_string(o.path),
             where.comm);
  int64_t world = remote ? reshard_comm_size(where.comms[0]) : o.ranks;
  if (o.topology != NULL && world == 0)
    cli_exit(EXIT_USAGE, "--topology %s: --ranks is needed, too", o.topology);
  if (o.topology != NULL) { /* what is wrong with it is said before anything runs */
    reshard_topology topology;
    cli_read_topology(o.topology, world, &topology);
    free((int64_t *)topology.domain);
  }
  rs_text reproduce = {0};
  if (o.topology != NULL)
    cli_add(&reproduce, " --topology %s", o.topology);
  if (o.ranks > 0)
    cli_add(&reproduce, " --ranks %lld", (long long)o.ranks);
  if (o.threads > 0)
    cli_add(&reproduce, " --threads %lld", (long long)o.threads);
  if (o.path != RESHARD_PATH_AUTO)
    cli_add(&reproduce, " --path %s", reshard_path_string(o.path));
  if (o.dtype != NULL)
    cli_add(&reproduce, " --dtype %s", o.dtype);
  if (o.dst_dtype != NULL)
    cli_add(&reproduce, " --dst-dtype %s", o.dst_dtype);
  cli_add(&reproduce, "%s%s%s%s", where.cuda ? " --device cuda" : "", remote ? " --comm " : "",
          remote ? where.comm : "", o.graph ? " -G" : "");
  if (o.gpus > 0)
    cli_add(&reproduce, " -g %lld", (long long)o.gpus);
  int cores = cli_cores();
  case_options many = {
      .cases = o.cases,
      .seed = o.seed,
      .workers = o.cases < 64 || remote ? 1
                 : cores < MOST_WORKERS ? cores
                                        : MOST_WORKERS,
      .fixed = {.ranks = o.ranks,
                .threads = (int)o.threads,
                .path = reached || o.path == RESHARD_PATH_MIXED ? o.path : RESHARD_PATH_PACKED,
                .graph = o.graph,
                .casts = true,
                .blocks = true,
                .topologies = true,
                .topology = o.topology,
                .gpus = where.cuda,
                .dtype = given.from,
                .dst_dtype = given.to,
                .scaled = given.blocks,
                .session = where.cuda || remote ? &where : NULL},
      .reproduce = reproduce.at,
      .most_failures = remote ? 1 : 10, /* its communicator is not used after a failure */
      .end = o.seconds > 0 ? rs_seconds() + (double)o.seconds : 0,
  };
  case_totals totals = {0};
  many.fixed.describe = o.cases == 1;
  int64_t kept = 0, failures = 0;
  double begin = rs_seconds();
  if (o.cases > 1)
    failures += case_run_regressions(&many, &totals, &kept);
  failures += case_run_all(&many, &totals);
  session_end(&where);
  free(reproduce.at);
  if (where.processes.me != 0) /* the first one tells */
    return failures > 0 ? EXIT_FAILED : EXIT_DONE;
  int64_t none = case_print_totals(&totals, stdout);
  printf("%lld of them failed, %lld are kept regressions; %.1f s\n", (long long)failures, (long long)kept,
         rs_seconds() - begin);
  if (failures > 0)
    cli_exit(EXIT_FAILED, "%lld of %lld cases failed", (long long)failures, (long long)totals.cases);
  if (none > 0 && totals.cases >= 10000) /* which may be fewer than asked for, by the time */
    cli_exit(EXIT_FAILED, "%lld pairs of layout kinds or dtypes had no case", (long long)none);
  return EXIT_DONE;
}
