/* Processes, as threads with address spaces of their own. Memory of the GPU that a process has exported is mapped by
 * another one at an address of its own: the same pages, whose shadow is the exporter's. An address counts in the
 * process alone that has got it. So does a handle: how a program passes it on is its own affair. */
#include "machine.hpp"

#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace vg {

/* Pages that are to be mapped twice have to be of a file, which the arena's are not before the first export. */
static int file = -1;
static const size_t page = 4096;

void imports_end() {
  if (file < 0)
    return;
  mmap((void *)arena, arena_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
       0);
  close(file);
  file = -1;
}

static void must(bool good, const char *what) {
  if (good)
    return;
  perror(what);
  abort();
}

/* Moves all pages of an allocation to the file, where they are at the same offset as in the arena. */
static void share(const Alloc &alloc) {
  if (file < 0) {
    file = memfd_create("virtual GPU", MFD_CLOEXEC);
    must(file >= 0 && ftruncate(file, (off_t)arena_bytes) == 0, "virtual GPU: memfd_create");
  }
  uintptr_t begin = alloc.base / page * page, end = (alloc.base + alloc.bytes + page - 1) / page * page;
  must(pwrite(file, (void *)begin, end - begin, (off_t)(begin - arena)) == (ssize_t)(end - begin),
       "virtual GPU: pwrite");
  must(mmap((void *)begin, end - begin, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, (off_t)(begin - arena)) ==
           (void *)begin,
       "virtual GPU: mmap");
}

uintptr_t own_memory(uintptr_t at) {
  const Alloc *alloc = M.most_processes > 1 ? find(at) : nullptr;
  return alloc && alloc->of ? at - alloc->base + alloc->of->base : at;
}

void check_exports(const Alloc &alloc, const char *call) {
  for (auto &a : M.allocs)
    if (a->of == &alloc && a->ipc && !a->ended)
      report("exported " + std::to_string(alloc.number), "ipc: %s of %s, which process %d has open", call,
             describe(alloc).c_str(), a->process);
}

/* Contents of a handle. */
struct Handle {
  char magic[16];
  uint32_t number; /* of the allocation */
  int process, pid;
  int file; /* of that process */
  uint64_t offset, bytes;
};
static_assert(sizeof(Handle) <= sizeof(cudaIpcMemHandle_t), "");
static const char magic[16] = "virtual GPU IPC";

static Alloc *exported(const Handle &handle) {
  if (memcmp(handle.magic, magic, sizeof magic) != 0 || handle.pid != getpid())
    return nullptr;
  for (auto &a : M.allocs)
    if (a->number == handle.number && a->process == handle.process && !a->of)
      return a.get();
  return nullptr;
}

static uint64_t ipc_of(const Handle &handle) { return (uint64_t)handle.pid << 32 | handle.number; }

/* A context may open a handle once. */
static bool is_open(const Handle &handle, const Thread &thread) {
  for (auto &a : M.allocs)
    if (a->ipc == ipc_of(handle) && a->process == process_of(thread) && a->device == thread.device && !a->ended)
      return true;
  return false;
}

/* The pages of an allocation that is shared, also at another page. */
static void map_again(const Alloc &alloc, uintptr_t at) {
  size_t bytes = (alloc.base % page + alloc.bytes + page - 1) / page * page;
  must(mmap((void *)at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file,
            (off_t)(alloc.base / page * page - arena)) == (void *)at,
       "virtual GPU: mmap");
}

/* Memory of a real process. */
static Alloc *map_foreign(const Handle &handle, Thread &thread) {
  size_t inside = handle.offset % page, bytes = (inside + handle.bytes + page - 1) / page * page;
  std::string path = "/proc/" + std::to_string(handle.pid) + "/fd/" + std::to_string(handle.file);
  int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0)
    return nullptr;
  Alloc *made = add_alloc(Kind::Device, thread.device, bytes + page, thread_note(thread, "cudaIpcOpenMemHandle"));
  uintptr_t first = made ? (made->base + page - 1) / page * page : 0;
  if (made)
    must(mmap((void *)first, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
              (off_t)(handle.offset - inside)) == (void *)first,
         "virtual GPU: mmap");
  close(fd);
  if (!made)
    return nullptr;
  made->base = first + inside;
  made->bytes = handle.bytes;
  made->foreign = true;
  return made;
}

/* At an offset in its first page that is the exporter's. */
static Alloc *map(Alloc &alloc, Thread &thread) {
  size_t inside = alloc.base % page, bytes = (inside + alloc.bytes + page - 1) / page * page;
  Alloc *made = add_alloc(Kind::Device, thread.device, bytes + page, thread_note(thread, "cudaIpcOpenMemHandle"));
  if (!made)
    return nullptr;
  uintptr_t first = (made->base + page - 1) / page * page;
  map_again(alloc, first);
  made->base = first + inside;
  made->bytes = alloc.bytes;
  made->of = &alloc;
  return made;
}

} // namespace vg

using namespace vg;

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *p) {
  VG_CALL(cudaIpcGetMemHandle, CALL_PLAIN);
  Alloc *alloc = find((uintptr_t)p);
  if (!handle || !alloc || alloc->ended || alloc->of || alloc->pool || alloc->kind != Kind::Device ||
      alloc->base != (uintptr_t)p || alloc->process != process_of(*api.thread))
    return api.end(cudaErrorInvalidValue);
  share(*alloc);
  Handle made{};
  memcpy(made.magic, magic, sizeof magic);
  made.number = alloc->number;
  made.process = alloc->process;
  made.pid = getpid();
  made.file = file;
  made.offset = alloc->base - arena;
  made.bytes = alloc->bytes;
  memset(handle, 0, sizeof *handle);
  memcpy(handle, &made, sizeof made);
  return api.end(cudaSuccess);
}

cudaError_t cudaIpcOpenMemHandle(void **p, cudaIpcMemHandle_t given, unsigned int flags) {
  VG_CALL(cudaIpcOpenMemHandle, CALL_CREATE);
  Handle handle;
  memcpy(&handle, &given, sizeof handle);
  Thread &thread = *api.thread;
  if (p && flags == cudaIpcMemLazyEnablePeerAccess && memcmp(handle.magic, magic, sizeof magic) == 0 &&
      handle.pid != getpid()) {
    if (is_open(handle, thread))
      return api.end(cudaErrorAlreadyMapped);
    Alloc *foreign = map_foreign(handle, thread);
    if (!foreign)
      return api.end(cudaErrorMapBufferObjectFailed);
    foreign->ipc = ipc_of(handle);
    *p = (void *)foreign->base;
    return api.end(cudaSuccess);
  }
  Alloc *alloc = exported(handle);
  if (!p || !alloc || flags != cudaIpcMemLazyEnablePeerAccess)
    return api.end(cudaErrorInvalidValue);
  if (alloc->process == process_of(thread))
    return api.end(cudaErrorDeviceUninitialized);
  if (alloc->ended)
    return api.end(cudaErrorMapBufferObjectFailed);
  if (alloc->device != thread.device && M.options.no_peers)
    return api.end(cudaErrorPeerAccessUnsupported);
  if (is_open(handle, thread))
    return api.end(cudaErrorAlreadyMapped);
  Alloc *made = map(*alloc, thread);
  if (!made)
    return api.end(cudaErrorMemoryAllocation);
  made->ipc = ipc_of(handle);
  *p = (void *)made->base;
  return api.end(cudaSuccess);
}

cudaError_t cudaIpcCloseMemHandle(void *p) {
  VG_CALL(cudaIpcCloseMemHandle, CALL_DESTROY);
  Alloc *alloc = in_arena((uintptr_t)p) ? find((uintptr_t)p) : nullptr;
  Thread &thread = *api.thread;
  if (!alloc || !alloc->ipc || alloc->base != (uintptr_t)p || alloc->ended || alloc->process != process_of(thread)) {
    report("close", "misuse: cudaIpcCloseMemHandle of %p, where this process has nothing open", p);
    VG_END(cudaErrorInvalidValue);
  }
  Id late = M.faulty || alloc->foreign ? 0 : unordered_use(*alloc->of, alloc->process, thread.clock);
  if (late)
    report("close " + std::to_string(alloc->number), "close while in use: %s has no order with %s of %s",
           "cudaIpcCloseMemHandle", describe(late).c_str(), describe(*alloc->of).c_str());
  alloc->ended = true;
  VG_END(cudaSuccess);
}

/* --- Calls of the driver ------------------------------------------------------------------------------------------ */

static bool pointer_attribute(CUpointer_attribute attribute, void *value, const Alloc &alloc) {
  switch (attribute) {
  case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)value = alloc.base; return true;
  case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)value = alloc.bytes; return true;
  case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(unsigned long long *)value = alloc.number; return true;
  case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)value = alloc.device; return true;
  case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    *(unsigned *)value = alloc.rdma || (alloc.bytes > 0 && alloc.kind == Kind::Device && !alloc.pool && !alloc.of);
    return true;
  case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    *(int *)value = alloc.bytes > 0 && alloc.kind == Kind::Device && !alloc.pool && !alloc.of;
    return true;
  default: return false;
  }
}

cudaError_t vg::get_pointer_attributes(unsigned n, const int *attributes, void **values, unsigned long long at) {
  VG_CALL(cuPointerGetAttributes, CALL_NO_CONTEXT);
  static const Alloc nothing{};
  const Alloc *alloc = find((uintptr_t)at);
  if (!api.thread->context)
    return api.end(cudaErrorDeviceUninitialized);
  if (!alloc || alloc->ended || at >= alloc->base + alloc->bytes)
    alloc = &nothing;
  for (unsigned i = 0; i < n; i++)
    if (!pointer_attribute((CUpointer_attribute)attributes[i], values[i], *alloc))
      return api.end(cudaErrorInvalidValue);
  return api.end(cudaSuccess);
}
