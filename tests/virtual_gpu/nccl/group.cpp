/* Groups, sends and receives, collectives: what is checked when they are called, and when a group is launched. */
#include "nccl.hpp"

#include <algorithm>

namespace vg::nccl {
namespace {

enum { PLAN_BUDGET = 8000 }; /* operations in a group: known to pass; 24,000 are known to hang */

struct ThreadState {
  uint64_t generation = 0;
  int depth = 0;
  ncclResult_t error = ncclSuccess; /* of a call in the group: nothing of it is launched */
  std::vector<GroupEntry> group;
};
thread_local ThreadState state;

ThreadState &here() {
  if (state.generation != M.generation)
    state = ThreadState{M.generation, 0, ncclSuccess, {}};
  return state;
}

ncclResult_t noted(ncclResult_t result) {
  if (here().depth > 0 && result != ncclSuccess)
    here().error = result;
  return result;
}

/* Calls of a group for one communicator. */
struct Part {
  ncclComm *comm;
  std::vector<Stream *> streams;
  std::vector<std::shared_ptr<Launch>> launches;
};

void check_messages(const Launch &l) {
  std::set<std::pair<bool, int>> peers;
  for (const Message &m : l.messages)
    if (!peers.insert({m.send, m.peer}).second)
      report("nccl twice", "NCCL: a group of %s has two %s one peer, rank %d", l.comm->name.c_str(),
             m.send ? "sends to" : "receives from", m.peer);
  if (l.messages.size() > PLAN_BUDGET)
    report("nccl budget",
           "NCCL: a group of %s has %zu operations: more than one kernel plan, which each rank cuts as it sees it",
           l.comm->name.c_str(), l.messages.size());
}

/* A rank's messages to itself have to be matched within the group. */
bool alone_with_itself(const Launch &l) {
  int64_t n = 0;
  for (const Message &m : l.messages)
    if (m.peer == l.comm->rank)
      n += m.send ? 1 : -1;
  return n != 0;
}

std::vector<Part> sort_out(const std::vector<GroupEntry> &entries) {
  std::vector<Part> parts;
  for (const GroupEntry &e : entries) {
    auto part = std::find_if(parts.begin(), parts.end(), [&e](const Part &p) { return p.comm == e.launch->comm; });
    if (part == parts.end())
      part = parts.insert(parts.end(), Part{e.launch->comm, {}, {}});
    if (std::find(part->streams.begin(), part->streams.end(), e.stream) == part->streams.end())
      part->streams.push_back(e.stream);
    auto group = std::find_if(part->launches.begin(), part->launches.end(),
                              [](const std::shared_ptr<Launch> &l) { return l->what == What::Group; });
    if (e.launch->what != What::Group || group == part->launches.end())
      part->launches.push_back(std::make_shared<Launch>(*e.launch));
    else
      (*group)->messages.insert((*group)->messages.end(), e.launch->messages.begin(), e.launch->messages.end());
  }
  return parts;
}

/* A graph is captured from all streams of a group, or none: but the communicators of one thread that does not capture
 * may be beside one that does, in a group of their own. */
ncclResult_t check_part(const Part &part, Capture *capture) {
  for (const Stream *s : part.streams)
    if (s->capture != part.streams[0]->capture)
      return warn(ncclInvalidUsage, "a group of %s has streams that are not captured by one graph, or all by none",
                  part.comm->name.c_str());
  if (!part.streams[0]->capture != !capture)
    return warn(ncclInvalidUsage, "a group captures %s, and not all of its communicators", part.comm->name.c_str());
  for (auto &l : part.launches) {
    check_messages(*l);
    if (alone_with_itself(*l))
      return warn(ncclInvalidUsage, "%s sends to itself, or receives, without the other in the group",
                  part.comm->name.c_str());
  }
  return ncclSuccess;
}

/* The kernels of a communicator run on its first stream, after all of its streams, and all of them come after these. */
ncclResult_t launch(const std::vector<GroupEntry> &entries) {
  std::vector<Part> parts = sort_out(entries);
  for (const Part &part : parts) {
    ncclResult_t result = check_part(part, parts[0].streams[0]->capture);
    if (result != ncclSuccess)
      return result;
  }
  for (const Part &part : parts) {
    if (part.streams.size() > 1)
      count(M.counts.mixed_groups);
    for (size_t i = 1; i < part.streams.size(); i++)
      come_after_stream(*part.streams[0], *part.streams[i]);
    for (auto &l : part.launches) {
      ncclResult_t result = give(l, *part.streams[0]);
      if (result != ncclSuccess)
        return result;
    }
    for (size_t i = 1; i < part.streams.size(); i++)
      come_after_stream(*part.streams[i], *part.streams[0]);
  }
  return ncclSuccess;
}

/* Communicators that do not block launch later, or at once: the host cannot know. */
ncclResult_t end_group(std::vector<GroupEntry> entries) {
  if (entries.empty())
    return ncclSuccess;
  bool blocking = entries[0].launch->comm->blocking;
  for (const GroupEntry &e : entries)
    if (e.launch->comm->blocking != blocking)
      return warn(ncclInvalidArgument, "a group has communicators that block and others that do not");
  uint64_t looks = blocking ? 0 : draw() % 4;
  if (!blocking && M.options.nccl_us > 0)
    looks++;
  if (looks == 0)
    return launch(entries);
  auto job = std::make_shared<Job>(
      Job{std::move(entries), looks, M.options.nccl_us > 0 ? now_ns() + 1000 * M.options.nccl_us : 0});
  for (const GroupEntry &e : job->entries) {
    e.launch->comm->job = job;
    e.launch->comm->state = ncclInProgress;
  }
  return ncclInProgress;
}

} // namespace

ncclResult_t fault_result() { return noted(M.fault.error ? (ncclResult_t)M.fault.error : ncclUnhandledCudaError); }

void look(ncclComm *c) {
  std::shared_ptr<Job> job = c->job;
  if (!job || (job->looks > 1 && job->looks--) || (job->not_before_ns && now_ns() < job->not_before_ns))
    return;
  ncclResult_t result = launch(job->entries);
  for (const GroupEntry &e : job->entries) {
    e.launch->comm->job = nullptr;
    e.launch->comm->state = result;
  }
}

void drop_job(ncclComm *c) {
  if (!c->job)
    return;
  auto &entries = c->job->entries;
  entries.erase(
      std::remove_if(entries.begin(), entries.end(), [c](const GroupEntry &e) { return e.launch->comm == c; }),
      entries.end());
  c->job = nullptr;
}

/* --- Calls -------------------------------------------------------------------------------------------------------- */
static size_t size_of(ncclDataType_t type) {
  switch (type) {
  case ncclFloat16:
  case ncclBfloat16: return 2;
  case ncclInt32:
  case ncclUint32:
  case ncclFloat32: return 4;
  case ncclInt64:
  case ncclUint64:
  case ncclFloat64: return 8;
  default: return 1;
  }
}

/* The communicator and the stream of a call, if they are right. */
static ncclResult_t enter(const char *call, ncclComm_t comm, cudaStream_t handle, int peer, ncclDataType_t type,
                          ncclComm **c, Stream **stream) {
  ncclResult_t result = ready(comm, call, c);
  if (result != ncclSuccess)
    return result;
  *stream = stream_of(handle, call);
  if (!*stream)
    return ncclUnhandledCudaError;
  if (peer < 0 || peer >= (*c)->world->n)
    return warn(ncclInvalidArgument, "%s: rank %d of %d", call, peer, (*c)->world->n);
  if (type < 0 || type >= ncclNumTypes)
    return warn(ncclInvalidArgument, "%s: type %d", call, (int)type);
  if ((*stream)->device != (*c)->device)
    report(std::string("nccl device ") + call, "NCCL: %s of %s on %s", call, (*c)->name.c_str(),
           (*stream)->name.c_str());
  return ncclSuccess;
}

static ncclResult_t add(Stream *stream, std::shared_ptr<Launch> launch) {
  if (here().depth == 0)
    return end_group({{stream, std::move(launch)}});
  here().group.push_back({stream, std::move(launch)});
  return ncclSuccess;
}

static ncclResult_t message(const char *call, bool send, const void *at, size_t n, ncclDataType_t type, int peer,
                            ncclComm_t comm, cudaStream_t handle) {
  ncclComm *c;
  Stream *stream;
  size_t bytes = n * size_of(type);
  ncclResult_t result = enter(call, comm, handle, peer, type, &c, &stream);
  if (result != ncclSuccess)
    return result;
  if (bytes == 0)
    report(std::string("nccl zero ") + call, "NCCL: %s of zero bytes by %s", call, c->name.c_str());
  return add(stream, std::make_shared<Launch>(Launch{c, What::Group, {{send, (char *)at, bytes, type, peer}}}));
}

/* A buffer to send from may be the rank's place in the one to receive in, but an all-to-all has none; it may not be in
 * it in any other way. */
static bool overlaps(const Launch &l) {
  size_t n = (size_t)l.comm->world->n, me = (size_t)l.comm->rank;
  size_t sends = l.what == What::AllToAll ? n * l.bytes : l.bytes,
         receives = l.what == What::Broadcast ? l.bytes : n * l.bytes;
  if (l.send >= l.receive + receives || l.receive >= l.send + sends)
    return false;
  switch (l.what) {
  case What::AllGather: return l.send != l.receive + me * l.bytes;
  case What::Broadcast: return l.send != l.receive;
  default: return true;
  }
}

static ncclResult_t collective(const char *call, What what, const void *send, void *receive, size_t n,
                               ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t handle) {
  ncclComm *c;
  Stream *stream;
  ncclResult_t result = enter(call, comm, handle, root, type, &c, &stream);
  if (result != ncclSuccess || n == 0) /* of no bytes it is left out */
    return result;
  auto l = std::make_shared<Launch>(Launch{c, what, {}, (char *)send, (char *)receive, n * size_of(type), type, root});
  if (overlaps(*l))
    report(std::string("nccl overlap ") + call, "NCCL: %s of %s is in place in a way that is not defined", call,
           c->name.c_str());
  return add(stream, std::move(l));
}

} // namespace vg::nccl

using namespace vg;
using namespace vg::nccl;

ncclResult_t ncclGroupStart() {
  VG_NCCL(ncclGroupStart, CALL_PLAIN);
  here().depth++;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  static const int call_index_ = call_index("ncclGroupEnd");
  Api api(call_index_, "ncclGroupEnd", CALL_PLAIN);
  fresh();
  ThreadState &t = here();
  if (t.depth == 0)
    return warn(ncclInvalidUsage, "ncclGroupEnd: not in a group");
  if (--t.depth > 0)
    return ncclSuccess;
  std::vector<GroupEntry> entries;
  entries.swap(t.group);
  ncclResult_t error = t.error;
  t.error = ncclSuccess;
  if (api.fault != cudaSuccess) /* as if the launch had failed */
    return fault_result();
  if (error != ncclSuccess)
    return error;
  return end_group(std::move(entries));
}

ncclResult_t ncclSend(const void *at, size_t n, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  VG_NCCL(ncclSend, CALL_PLAIN);
  return noted(message("ncclSend", true, at, n, type, peer, comm, stream));
}

ncclResult_t ncclRecv(void *at, size_t n, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  VG_NCCL(ncclRecv, CALL_PLAIN);
  return noted(message("ncclRecv", false, at, n, type, peer, comm, stream));
}

ncclResult_t ncclAllGather(const void *send, void *receive, size_t n, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  VG_NCCL(ncclAllGather, CALL_PLAIN);
  return noted(collective("ncclAllGather", What::AllGather, send, receive, n, type, 0, comm, stream));
}

ncclResult_t ncclAlltoAll(const void *send, void *receive, size_t n, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream) {
  VG_NCCL(ncclAlltoAll, CALL_PLAIN);
  return noted(collective("ncclAlltoAll", What::AllToAll, send, receive, n, type, 0, comm, stream));
}

ncclResult_t ncclBroadcast(const void *send, void *receive, size_t n, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  VG_NCCL(ncclBroadcast, CALL_PLAIN);
  return noted(collective("ncclBroadcast", What::Broadcast, send, receive, n, type, root, comm, stream));
}
