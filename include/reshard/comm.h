/* Communicators: the ranks that take part, and the transport of bytes between them. docs/communicators.md has memory,
 * order, deadlines, and what holds after an error, for threads, processes of a node, NCCL and MPI. A NULL communicator
 * has rank -1, size 0 and no global ranks. Calls that return a status refuse NULL (RESHARD_ERROR_INVALID). */
#ifndef RESHARD_COMM_H
#define RESHARD_COMM_H

#include <reshard/device.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct reshard_comm_s *reshard_comm;

/* Begin with RESHARD_LOCAL_OPTIONS_DEFAULTS, or set `size` to RESHARD_LOCAL_OPTIONS_INIT; the rest may be 0. */
typedef struct reshard_local_options {
  size_t size;
  int threads; /* copy threads shared by the ranks; 0: RESHARD_THREADS, else one per core that the process may use */
  reshard_isa isa; /* AUTO: RESHARD_ISA, else the best of the machine. Forcing one that is not available is an error. */
  /* Time that a rank waits for the others in a collective call. 0: RESHARD_TIMEOUT_MS, else for ever. */
  int64_t timeout_ms;
  /* Devices of the ranks' arrays: rank r is on devices[r % ndevices], all of one type. Kept by the communicator.
   * Several ranks may share a GPU. ndevices 0: a CPU of the communicator's own, with threads and isa above. */
  const reshard_device *devices;
  int64_t ndevices;
} reshard_local_options;
#define RESHARD_LOCAL_OPTIONS_INIT sizeof(reshard_local_options)
#define RESHARD_LOCAL_OPTIONS_DEFAULTS \
  { sizeof(reshard_local_options), 0, RESHARD_ISA_AUTO, 0, NULL, 0 }

/* Makes n ranks that are threads of this process. Local: one thread makes all of them, and reads the environment.
 *
 * - options: NULL for the defaults.
 * - comms: receives n handles, comms[r] for rank r. Each handle is used by one thread at a time.
 *
 * A call on any communicator holds off the cancellation of its thread (pthread_cancel, deferred) until it returns. A
 * program that cancels threads sets a deadline. In a child of fork() the handles are the child's own; the
 * communicator has ended there (RESHARD_ERROR_PEER) if a rank was in a collective call. Handles of the other
 * communicators are no ranks in a child: calls are RESHARD_ERROR_PEER, and to destroy them does nothing. */
RESHARD_API reshard_status reshard_comm_create_local(int64_t n, const reshard_local_options *options,
                                                     reshard_comm *comms);

/* Wraps one rank of an NCCL communicator of the caller's. Local. NCCL 2.18 or later is loaded at run time.
 *
 * - nccl_comm: an ncclComm_t, borrowed. Nobody else uses it during a call of this library on it, and the caller
 *   aborts it.
 * - device: the GPU that it is on (kept). NULL: a device of the library's own on that GPU.
 * - timeout_ms: deadline of the host's waits. 0: RESHARD_TIMEOUT_MS, else for ever.
 *
 * All ranks make collective calls and executes on NCCL communicators with GPUs in common in one order: NCCL may hang
 * otherwise. Transfers send all bytes by NCCL; RESHARD_PATH_MIXED reads sources of the node's ranks where they lie.
 * A deadline names the missing ranks that are in sight. docs/communicators.md has order, sight and the mixed path.
 *
 * Errors:
 * - RESHARD_ERROR_UNSUPPORTED: a build without NCCL; no NCCL can be loaded, or one that is too old.
 * - RESHARD_ERROR_INVALID: another device than the communicator's. */
RESHARD_API reshard_status reshard_comm_from_nccl(void *nccl_comm, reshard_device device, int64_t timeout_ms,
                                                  reshard_comm *comm);
/* The same with the NCCL that has the function get_version: the address of its ncclGetVersion. NULL: as above. */
RESHARD_API reshard_status reshard_comm_from_nccl_library(void *nccl_comm, void (*get_version)(void),
                                                          reshard_device device, int64_t timeout_ms,
                                                          reshard_comm *comm);
#define RESHARD_NCCL_ID_BYTES 128

/* Makes an id of RESHARD_NCCL_ID_BYTES bytes for reshard_comm_create_nccl. */
RESHARD_API reshard_status reshard_nccl_unique_id(void *id);

/* Makes a new NCCL communicator, which does not block. Collective over the n callers.
 *
 * - id: 128 bytes from reshard_nccl_unique_id on one of the callers, which passes them on to the others.
 * - n, rank: number of ranks, and the caller's.
 * - device: as in reshard_comm_from_nccl; a GPU per rank. Two ranks on one are RESHARD_ERROR_INVALID.
 * - timeout_ms: one deadline for the whole call, then as in reshard_comm_from_nccl.
 *
 * All ranks destroy their handle, each on a thread of its own if they are in one process: NCCL waits there for the
 * others, until the deadline, and for graphs that captured a transfer, which are destroyed before. Errors are those
 * of reshard_comm_from_nccl, and RESHARD_ERROR_PEER or RESHARD_ERROR_TIMEOUT: the text names ranks of the node that
 * are gone or held up, and lists the others as "not come, or out of sight: 8-15". */
RESHARD_API reshard_status reshard_comm_create_nccl(const void *id, int64_t n, int64_t rank, reshard_device device,
                                                    int64_t timeout_ms, reshard_comm *comm);

/* An all-gather of the caller: every rank gives `bytes` bytes, and `all` receives those of all ranks, by rank. The
 * function returns on every rank or, where it has a deadline of its own, with an error. */
typedef reshard_status (*reshard_allgather)(void *user, const void *mine, size_t bytes, void *all);

/* Begin with RESHARD_NODE_OPTIONS_DEFAULTS, or set `size` to RESHARD_NODE_OPTIONS_INIT; the rest may be 0. */
typedef struct reshard_node_options {
  size_t size;
  /* A CPU, or a GPU (kept), on all ranks alike. NULL: a CPU of the library's own, whose storage is shared
   * (reshard_comm_alloc), with its share of the cores as threads. */
  reshard_device device;
  int64_t timeout_ms; /* time that a rank waits for others, here too. 0: RESHARD_TIMEOUT_MS, else for ever */
  const char *job;    /* name of the job: compared. NULL: none */
} reshard_node_options;
#define RESHARD_NODE_OPTIONS_INIT sizeof(reshard_node_options)
#define RESHARD_NODE_OPTIONS_DEFAULTS \
  { sizeof(reshard_node_options), NULL, 0, NULL }

/* Makes one rank of a communicator of processes of one node, on CPUs or GPUs. Collective over the n callers, each in
 * a process of its own, of one user and network namespace.
 *
 * - n, rank: number of ranks, and the caller's.
 * - allgather, user: of the caller's, called once, here alone.
 * - options: NULL for the defaults.
 *
 * On GPUs, calls and executes on communicators that share ranks have one order, as NCCL's.
 * docs/communicators.md has memory and errors.
 *
 * Errors, the same on all ranks, of the lowest rank that failed:
 * - RESHARD_ERROR_INVALID: rank or timeout, no all-gather (that rank alone); comm is NULL.
 * - RESHARD_ERROR_UNSUPPORTED: ranks on other nodes or of other users.
 * - RESHARD_ERROR_MISMATCH: other numbers of ranks, versions, kinds of device, or jobs.
 * - RESHARD_ERROR_TIMEOUT, RESHARD_ERROR_PEER: a rank did not come, or is gone.
 * - RESHARD_ERROR_SYSTEM, RESHARD_ERROR_OUT_OF_MEMORY: no descriptors, /proc or shared memory.
 * - the all-gather's own, on the ranks where it failed.
 *
 * Source: UCC's out-of-band all-gather. */
RESHARD_API reshard_status reshard_comm_create_node(int64_t n, int64_t rank, reshard_allgather allgather, void *user,
                                                    const reshard_node_options *options, reshard_comm *comm);

/* Meeting point of processes that were started together: rank 0 listens at a port, which the others know. Begin with
 * RESHARD_RENDEZVOUS_DEFAULTS, or set `size` to RESHARD_RENDEZVOUS_INIT. */
typedef struct reshard_rendezvous {
  size_t size;
  int64_t n, rank;             /* number of processes, and this one's */
  int64_t local_n, local_rank; /* of those on this node. Where Slurm tells no number, local_n is local_rank + 1 */
  int64_t timeout_ms;          /* time that a process waits for the others; 0: for ever */
  int port;                    /* of rank 0 */
  char address[256];           /* where the others find it */
  char job[256];               /* name of the run, no secret: processes of others are not let in */
  char secret[256];            /* that all processes have, or none; NUL-terminated, never sent. "": none */
} reshard_rendezvous;
#define RESHARD_RENDEZVOUS_INIT sizeof(reshard_rendezvous)
#define RESHARD_RENDEZVOUS_DEFAULTS \
  { sizeof(reshard_rendezvous), 0, 0, 0, 0, 0, 0, "", "", "" }

/* Reads from the environment which processes there are. Local. `size` is set before.
 *
 * - torchrun's way: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT (the port after it is used), and LOCAL_RANK,
 *   LOCAL_WORLD_SIZE where they are set. job: RESHARD_JOB, else TORCHELASTIC_RUN_ID.
 * - Slurm's, without RANK, in a step (SLURM_STEP_ID): SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS,
 *   SLURM_LOCALID; SLURM_STEP_TASKS_PER_NODE and SLURM_NODEID, else SLURM_NTASKS_PER_NODE. MASTER_ADDR, else the
 *   first of SLURM_STEP_NODELIST; MASTER_PORT, else a port that follows from the job's step.
 * - neither: one process.
 *
 * timeout_ms is RESHARD_TIMEOUT_MS. secret is RESHARD_SECRET, or the one line of the file that RESHARD_SECRET_FILE
 * names, which no other user can read (mode 0600). Errors: RESHARD_ERROR_INVALID names the variable that is wrong or
 * missing. */
RESHARD_API reshard_status reshard_rendezvous_from_environment(reshard_rendezvous *rendezvous);

/* A reshard_allgather over TCP: `rendezvous` points to a reshard_rendezvous. Collective over its n processes.
 *
 *     reshard_rendezvous r = RESHARD_RENDEZVOUS_DEFAULTS;
 *     reshard_rendezvous_from_environment(&r);
 *     reshard_comm_create_node(r.n, r.rank, reshard_rendezvous_allgather, &r, NULL, &comm);
 *
 * Rank 0 listens at the addresses of this machine that `address` stands for: at loopback ones if all ranks are local
 * (local_n is n), else, and if `address` stands for none, at all. With a secret each side proves that it has the
 * secret, and bytes go to no other. Without one whoever knows address and job can take a rank's place
 * (docs/communicators.md).
 *
 * Errors:
 * - RESHARD_ERROR_SYSTEM: the address is not known, the port is not free.
 * - RESHARD_ERROR_MISMATCH: a rank without rank 0's secret; told at the deadline, as a stranger may be the one who
 *   differs. Without a deadline rank 0 waits on, the other gives up after 10 s.
 * - RESHARD_ERROR_TIMEOUT: rank 0 names who did not come; the others have no answer. */
RESHARD_API reshard_status reshard_rendezvous_allgather(void *rendezvous, const void *mine, size_t bytes, void *all);

/* Variants with types that the compiler checks, where nccl.h is included before this header. NCCL is the one that the
 * program is linked with. */
#ifdef NCCL_MAJOR
static inline reshard_status reshard_comm_from_nccl_comm(ncclComm_t nccl_comm, reshard_device device,
                                                         int64_t timeout_ms, reshard_comm *comm) {
  return reshard_comm_from_nccl_library((void *)nccl_comm, (void (*)(void))ncclGetVersion, device, timeout_ms, comm);
}
#endif
#if defined NCCL_MAJOR && defined CUDART_VERSION
/* A reshard_allgather over NCCL: nccl_comm points to an ncclComm_t, on whose GPU the calling thread is. The
 * bytes go through memory of that GPU, on a stream of their own, which is waited for. */
static inline reshard_status reshard_nccl_allgather(void *nccl_comm, const void *mine, size_t bytes, void *all) {
  ncclComm_t comm = *(ncclComm_t *)nccl_comm;
  ncclResult_t state = ncclSuccess;
  cudaStream_t stream = NULL;
  void *room = NULL;
  int n = 0, good = 0;
  if (ncclCommCount(comm, &n) != ncclSuccess || cudaMalloc(&room, ((size_t)n + 1) * bytes) != cudaSuccess)
    return RESHARD_ERROR_OUT_OF_MEMORY;
  char *gathered = (char *)room + bytes;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess &&
      cudaMemcpyAsync(room, mine, bytes, cudaMemcpyHostToDevice, stream) == cudaSuccess) {
    state = ncclAllGather(room, gathered, bytes, ncclInt8, comm, stream);
    while (state == ncclInProgress && ncclCommGetAsyncError(comm, &state) == ncclSuccess)
      ; /* a communicator that does not block */
    good = state == ncclSuccess &&
           cudaMemcpyAsync(all, gathered, (size_t)n * bytes, cudaMemcpyDeviceToHost, stream) == cudaSuccess &&
           cudaStreamSynchronize(stream) == cudaSuccess;
  }
  if (stream != NULL)
    (void)cudaStreamDestroy(stream);
  (void)cudaFree(room);
  return good ? RESHARD_SUCCESS : RESHARD_ERROR_PEER;
}
#endif

/* Allocates memory for arrays of this rank on the communicator's device, aligned to 256 bytes, or frees it. Local.
 * All streams can use it.
 *
 * - memory: NULL for 0 bytes. The bytes count with the device's pool, and hold nothing in particular.
 *
 * Ranks that are processes of one node read sources in such memory directly, where the device is shared
 * (reshard_device_options): a CPU of the communicator's own is. Sources elsewhere on the CPU are sent in messages.
 * Memory is freed when no transfer is bound to it and no stream uses it; NULL is allowed.
 *
 * Errors: RESHARD_ERROR_OUT_OF_MEMORY. Source: MPI_Alloc_mem, ncclMemAlloc. */
RESHARD_API reshard_status reshard_comm_alloc(reshard_comm comm, size_t bytes, void **memory);
RESHARD_API reshard_status reshard_comm_free(reshard_comm comm, void *memory);

/* Destroys a handle. Local, but over NCCL, where the ranks of reshard_comm_create_nccl wait for each other. NULL is
 * allowed. Other ranks of this process that wait for this one, or make a collective call later, get
 * RESHARD_ERROR_PEER at once.
 *
 * Transfers, sharders and meshes on the handle, and its memory, are destroyed before. If some are left, a line on
 * standard error has their number, their calls are RESHARD_ERROR_PEER, and the handle is freed with the last of
 * them. */
RESHARD_API void reshard_comm_destroy(reshard_comm comm);

/* Wakes every rank that waits in a collective call, with RESHARD_ERROR_PEER. Later calls on any of the ranks'
 * handles fail with the same status. Callable from any thread. A copy that runs is finished first. Communicators
 * that were split from this one are aborted with it; those that it was split from are not.
 *
 * On a GPU, executes that were given to streams before an abort or a deadline may still write to their destinations:
 * messages that were under way end, and what unpacks them runs. reshard_transfer_destroy waits for that; after it
 * the arrays are the caller's. */
RESHARD_API reshard_status reshard_comm_abort(reshard_comm comm);

/* Agrees on a status: RESHARD_SUCCESS where all ranks bring it, else the first failing rank's, with the text of its
 * last error (reshard_error_set) and its number, on all ranks. Collective.
 *
 * A rank that brings an error also ends with it what the others do at once, so that a caller who refuses its own
 * arguments keeps nobody waiting. Processes of a node: a call in which they meet. Over MPI and NCCL: one that makes or
 * rebinds a transfer, makes a sharder, reshards or redistributes. Threads: the makings. Other calls are a mismatch.
 *
 * Errors: RESHARD_ERROR_INVALID: comm is NULL; RESHARD_ERROR_MISMATCH: others make another call. Source:
 * MPI_Comm_agree. */
RESHARD_API reshard_status reshard_comm_agree(reshard_comm comm, reshard_status mine);

/* Sets a function that a thread calls while it waits in a call on comm: for the first time after 50 ms, and then about
 * every 50 ms. So a program that waits can look for a signal. Local; not while a call on comm is under way.
 *
 * - poll: 0: the wait goes on. Else the call is RESHARD_ERROR_CANCELLED, and the communicator ends as by
 *   reshard_comm_abort of this rank, of which the others hear as then. The library holds no lock meanwhile. The
 *   function makes no call on comm. NULL: there is none from now on.
 * - user: passed to it.
 *
 * Communicators that are split or shrunk from comm later have the same function. Work that runs, and destroys, call
 * none, and neither does the making of a communicator of other libraries' or of processes.
 *
 * Errors: RESHARD_ERROR_INVALID: comm is NULL. Source: sqlite3_progress_handler. */
typedef int (*reshard_poll)(void *user);
RESHARD_API reshard_status reshard_comm_set_poll(reshard_comm comm, reshard_poll poll, void *user);

/* Collective. Returns when all ranks have called. */
RESHARD_API reshard_status reshard_comm_barrier(reshard_comm comm);

/* Finds the node of each rank, as a plan's node map or the domains of its topology have it. Collective.
 *
 * - nodes: room for reshard_comm_size numbers, from 0 on in the order of the nodes' lowest ranks. All ranks get the
 *   same.
 *
 * Ranks of one process, and those of reshard_comm_create_node, are on one node. Over NCCL and MPI processes are that
 * see each other on one system, with the same RESHARD_NODE where it is set. */
RESHARD_API reshard_status reshard_comm_nodes(reshard_comm comm, int64_t *nodes);

/* Splits a communicator. Collective over comm. Ranks of one color make a communicator of their own.
 *
 * - color: 0 or more. A rank that gives a negative one is in no new communicator: *sub is NULL.
 * - key: ranks are ordered by key and, where keys are equal, by rank in comm.
 * - sub: the new communicator, which the caller destroys, before or after comm.
 *
 * All ranks succeed, or all get the error of the lowest rank that failed and nothing is made. The new communicator
 * has the device, copy threads and deadline of comm, and statistics of its own. Transfers on it, on comm and on its
 * siblings may run at the same time, over NCCL called in one order by all ranks (docs/communicators.md). A rank that
 * gives up waiting on one of them ends no other; an abort of comm ends its parts.
 *
 * Source: MPI_Comm_split, ncclCommSplit; torch.distributed.split_group. */
RESHARD_API reshard_status reshard_comm_split(reshard_comm comm, int64_t color, int64_t key, reshard_comm *sub);

/* Finds the ranks that had not come when a deadline passed on the communicator. Local, from any thread.
 *
 * - ranks: room for reshard_comm_size of them; ascending.
 * - n: their number. 0: no deadline has passed, or the communicator cannot know: NCCL's where a rank is out of sight.
 *
 * Every rank that waited for them finds the same. Among threads, ranks that have destroyed their handle are
 * missing too, without a deadline. */
RESHARD_API reshard_status reshard_comm_missing(reshard_comm comm, int64_t *ranks, int64_t *n);

/* Makes a communicator of those that are there, after others were lost. Collective over all ranks but the lost ones.
 * comm may have seen a deadline, an abort, or nothing, and ends: waiting and later calls are RESHARD_ERROR_PEER.
 *
 * - n, lost: the ranks left out, ascending, the same on all. n is 0: those of reshard_comm_missing.
 * - sub: the new communicator, which the caller destroys, before or after comm; ranks in the order of comm.
 *   reshard_comm_global_ranks has their old numbers.
 *
 * Errors, on all ranks alike:
 * - RESHARD_ERROR_INVALID: a list that is not ascending, names this rank, or is empty with no rank known as missing.
 * - RESHARD_ERROR_MISMATCH: lists differ; between processes at the deadline, without one after 1 s.
 * - RESHARD_ERROR_TIMEOUT: more ranks are missing, named where they are known.
 * - RESHARD_ERROR_UNSUPPORTED: NCCL before 2.27, after a deadline before 2.28; an NCCL communicator of the caller's.
 *
 * Source: ncclCommShrink; MPI_Comm_create_group. */
RESHARD_API reshard_status reshard_comm_shrink(reshard_comm comm, int64_t n, const int64_t *lost, reshard_comm *sub);

/* Writes where the ranks of this process are, as text: of comm, and of all communicators that come from the same one
 * by splits. Local. Callable from any thread, also while others wait in a call on comm, but not from a signal
 * handler: the call takes a lock. Nothing is allocated.
 *
 * - last: that many finished calls per rank, of the last 64, are listed too.
 * - text: of `size` bytes, NUL-terminated. needed (may be NULL): bytes wanted with the NUL.
 *
 * A line per rank has its last call on the communicator, with number, bytes, step and round, how long ago it began
 * or returned, and the ranks for which it waits. Equal numbers are the same call, also in other processes; a rank
 * that is behind has a lower one. docs/communicators.md shows a report.
 *
 * Errors: RESHARD_ERROR_INVALID: the text does not fit.
 *
 * Source: PyTorch's flight recorder, ncclras. */
RESHARD_API reshard_status reshard_comm_report(reshard_comm comm, int64_t last, char *text, size_t size,
                                               size_t *needed);

RESHARD_API int64_t reshard_comm_rank(reshard_comm comm);
RESHARD_API int64_t reshard_comm_size(reshard_comm comm);
/* Global ranks of the communicator's ranks: their ranks in the communicator that was split first. One per rank. NULL
 * where they are the same numbers, since it was not split from another. Borrowed: lives as long as the handle. Source:
 * torch.distributed.get_process_group_ranks. */
RESHARD_API const int64_t *reshard_comm_global_ranks(reshard_comm comm);

/* Counts of the communicator on this handle: payload bytes that came to this rank from others, and the messages (packed
 * path) that they came in. The rest counts messages of plans with a topology, beside what reshard_plan_info has. Never
 * reset. */
typedef struct reshard_comm_stats {
  int64_t received_bytes;
  int64_t received_messages;
  int64_t between_bytes; /* that came from ranks of other domains */
  int64_t within_bytes;  /* from ranks of the same domain */
  int64_t leaving_bytes; /* of those between domains, from the sender's source: it does not pass them on */
} reshard_comm_stats;
RESHARD_API reshard_status reshard_comm_get_stats(reshard_comm comm, reshard_comm_stats *stats);

#ifdef __cplusplus
}
#endif
#endif
