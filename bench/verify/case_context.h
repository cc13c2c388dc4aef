/* The context of a running case: case_run.c makes plans and draws passes, case_pass.c runs them. */
#ifndef BENCH_CASE_CONTEXT_H
#define BENCH_CASE_CONTEXT_H

#include "bench/launch/gpu.h"
#include "bench/launch/session.h"
#include "bench/verify/case_binding.h"
#include "bench/verify/case_run.h"

#include <pthread.h>

/* Communicators that cases share: making one costs more than running a small case. */
typedef struct case_comms case_comms;

/* devices: of the ranks, in turn; none: a CPU. */
case_comms *case_comms_create(const reshard_device *devices, int64_t ndevices);
void case_comms_free(case_comms *comms);
/* The n handles of a communicator with these options, kept from an earlier case where there is one; NULL, with why,
 * when it cannot be made. */
reshard_comm *case_comms_get(case_comms *comms, int64_t n, int threads, reshard_isa isa, rs_text *why);
/* Destroys one that a failed case may have left in any state. */
void case_comms_drop(case_comms *comms, reshard_comm *handles);

struct case_runner {
  case_choices fixed;
  rank_pool *pool;
  case_comms *comms; /* local ones */
  session *remote;   /* what has the communicator, which is not a local one; else NULL */
};

/* One transfer and how it is used. */
typedef struct case_pass {
  reshard_path path;
  bool drive_all; /* one thread executes for all ranks */
  bool own_workspace;
  bool reverse; /* of the reverse plans, from what the pass before delivered */
  int executes;
  unsigned rebind; /* bit k: other arrays before execute k */
} case_pass;

typedef struct case_rank {
  reshard_plan plan, back;
  reshard_plan_info info;
  reshard_transfer transfer;
  case_binding src, dst;
  unsigned char *workspace; /* of the device */
  size_t workspace_bytes;
  int64_t least_wire, most_wire; /* on the path of the transfer */
  int64_t staged, rounds;        /* most bytes of staging, and rounds, of its transfers */
  bool passed;                   /* one of them passes bytes on */
  bool by_domains;               /* what comes between domains and within is compared with the plan */
  bool reads;                    /* some sources are read: then the plan has the most that comes */
  int64_t between, within;       /* bytes that were compared */
  rs_device *device;             /* of streams; NULL: the CPU */
  void *stream;
} case_rank;

typedef struct case_context {
  case_runner *runner;
  const case_plan *c;
  reshard_entry *entries;
  int64_t first, locals; /* ranks [first, first + locals) are here */
  reshard_comm *shared;  /* by the runner; NULL: it is not a local communicator */
  reshard_comm *comms;   /* [world], like the following; of the ranks here */
  case_rank *rank;
  reshard_transfer *transfers;
  bool *reached; /* [world] ranks whose arrays other processes map; NULL: none */
  bool all_reached;
  gpu_graph graph; /* of all executes of a pass with these arrays; none: not captured yet */
  reshard_status all_status;
  int npasses;
  case_pass passes[4];
  pthread_mutex_t lock;
  rs_text why;
} case_context;

/* Records the first failure of a case; returns false. */
bool case_failed(case_context *l, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool case_failed_call(case_context *l, const char *call, int64_t rank, reshard_status status);
/* Does the same where why has text, which it frees; else returns true. */
bool case_take_reason(case_context *l, rs_text *why);
/* Barrier of all ranks of all processes. */
bool case_barrier(case_context *l, int64_t rank, bool ok);

/* Runs a pass of that number on one rank. generation counts on, so that no data comes twice. False where any rank's
 * result was wrong. */
bool case_pass_run(case_context *l, const case_pass *p, int64_t rank, int number, int *generation);
/* Checks that the reverse plan brings every source element of the region back from the result of a forward pass. */
bool case_pass_reverse(case_context *l, const case_pass *p, int64_t rank, int number, int generation);

#endif
