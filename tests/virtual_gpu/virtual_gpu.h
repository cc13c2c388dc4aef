/* A virtual GPU: the calls of the CUDA runtime that the library makes, implemented on the CPU for tests. The shipped
 * host code is linked with it in place of the CUDA runtime. The kernels come from the SIMT build of the same .cu.
 *
 * Streams are queues. A call that gives work to a stream only notes it; a seeded scheduler runs it later: when the host
 * synchronises, queries, or the test ends. It takes any order that the declared edges allow: program order of a stream,
 * events, the legacy default stream, graphs. A policy says which: at random, one stream as far as it goes, the newest
 * first, or with one stream held back as long as possible.
 *
 * Beside the data runs a checker. Every stream, host thread and branch of a graph is a chain with a clock; an operation
 * has a vector of the times of all chains that come before it. That is joined from its stream, the thread that issued
 * it and the events that the stream waits for. Every byte of device and pinned memory has a shadow: who wrote it last,
 * and who has read it since. Copies say what they touch; kernels are compiled so that each load and store is seen. An
 * access that is not after the write before it is reported, and so is a write that is not after the reads. That holds
 * whichever order the scheduler has chosen: the data need not come out wrong. The clock of a host thread grows by what
 * it synchronises with: streams, events, and other threads through mutexes, condition variables, creation and joining.
 *
 * Also reported: use after free, free while in use, reads of memory never written, accesses out of bounds or to another
 * GPU's memory without peer access; device memory touched by the host, memory of the host that is not pinned touched by
 * a kernel; accesses of kernels that are not aligned; calls with destroyed handles; and, at the end, leaks. A report is
 * one line of text. Addresses are never used again before vg_end. A kernel with a fault leaves it to its GPU
 * (vg_break_kernel); cudaFree waits for the device, which orders nothing.
 *
 * Processes are threads that say which one they are of (vg_process). Children of fork are real ones, each with a
 * machine of its own: they open each other's exported memory, by handles of CUDA IPC and by descriptors, which has no
 * shadow there. So the checker misses what is wrong between them, and the data may show it. A kernel that polls a word
 * of memory, with __nanosleep between, is run again from its start until it finds what it waits for. Stores that
 * release and loads that acquire order it with the kernels that it hears of so.
 *
 * Time is made up, for events with timing: what an operation would take that has nothing beside it (time.cpp). It has
 * no part in what runs when.
 *
 * Threads of the host take turns by the seed, too, and CLOCK_MONOTONIC and CLOCK_REALTIME are the time of their turns
 * (turns.cpp): a run comes out of its seed alone, with all that is reported.
 *
 * A test: vg_begin(&options); ... calls of the library ...; assert_int_equal(vg_end(), 0) - or look at vg_report(i).
 * Outside of vg_begin and vg_end there is no GPU: cudaErrorNoDevice. All calls may come from several threads. */
#ifndef VIRTUAL_GPU_H
#define VIRTUAL_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum vg_policy {
  VG_AUTO = 0, /* one of the others, by the seed */
  VG_RANDOM,
  VG_DEPTH_FIRST,  /* stays with a stream as long as it can */
  VG_NEWEST_FIRST, /* what was issued last runs first: waits that are missing are overtaken */
  VG_VICTIM,       /* one stream, by the seed, runs only when nothing else can */
  VG_IN_ORDER      /* as issued: what most real runs look like */
} vg_policy;

typedef struct vg_options {
  int devices; /* 0: one */
  uint64_t seed;
  vg_policy policy;
  size_t memory;       /* bytes of each device; 0: 80 GiB */
  int multiprocessors; /* of each device; 0: 132, as an H200 has */
  size_t l2;           /* bytes of its cache, as it says; 0: 50 MiB */
  bool no_peers;       /* devices cannot reach each other */
  bool no_rdma;        /* cuMemCreate gives no memory for GPUDirect RDMA */
  bool no_check;       /* run only: nothing is reported but misuse and leaks */
  int64_t patience_ms; /* how long a call waits for other threads before it says that nothing will come; 0: 10 s */
  bool no_device;      /* there is a driver and no GPU; with devices == -1 there is no driver either */
  bool spans;          /* keeps when each operation begins and ends: vg_spans */
  int64_t nccl_us;     /* how long a group of NCCL communicators that do not block takes to be launched, at least */
} vg_options;

/* A fresh machine; options may be NULL. */
void vg_begin(const vg_options *options);
/* Runs what is left, looks for leaks, ends the machine. Returns the number of reports, and prints them to standard
 * error unless vg_quiet was called. Reports stay readable until the next vg_begin. */
int vg_end(void);
void vg_quiet(bool quiet);

int vg_reports(void);
const char *vg_report(int i); /* NULL when there are not so many */
/* Number of reports that contain all of the words, each up to a space ("race write stage"). */
int vg_reports_with(const char *words);

/* --- The test itself -------------------------------------------------------------------------------------------------
 * The host reads or writes n bytes of pinned memory now (checked like any access; the library's own accesses are seen
 * by themselves where it is built for that). Device memory here is a report. */
void vg_host_read(const void *at, size_t n);
void vg_host_write(void *at, size_t n);
/* Copies in the order of the stream, and waits: contract_rank.copy. */
void vg_copy(void *stream, void *dst, const void *src, size_t bytes);
/* Order between host threads that pthread calls do not show (atomics): everything before release at an address comes
 * before what follows an acquire at it. */
void vg_host_release(const void *at);
void vg_host_acquire(const void *at);
/* Contents of device memory, without the checker and without synchronising anything: for a test's own look at data
 * after it has synchronised as a user would. */
void vg_peek(void *host, const void *device, size_t n);
void vg_poke(void *device, const void *host, size_t n);
/* Memory whose contents are undefined from now on, for allocators on top of this one. In the order of the host. */
void vg_undefine(void *at, size_t n);
/* The calling thread is of this process from now on, 0 at first: call it before the thread makes anything. Device and
 * pinned memory, and what is imported by CUDA IPC, is used in the process that has it: elsewhere its address is a
 * report, as is memory that is freed while it is imported, and an import that is closed while in use. Streams and
 * events are of their thread's process; the default streams are of process 0. */
void vg_process(int number);
/* A variable of the environment for the calling thread, until vg_end: it hides the program's of that name. */
void vg_setenv(const char *name, const char *value);
void vg_name_stream(void *stream, const char *name);
void vg_name_thread(const char *name);
/* Runs everything that can run, without a synchronisation in the sense of the checker. */
void vg_drain(void);

/* When an operation that moved bytes began and ended, in the virtual GPU's time, in us; in the order in which they ran.
 * Until vg_end. */
typedef struct vg_span {
  const char *what, *stream; /* as in reports: vg_name_stream */
  bool to_host;              /* it wrote memory of the host */
  double begin, end;
} vg_span;
size_t vg_spans(const vg_span **spans);

/* True when this build sees the accesses of kernels. Under ThreadSanitizer it does not, and nothing is checked. */
bool vg_sees_kernels(void);

/* A number of what ran in which order since vg_begin: threads that took turns, and operations. The same seed gives the
 * same, in any process; not under ThreadSanitizer. */
uint64_t vg_digest(void);

/* --- Counters ----------------------------------------------------------------------------------------------------- */
typedef struct vg_counts {
  int64_t calls;             /* of the runtime, all but those that only ask for the last error */
  int64_t allocs, frees;     /* of device and pinned memory, of any kind; streams, events, graphs and pools not */
  int64_t creates, destroys; /* of streams, events, graphs, pools */
  int64_t
      host_syncs; /* calls that wait, or may wait, for the device: synchronise, cudaMemcpy, cudaFree, pageable copies */
  int64_t pageable_copies; /* with Async and pageable memory */
  int64_t copies, launches, records, waits, queries, graph_launches;
  int64_t mixed_groups; /* of NCCL, on several streams of a communicator, which come to wait for each other */
  int64_t operations;   /* that have run */
  int64_t most_blocks;  /* of one launch of a kernel */
  int64_t closed_bytes; /* that kernels have read which found a word set, and stored nothing */
} vg_counts;
vg_counts vg_count(void);
/* Calls of one function by name, "cudaMalloc", also of nanosleep; a '*' at the end stands for anything. */
int64_t vg_calls(const char *name);
/* Device memory: in use now, at most at one time (since vg_begin or vg_reset_peak). In the order of the calls. */
size_t vg_memory_used(int device);
size_t vg_memory_peak(int device);
void vg_reset_peak(int device);
/* Memory of a device that was made and mapped by the driver's calls for virtual memory, as PyTorch's expandable
 * segments are: no other device has access, peer access or not. NULL: there is none. Unmapping it is a free. */
void *vg_map(int device, size_t bytes);
void vg_unmap(void *at);
/* Tells whether the device has its primary context, which takes its memory. The second gives the device of the context
 * that is current in the calling thread; -1: none. */
bool vg_has_context(int device);
int vg_current_context(void);

/* --- Faults ----------------------------------------------------------------------------------------------------------
 * The k-th call (from 1, counted from here) whose name matches (as in vg_calls; NULL: any that can fail) fails with
 * `error` (a cudaError_t, for calls of NCCL an ncclResult_t; 0: one that suits the call), once or from then on. It has
 * no effect then, but destroying and freeing calls do what they do and return the error. ncclCommGetAsyncError succeeds
 * and tells of the error. k == 0: no more faults. */
void vg_fail(const char *name, int64_t k, bool from_then_on, int error);
/* The same for calls of the calling thread alone. */
void vg_fail_here(const char *name, int64_t k, bool from_then_on, int error);
/* The k-th kernel that runs from here (from 1) goes to an address that is not mapped: a fault that stays. What its GPU
 * has still to run is lost. Every later call of a thread whose current device that is fails with the fault's error,
 * also cudaGetLastError; freeing and destroying calls do what they do. 0: none. */
void vg_break_kernel(int64_t k);
int64_t vg_failed(void); /* calls that were failed since */
/* The calls of this thread that follow are the test's own: they neither fail nor count, until false. */
void vg_own_calls(bool own);

/* --- Edges -----------------------------------------------------------------------------------------------------------
 * Runs the scenario with nothing left out, once per seed, which lists the edges that it uses (each record and wait of
 * host/device/stream.h: name and kind); then leaves each out at each of its uses, one at a time, under one seed after
 * the other until the checker reports something. It counts those that it found. Only where accesses are checked
 * (vg_sees_kernels). With VG_EDGES in the environment each use is printed, with the report that found it. The scenario
 * gives its own vg_begin and vg_end by the options that it is passed, and no data comparison. */
typedef void (*vg_scenario)(void *user, const vg_options *options);
typedef struct vg_edge_search {
  const char *path; /* what the scenario is, in the report of ./run prove */
  vg_scenario run;
  void *user;
  vg_options options;
  int seeds;        /* for each use; there are more when proving */
  int most;         /* uses of an edge that are left out, spread over all of them; 0, and when proving: each */
  const char *only; /* names that begin so, as "move: "; NULL: all */
  /* NULL, or why uses need not be missed here: something else keeps the same order in this scenario, as a host that
   * waits. They are counted by themselves. Every name has to be found in some other scenario. */
  const char *covered;
  const char *covered_edges; /* those of which that is so, "name|name"; NULL: all */
} vg_edge_search;
typedef struct vg_edge_result {
  int edges, uses;  /* names; places of use left out, without records that nobody waits for before the end */
  int found;        /* uses whose loss was reported */
  int covered;      /* not found, and allowed not to be */
  int false_alarms; /* reports of runs with nothing left out, and seeds that gave another run the second time */
} vg_edge_result;
vg_edge_result vg_for_each_edge(const vg_edge_search *search);

/* --- ./run prove -----------------------------------------------------------------------------------------------------
 * Tests have a short form, and a full one with `./run prove`, which names a file in VG_PROVE. */
bool vg_proving(void);
/* n, or when proving `full`, times RESHARD_TEST_SCALE; at least 1. */
int64_t vg_scaled(int64_t n, int64_t full);
/* Is the part of the test with this number one of this process? VG_SHARD=K/N gives it each N-th, from the K-th on. */
bool vg_is_mine(int64_t number);
/* Offset of the seeds of random cases: VG_SEED, 0 without it. */
uint64_t vg_first_seed(void);
/* A line of the report: nothing when not proving. The fields of a line are between bars; the first one says what it is
 * (tests/virtual_gpu/prove). */
void vg_prove(const char *format, ...) __attribute__((format(printf, 1, 2)));

#ifdef __cplusplus
}
#endif
#endif
