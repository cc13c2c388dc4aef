/* In place of mpi.c in a build without MPI. */
#include "bench/launch/processes.h"

static _Noreturn void refuse_mpi(void) { cli_exit(EXIT_LACKING, "--comm mpi: this build has no MPI"); }

bool mpi_built(void) { return false; }
void mpi_open(processes *out) {
  (void)out;
  refuse_mpi();
}
void mpi_gather(const void *mine, size_t n, void *all) {
  (void)mine, (void)n, (void)all;
  refuse_mpi();
}
void mpi_close(void) {}
void mpi_connect(reshard_device device, reshard_comm *comm) {
  (void)device, (void)comm;
  refuse_mpi();
}
