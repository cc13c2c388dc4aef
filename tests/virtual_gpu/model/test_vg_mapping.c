/* The driver's calls for virtual memory on the virtual GPU: physical memory, addresses and mappings, memory that a
 * process passes on to another one, and the mistakes that are reported. At the end processes are real ones. */
#include "virtual_gpu.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/fixtures/case.h"

#include "comm/node/sockets.h"
#include "expect_reports.h"

enum { BYTES = 2 << 20 };

/* Functions of the driver, by their names. */
static void *function_of(const char *name) {
  void *function = NULL;
  enum cudaDriverEntryPointQueryResult found;
  (void)cudaGetDriverEntryPointByVersion(name, &function, 11030, cudaEnableDefault, &found);
  return function;
}
#define DRIVER(type, name) ((int(*) type)function_of(name))

/* Memory that is mapped, and how. */
typedef struct mapped {
  unsigned long long handle, at;
  int fd;   /* passed on by process 0 */
  int step; /* process 1 is to do so much */
  int wrong;
} mapped;

static int make(mapped *m) {
  CUmemAllocationProp p;
  memset(&p, 0, sizeof p);
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  return DRIVER((unsigned long long *, size_t, const CUmemAllocationProp *, unsigned long long),
                "cuMemCreate")(&m->handle, BYTES, &p, 0);
}

static int reserve(mapped *m) {
  return DRIVER((unsigned long long *, size_t, size_t, unsigned long long, unsigned long long),
                "cuMemAddressReserve")(&m->at, BYTES, 0, 0, 0);
}

static int map(const mapped *m) {
  return DRIVER((unsigned long long, size_t, size_t, unsigned long long, unsigned long long),
                "cuMemMap")(m->at, BYTES, 0, m->handle, 0);
}

static int let(const mapped *m, int gpu) {
  CUmemAccessDesc access;
  memset(&access, 0, sizeof access);
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = gpu;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return DRIVER((unsigned long long, size_t, const CUmemAccessDesc *, size_t), "cuMemSetAccess")(m->at, BYTES, &access,
                                                                                                 1);
}

static int unmap(const mapped *m) { return DRIVER((unsigned long long, size_t), "cuMemUnmap")(m->at, BYTES); }
static int unreserve(const mapped *m) { return DRIVER((unsigned long long, size_t), "cuMemAddressFree")(m->at, BYTES); }
static int release(const mapped *m) { return DRIVER((unsigned long long), "cuMemRelease")(m->handle); }

static int export_file(mapped *m) {
  return DRIVER((void *, unsigned long long, CUmemAllocationHandleType, unsigned long long),
                "cuMemExportToShareableHandle")(&m->fd, m->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}

static int import_file(mapped *m, int fd) {
  return DRIVER((unsigned long long *, void *, CUmemAllocationHandleType), "cuMemImportFromShareableHandle")(
      &m->handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

#define GOOD(call) assert_int_equal(call, 0)

/* All but the access of any GPU. */
static void make_mapped(mapped *m) {
  GOOD(cudaSetDevice(0));
  GOOD(make(m));
  GOOD(reserve(m));
  GOOD(map(m));
}

static void end_mapped(const mapped *m) {
  GOOD(cudaDeviceSynchronize());
  GOOD(unmap(m));
  GOOD(unreserve(m));
  GOOD(release(m));
}

static void begin_with_reports(int devices) {
  vg_quiet(true);
  vg_begin(&(vg_options){.devices = devices});
}

/* --- One process -------------------------------------------------------------------------------------------------- */

CASE(memory_is_used) {
  mapped m;
  char here[3];
  vg_begin(NULL);
  make_mapped(&m);
  GOOD(let(&m, 0));
  assert_int_equal(vg_memory_used(0), BYTES);
  GOOD(cudaMemsetAsync((void *)(uintptr_t)m.at, 7, BYTES, NULL));
  GOOD(cudaDeviceSynchronize());
  vg_peek(here, (char *)(uintptr_t)m.at + BYTES - 3, 3);
  assert_int_equal(here[0] + here[1] + here[2], 21);
  assert_int_equal(cudaFree((void *)(uintptr_t)m.at) != cudaSuccess, true);
  assert_int_equal(vg_reports_with("misuse: cudaFree"), 1);
  end_mapped(&m);
  assert_int_equal(vg_memory_used(0), 0);
  vg_quiet(true);
  assert_int_equal(vg_end(), 1);
}

CASE(access_that_nobody_set) {
  mapped m;
  begin_with_reports(2);
  make_mapped(&m);
  GOOD(let(&m, 1)); /* not to its own */
  GOOD(cudaMemsetAsync((void *)(uintptr_t)m.at, 7, 16, NULL));
  end_mapped(&m);
  expect_reports(1, "peer: write cudaMemsetAsync GPU 0");
}

CASE(unmap_in_use) {
  mapped m;
  cudaStream_t stream;
  begin_with_reports(1);
  make_mapped(&m);
  GOOD(let(&m, 0));
  GOOD(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  GOOD(cudaMemsetAsync((void *)(uintptr_t)m.at, 7, 16, stream));
  vg_drain(); /* which orders nothing */
  GOOD(unmap(&m));
  GOOD(unreserve(&m));
  GOOD(release(&m));
  GOOD(cudaStreamDestroy(stream));
  expect_reports(1, "free while in use: cuMemUnmap cudaMemsetAsync");
}

CASE(wrong_orders) {
  mapped m;
  begin_with_reports(1);
  make_mapped(&m);
  assert_int_not_equal(map(&m), 0);       /* a range that is mapped */
  assert_int_not_equal(unreserve(&m), 0); /* before it is unmapped */
  assert_int_not_equal(export_file(&(mapped){.handle = 1}), 0);
  end_mapped(&m);
  assert_int_not_equal(release(&m), 0);
  assert_int_not_equal(unmap(&m), 0);
  assert_int_not_equal(unreserve(&m), 0);
  assert_int_equal(vg_end(), 5);
  assert_int_equal(vg_reports_with("misuse: cuMemAddressFree of a range that is mapped"), 1);
  assert_int_equal(vg_reports_with("misuse: cuMemRelease of a handle that this process does not have"), 1);
  assert_int_equal(vg_reports_with("misuse: cuMemUnmap not reserved"), 1);
}

CASE(leaked_handles_and_mappings_are_reported) {
  mapped m;
  begin_with_reports(1);
  make_mapped(&m);
  assert_int_equal(vg_end(), 3);
  assert_int_equal(vg_reports_with("leak: 1 handles"), 1);
  assert_int_equal(vg_reports_with("leak: 1 mappings"), 1);
  assert_int_equal(vg_reports_with("leak: 1 ranges"), 1);
}

/* --- Two processes ------------------------------------------------------------------------------------------------ */

#define NEED(what) \
  do { \
    if (!(what)) { \
      theirs->wrong = __LINE__; \
      return NULL; \
    } \
  } while (0)

/* Step 0: maps the memory and looks at it. 1: writes to it. 2: closes it, or while it is in use, 3. */
static void *use_import(void *argument) {
  mapped *theirs = argument;
  cudaStream_t stream;
  char here;
  vg_process(1);
  NEED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  if (theirs->step == 0) {
    NEED(import_file(theirs, theirs->fd) == 0 && reserve(theirs) == 0 && map(theirs) == 0 && let(theirs, 0) == 0);
    NEED(release(theirs) == 0); /* the mapping keeps the memory */
    vg_peek(&here, (char *)(uintptr_t)theirs->at + 5, 1);
    NEED(here == 3);
  }
  if (theirs->step == 1 || theirs->step == 3)
    NEED(cudaMemsetAsync((void *)(uintptr_t)theirs->at, 4, 16, stream) == cudaSuccess);
  if (theirs->step != 3)
    NEED(cudaStreamSynchronize(stream) == cudaSuccess);
  vg_drain();
  if (theirs->step >= 2)
    NEED(unmap(theirs) == 0 && unreserve(theirs) == 0);
  NEED(cudaStreamDestroy(stream) == cudaSuccess);
  return NULL;
}

static void run_step(mapped *theirs, int step) {
  pthread_t thread;
  theirs->step = step;
  assert_int_equal(pthread_create(&thread, NULL, use_import, theirs), 0);
  assert_int_equal(pthread_join(thread, NULL), 0);
  assert_int_equal(theirs->wrong, 0);
}

/* Memory of process 0 that process 1 has mapped. */
static void make_shared(mapped *mine, mapped *theirs) {
  make_mapped(mine);
  GOOD(let(mine, 0));
  GOOD(cudaMemsetAsync((void *)(uintptr_t)mine->at, 3, BYTES, NULL));
  GOOD(cudaDeviceSynchronize());
  GOOD(export_file(mine));
  *theirs = (mapped){.fd = mine->fd};
  run_step(theirs, 0);
  close(mine->fd);
}

CASE(memory_of_two_processes) {
  mapped mine, theirs;
  char here;
  for (uint64_t seed = 0; seed < 4; seed++) {
    vg_begin(&(vg_options){.seed = seed});
    make_shared(&mine, &theirs);
    run_step(&theirs, 1);
    vg_peek(&here, (char *)(uintptr_t)mine.at + 5, 1);
    assert_int_equal(here, 4);
    end_mapped(&mine);
    assert_int_equal(vg_memory_used(0), BYTES); /* the other one has it still */
    run_step(&theirs, 2);
    assert_int_equal(vg_memory_used(0), 0);
    assert_int_equal(vg_end(), 0);
  }
}

/* The other process's mapping keeps the memory, which it uses on. */
CASE(import_after_its_end) {
  mapped mine, theirs;
  char here;
  vg_begin(NULL);
  make_shared(&mine, &theirs);
  end_mapped(&mine);
  run_step(&theirs, 1);
  vg_peek(&here, (char *)(uintptr_t)theirs.at + 5, 1);
  assert_int_equal(here, 4);
  run_step(&theirs, 2);
  assert_int_equal(vg_memory_used(0), 0);
  assert_int_equal(vg_end(), 0);
}

/* But not while this process's own work uses it by the address that goes. */
CASE(unmap_of_kept_in_use) {
  mapped mine, theirs;
  cudaStream_t stream;
  begin_with_reports(1);
  make_shared(&mine, &theirs);
  GOOD(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  GOOD(cudaMemsetAsync((void *)(uintptr_t)mine.at, 7, 16, stream));
  vg_drain(); /* which orders nothing */
  GOOD(unmap(&mine));
  GOOD(cudaDeviceSynchronize());
  GOOD(unreserve(&mine));
  GOOD(release(&mine));
  run_step(&theirs, 2);
  GOOD(cudaStreamDestroy(stream));
  expect_reports(1, "close while in use: cuMemUnmap cudaMemsetAsync");
}

CASE(unmap_of_import_in_use) {
  mapped mine, theirs;
  begin_with_reports(1);
  make_shared(&mine, &theirs);
  run_step(&theirs, 3);
  end_mapped(&mine);
  assert_true(vg_end() >= 1);
  assert_int_equal(vg_reports_with("close while in use: cuMemUnmap cudaMemsetAsync"), 1);
}

CASE(files_of_others) {
  mapped m;
  int none[2];
  vg_begin(NULL);
  GOOD(cudaSetDevice(0));
  assert_int_equal(pipe(none), 0);
  assert_int_not_equal(import_file(&m, none[0]), 0);
  assert_int_not_equal(import_file(&m, -1), 0);
  close(none[0]);
  close(none[1]);
  assert_int_equal(vg_end(), 0);
}

/* --- Real processes ----------------------------------------------------------------------------------------------- */

/* Maps memory of another process, finds a byte there, and fills it with another one. */
static bool change_import(int fd, char there, char filled) {
  mapped m;
  char here = 0;
  bool good = cudaSetDevice(0) == 0 && import_file(&m, fd) == 0 && reserve(&m) == 0 && map(&m) == 0 && let(&m, 0) == 0;
  if (!good)
    return false;
  vg_peek(&here, (char *)(uintptr_t)m.at + BYTES - 1, 1);
  good = cudaMemsetAsync((void *)(uintptr_t)m.at, filled, BYTES, NULL) == 0 && cudaDeviceSynchronize() == 0;
  good &= vg_memory_used(0) == 0; /* it is its maker's */
  good &= unmap(&m) == 0 && unreserve(&m) == 0 && release(&m) == 0;
  return good && here == there;
}

static bool ended_well(pid_t child) {
  int status = -1;
  return waitpid(child, &status, 0) == child && status == 0;
}

CASE(import_of_child) {
  mapped mine;
  char here[2] = "";
  vg_begin(NULL);
  make_mapped(&mine);
  GOOD(let(&mine, 0));
  GOOD(cudaMemsetAsync((void *)(uintptr_t)mine.at, 3, BYTES, NULL));
  GOOD(cudaDeviceSynchronize());
  GOOD(export_file(&mine));
  pid_t child = fork();
  if (child == 0) {
    vg_begin(NULL);
    _exit(change_import(mine.fd, 3, 4) && vg_end() == 0 ? 0 : 1);
  }
  assert_true(ended_well(child));
  vg_peek(here, (char *)(uintptr_t)mine.at, 1);
  vg_peek(here + 1, (char *)(uintptr_t)mine.at + BYTES - 1, 1);
  assert_int_equal(here[0], 4);
  assert_int_equal(here[1], 4);
  close(mine.fd);
  end_mapped(&mine);
  assert_int_equal(vg_memory_used(0), 0);
  assert_int_equal(vg_end(), 0);
}

static bool make_and_send(int to) {
  mapped m;
  bool good = cudaSetDevice(0) == 0 && make(&m) == 0 && reserve(&m) == 0 && map(&m) == 0 && let(&m, 0) == 0 &&
              cudaMemsetAsync((void *)(uintptr_t)m.at, 5, BYTES, NULL) == 0 && cudaDeviceSynchronize() == 0 &&
              export_file(&m) == 0 && rs_node_send(to, RS_NODE_MEMORY, "", 1, m.fd, 0) == 0;
  return good && unmap(&m) == 0 && unreserve(&m) == 0 && release(&m) == 0 && vg_end() == 0;
}

/* A descriptor keeps the memory. */
CASE(import_from_ended) {
  char byte;
  int ends[2], fd = -1;
  assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  pid_t child = fork();
  if (child == 0) {
    vg_begin(NULL);
    _exit(make_and_send(ends[1]) ? 0 : 1);
  }
  assert_true(ended_well(child));
  assert_int_equal(rs_node_receive(ends[0], RS_NODE_MEMORY, &byte, 1, &fd, 0), 0);
  vg_begin(NULL);
  assert_true(change_import(fd, 5, 6));
  assert_int_equal(vg_end(), 0);
  close(fd);
  close(ends[0]);
  close(ends[1]);
}

RUN_CASES_IF(vg_sees_kernels(), "this build sees no accesses")
