/* The driver's calls for virtual memory: physical memory with a handle, ranges of addresses, and mappings of one at the
 * other. Each range is mapped once, and as a whole.
 *
 * A mapping is an allocation that the calls open to GPUs one by one, also to its own. Physical memory is a file without
 * a name, whose pages all mappings are, and which its descriptors are of. Between processes of this machine its shadow
 * is the first mapping's. It lives as long as a handle or a mapping of it: one process may use it after another has
 * unmapped its own.
 *
 * A real process has the pages alone: its descriptor holds them, also when their maker is gone. Handles, shadow, and
 * the bytes that a GPU has left stay the maker's: accesses of the others are not checked, and count nowhere. */
#include "machine.hpp"

#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <list>

namespace vg {

static const size_t granule = (size_t)2 << 20;

/* Head of the file of physical memory, a page before the memory's own. */
struct Head {
  char magic[16];
  uint64_t number; /* of those that the process has made */
  pid_t process;
  int device;
  size_t bytes;
};
static const char magic[16] = "virtual GPU VMM";
static const size_t head_bytes = 4096;

struct Physical {
  Head head;
  bool exportable, rdma;
  int file;
  int holders;    /* handles, and mappings */
  Alloc *first;   /* mapping; NULL: not mapped yet */
  Clock unmapped; /* of the mappings that have ended: the last end comes after all */
  bool foreign() const { return head.process != getpid(); }
  ~Physical() { close_file(); }
  void close_file() {
    if (file >= 0)
      close(file);
    file = -1;
  }
};
/* A process's handle of it. */
struct Handle {
  std::shared_ptr<Physical> physical;
  int process;
  bool released;
};
struct Reservation {
  uintptr_t base;
  size_t bytes;
  int process;
  std::shared_ptr<Physical> mapped; /* now */
  bool was_mapped, freed;
};
static std::list<Handle> handles;
static std::list<Reservation> reservations;
static std::map<uint64_t, std::weak_ptr<Physical>> exported;
static uint64_t last_number;

static void *map_pages(uintptr_t at, size_t bytes, int file) {
  int kind = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED;
  return mmap((void *)at, bytes, PROT_READ | PROT_WRITE, kind | MAP_FIXED, file, file < 0 ? 0 : (off_t)head_bytes);
}

void mappings_end() {
  for (const Reservation &r : reservations)
    if (r.mapped)
      map_pages(r.base, r.bytes, -1);
  handles.clear();
  reservations.clear();
  exported.clear();
}

void mapping_leaks() {
  size_t kept = 0, reserved = 0, mapped = 0;
  for (const Handle &h : handles)
    kept += !h.released;
  for (const Reservation &r : reservations) {
    reserved += !r.freed;
    mapped += r.mapped != nullptr;
  }
  if (kept)
    report("leak handles", "leak: %zu handles of cuMemCreate or cuMemImportFromShareableHandle", kept);
  if (mapped)
    report("leak mappings", "leak: %zu mappings of cuMemMap", mapped);
  if (reserved)
    report("leak reservations", "leak: %zu ranges of cuMemAddressReserve", reserved);
}

static void drop(const std::shared_ptr<Physical> &physical) {
  if (--physical->holders > 0)
    return;
  if (!physical->foreign())
    M.devices[(size_t)physical->head.device].used -= physical->head.bytes;
  physical->close_file();
}

static Handle *handle_of(unsigned long long number, const Thread &thread, const char *call) {
  for (Handle &h : handles)
    if ((unsigned long long)(uintptr_t)&h == number && !h.released && h.process == process_of(thread))
      return &h;
  report(std::string("handle ") + call, "misuse: %s of a handle that this process does not have", call);
  return nullptr;
}

static Reservation *range_of(unsigned long long at, size_t bytes, const Thread &thread, const char *call) {
  for (Reservation &r : reservations)
    if (r.base == at && r.bytes == bytes && !r.freed && r.process == process_of(thread))
      return &r;
  report(std::string("range ") + call, "misuse: %s of %zu bytes at %p, which this process has not reserved", call,
         bytes, (void *)(uintptr_t)at);
  return nullptr;
}

static unsigned long long add_handle(const std::shared_ptr<Physical> &physical, const Thread &thread) {
  physical->holders++;
  handles.push_back(Handle{physical, process_of(thread), false});
  return (unsigned long long)(uintptr_t)&handles.back();
}

static bool is_plain(const CUmemAllocationProp &p) {
  return p.type == CU_MEM_ALLOCATION_TYPE_PINNED && p.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
         p.location.id >= 0 && (size_t)p.location.id < M.devices.size() && !p.win32HandleMetaData;
}

/* --- Physical memory ---------------------------------------------------------------------------------------------- */

/* Pages that are zeros; -1: the system has none. */
static int make_file(const Head &head) {
  int file = memfd_create("virtual GPU memory", MFD_CLOEXEC);
  if (file >= 0 && ftruncate(file, (off_t)(head_bytes + head.bytes)) == 0 &&
      pwrite(file, &head, sizeof head, 0) == (ssize_t)sizeof head)
    return file;
  if (file >= 0)
    close(file);
  return -1;
}

static cudaError_t get_granularity(size_t *bytes, const CUmemAllocationProp *p, CUmemAllocationGranularity_flags) {
  VG_CALL(cuMemGetAllocationGranularity, CALL_PLAIN);
  *bytes = granule;
  return api.end(is_plain(*p) ? cudaSuccess : cudaErrorInvalidValue);
}

static cudaError_t create(unsigned long long *handle, size_t bytes, const CUmemAllocationProp *p,
                          unsigned long long flags) {
  VG_CALL(cuMemCreate, CALL_ALLOC);
  bool rdma = p->allocFlags.gpuDirectRDMACapable;
  if (!is_plain(*p) || bytes == 0 || bytes % granule || flags || (rdma && M.options.no_rdma))
    return api.end(cudaErrorInvalidValue);
  Head head{{}, ++last_number, getpid(), p->location.id, bytes};
  memcpy(head.magic, magic, sizeof magic);
  bool exportable = p->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  std::shared_ptr<Physical> made(new Physical{head, exportable, rdma, make_file(head), 0, nullptr, {}});
  if (made->file < 0)
    return api.end(cudaErrorOperatingSystem);
  if (!take_memory(p->location.id, bytes))
    return api.end(cudaErrorMemoryAllocation);
  *handle = add_handle(made, *api.thread);
  return api.end(cudaSuccess);
}

static cudaError_t release_handle(unsigned long long handle) {
  VG_CALL(cuMemRelease, CALL_FREE);
  Handle *h = handle_of(handle, *api.thread, "cuMemRelease");
  if (!h)
    VG_END(cudaErrorInvalidValue);
  h->released = true;
  drop(h->physical);
  VG_END(cudaSuccess);
}

/* --- Addresses ---------------------------------------------------------------------------------------------------- */

static cudaError_t reserve(unsigned long long *at, size_t bytes, size_t, unsigned long long, unsigned long long flags) {
  VG_CALL(cuMemAddressReserve, CALL_CREATE);
  if (bytes == 0 || bytes % granule || flags)
    return api.end(cudaErrorInvalidValue);
  uintptr_t base = reserve_arena(bytes, granule);
  if (!base)
    return api.end(cudaErrorMemoryAllocation);
  reservations.push_back(Reservation{base, bytes, process_of(*api.thread), nullptr, false, false});
  *at = base;
  return api.end(cudaSuccess);
}

static cudaError_t unreserve(unsigned long long at, size_t bytes) {
  VG_CALL(cuMemAddressFree, CALL_DESTROY);
  Reservation *r = range_of(at, bytes, *api.thread, "cuMemAddressFree");
  if (r && r->mapped)
    report("mapped " + std::to_string(r->base), "misuse: cuMemAddressFree of a range that is mapped");
  if (!r || r->mapped)
    VG_END(cudaErrorInvalidValue);
  r->freed = true;
  VG_END(cudaSuccess);
}

static cudaError_t map(unsigned long long at, size_t bytes, size_t offset, unsigned long long handle,
                       unsigned long long flags) {
  VG_CALL(cuMemMap, CALL_CREATE);
  Handle *h = handle_of(handle, *api.thread, "cuMemMap");
  Reservation *r = range_of(at, bytes, *api.thread, "cuMemMap");
  if (!h || !r || offset || flags || r->was_mapped || bytes != h->physical->head.bytes)
    return api.end(cudaErrorInvalidValue);
  Physical &p = *h->physical;
  if (map_pages(r->base, bytes, p.file) == MAP_FAILED)
    return api.end(cudaErrorMemoryAllocation);
  M.pools.emplace_back(new Pool{});
  Pool *pool = M.pools.back().get();
  pool->device = p.head.device;
  pool->destroyed = true; /* no handle is given out */
  pool->access.assign(M.devices.size(), false);
  Alloc *alloc = add_alloc_at(r->base, p.head.device, bytes, thread_note(*api.thread, "cuMemMap"));
  alloc->pool = pool;
  alloc->mapped = true;
  alloc->rdma = p.rdma;
  alloc->foreign = p.foreign();
  alloc->of = p.first;
  if (!p.first)
    p.first = alloc;
  p.holders++;
  r->mapped = h->physical;
  r->was_mapped = true;
  return api.end(cudaSuccess);
}

static cudaError_t unmap(unsigned long long at, size_t bytes) {
  VG_CALL(cuMemUnmap, CALL_DESTROY);
  Reservation *r = range_of(at, bytes, *api.thread, "cuMemUnmap");
  if (r && !r->mapped)
    report("unmapped " + std::to_string(at), "misuse: cuMemUnmap of a range that is not mapped");
  if (!r || !r->mapped)
    VG_END(cudaErrorInvalidValue);
  Thread &thread = *api.thread;
  std::shared_ptr<Physical> physical = std::move(r->mapped);
  Alloc &alloc = *find(r->base);
  bool kept = std::any_of(reservations.begin(), reservations.end(),
                          [&](const Reservation &other) { return other.mapped == physical; });
  Id late = (alloc.of || kept) && !M.faulty ? unordered_use(*physical->first, alloc.process, thread.clock) : 0;
  if (late)
    report("close " + std::to_string(alloc.number), "close while in use: %s has no order with %s of %s", "cuMemUnmap",
           describe(late).c_str(), describe(*physical->first).c_str());
  alloc.ended = true;
  physical->unmapped.join(thread.clock);
  if (!alloc.of && !kept)
    access_end(alloc, thread_note(thread, "cuMemUnmap"), physical->unmapped);
  drop(physical);
  map_pages(r->base, bytes, -1);
  r->mapped = nullptr;
  VG_END(cudaSuccess);
}

static cudaError_t set_access(unsigned long long at, size_t bytes, const CUmemAccessDesc *list, size_t n) {
  VG_CALL(cuMemSetAccess, CALL_PLAIN);
  Reservation *r = range_of(at, bytes, *api.thread, "cuMemSetAccess");
  if (!r || !r->mapped)
    return api.end(cudaErrorInvalidValue);
  for (size_t i = 0; i < n; i++) {
    int device = list[i].location.id;
    if (list[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || device < 0 || (size_t)device >= M.devices.size() ||
        (M.options.no_peers && device != r->mapped->head.device))
      return api.end(cudaErrorInvalidDevice);
    find(r->base)->pool->access[(size_t)device] = list[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  return api.end(cudaSuccess);
}

/* --- Other processes ---------------------------------------------------------------------------------------------- */

static cudaError_t export_handle(void *out, unsigned long long handle, CUmemAllocationHandleType type,
                                 unsigned long long flags) {
  VG_CALL(cuMemExportToShareableHandle, CALL_CREATE);
  Handle *h = handle_of(handle, *api.thread, "cuMemExportToShareableHandle");
  if (!h || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags || !h->physical->exportable)
    return api.end(cudaErrorInvalidValue);
  int fd = dup(h->physical->file);
  if (fd < 0)
    return api.end(cudaErrorOperatingSystem);
  exported[h->physical->head.number] = h->physical;
  *(int *)out = fd;
  return api.end(cudaSuccess);
}

static std::shared_ptr<Physical> exported_memory(const Head &head, int fd) {
  if (head.process == getpid())
    return exported[head.number].lock();
  int file = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  return std::shared_ptr<Physical>(file < 0 ? nullptr : new Physical{head, false, false, file, 0, nullptr, {}});
}

static cudaError_t import_handle(unsigned long long *handle, void *file, CUmemAllocationHandleType type) {
  VG_CALL(cuMemImportFromShareableHandle, CALL_ALLOC);
  Head head{};
  int fd = (int)(intptr_t)file;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || pread(fd, &head, sizeof head, 0) != (ssize_t)sizeof head ||
      memcmp(head.magic, magic, sizeof magic) != 0 || (size_t)head.device >= M.devices.size())
    return api.end(cudaErrorInvalidValue);
  std::shared_ptr<Physical> physical = exported_memory(head, fd);
  if (!physical || physical->file < 0)
    return api.end(cudaErrorInvalidValue);
  *handle = add_handle(physical, *api.thread);
  return api.end(cudaSuccess);
}

const std::vector<DriverFunction> mapping_functions = {{"cuMemGetAllocationGranularity", (void *)get_granularity},
                                                       {"cuMemCreate", (void *)create},
                                                       {"cuMemRelease", (void *)release_handle},
                                                       {"cuMemAddressReserve", (void *)reserve},
                                                       {"cuMemAddressFree", (void *)unreserve},
                                                       {"cuMemMap", (void *)map},
                                                       {"cuMemUnmap", (void *)unmap},
                                                       {"cuMemSetAccess", (void *)set_access},
                                                       {"cuMemExportToShareableHandle", (void *)export_handle},
                                                       {"cuMemImportFromShareableHandle", (void *)import_handle}};

} // namespace vg
