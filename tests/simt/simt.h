/* Runs CUDA kernels that were compiled by the host's compiler (tests/simt/include/cuda_runtime.h).
 *
 * A launch is an object: it is executed at once, or handed to whoever has set simt_set_enqueue (a stand-in for the CUDA
 * runtime, with streams), who executes it later. The blocks of a launch run one after the other on the calling thread.
 * The threads of a block run in turn from barrier to barrier. */
#ifndef SIMT_H
#define SIMT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct simt_launch {
  const char *name;   /* text of rs_launch's arguments, the kernel's name first, for messages */
  const void *kernel; /* its address: the same for all launches of one kernel (of one template instance) */
  unsigned grid[3], block[3];
  size_t shared; /* dynamic shared memory */
  void *stream;
  int nargs;
  const void *const *args; /* copies, as the kernel gets them */
  const size_t *arg_bytes;
  size_t object_bytes; /* of the object that begins here, which holds the copies */
} simt_launch;

/* Takes the launch over: simt_run and simt_free, in this order, or simt_free alone. Returns a cudaError_t, which the
 * launcher returns; it owns nothing on error. */
typedef int (*simt_enqueue)(void *user, simt_launch *launch);
/* NULL: launches are executed at once. Set before any launch; for all threads. */
void simt_set_enqueue(simt_enqueue enqueue, void *user);
/* Executes a launch on the calling thread. 0, or after a text on standard error and in simt_error_text: 719
 * (cudaErrorLaunchFailure) for a barrier that not all threads reach, a warp operation with other lanes than its mask
 * says; 716 (cudaErrorMisalignedAddress); what simt_abort was given. */
int simt_run(simt_launch *launch);
void simt_free(simt_launch *launch);
/* Called before each asynchronous copy (bulk or not), for what it reads and what it writes, on the thread that runs the
 * kernel: a kernel's own loads and stores can be seen by how it is compiled, these cannot. NULL: nobody is. */
typedef void (*simt_watch)(const void *at, size_t bytes, int write);
void simt_set_watch(simt_watch watch);
/* In a kernel: ends the launch with this error, a cudaError_t. Does not return. */
void simt_abort(int error, const char *text);
/* A kernel polls memory, with __nanosleep between. Once all its threads do nothing else it is ended with SIMT_POLLS
 * (true), or goes on for ever (default). Whoever ends it runs it again from its start. For all threads. */
enum { SIMT_POLLS = 600 }; /* cudaErrorNotReady */
void simt_set_polls(bool end);
/* The n-th kernel that is loaded ahead from now on cannot be: error, a cudaError_t. 0: all can. */
void simt_fail_load(int64_t n, int error);
/* In a kernel: is this memory that its thread may use beside the device's - its stack, its parameters, the built-in
 * variables, the block's shared memory? */
bool simt_owns(const void *at, size_t bytes);
/* Of the calling thread's last failed simt_run. */
const char *simt_error_text(void);

/* Order of blocks, and of threads between barriers: 0: ascending (default); else shuffled by the seed. For all
 * threads. */
void simt_set_order(uint64_t seed);

/* Since the process started: launches executed, CUDA threads, switches between threads, kernels loaded ahead. */
typedef struct simt_counts {
  int64_t launches, blocks, threads, switches, loads;
} simt_counts;
simt_counts simt_get_counts(void);

#ifdef __cplusplus
}
#endif
#endif
