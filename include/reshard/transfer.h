/* Transfers and execute: a plan bound to a communicator, arrays and a workspace, and its execution. Calls that return a
 * status refuse a NULL transfer (RESHARD_ERROR_INVALID). */
#ifndef RESHARD_TRANSFER_H
#define RESHARD_TRANSFER_H

#include <reshard/comm.h>
#include <reshard/plan.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct reshard_transfer_s *reshard_transfer;

/* Buffers of this rank, before and after. Begin with RESHARD_ARRAYS_DEFAULTS, or set `size` to RESHARD_ARRAYS_INIT.
 *
 * - src, dst: the buffers (reshard_layout_buffer_count) of every entry, entry after entry. Borrowed: the memory belongs
 *   to the caller and lives as long as the transfer. Lists are read during the call only. Pointers need no
 *   alignment. Pointers of buffers in which this rank holds nothing may be NULL.
 * - src_strides, dst_strides: in elements, one list of ndim per buffer. A NULL list or a NULL element: contiguous. Flat
 *   layouts of two and more dims refuse strides. Elements may overlap in a source (a broadcast view), not in a
 *   destination.
 * - nsrc, ndst: lengths of the lists, compared with the numbers that the plan needs. 0: not compared.
 *
 * Entries whose destination regions are disjoint parts of one tensor (q, k and v of qkv) name its buffers once each. */
typedef struct reshard_arrays {
  size_t size;
  void *const *src;
  void *const *dst;
  const int64_t *const *src_strides;
  const int64_t *const *dst_strides;
  int64_t nsrc, ndst;
} reshard_arrays;
#define RESHARD_ARRAYS_INIT sizeof(reshard_arrays)
#define RESHARD_ARRAYS_DEFAULTS \
  { sizeof(reshard_arrays), NULL, NULL, NULL, NULL, 0, 0 }

typedef enum reshard_path {
  /* Direct where every rank's sources can be reached by the others; else mixed, else packed. Over NCCL packed.
   * Ranks of reshard_comm_create_node on CPUs pack what is less than 32 KiB on each, where one may use fewer cores
   * than there are ranks: ranks then meet once, not twice. */
  RESHARD_PATH_AUTO = 0,
  RESHARD_PATH_DIRECT, /* strided source to strided destination in one pass */
  RESHARD_PATH_PACKED, /* pack, exchange, unpack */
  RESHARD_PATH_MIXED   /* direct from ranks of this node, packed to and from the others, in one execute */
} reshard_path;
/* "auto", "direct", "packed", "mixed"; "unknown" else. Static lifetime. */
RESHARD_API const char *reshard_path_string(reshard_path path);
/* Reads such a name. Errors: RESHARD_ERROR_INVALID with the text and the names. */
RESHARD_API reshard_status reshard_path_parse(const char *text, reshard_path *path);

/* Choice of one call of the communicator for messages that are a collective together (reshard_collective). One call is
 * possible on the packed path where all ranks' plans agree, and its own staging, if any, is within the workspace limit.
 * NCCL has all-gather, broadcast, and from 2.28 all-to-all. The other communicators have none. */
typedef enum reshard_collective_use {
  RESHARD_COLLECTIVE_USE_AUTO = 0, /* where it is the faster way */
  RESHARD_COLLECTIVE_USE_FORCE,    /* wherever there is one; else creating the transfer is RESHARD_ERROR_UNSUPPORTED */
  RESHARD_COLLECTIVE_USE_FORBID
} reshard_collective_use;

/* Begin with RESHARD_TRANSFER_OPTIONS_DEFAULTS, or set `size` to RESHARD_TRANSFER_OPTIONS_INIT; the rest may be 0. */
typedef struct reshard_transfer_options {
  size_t size;
  reshard_path path;                 /* compared between ranks */
  void *workspace;                   /* borrowed staging memory of the device; NULL: the transfer allocates its own */
  size_t workspace_bytes;            /* size of workspace */
  reshard_collective_use collective; /* compared between ranks */
} reshard_transfer_options;
#define RESHARD_TRANSFER_OPTIONS_INIT sizeof(reshard_transfer_options)
#define RESHARD_TRANSFER_OPTIONS_DEFAULTS \
  { sizeof(reshard_transfer_options), RESHARD_PATH_AUTO, NULL, 0, RESHARD_COLLECTIVE_USE_AUTO }

/* Binds a plan. Collective over comm. The plan is borrowed until the transfer is destroyed.
 *
 * Before any byte moves the ranks' requests are compared: version, tensors, layouts, dtypes, regions, options. All
 * ranks succeed, or all get the same error, which names the first tensor and field that differ, and both ranks'
 * values. Strides are checked, and that no destination of this rank overlaps one of its sources or another
 * destination.
 *
 * - On a GPU an array is in memory of that GPU, or of the host and pinned. Other memory is RESHARD_ERROR_INVALID on
 *   all ranks, which names entry, buffer, address and GPUs.
 * - RESHARD_PATH_DIRECT and RESHARD_PATH_MIXED read other ranks' sources: docs/communicators.md. AUTO packs if one
 *   rank has a source out of reach; an explicit path is RESHARD_ERROR_UNSUPPORTED on all then.
 * - Storage that a transfer reads is freed after the transfer is bound elsewhere or destroyed on all ranks. */
RESHARD_API reshard_status reshard_transfer_create(reshard_plan plan, reshard_comm comm, const reshard_arrays *arrays,
                                                   const reshard_transfer_options *options, reshard_transfer *transfer);

/* Makes the transfers of all ranks of this process from one thread, as reshard_execute_all executes them. Collective.
 * All are made, or none, and nothing is written. A destination that overlaps a source or a destination of another
 * rank is RESHARD_ERROR_INVALID, which names both.
 *
 * - plans, comms: [n], one of each local rank, in any order of the ranks; element i of all lists is of one rank.
 * - arrays, options: [n], as of reshard_transfer_create. A NULL list or element: no arrays (of ranks that hold
 *   nothing), the default options.
 * - transfers: [n], each to be destroyed by itself.
 *
 * Where a process has one rank n is 1, and the others make the same call or reshard_transfer_create. No other thread
 * uses the communicators meanwhile. */
RESHARD_API reshard_status reshard_transfer_create_all(int64_t n, const reshard_plan *plans, const reshard_comm *comms,
                                                       const reshard_arrays *const *arrays,
                                                       const reshard_transfer_options *const *options,
                                                       reshard_transfer *transfers);

/* Binds other arrays to the same plan. Local on the packed path, collective on the others. The path stays: sources
 * that other ranks cannot reach any more are RESHARD_ERROR_UNSUPPORTED on all ranks, and a packed transfer stays
 * packed. After an error the transfer is bound as before.
 *
 * On a GPU the call blocks until earlier executes of the transfer are done, those of launched graphs among them, or
 * is RESHARD_ERROR_TIMEOUT at the communicator's deadline. If a rank's old sources were of cudaMalloc the call then
 * waits for others, as reshard_transfer_destroy does. */
RESHARD_API reshard_status reshard_transfer_rebind(reshard_transfer transfer, const reshard_arrays *arrays);

/* Binds the transfers of all ranks of this process from one thread, as reshard_transfer_rebind binds one: all, or all
 * are bound as before. Collective where that is. transfers, arrays: [n], one of each local rank, in any order. Ranks of
 * different transfers are RESHARD_ERROR_MISMATCH, and arrays are refused as by reshard_transfer_create_all. */
RESHARD_API reshard_status reshard_transfer_rebind_all(int64_t n, const reshard_transfer *transfers,
                                                       const reshard_arrays *const *arrays);

/* Destroys a transfer. NULL is allowed. One that another thread executes or binds is freed when that call returns.
 * Peers have finished their executes on it.
 *
 * On a GPU the call blocks until executes of the transfer are done, those of launched graphs among them, and for
 * nothing else: other streams may be captured meanwhile. Graphs that hold an execute of the transfer must not be
 * launched after it, or after a rebind. After an error the call is also what waits for work that streams still have:
 * the arrays are then the caller's.
 *
 * Local, but for transfers of processes with GPUs on an explicit direct or mixed path, where any rank's sources
 * are of cudaMalloc. The call is collective over the ranks of the node then, as MPI_Win_free, and waits until all
 * have closed what they had open, but not beyond the deadline. */
RESHARD_API void reshard_transfer_destroy(reshard_transfer transfer);

typedef struct reshard_transfer_info {
  reshard_path path;      /* the path taken: direct, packed or mixed */
  size_t workspace_bytes; /* staging in use */
  int64_t copies;         /* box copies that one execute runs on this rank, of all steps */
  int64_t rounds;         /* the same on all ranks: as many as the one that stages most needs under its limit */
  /* Messages that go from or to the arrays as they lie there; over NCCL those at addresses that are multiples of 16. */
  int64_t packs_skipped, unpacks_skipped;
  reshard_collective collective; /* the one that carries the messages */
  /* Reason why no collective carries the messages, or why sends and receives were preferred. Lives as long as the
   * transfer. */
  const char *collective_why;
  int64_t workspace_limit; /* that holds here (plan.h); RESHARD_NO_LIMIT: none; 0 on the direct path */
  int64_t least_rounds;    /* that the rank which stages most would take if all of the limit were in use all the time */
  /* Where bytes are passed on within domains (plan.h): the most streams of any rank, 0 where none are; and rounds
   * beyond `rounds`, in which those that came last are. */
  int64_t streams, later_rounds;
} reshard_transfer_info;
RESHARD_API reshard_status reshard_transfer_get_info(reshard_transfer transfer, reshard_transfer_info *info);

/* Moves the data. Collective over the transfer's communicator. Allocates nothing.
 *
 * - stream: NULL on the CPU: on return the destination is complete and the source may be overwritten. On a GPU one
 *   of this rank's GPU, NULL being the legacy default stream: the call returns when all work has been given to
 *   streams. Later work of the stream finds the destination complete and may overwrite the source, after an error
 *   too, but for the contents of the destination. The caller orders executes of one transfer on different streams.
 *
 * A peer's source is read after that peer's execute was reached. The call can be captured into a graph where this
 * process has one rank, else reshard_execute_all; the graph has the arrays that were bound then.
 *
 * Errors: RESHARD_ERROR_BUSY: the transfer is executing. RESHARD_ERROR_PEER, RESHARD_ERROR_TIMEOUT:
 * docs/communicators.md. RESHARD_ERROR_MISMATCH on all ranks that have come with different transfers, but over NCCL
 * and between GPUs of processes. */
RESHARD_API reshard_status reshard_execute(reshard_transfer transfer, void *stream);

/* Executes for all ranks of this process from one thread. Collective. transfers[i] of n: one per local rank, in any
 * order.
 *
 * - stream: one of the first rank's GPU, which stands for all ranks. Earlier work of the stream comes before
 *   everything, on all GPUs, and its later work after everything.
 *
 * The call can be captured into a graph, as threads that each capture a stream of their own cannot wait for one
 * another. */
RESHARD_API reshard_status reshard_execute_all(int64_t n, const reshard_transfer *transfers, void *stream);

#ifdef __cplusplus
}
#endif
#endif
