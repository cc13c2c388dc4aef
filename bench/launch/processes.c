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

/* Number of processes that were started together: by mpirun (*by is "mpi"), or in torchrun's way ("environment"). */
static int64_t count_started(const char **by) {
  static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};
  *by = "mpi";
  for (int i = 0; i < 2; i++)
    if (getenv(sizes[i]) != NULL)
      return environment_number(sizes[i], (int64_t)1 << 31, 1);
  *by = "environment";
  return getenv("RANK") != NULL ? environment_number("WORLD_SIZE", (int64_t)1 << 31, 1) : 1;
}

const char *processes_comm(bool cuda) {
  const char *by;
  int64_t n = count_started(&by);
  if (n <= 1)
    return "local";
  if (cuda)
    return "nccl";
  if (strcmp(by, "environment") == 0)
    cli_exit(EXIT_USAGE,
             "RANK=%s and WORLD_SIZE=%lld say %lld processes: on the CPU mpirun connects them (--comm mpi), on GPUs "
             "--device cuda; with --comm local each works alone",
             getenv("RANK"), (long long)n, (long long)n);
  if (!mpi_built())
    cli_exit(EXIT_LACKING,
             "mpirun has started %lld processes, and this build has no MPI that connects them; with --comm local each "
             "works alone",
             (long long)n);
  return "mpi";
}

static void read_environment(processes *p) {
  const char *const needed[] = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};
  int there = 0;
  for (int i = 0; i < 2; i++)
    there += getenv(needed[i]) != NULL;
  if (there == 0)
    return;
  p->n = environment_number("WORLD_SIZE", 1 << 20, 0);
  for (int i = 0; i < 4; i++)
    if (getenv(needed[i]) == NULL && (p->n != 1 || i < 2))
      cli_exit(EXIT_USAGE, "%s is set and %s is not", getenv("RANK") != NULL ? "RANK" : "WORLD_SIZE", needed[i]);
  if (p->n < 1)
    cli_exit(EXIT_USAGE, "WORLD_SIZE=%s: no process", getenv("WORLD_SIZE"));
  p->me = environment_number("RANK", p->n, 0);
  p->local_n = environment_number("LOCAL_WORLD_SIZE", p->n + 1, p->n);
  p->local_me = environment_number("LOCAL_RANK", p->n, p->me);
  p->by = "environment";
}

void processes_open(const char *comm, processes *out) {
  *out = (processes){.n = 1, .me = 0, .local_n = 1, .local_me = 0, .by = "none"};
  if (strcmp(comm, "mpi") == 0 || (strcmp(comm, "nccl") == 0 && mpi_built() && under_mpirun()))
    mpi_open(out);
  else if (strcmp(comm, "nccl") == 0)
    read_environment(out);
  const char *by;
  if (strcmp(comm, "nccl") == 0 && strcmp(out->by, "none") == 0 && count_started(&by) > 1)
    cli_exit(EXIT_LACKING,
             "mpirun has started %lld processes, and this build has no MPI: RANK, WORLD_SIZE, MASTER_ADDR and "
             "MASTER_PORT say how they find each other",
             (long long)count_started(&by));
}

void processes_share(const processes *p, void *bytes, size_t n) {
  if (strcmp(p->by, "mpi") == 0)
    mpi_share(bytes, n);
  else if (p->n > 1)
    tcp_share(p, bytes, n);
}

void processes_close(const processes *p) {
  if (strcmp(p->by, "mpi") == 0)
    mpi_close();
}
