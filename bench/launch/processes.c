#include "bench/launch/processes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int64_t processes_timeout_ms(void) {
  const char *text = getenv("RESHARD_TIMEOUT_MS");
  long long given = text != NULL ? strtoll(text, NULL, 10) : 0;
  return given > 0 ? given : 60000;
}

static bool under_mpirun(void) {
  return getenv("OMPI_COMM_WORLD_SIZE") != NULL || getenv("PMI_SIZE") != NULL || getenv("PMIX_RANK") != NULL;
}

/* A number of the environment, from 0 to below; otherwise where it is not set. */
static int64_t environment_number(const char *name, int64_t below, int64_t otherwise) {
  const char *text = getenv(name);
  if (text == NULL)
    return otherwise;
  char *end;
  errno = 0;
  long long value = strtoll(text, &end, 10);
  if (end == text || *end != '\0' || errno != 0 || value < 0 || value >= below)
    cli_exit(EXIT_USAGE, "%s=%s: a number from 0 to %lld is expected", name, text, (long long)below - 1);
  return value;
}

/* Reads what the environment says; a mistake in it ends the program. */
static reshard_rendezvous read_environment(void) {
  reshard_rendezvous r = RESHARD_RENDEZVOUS_DEFAULTS;
  CLI_TRY("", reshard_rendezvous_from_environment(&r));
  return r;
}

/* Number of processes that were started together by mpirun; 0: by none that says it. */
static int64_t count_by_mpirun(void) {
  static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};
  for (int i = 0; i < 2; i++)
    if (getenv(sizes[i]) != NULL)
      return environment_number(sizes[i], (int64_t)1 << 31, 1);
  return 0;
}

/* One of the two variables alone says nothing, and neither do Slurm's outside of a step. */
static bool under_environment(void) {
  return (getenv("RANK") != NULL && getenv("WORLD_SIZE") != NULL) ||
         (getenv("SLURM_PROCID") != NULL && getenv("SLURM_STEP_ID") != NULL);
}

const char *processes_comm_name(const processes *started, bool cuda) {
  int64_t n = started->n;
  if (n > 1)
    return cuda ? "nccl" : "node";
  n = count_by_mpirun();
  if (n > 1 && !cuda && !mpi_built())
    cli_exit(EXIT_LACKING,
             "mpirun has started %lld processes, and this build has no MPI that connects them; with --comm local each "
             "works alone",
             (long long)n);
  if (n > 1)
    return cuda ? "nccl" : "mpi";
  if (n == 1 || !under_environment())
    return "local";
  reshard_rendezvous r = read_environment();
  if (r.n > 1 && !cuda && r.local_n < r.n)
    cli_exit(EXIT_USAGE,
             "the environment says %lld processes, %lld of them on this node: on the CPU mpirun connects several nodes "
             "(--comm mpi); with --comm local each works alone",
             (long long)r.n, (long long)r.local_n);
  return r.n <= 1 ? "local" : cuda ? "nccl" : "node";
}

static void open_environment(processes *out) {
  reshard_rendezvous r = read_environment();
  if (!under_environment() && getenv("RANK") == NULL && getenv("WORLD_SIZE") == NULL)
    return;
  *out = (processes){r.n, r.rank, r.local_n, r.local_rank, "environment", r, NULL};
  out->rendezvous.timeout_ms = processes_timeout_ms();
}

void processes_open(const char *comm, processes *out) {
  bool mpi = strcmp(comm, "mpi") == 0, local = strcmp(comm, "local") == 0;
  if (out->page != NULL)
    return;
  *out = (processes){.n = 1, .me = 0, .local_n = 1, .local_me = 0, .by = "none"};
  if (mpi || (!local && mpi_built() && under_mpirun()))
    mpi_open(out);
  else if (!local)
    open_environment(out);
  if (!local && strcmp(out->by, "none") == 0 && count_by_mpirun() > 1)
    cli_exit(EXIT_LACKING,
             "mpirun has started %lld processes, and this build has no MPI: RANK, WORLD_SIZE, MASTER_ADDR and "
             "MASTER_PORT say how they find each other",
             (long long)count_by_mpirun());
}

reshard_status processes_allgather(void *user, const void *mine, size_t bytes, void *all) {
  processes *p = user;
  if (p->page != NULL)
    return processes_show(p, mine, bytes, all);
  if (strcmp(p->by, "environment") == 0)
    return reshard_rendezvous_allgather(&p->rendezvous, mine, bytes, all);
  if (strcmp(p->by, "mpi") == 0)
    mpi_gather(mine, bytes, all);
  else
    memcpy(all, mine, bytes);
  return RESHARD_SUCCESS;
}

void processes_share(processes *p, void *bytes, size_t n) {
  char *all = cli_alloc(p->n, n);
  reshard_status status = processes_allgather(p, bytes, n, all);
  if (status == RESHARD_SUCCESS)
    memcpy(bytes, all, n);
  free(all);
  CLI_TRY("", status);
}

void processes_close(const processes *p) {
  if (strcmp(p->by, "mpi") == 0)
    mpi_close();
}
