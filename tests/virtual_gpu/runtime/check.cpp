/* The happens-before checker: shadows of memory, by runs of bytes that were used alike. */
#include "machine.hpp"

namespace vg {

bool ordered(Id before, const Clock &clock) { return clock.at(M.notes[before].chain) >= M.notes[before].time; }

static std::string range_text(const Alloc &alloc, size_t begin, size_t end) {
  return "bytes [" + std::to_string(begin) + "," + std::to_string(end) + ") of " + describe(alloc);
}

struct Side {
  Id id;
  bool write;
};
/* One report for a pair of kinds of operation on one allocation, whichever of the two ran first. */
static void race(const Alloc &alloc, size_t begin, size_t end, Side a, Side b) {
  if (b.id < a.id)
    std::swap(a, b);
  auto kind = [](Side side) {
    const Note &n = M.notes[side.id];
    return std::string(n.what) + "@" + std::to_string(n.chain) + (side.write ? "w" : "r");
  };
  report("race " + kind(a) + kind(b) + std::to_string(alloc.number), "race: %s by %s and %s by %s have no order: %s",
         a.write ? "write" : "read", describe(a.id).c_str(), b.write ? "write" : "read", describe(b.id).c_str(),
         range_text(alloc, begin, end).c_str());
}

bool reaches(const Alloc &alloc, int device) {
  if (alloc.mapped)
    return alloc.pool->access[(size_t)device];
  if (alloc.kind != Kind::Device || alloc.device == device)
    return true;
  if (alloc.pool)
    return alloc.pool->access[(size_t)device];
  return M.devices[(size_t)device].peers[(size_t)alloc.device];
}

static void out_of_bounds(const Alloc *alloc, Id id, long long begin, long long end, const char *kind) {
  std::string where = alloc ? "beside " + describe(*alloc) : "where no allocation is";
  report("bounds " + std::string(M.notes[id].what) + kind + where, "out of bounds: %s of [%lld,%lld) %s by %s", kind,
         begin, end, where.c_str(), describe(id).c_str());
}

/* Checks that the access may be made at all. n becomes the bytes inside of the allocation. */
static bool legal(Alloc *alloc, Id id, const Clock &clock, int device, uintptr_t at, size_t &n, bool write,
                  bool peers) {
  const char *kind = write ? "write" : "read";
  if (!alloc || at >= alloc->base + alloc->bytes) {
    long long begin = alloc ? (long long)(at - alloc->base) : 0;
    out_of_bounds(alloc, id, begin, begin + (long long)n, kind);
    return false;
  }
  if (n > alloc->base + alloc->bytes - at) {
    out_of_bounds(alloc, id, (long long)alloc->bytes, (long long)(at - alloc->base + n), kind);
    n = alloc->base + alloc->bytes - at;
  }
  size_t offset = at - alloc->base;
  int process = M.processes[M.notes[id].chain];
  if (process != alloc->process) {
    report("process " + std::to_string(alloc->number) + M.notes[id].what, "another process's address: %s by %s of %s",
           kind, describe(id).c_str(), range_text(*alloc, offset, offset + n).c_str());
    return false;
  }
  if (alloc->ended && alloc->of) {
    report("closed " + std::to_string(alloc->number) + M.notes[id].what, "use after close: %s by %s of %s", kind,
           describe(id).c_str(), range_text(*alloc, offset, offset + n).c_str());
    return false;
  }
  if (alloc->ended && alloc->freed_by) {
    bool after = ordered(alloc->freed_by, clock);
    report((after ? "uaf " : "fiu ") + std::to_string(alloc->number) + M.notes[id].what,
           after ? "use after free: %s by %s of %s, freed by %s"
                 : "free while in use: %s by %s of %s has no order with %s",
           kind, describe(id).c_str(), range_text(*alloc, offset, offset + n).c_str(),
           describe(alloc->freed_by).c_str());
    return false;
  }
  if (device < 0 && alloc->kind == Kind::Device) {
    report("host " + std::to_string(alloc->number), "host: device memory is touched by the host: %s of %s by %s", kind,
           range_text(*alloc, offset, offset + n).c_str(), describe(id).c_str());
    return false;
  }
  if (device >= 0 && (!peers || alloc->mapped) && !reaches(*alloc, device))
    report("peer " + std::to_string(alloc->number), "peer: %s by %s on GPU %d of %s without peer access", kind,
           describe(id).c_str(), device, range_text(*alloc, offset, offset + n).c_str());
  return true;
}

using Cells = std::map<size_t, Cell>;
/* The cell that begins at `at`, cut from the one around it. */
static Cells::iterator cut(Cells &cells, size_t at, size_t size) {
  if (at >= size)
    return cells.end();
  Cells::iterator it = --cells.upper_bound(at);
  if (it->first == at)
    return it;
  Cell right = it->second;
  it->second.end = at;
  return cells.emplace_hint(std::next(it), at, std::move(right));
}

static void check_cell(const Alloc &alloc, size_t begin, const Cell &cell, Id id, const Clock &clock, bool write) {
  if (!ordered(cell.write, clock))
    race(alloc, begin, cell.end, {cell.write, true}, {id, write});
  if (write)
    for (uint32_t i = 0; i < cell.reads.n; i++)
      if (!M.notes[cell.reads[i]].closed && !ordered(cell.reads[i], clock))
        race(alloc, begin, cell.end, {cell.reads[i], false}, {id, true});
}

static void write_cells(Alloc &alloc, size_t begin, size_t end, Id id, const Clock &clock) {
  Cells &cells = alloc.shadow;
  Cells::iterator it = cut(cells, begin, alloc.bytes), last = cut(cells, end, alloc.bytes);
  for (Cells::iterator at = it; at != last; ++at)
    check_cell(alloc, at->first, at->second, id, clock, true);
  cells.erase(std::next(it), last);
  it->second = Cell{end, id, true, Ids()};
  /* Grows what it continues. */
  if (it != cells.begin()) {
    Cells::iterator before = std::prev(it);
    if (before->second.write == id && before->second.reads.n == 0 && before->second.defined) {
      before->second.end = end;
      cells.erase(it);
    }
  }
}

/* A closed kernel's reads, which nothing depends on, are remembered for the end of the memory alone. */
static void read_cells(Alloc &alloc, size_t begin, size_t end, Id id, const Clock &clock) {
  const bool closed = M.notes[id].closed;
  Cells &cells = alloc.shadow;
  Cells::iterator it = cut(cells, begin, alloc.bytes), last = cut(cells, end, alloc.bytes);
  for (; it != last; ++it) {
    Cell &cell = it->second;
    if (cell.write == id) /* its own; whoever comes after the write comes after this */
      continue;
    if (!cell.defined && !closed)
      report("undefined " + std::to_string(alloc.number) + M.notes[id].what,
             "undefined: %s by %s, which nobody has written", range_text(alloc, it->first, cell.end).c_str(),
             describe(id).c_str());
    if (!closed)
      check_cell(alloc, it->first, cell, id, clock, false);
    uint32_t kept = 0;
    bool there = false;
    for (uint32_t i = 0; i < cell.reads.n; i++) {
      there |= cell.reads[i] == id;
      if (closed || cell.reads[i] == id || !ordered(cell.reads[i], clock))
        cell.reads.set(kept++, cell.reads[i]);
    }
    cell.reads.n = kept;
    if (!there)
      cell.reads.add(id);
    if (it != cells.begin()) {
      Cells::iterator before = std::prev(it);
      if (before->second.write == cell.write && before->second.defined == cell.defined &&
          before->second.reads == cell.reads) {
        before->second.end = cell.end;
        cells.erase(it);
        it = before;
      }
    }
  }
}

/* An import's address is where the exporter has it from here on, where shadows are. */
static bool settle(Alloc *&alloc, Id id, const Clock &clock, int device, uintptr_t &at, size_t &n, bool write,
                   bool peers) {
  if (!legal(alloc, id, clock, device, at, n, write, peers))
    return false;
  if (M.notes[id].closed && (alloc->of || alloc->foreign)) /* which is gone, where a fault has ended its owner */
    report("closed read " + std::to_string(alloc->number) + M.notes[id].what,
           "read after a failed barrier: %s, memory of another process, by %s",
           range_text(*alloc, at - alloc->base, at - alloc->base + n).c_str(), describe(id).c_str());
  if (alloc->foreign)
    return false;
  if (!alloc->of)
    return true;
  at = own_memory(at);
  alloc = alloc->of;
  if (!alloc->ended || alloc->mapped) /* the import's own mapping keeps it */
    return true;
  report("exported " + std::to_string(alloc->number) + M.notes[id].what, "use after free: %s by %s of %s, by an import",
         write ? "write" : "read", describe(id).c_str(), describe(*alloc).c_str());
  return false;
}

void access_flag(Id id, const Clock &clock, int device, uintptr_t at, size_t n) {
  Alloc *alloc = find(at);
  if (M.options.no_check || M.faulty || (!alloc && !in_arena(at)) ||
      !settle(alloc, id, clock, device, at, n, true, false))
    return;
  const Cell &cell = std::prev(alloc->shadow.upper_bound(at - alloc->base))->second;
  if (!cell.defined)
    report("undefined " + std::to_string(alloc->number) + M.notes[id].what,
           "undefined: %s by %s, which nobody has written",
           range_text(*alloc, at - alloc->base, at - alloc->base + n).c_str(), describe(id).c_str());
  check_cell(*alloc, at - alloc->base, cell, id, clock, true);
}

Id unordered_use(const Alloc &alloc, int process, const Clock &clock) {
  for (auto &[begin, cell] : alloc.shadow) {
    auto late = [&](Id id) { return M.processes[M.notes[id].chain] == process && !ordered(id, clock); };
    if (late(cell.write))
      return cell.write;
    for (uint32_t i = 0; i < cell.reads.n; i++)
      if (late(cell.reads[i]))
        return cell.reads[i];
  }
  return 0;
}

void access(Id id, const Clock &clock, int device, uintptr_t at, size_t n, bool write, bool peers) {
  if (M.timed && n > 0 && device >= 0)
    time_touched(device, at, n, write);
  if (n == 0 || M.options.no_check || M.faulty) /* what a faulty GPU has not written is garbage to others */
    return;
  Alloc *alloc = find(at);
  if (!alloc && !in_arena(at))
    return; /* pageable memory of the host */
  if (!settle(alloc, id, clock, device, at, n, write, peers))
    return;
  size_t begin = at - alloc->base;
  if (write)
    write_cells(*alloc, begin, begin + n, id, clock);
  else
    read_cells(*alloc, begin, begin + n, id, clock);
}

/* After a fault that stays nobody can wait for anything any more, and nothing runs. */
void access_end(Alloc &alloc, Id id, const Clock &clock) {
  if (!M.options.no_check && !M.faulty)
    for (auto &cell : alloc.shadow) {
      const Cell &c = cell.second;
      Id late = ordered(c.write, clock) ? 0 : c.write;
      for (uint32_t i = 0; !late && i < c.reads.n; i++)
        late = ordered(c.reads[i], clock) ? 0 : c.reads[i];
      if (late) {
        report("fiu " + std::to_string(alloc.number) + M.notes[late].what,
               "free while in use: %s is freed by %s, which has no order with its use by %s",
               range_text(alloc, cell.first, c.end).c_str(), describe(id).c_str(), describe(late).c_str());
        break;
      }
    }
  alloc.freed_by = id;
  alloc.shadow.clear();
}

void access_reset(Alloc &alloc, size_t begin, size_t n, bool defined) {
  Cells::iterator it = cut(alloc.shadow, begin, alloc.bytes), last = cut(alloc.shadow, begin + n, alloc.bytes);
  if (!defined) {
    for (; it != last; ++it)
      it->second.defined = false;
    return;
  }
  alloc.shadow.erase(std::next(it), last);
  it->second = Cell{begin + n, 0, true, Ids()};
}

static const char *host_what(bool write) { return write ? "the host's write" : "the host's read"; }

void host_access(Thread &thread, uintptr_t at, size_t n, bool write) {
  if (n == 0)
    return;
  if (thread.running) /* in a host function: part of the operation */
    access(thread.running->id, thread.running->clock, -1, at, n, write);
  else
    access(thread_note(thread, host_what(write)), thread.clock, -1, at, n, write);
}

} // namespace vg

using namespace vg;

static void host_accesses(const void *at, size_t n, bool write) {
  Lock lock;
  if (M.on && !M.devices.empty())
    host_access(self(), (uintptr_t)at, n, write);
}

void vg_host_read(const void *at, size_t n) { host_accesses(at, n, false); }
void vg_host_write(void *at, size_t n) { host_accesses(at, n, true); }
