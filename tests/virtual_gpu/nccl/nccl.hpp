/* Declarations that the files of the virtual NCCL share. As in machine.hpp, everything is under the machine's lock. */
#ifndef VG_NCCL_HPP
#define VG_NCCL_HPP

#include "runtime/machine.hpp"

#include <nccl.h>

#include <deque>

namespace vg::nccl {

/* --- Work given to streams ---------------------------------------------------------------------------------------- */
struct Message {
  bool send;
  char *at;
  size_t bytes;
  ncclDataType_t type;
  int peer;
};

enum class What { Group, AllGather, AllToAll, Broadcast };

/* A call that a rank gives to a stream: made once, placed at each launch of a graph that it was captured into. */
struct Launch {
  ncclComm *comm;
  What what;
  std::vector<Message> messages;            /* of a group */
  char *send = nullptr, *receive = nullptr; /* of a collective */
  size_t bytes = 0;
  ncclDataType_t type = ncclInt8;
  int root = 0;
  bool operator==(const Launch &o) const {
    return what == o.what && bytes == o.bytes && type == o.type && root == o.root;
  }
};

struct Copy {
  char *to;
  const char *from;
  size_t bytes;
};

/* A launch on its way. */
struct Placed {
  std::shared_ptr<Launch> launch;
  Id arrive = 0, move = 0, leave = 0;
  size_t missing = 0; /* partners that are not there yet */
  std::vector<Copy> copies;
  /* order.cpp: its neighbours on the GPU that are remembered, and launches that it exchanges something with */
  Placed *before = nullptr, *after = nullptr;
  std::vector<Placed *> partners;
};
using Place = std::shared_ptr<Placed>;

struct Pending {
  Place place;
  Message message;
};

/* A call in a group: one message, or a collective. */
struct GroupEntry {
  Stream *stream;
  std::shared_ptr<Launch> launch;
};

/* A group of communicators that do not block, until it is launched: by a look at the state of one of them. */
struct Job {
  std::vector<GroupEntry> entries;
  uint64_t looks;        /* that still say that it goes on */
  int64_t not_before_ns; /* by CLOCK_MONOTONIC */
};

/* --- Communicators ------------------------------------------------------------------------------------------------ */
struct World {
  int n;
  std::string name;
  std::vector<ncclComm *> ranks;
  int joined = 0;
  Clock clock;                                                        /* of the threads that have joined */
  std::map<std::pair<int, int>, std::deque<Pending>> sends, receives; /* by (from, to) */
  std::vector<std::deque<Place>> collectives;                         /* by rank, those that wait for others */
  /* a split: what each rank asked for */
  std::vector<int> colors, keys;
  std::vector<ncclComm *> made;
  std::vector<ncclComm **> slots; /* where it is put when the split is done: the caller's memory */
  std::vector<bool> asked;
  int askers = 0;
  /* a shrink: those that have come, and by which list */
  std::vector<int> excluded;
  std::map<int, std::pair<ncclComm *, ncclComm **>> left;
};

} // namespace vg::nccl

struct ncclComm {
  vg::nccl::World *world;
  int rank, device;
  bool blocking, aborted, destroyed, finalized, revoked;
  ncclResult_t state;
  int64_t since_ms; /* of its finalisation */
  std::string name;
  std::shared_ptr<vg::nccl::Job> job;                    /* not launched yet */
  std::vector<vg::nccl::Place> placed;                   /* not complete yet */
  std::vector<std::weak_ptr<vg::nccl::Launch>> captured; /* in graphs */
  vg::Id last;          /* what its last launch leaves by: the next one comes after it */
  uint32_t chain, time; /* of the thread that has called last */
};

namespace vg::nccl {

/* The launch that a GPU was given last. */
struct Latest {
  Placed *place = nullptr; /* NULL: forgotten */
  ncclComm *comm = nullptr;
  uint32_t chain = 0, time = 0; /* of the thread that has launched it */
};

/* Of this machine: all objects live until the next one begins, so that stale handles are recognised. */
struct Nccl {
  uint64_t generation = 0;
  uint64_t ids = 0;
  std::map<std::string, std::unique_ptr<World>> worlds;
  std::vector<std::unique_ptr<ncclComm>> comms;
  std::map<Id, Place> moves;
  std::map<int, Latest> latest;             /* by GPU */
  std::map<Placed *, Place> ordered;        /* launches that may be part of a circle ... */
  std::map<World *, size_t> ordered_worlds; /* ... and how many of each */
  std::string last_error;
};
extern Nccl &N;

/* nccl.cpp */
void fresh(); /* for a machine that has begun since the last call */
/* A failure that the real one warns of: the text is what ncclGetLastError gives. */
ncclResult_t warn(ncclResult_t result, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The communicator, if there is one; any_thread: the call may be made beside others. */
ncclComm *comm_of(ncclComm_t comm, const char *call, bool any_thread = false);
/* ... and if it takes calls: not before the last one is through, nor after it was finalised. */
ncclResult_t ready(ncclComm_t comm, const char *call, ncclComm **out);
/* Waits as a blocking communicator does; false: nobody came for 10 seconds. The one place here that waits for threads.
 */
bool await(const std::function<bool()> &there);

/* end.cpp */
int64_t now_ns();
void look_at_end(ncclComm *c); /* the same for one that was finalised and is not through */

/* Stops what is under way, whatever the state is, and is through with it: what the flag of a shrink asks for. */
void end_for_shrink(ncclComm_t comm);

/* group.cpp */
void look(ncclComm *c); /* somebody asks for its state: a group of it may be launched now */
void drop_job(ncclComm *c);
ncclResult_t fault_result(); /* what a call returns that a test makes fail; so does the group that it is in */

/* order.cpp: a launch is given to its GPU; it meets a partner; both are known; all of its partners are there; it ends
 * without them. */
void order_placed(const Place &p);
void order_met(const Place &a, const Place &b);
void order_check(const Place &p);
void order_complete(const Place &p);
void order_cut(const Place &p);

/* launch.cpp */
const char *name_of(What what);
/* In the order of the stream, or into the graph that it is captured into. */
ncclResult_t give(std::shared_ptr<Launch> launch, Stream &stream);
/* Everything of this rank that has not found its partners ends without moving anything. */
void cut_off(ncclComm *c);

/* Each call starts with this; a call that destroys does so even when it is to fail. */
#define VG_NCCL(name, flags) \
  static const int call_index_ = call_index(#name); \
  Api api(call_index_, #name, flags); \
  fresh(); \
  if (api.fault != cudaSuccess && !((flags)&CALL_DESTROY)) \
  return fault_result()
#define VG_NCCL_END(result) return api.fault != cudaSuccess ? fault_result() : (result)

} // namespace vg::nccl
#endif
