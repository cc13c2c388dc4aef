/* Writes of the library's host code to pinned memory, whose stores are not seen. Pieces of the staging ring: from
 * when one is taken on. */
#include "virtual_gpu.h"

#include <reshard/device.h>

extern "C" {
int __real_rs_staging_take(void *staging, size_t bytes, void **piece, void **memory);

int __wrap_rs_staging_take(void *staging, size_t bytes, void **piece, void **memory) {
  int status = __real_rs_staging_take(staging, bytes, piece, memory);
  if (status == 0)
    vg_host_write(*memory, bytes);
  return status;
}

/* Tables of programs that run once are written to pinned memory; others to memory that is not watched. */
int64_t rs_box_tables_bytes(const void *tables);
void __real_rs_box_tables_write(const void *tables, char *host, const char *device, void *parts);

void __wrap_rs_box_tables_write(const void *tables, char *host, const char *device, void *parts) {
  vg_host_write(host, (size_t)rs_box_tables_bytes(tables));
  __real_rs_box_tables_write(tables, host, device, parts);
}

/* Copies of the CPU that were to take the best instructions take those whose stores are seen (RESHARD_ISA=scalar is for
 * devices that read it). */
int __real_rs_device_cpu_create(int threads, int isa, void **device);

int __wrap_rs_device_cpu_create(int threads, int isa, void **device) {
  return __real_rs_device_cpu_create(threads, isa == RESHARD_ISA_AUTO ? RESHARD_ISA_SCALAR : isa, device);
}
}
