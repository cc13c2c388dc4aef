/* Communicators: the ranks that take part, and the transport of bytes between them. A NULL communicator has rank -1,
 * size 0 and no global ranks. Calls that return a status refuse it (RESHARD_ERROR_INVALID). */
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

/* Makes n ranks that are threads of this process. comms receives n handles, comms[r] for rank r. Each handle is used by
 * one thread at a time. The environment is read here and only here.
 *
 * A call holds off the cancellation of its thread (pthread_cancel, deferred) until it returns, on this and every other
 * communicator. A program that cancels threads sets a deadline.
 *
 * After fork() the child has all handles of such ranks, and destroys or uses them as its own. Where a rank was in a
 * collective call, the child's communicator has ended: its calls give RESHARD_ERROR_PEER. So do those of a communicator
 * of a node, NCCL or MPI there, always. To destroy one does nothing in the child. */
RESHARD_API reshard_status reshard_comm_create_local(int64_t n, const reshard_local_options *options,
                                                     reshard_comm *comms);

/* Wraps one rank of an NCCL communicator of the caller's. Local.
 *
 * NCCL is loaded at run time, 2.18 or later: the one that the program's own calls go to, else one that is loaded, else
 * libnccl.so.2 by its name. A program with several calls reshard_comm_from_nccl_comm, which takes the one that made the
 * communicator.
 *
 * NCCL communicators that have two GPUs or more in common need one launch order: all ranks make collective calls and
 * executes on them in the same order, a parent and its children too. Launches of graphs that hold an execute count, and
 * so do the caller's own calls of NCCL; other streams do not help. A rank makes them from one thread, or from threads
 * that it puts in order. Else NCCL may hang, as a kernel that waits for its peers keeps the next one off the GPU.
 * NCCL_LAUNCH_ORDER_IMPLICIT=1 in the environment, of NCCL 2.26, makes the GPU keep the order in which the host calls.
 * Source: "Using multiple NCCL communicators concurrently" in NCCL's user guide.
 *
 * - nccl_comm: an ncclComm_t, borrowed. No one else uses it while a call of this library on it runs.
 * - device: the GPU that it is on (kept). NULL: a device of the library's own on that GPU.
 * - timeout_ms: deadline of the host's waits (creating transfers, splits). 0: RESHARD_TIMEOUT_MS, else for ever.
 *
 * NCCL does not tell for whom it waits. Ranks of one node tell each other to which calls they have come, by a page of
 * memory. They share it from the first collective call on. So RESHARD_ERROR_TIMEOUT names the missing ranks: those that
 * have not come to the call, have left or aborted the communicator, or whose process has ended. Where there are none,
 * those are named that are held up in the call before NCCL has it. All ranks of a node that wait get the same text, as
 * soon as one gives up. Ranks that share no page are out of sight:
 *
 * - those of other nodes, users, or namespaces of processes;
 * - a rank without a descriptor for the page;
 * - all of them in the first call on a communicator of the caller's.
 *
 * Such ranks are listed as "not known of: 8-15" behind the missing ones. Where none is missing that is in sight, the
 * text says "not known, of: 8-15"; with all in sight, "none: all ranks have come", and the GPU or NCCL holds them up.
 * Where nothing is known, no rank is named. An execute is not waited for by the host: the next call that meets tells.
 *
 * Transfers send all bytes by NCCL, but with RESHARD_PATH_MIXED. Then a rank's GPU reads sources of the ranks on its
 * node where they lie. Beside that NCCL's messages go to the others, and come from them. It is for several nodes, with
 * more than one rank on some. Ranks that read each other are processes of their own, of one user and in one network
 * namespace. RESHARD_NODE parts ranks of one system. Memory that is read is as in reshard_comm_create_node, and one
 * rank with a source elsewhere makes it RESHARD_ERROR_UNSUPPORTED on all.
 *
 * - AUTO does not take it: no GPU has measured it yet. Hosts of sharders that are told to take it meet in each call.
 *   They keep its transfer while no rank's arrays and staging have moved, and make it anew where some have. They meet
 *   by an all-gather of NCCL, which they wait for: it may come after the messages of the last call.
 * - The first such transfer opens the nodes, for all later ones: by the same call on all ranks, with a descriptor per
 *   rank of the node. An abort ends a rank's wait for its node there. So does that of another rank which is there, too,
 *   and what NCCL itself reports.
 * - Execute gives meetings of the node's streams to a stream of its own, before and after the copies from there. No
 *   host waits, and a graph can hold it. All ranks give them to their GPU before NCCL's first group, in one order: both
 *   kinds wait for peers, and have to be on the GPU at once.
 * - timeout_ms is also the deadline of a stream for the ranks of its node. Beyond it, or when one of them has ended the
 *   communicator, that execute and all later ones copy nothing of others on the node. The rank's next call, or the one
 *   that it waits in, says so and ends the communicator. It is RESHARD_ERROR_TIMEOUT with the peer that did not come,
 *   or RESHARD_ERROR_PEER with the one that ended it. A caller's ncclComm_t is the caller's to abort. A rank whose
 *   execute fails alone ends the communicator at once.
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

/* Makes a new NCCL communicator. Collective over the n callers.
 *
 * - id: 128 bytes from reshard_nccl_unique_id on one of the callers, which passes them on to the others.
 * - n, rank: number of ranks, and the caller's.
 * - device, timeout_ms: as in reshard_comm_from_nccl. It is one deadline for all of this, with the meeting below.
 *
 * The communicator is non-blocking, so that the deadline and reshard_comm_abort hold. One GPU per rank: two ranks on
 * one are INVALID. Between GPUs of one process, arrays in a memory pool of the caller's own are open to the others.
 *
 * All ranks destroy their handle, each on a thread of its own where they are in one process. NCCL waits there for the
 * others, at most until the deadline. It also waits for graphs: those that captured a transfer on the communicator are
 * destroyed before.
 *
 * A rank that could not make a call which the others make ends its communicator at once. Its later calls give that
 * error, and the others hear of it by their deadline, which names it as reshard_comm_from_nccl says. The ranks meet
 * here once, so that the first call after it can do so.
 *
 * Ranks of a node find each other before NCCL connects them. The first one to come listens at a socket in the meantime.
 * If it goes, another one does. The socket's name follows from the id, which does not follow from it; there is no file.
 *
 * So the error names ranks that have come and go on no more. NCCL's own error of a rank that is gone is
 * RESHARD_ERROR_PEER with that rank. Ranks that have not come may be healthy ones of another node: the error lists them
 * as "not come, or out of sight: 8-15". */
RESHARD_API reshard_status reshard_comm_create_nccl(const void *id, int64_t n, int64_t rank, reshard_device device,
                                                    int64_t timeout_ms, reshard_comm *comm);

/* An all-gather of the caller: every rank gives `bytes` bytes, and `all` receives those
 * of all ranks, by rank. It returns on every rank or, where it has a deadline of its own, with an error. */
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

/* Makes one rank of a communicator of processes of one node, for memory of the CPU or of GPUs. Collective over the n
 * callers, each in a process of its own. It needs no MPI: messages go through shared memory that no file names. It ends
 * with the last process that has it, however that ends.
 *
 * - n, rank: number of ranks, and the caller's.
 * - allgather, user: of the caller's, called once, here alone.
 * - options: NULL for the defaults.
 *
 * All processes run as one user, in one network namespace. Those of that user are trusted, as docs/communicators.md
 * says; the system tells who they are. A rank holds a descriptor per other rank. Every collective
 * call compares what the ranks call: RESHARD_ERROR_MISMATCH names both calls. A process that ends is noticed at once by
 * those that wait for it: RESHARD_ERROR_PEER names it. From an error on nothing reads or writes memory of the caller's.
 * After fork() the child's handles are no ranks: calls there give RESHARD_ERROR_PEER.
 *
 * On GPUs ranks have a GPU each, or share one, and read each other's arrays: the direct path, of storage of devices
 * made with `shared`. Where a rank has sources elsewhere as a transfer is made, all take the packed path. A transfer
 * told RESHARD_PATH_DIRECT also reads memory of cudaMalloc, by CUDA IPC. Other sources (memory pools, PyTorch's
 * expandable segments) are RESHARD_ERROR_UNSUPPORTED on all ranks then, as in a rebind on the direct path. Messages go
 * through mailboxes in memory of the GPUs, which the communicator has from the first such transfer on. They take
 * 64 MiB of each rank at most, and 128 KiB a peer beyond 512 peers. Words by which the streams of ranks that read meet
 * take some 2 MiB more. The device's pool counts them: beyond its limit that transfer is
 * RESHARD_ERROR_OUT_OF_MEMORY on all. Sharders take the packed path, so that their calls show each other nothing,
 * unless they are told RESHARD_PATH_DIRECT. Then hosts meet in each call, and keep its transfer while no rank's arrays
 * have moved. Where some have, all bind it anew, and wait for its last execute. A source of cudaMalloc is
 * RESHARD_ERROR_UNSUPPORTED there on all.
 *
 * Execute gives meetings and copies to the stream, and no host waits for another: a graph can hold it. Executes on the
 * packed path follow one another, on whatever streams they are, and so do those captured into one graph; launches of
 * graphs are put in order by the caller. Kernels of all ranks of a GPU that meet have to run at the same time, which
 * other work of that GPU may delay. Communicators that have two GPUs or more in common need one launch order, as those
 * of NCCL (reshard_comm_from_nccl). Streams beyond CUDA_DEVICE_MAX_CONNECTIONS share a queue of the GPU, where a
 * meeting may stand before what its peer waits for. A stream that has waited for a peer beyond timeout_ms, or whose
 * communicator was aborted, goes on: that execute and all later ones copy nothing of others, and on the packed path
 * maybe not what a rank keeps either. The next call on the communicator tells, as reshard_comm_barrier:
 * RESHARD_ERROR_PEER with the peer that did not come. A rank whose execute fails alone ends the communicator. An abort
 * of what it was split from ends its host calls; its streams wait for the deadline.
 *
 * Ranks that execute different transfers on the packed path, as those of different calls of sharders, find that out on
 * their streams: those that have messages for each other receive nothing, and wait for nobody else. The next call of
 * one that found it ends the communicator, and with it the wait of streams of others for that one. From then on each
 * rank's is RESHARD_ERROR_MISMATCH, which names two ranks.
 *
 * Where one of them is on the direct path, the execute of the later one is RESHARD_ERROR_MISMATCH already. It gives
 * nothing to its stream, and ends the communicator: streams that wait for it copy nothing, and every rank's next call
 * says the same. So it is where one executes and another waits for it in a call of hosts, as a sharder's whose plan is
 * not kept. Executes that were still under way may copy nothing then. A rank that has captured an execute is
 * not compared with others, which may launch graphs instead: on the direct path they wait for it until the deadline.
 *
 * Errors, the same on all ranks, of the lowest rank that failed:
 * - RESHARD_ERROR_INVALID: a rank that is not below n, no all-gather, which that rank alone gets; a negative timeout;
 *   comm is NULL.
 * - RESHARD_ERROR_UNSUPPORTED: ranks on other nodes or of other users; GPUs without memory that descriptors stand
 *   for (cuMemCreate), as a transfer is made.
 * - RESHARD_ERROR_MISMATCH: other numbers of ranks, versions of the library, kinds of device, or names of the job.
 * - RESHARD_ERROR_TIMEOUT, RESHARD_ERROR_PEER: a rank did not come, or is gone.
 * - RESHARD_ERROR_SYSTEM, RESHARD_ERROR_OUT_OF_MEMORY: no descriptors, no /proc, no shared memory, also by the limit
 *   of a file's size (ulimit -f).
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
  char job[256];               /* name of the run: processes of others are not let in. It is no secret */
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
 * Rank 0 listens at the addresses of this machine that `address` stands for: at loopback ones where all ranks are on it
 * (local_n is n). Else, and where it stands for none, rank 0 listens at all addresses. With a secret each side proves
 * that it has it, and bytes go to no other. Without one whoever knows address and job can take a rank's place
 * (docs/communicators.md).
 *
 * Errors:
 * - RESHARD_ERROR_SYSTEM: the address is not known, the port is not free.
 * - RESHARD_ERROR_MISMATCH: a rank has no secret, or another one than rank 0. Both say so at their deadline, since it
 *   may be a stranger who differs. Without one rank 0 waits on, and the other gives up after 10 s.
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
/* A reshard_allgather over NCCL: nccl_comm points to an ncclComm_t, on whose GPU the calling thread is. It goes through
 * a few bytes of that GPU on a stream of its own, which is waited for. */
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

/* Allocates memory for arrays of this rank on the communicator's device, aligned to 256 bytes. Local, and so is its
 * end. All streams can use it.
 *
 * Ranks that are processes of one node read sources in such memory directly, where the device is shared
 * (reshard_device_options): a CPU of the communicator's own is. Sources elsewhere on the CPU they send in messages.
 *
 * - memory: NULL for 0 bytes. It counts with the device's pool, and holds nothing in particular.
 *
 * Memory is freed when no transfer is bound to it and no stream uses it. NULL is allowed.
 *
 * Errors: RESHARD_ERROR_OUT_OF_MEMORY. Source: MPI_Alloc_mem, ncclMemAlloc. */
RESHARD_API reshard_status reshard_comm_alloc(reshard_comm comm, size_t bytes, void **memory);
RESHARD_API reshard_status reshard_comm_free(reshard_comm comm, void *memory);

/* Destroys a handle. Not collective. NULL is allowed. Other ranks of this process that wait for this one, or make a
 * collective call later, get RESHARD_ERROR_PEER at once.
 *
 * Transfers, sharders and meshes on the handle, and its memory, are destroyed before. Where some are left, a line on
 * standard error tells how many. The rank makes no more calls then: theirs are RESHARD_ERROR_PEER. The handle is freed
 * with the last of them. */
RESHARD_API void reshard_comm_destroy(reshard_comm comm);

/* Wakes every rank that waits in a collective call, with RESHARD_ERROR_PEER. Later calls on any of the ranks' handles
 * fail with it too. Callable from any thread. A copy that runs is finished first. Communicators that were split from
 * this one are aborted with it; those that it was split from are not.
 *
 * On a GPU, executes that were given to streams before an abort or a deadline may still write to their destinations:
 * messages that were under way end, and what unpacks them runs. reshard_transfer_destroy waits for that, after which
 * the arrays are the caller's. */
RESHARD_API reshard_status reshard_comm_abort(reshard_comm comm);

/* Collective. Returns when all ranks have called. */
RESHARD_API reshard_status reshard_comm_barrier(reshard_comm comm);

/* Splits a communicator. Collective over comm. Ranks of one color make a communicator of their own.
 *
 * - color: 0 or more. A rank that gives a negative one is in no new communicator: *sub is NULL.
 * - key: ranks are ordered by it and, where keys are equal, by rank in comm.
 * - sub: the new communicator, which the caller destroys, before or after comm.
 *
 * All ranks succeed, or all get the error of the lowest rank that failed and nothing is made. The new communicator is
 * one like any other. Transfers on it, on comm and on its siblings may run at the same time. Over NCCL all ranks call
 * them in one order, see reshard_comm_from_nccl. It has the device, copy threads and deadline of comm, and statistics
 * of its own. It does not end when a rank gives up waiting on comm, or the reverse. For aborts see reshard_comm_abort.
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

/* Makes a communicator of those that are there, after others were lost. Collective over all ranks but the lost ones,
 * whatever has become of comm: a deadline, an abort, or nothing.
 *
 * - n, lost: the ranks left out, ascending, the same on all that call. n is 0: those of reshard_comm_missing.
 * - sub: the new communicator, which the caller destroys, before or after comm. Ranks are in the order of comm, and
 *   reshard_comm_global_ranks tells their old numbers. It has the device, copy threads and deadline of comm.
 *
 * comm ends by it: waiting calls return RESHARD_ERROR_PEER, and so do later ones. What it was split from goes on. What
 * was split from it ends too among threads, and over NCCL from 2.28 on; over MPI it goes on. Transfers on comm are
 * destroyed as ever. All ranks succeed, or all get an error and nothing is made. They may then call again, with a
 * longer list, but over NCCL.
 *
 * Errors:
 * - RESHARD_ERROR_INVALID: a list that is not ascending, names this rank, or is empty with no rank known as missing.
 * - RESHARD_ERROR_MISMATCH: lists that differ; between processes when the deadline passes, and where there
 *   is none after 1 s.
 * - RESHARD_ERROR_TIMEOUT: more ranks are missing, which the text names where they are known.
 * - RESHARD_ERROR_UNSUPPORTED: an NCCL older than 2.27, after a deadline one without ncclCommRevoke (2.28). So is an
 *   NCCL communicator of the caller's, who shrinks it and wraps the new one.
 *
 * Source: ncclCommShrink; MPI_Comm_create_group. */
RESHARD_API reshard_status reshard_comm_shrink(reshard_comm comm, int64_t n, const int64_t *lost, reshard_comm *sub);

/* Tells where the ranks of this process are, as text: of comm, and of all communicators that come from the same one by
 * splits. Local. Callable from any thread, also while others wait in a call on comm: a program that hangs is asked
 * so. It does not block, but it takes a lock and allocates nothing: call it from a thread that waits for a signal
 * (sigwait), not from a signal handler. The program `reshard` does so on SIGUSR1.
 *
 * - last: that many finished calls per rank, of the last 64, are listed too.
 * - text: of `size` bytes, NUL-terminated. needed (may be NULL): bytes wanted with the NUL.
 *
 * A line per rank tells its last call on the communicator: the call's number, bytes, step and round. It tells how long
 * ago the call began or returned, and for which ranks it waits. Ranks make the same calls in the same order, so equal
 * numbers are the same call, also in different processes. A rank that is behind has a lower one, and is named where it
 * is in this process. Calls return when their work is given to the stream, on a device that has streams. An execute
 * that waits for no other rank, and moves less than 64 KiB, has no times: reading a clock would take as long.
 *
 *     local, 4 ranks
 *     rank 0: in reshard_execute, call 17: meeting, step 1, 65536 bytes, since 1204.113 ms, waits for rank 2
 *     rank 2: out of reshard_comm_barrier, call 16: done 1204.517 ms ago
 *     behind: rank 2, at call 16 of 17
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
 * path) that they came in. Never reset. */
typedef struct reshard_comm_stats {
  int64_t received_bytes;
  int64_t received_messages;
} reshard_comm_stats;
RESHARD_API reshard_status reshard_comm_get_stats(reshard_comm comm, reshard_comm_stats *stats);

#ifdef __cplusplus
}
#endif
#endif
