/* Memory of the virtual machine: allocations of all kinds are in one arena, one after the other with a gap between
 * them. No address is given twice before the machine ends. */
#include "machine.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace vg {

static const uintptr_t nowhere = UINTPTR_MAX - arena_bytes;
static const size_t gap = 256;
uintptr_t arena = nowhere;
static size_t arena_used;

void memory_begin() {
  if (arena != nowhere)
    return;
  void *p = mmap(NULL, arena_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    perror("virtual GPU: mmap");
    abort();
  }
  arena = (uintptr_t)p;
  arena_used = gap;
}

void memory_end() {
  mappings_end();
  M.allocs.clear();
  M.registered.clear();
  if (arena != nowhere && arena_used > (size_t)64 << 20)
    madvise((void *)arena, arena_used, MADV_DONTNEED);
  arena_used = gap;
}

std::string describe(const Alloc &alloc) {
  static const char *const kinds[] = {"device", "pinned", "registered"};
  return std::string(kinds[(int)alloc.kind]) + " allocation " + std::to_string(alloc.number) + " (" +
         std::to_string(alloc.bytes) + " bytes" +
         (alloc.kind == Kind::Device ? ", GPU " + std::to_string(alloc.device) : "") +
         (M.most_processes > 1 ? ", of process " + std::to_string(alloc.process) : "") + ")";
}

void memory_leaks() {
  size_t n = 0, bytes = 0;
  const Alloc *first = nullptr;
  for (auto &a : M.allocs)
    if (!a->ended && !a->of && !a->mapped && !a->foreign) {
      n++, bytes += a->bytes;
      first = first ? first : a.get();
    }
  if (n)
    report("leak memory", "leak: %zu allocations, %zu bytes; the first is %s", n, bytes, describe(*first).c_str());
  mapping_leaks();
  if (!M.registered.empty())
    report("leak registered", "leak: %zu registrations of host memory", M.registered.size());
}

Alloc *find(uintptr_t at) {
  if (in_arena(at)) {
    auto it = std::upper_bound(M.allocs.begin(), M.allocs.end(), at,
                               [](uintptr_t a, const std::unique_ptr<Alloc> &b) { return a < b->base; });
    return it == M.allocs.begin() ? nullptr : (--it)->get();
  }
  if (M.registered.empty())
    return nullptr;
  auto it = M.registered.upper_bound(at);
  if (it == M.registered.begin())
    return nullptr;
  Alloc *alloc = (--it)->second.get();
  return at < alloc->base + alloc->bytes ? alloc : nullptr;
}

static std::unique_ptr<Alloc> make_alloc(Kind kind, uintptr_t base, int device, size_t bytes, Id by) {
  std::unique_ptr<Alloc> alloc(new Alloc{});
  alloc->base = base;
  alloc->bytes = bytes;
  alloc->kind = kind;
  alloc->device = device;
  alloc->process = M.processes[M.notes[by].chain];
  alloc->number = (uint32_t)M.allocs.size() + 1;
  bool defined = kind != Kind::Device && !sees_host(); /* nobody could say when the host writes */
  alloc->shadow.emplace(0, Cell{bytes, by, defined, Ids()});
  return alloc;
}

Alloc *add_alloc(Kind kind, int device, size_t bytes, Id by) {
  size_t room = (bytes + 2 * gap - 1) / gap * gap + gap;
  if (room > arena_bytes - arena_used)
    return nullptr;
  M.allocs.push_back(make_alloc(kind, arena + arena_used, device, bytes, by));
  arena_used += room;
  memset((void *)M.allocs.back()->base, 0xDB, bytes);
  return M.allocs.back().get();
}

uintptr_t reserve_arena(size_t bytes, size_t align) {
  uintptr_t base = (arena + arena_used + align - 1) / align * align;
  size_t end = base - arena + bytes + gap;
  if (end > arena_bytes)
    return 0;
  arena_used = end;
  return base;
}

/* Its contents are whatever the memory had, which nobody may read: as new memory often is, they are zeros. */
Alloc *add_alloc_at(uintptr_t base, int device, size_t bytes, Id by) {
  auto place = std::upper_bound(M.allocs.begin(), M.allocs.end(), base,
                                [](uintptr_t a, const std::unique_ptr<Alloc> &b) { return a < b->base; });
  return M.allocs.insert(place, make_alloc(Kind::Device, base, device, bytes, by))->get();
}

bool take_memory(int device, size_t bytes) {
  Device &d = M.devices[(size_t)device];
  if (bytes > M.options.memory || d.used > M.options.memory - bytes)
    return false;
  d.used += bytes;
  d.peak = std::max(d.peak, d.used);
  return true;
}

static cudaError_t alloc_now(Thread &thread, Kind kind, void **out, size_t bytes, const char *what) {
  if (!out)
    return cudaErrorInvalidValue;
  *out = nullptr;
  if (bytes == 0)
    return cudaSuccess;
  if (unsafe(thread, what))
    return cudaErrorStreamCaptureUnsupported;
  if (kind == Kind::Device && !take_memory(thread.device, bytes))
    return cudaErrorMemoryAllocation;
  Alloc *alloc = add_alloc(kind, thread.device, bytes, thread_note(thread, what));
  if (!alloc)
    return cudaErrorMemoryAllocation;
  *out = (void *)alloc->base;
  return cudaSuccess;
}

Alloc *owned_alloc(void *p, bool device_memory, const char *call) {
  Alloc *alloc = in_arena((uintptr_t)p) ? find((uintptr_t)p) : nullptr;
  if (alloc && !alloc->of && !alloc->mapped && !alloc->foreign && alloc->base == (uintptr_t)p &&
      (alloc->kind == Kind::Device) == device_memory) {
    if (!alloc->ended) {
      check_exports(*alloc, call);
      return alloc;
    }
    report("double " + std::to_string(alloc->number), "misuse: %s frees %s again", call, describe(*alloc).c_str());
    return nullptr;
  }
  report(std::string("free ") + call, "misuse: %s of %p, which no allocation of its kind begins at", call, p);
  return nullptr;
}

void give_memory(Alloc &alloc) {
  alloc.ended = true;
  if (alloc.kind == Kind::Device)
    M.devices[(size_t)alloc.device].used -= alloc.bytes;
  if (alloc.pool)
    alloc.pool->used -= alloc.bytes;
}

/* Waits for all that the device has been given, as the runtime's do; but nobody may rely on that, so the host's clock
 * stays what it was. Where another rank has to be driven first by the same thread, it is stuck. */
static cudaError_t free_now(Thread &thread, void *p, bool device_memory, const char *call) {
  if (!p)
    return cudaSuccess;
  if (unsafe(thread, call))
    return cudaErrorStreamCaptureUnsupported;
  Alloc *alloc = owned_alloc(p, device_memory, call);
  if (!alloc)
    return cudaErrorInvalidValue;
  bool done = finish_device(alloc->device);
  give_memory(*alloc);
  access_end(*alloc, thread_note(thread, call), thread.clock);
  return done ? cudaSuccess : cudaErrorLaunchTimeout;
}

} // namespace vg

using namespace vg;

/* --- The test's own ----------------------------------------------------------------------------------------------- */
size_t vg_memory_used(int device) {
  Lock lock;
  return (size_t)device < M.devices.size() ? M.devices[(size_t)device].used : 0;
}

size_t vg_memory_peak(int device) {
  Lock lock;
  return (size_t)device < M.devices.size() ? M.devices[(size_t)device].peak : 0;
}

void vg_reset_peak(int device) {
  Lock lock;
  if ((size_t)device < M.devices.size())
    M.devices[(size_t)device].peak = M.devices[(size_t)device].used;
}

void vg_peek(void *host, const void *device, size_t n) {
  Lock lock;
  memcpy(host, device, n);
}

void vg_poke(void *device, const void *host, size_t n) {
  Lock lock;
  memcpy(device, host, n);
  Alloc *alloc = M.on ? find((uintptr_t)device) : nullptr;
  if (alloc && !alloc->ended && n)
    access_reset(*alloc, (uintptr_t)device - alloc->base, n, true);
}

void vg_undefine(void *at, size_t n) {
  Lock lock;
  Alloc *alloc = M.on ? find((uintptr_t)at) : nullptr;
  if (alloc && !alloc->ended && n)
    access_reset(*alloc, (uintptr_t)at - alloc->base, n, false);
}

void *vg_map(int device, size_t bytes) {
  Lock lock;
  M.pools.emplace_back(new Pool{});
  Pool *pool = M.pools.back().get();
  pool->device = device;
  pool->destroyed = true; /* no handle is given out */
  pool->access.assign(M.devices.size(), false);
  pool->access[(size_t)device] = true;
  Alloc *alloc =
      take_memory(device, bytes) ? add_alloc(Kind::Device, device, bytes, thread_note(self(), "cuMemMap")) : nullptr;
  if (!alloc)
    return nullptr;
  alloc->pool = pool;
  pool->used = bytes;
  return (void *)alloc->base;
}

void vg_unmap(void *at) {
  Lock lock;
  Thread &thread = self();
  Alloc *alloc = owned_alloc(at, true, "cuMemUnmap");
  if (!alloc)
    return;
  give_memory(*alloc);
  access_end(*alloc, thread_note(thread, "cuMemUnmap"), thread.clock);
}

/* --- Allocation --------------------------------------------------------------------------------------------------- */
cudaError_t cudaMalloc(void **p, size_t bytes) {
  VG_CALL(cudaMalloc, CALL_ALLOC);
  VG_END(alloc_now(*api.thread, Kind::Device, p, bytes, "cudaMalloc"));
}

cudaError_t cudaFree(void *p) {
  VG_CALL(cudaFree, CALL_FREE | CALL_SYNC);
  cudaError_t error = free_now(*api.thread, p, true, "cudaFree");
  VG_END(error);
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned int) {
  VG_CALL(cudaHostAlloc, CALL_ALLOC);
  VG_END(alloc_now(*api.thread, Kind::Pinned, p, bytes, "cudaHostAlloc"));
}

cudaError_t cudaMallocHost(void **p, size_t bytes) {
  VG_CALL(cudaMallocHost, CALL_ALLOC);
  VG_END(alloc_now(*api.thread, Kind::Pinned, p, bytes, "cudaMallocHost"));
}

cudaError_t cudaFreeHost(void *p) {
  VG_CALL(cudaFreeHost, CALL_FREE | CALL_SYNC);
  cudaError_t error = free_now(*api.thread, p, false, "cudaFreeHost");
  VG_END(error);
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned int) {
  VG_CALL(cudaHostGetDevicePointer, CALL_PLAIN);
  Alloc *alloc = find((uintptr_t)host);
  if (!alloc || alloc->kind == Kind::Device || !device)
    return api.end(cudaErrorInvalidValue);
  *device = host;
  return api.end(cudaSuccess);
}

cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned int) {
  VG_CALL(cudaHostRegister, CALL_CREATE);
  if (!p || !bytes || in_arena((uintptr_t)p) || M.registered.count((uintptr_t)p))
    return api.end(cudaErrorHostMemoryAlreadyRegistered);
  std::unique_ptr<Alloc> alloc(new Alloc{});
  alloc->base = (uintptr_t)p;
  alloc->bytes = bytes;
  alloc->kind = Kind::Registered;
  alloc->process = M.processes[api.thread->chain];
  alloc->device = api.thread->device;
  alloc->number = 1000000 + (uint32_t)M.registered.size();
  alloc->shadow.emplace(0, Cell{bytes, thread_note(*api.thread, "cudaHostRegister"), true, Ids()});
  M.registered.emplace((uintptr_t)p, std::move(alloc));
  return api.end(cudaSuccess);
}

cudaError_t cudaHostUnregister(void *p) {
  VG_CALL(cudaHostUnregister, CALL_DESTROY | CALL_SYNC);
  auto it = M.registered.find((uintptr_t)p);
  if (it == M.registered.end())
    VG_END(cudaErrorHostMemoryNotRegistered);
  access_end(*it->second, thread_note(*api.thread, "cudaHostUnregister"), api.thread->clock);
  M.registered.erase(it);
  VG_END(cudaSuccess);
}

cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
  VG_CALL(cudaMemGetInfo, CALL_PLAIN);
  *total = M.options.memory;
  *free = M.options.memory - M.devices[(size_t)api.thread->device].used;
  return api.end(cudaSuccess);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *p) {
  VG_CALL(cudaPointerGetAttributes, CALL_PLAIN);
  Alloc *alloc = find((uintptr_t)p);
  *attributes = cudaPointerAttributes{};
  attributes->device = -1;
  attributes->type = cudaMemoryTypeUnregistered;
  if (!alloc || alloc->ended || (uintptr_t)p >= alloc->base + alloc->bytes)
    return api.end(cudaSuccess);
  attributes->device = alloc->device;
  attributes->type = alloc->kind == Kind::Device ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
  attributes->devicePointer = (void *)p;
  attributes->hostPointer = alloc->kind == Kind::Device ? nullptr : (void *)p;
  return api.end(cudaSuccess);
}
