/* Processes that mpirun started. MPI is behind libreshard_mpi, which is loaded when it is asked for, and stays. */
#include "bench/launch/processes.h"

#include "comm/mpi/world.h"

#include <dlfcn.h>
#include <reshard/mpi.h>
#include <string.h>

static struct {
  reshard_status (*open)(rs_mpi_world *world);
  void (*gather)(const rs_mpi_world *world, const void *mine, size_t bytes, void *all);
  void (*close)(void);
  reshard_status (*connect)(const void *mpi_comm, reshard_device device, int64_t timeout_ms, reshard_comm *comm);
  rs_mpi_world world;
} mpi;

bool mpi_built(void) { return true; }

/* Its result is a pointer to data, which C does not convert. */
static void mpi_find(void *library, const char *name, void *call) {
  void *at = dlsym(library, name);
  if (at == NULL)
    cli_exit(EXIT_LACKING, "--comm mpi: %s: %s", LIBRESHARD_MPI, dlerror());
  memcpy(call, &at, sizeof at);
}

void mpi_open(processes *out) {
  void *library = dlopen(LIBRESHARD_MPI, RTLD_NOW | RTLD_GLOBAL); /* global: what MPI loads looks for MPI */
  if (library == NULL)
    cli_exit(EXIT_LACKING, "--comm mpi: " LIBRESHARD_MPI " cannot be loaded: %s", dlerror());
  mpi_find(library, "rs_mpi_world_open", &mpi.open);
  mpi_find(library, "rs_mpi_world_gather", &mpi.gather);
  mpi_find(library, "rs_mpi_world_close", &mpi.close);
  mpi_find(library, "reshard_comm_from_mpi", &mpi.connect);
  CLI_TRY("--comm mpi: ", mpi.open(&mpi.world));
  *out = (processes){.n = mpi.world.n, .me = mpi.world.me, .by = "mpi"};
  out->local_n = mpi.world.local_n;
  out->local_me = mpi.world.local_me;
}

void mpi_gather(const void *mine, size_t n, void *all) { mpi.gather(&mpi.world, mine, n, all); }

void mpi_close(void) { mpi.close(); }

void mpi_connect(reshard_device device, reshard_comm *comm) {
  CLI_TRY("--comm mpi: ", mpi.connect(mpi.world.comm, device, 0, comm));
}
