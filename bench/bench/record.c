#include "bench/bench/record.h"

#include "bench/trace/trace.h"

#include "comm/comm.h"
#include "device/stream.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SLOWER = 4 }; /* the host, with a trace */

/* Writes memory for as long as the host needs to launch the execute, so that the streams run it without waiting for the
 * host. The GPUs' time begins after that, at the first one. Called by every local rank. */
static void hold_gpus(bench_state *b, int64_t local) {
  rs_device *device = session_device(&b->s, local);
  int64_t leads = b->s.locals < b->s.ndevices ? b->s.locals : b->s.ndevices;
  for (int64_t i = 0; i < SLOWER * b->hold && local < leads; i++)
    CLI_TRY("", device->memory->memset(device, b->scratch[local], 0, b->scratch_bytes, b->stream[local]));
  if (local < leads)
    CLI_TRY("", rs_stream_record(device, b->done[local], b->stream[local], "trace: held"));
  rank_pool_barrier(b->s.pool, true);
  if (local == 0) {
    for (int64_t l = 1; l < leads; l++)
      CLI_TRY("", rs_stream_wait(device, b->stream[0], b->done[l], "trace: begin after held"));
    CLI_TRY("", rs_stream_record(device, b->begin, b->stream[0], "trace: begin"));
    trace_base(b->trace, device, b->stream[0]);
  }
  rank_pool_barrier(b->s.pool, true);
  if (local > 0) {
    CLI_TRY("", rs_stream_wait(device, b->stream[local], b->begin, "trace: after begin"));
    trace_base(b->trace, device, b->stream[local]);
  }
}

/* Creates the trace, with a track for each rank's stream. */
static void open_trace(bench_state *b) {
  trace_destroy(b->trace);
  b->trace = trace_create();
  for (int64_t l = 0; l < b->s.locals && b->s.cuda; l++) {
    char name[TRACE_NAME];
    snprintf(name, sizeof name, "rank %lld", (long long)(b->s.first + l));
    trace_name(b->trace, session_device(&b->s, l), b->stream[l], name);
  }
}

static void start_devices(bench_state *b) {
  for (int64_t l = 0; l < b->s.locals; l++) {
    reshard_comm comm = b->s.comms[l];
    trace_start(b->trace, comm->device);
    for (int64_t g = 0; g < comm->process.lanes; g++)
      trace_start(b->trace, comm->process.lane_devices[g]);
  }
}

/* --- Several processes -------------------------------------------------------------------------------------------- */

static const void *gather_bytes(bench_state *b, int64_t local, const void *mine, size_t bytes) {
  const void *all = NULL;
  reshard_status status = rs_comm_allgather(b->s.comms[local], mine, bytes, &all);
  if (status != RESHARD_SUCCESS)
    cli_fail(status, "rank %lld: %s", (long long)(b->s.first + local), reshard_last_error());
  return all;
}

/* Shown by a rank in a round that measures clocks. */
typedef struct clock_card {
  double came, left; /* this round; the last one */
  uint64_t clock;    /* processes with the same share CLOCK_MONOTONIC */
} clock_card;

/* Processes of one running system have one clock. RESHARD_NODE parts them here, too. */
static uint64_t clock_of(void) {
  const char *node = getenv("RESHARD_NODE");
  uint64_t here = rs_system_hash("time");
  return rs_hash(here != 0 ? here : (uint64_t)getpid(), node != NULL ? node : "", node != NULL ? strlen(node) : 0);
}

/* Seconds to add to this process's clock for that of the first. A rank leaves an all-gather after all have come: each
 * round bounds the offset from both sides. Called by every local rank. */
static double measure_clock(bench_state *b, int64_t local, double *error) {
  enum { ROUNDS = 32 };
  clock_card mine = {0, 0, clock_of()}, first = mine;
  double low = -INFINITY, high = INFINITY;
  for (int i = 0; i < ROUNDS; i++) {
    double came = mine.came;
    mine.came = rs_seconds();
    first = *(const clock_card *)gather_bytes(b, local, &mine, sizeof mine);
    mine.left = rs_seconds();
    low = fmax(low, first.came - mine.left);
    if (i > 0)
      high = fmin(high, first.left - came);
  }
  *error = first.clock == mine.clock ? 0 : fmax(0, 0.5 * (high - low));
  return first.clock == mine.clock ? 0 : 0.5 * (low + high);
}

/* The size of the trace of a process, and its clock, as all show them. */
typedef struct trace_card {
  int64_t bytes;
  double offset, error;
} trace_card;

/* Brings the traces of all processes to the first one. Called by every local rank; the first of each shows its own. */
static void join_traces(bench_state *b, int64_t local) {
  enum { PIECE = 480 };
  rs_text mine = {.grows = true};
  trace_card card = {0};
  int64_t n = b->s.processes.n, most = 0;
  bool joins = b->s.processes.me == 0 && local == 0;
  card.offset = measure_clock(b, local, &card.error);
  if (local == 0)
    trace_pack(b->trace, &mine);
  card.bytes = (int64_t)mine.length;
  trace_card *cards = cli_alloc(n, sizeof *cards);
  const trace_card *all = gather_bytes(b, local, &card, sizeof card);
  for (int64_t p = 0; p < n; p++) {
    cards[p] = all[p * b->s.locals];
    most = cards[p].bytes > most ? cards[p].bytes : most;
  }
  char *joined = joins ? cli_alloc(n, (size_t)most + 1) : NULL, piece[PIECE];
  for (int64_t at = 0; at < most; at += PIECE) {
    int64_t left = (int64_t)mine.length - at;
    memset(piece, 0, sizeof piece);
    if (left > 0)
      memcpy(piece, mine.at + at, (size_t)(left < PIECE ? left : PIECE));
    const char *pieces = gather_bytes(b, local, piece, PIECE);
    for (int64_t p = 0; joins && p < n; p++)
      if (at < cards[p].bytes)
        memcpy(joined + p * (most + 1) + at, pieces + p * b->s.locals * PIECE,
               (size_t)(cards[p].bytes - at < PIECE ? cards[p].bytes - at : PIECE));
  }
  for (int64_t p = 1; joins && p < n; p++) {
    trace_join(b->trace, (int)p, joined + p * (most + 1), (size_t)cards[p].bytes, cards[p].offset);
    b->clock_error = fmax(p > 1 ? b->clock_error : 0, cards[p].error);
  }
  if (joins)
    trace_joined(b->trace);
  free(joined);
  free(cards);
  free(mine.at);
}

/* --- A row -------------------------------------------------------------------------------------------------------- */

void bench_trace_row(bench_state *b, int64_t local) {
  void *stream = b->s.cuda ? b->stream[local] : NULL;
  if (b->s.cuda)
    CLI_TRY("", session_device(&b->s, local)->streams->synchronize(session_device(&b->s, local), stream));
  session_barrier(&b->s, local, true);
  if (local == 0)
    open_trace(b);
  rank_pool_barrier(b->s.pool, true);
  if (b->s.cuda)
    hold_gpus(b, local);
  session_barrier(&b->s, local, true);
  if (local == 0)
    start_devices(b);
  rank_pool_barrier(b->s.pool, true);
  reshard_status status = reshard_execute(b->transfers[local], stream);
  if (status != RESHARD_SUCCESS)
    cli_fail(status, "rank %lld: %s", (long long)(b->s.first + local), reshard_last_error());
  if (b->s.cuda)
    CLI_TRY("", session_device(&b->s, local)->streams->synchronize(session_device(&b->s, local), stream));
  session_barrier(&b->s, local, true);
  if (local == 0)
    trace_stop(b->trace);
  rank_pool_barrier(b->s.pool, true);
  if (b->s.processes.n > 1)
    join_traces(b, local);
  rank_pool_barrier(b->s.pool, true);
}

/* The phase of a step; BENCH_PHASES: none. On the CPU an exchange has packs and unpacks in it. */
static int phase_of(const rs_trace_step *step) {
  static const struct {
    const char *step;
    int phase;
  } phases[] = {{"pack", BENCH_PACK},     {"move", BENCH_EXCHANGE}, {"round", BENCH_EXCHANGE},
                {"unpack", BENCH_UNPACK}, {"copy", BENCH_COPY},     {"self_copy", BENCH_SELF_COPY}};
  for (size_t i = 0; i < sizeof phases / sizeof *phases && step->kind == RS_TRACE_WORK; i++)
    if (strcmp(step->name, phases[i].step) == 0)
      return phases[i].phase;
  return BENCH_PHASES;
}

void bench_trace_phases(bench_state *b) {
  const trace *t = b->trace;
  double *sums = cli_alloc(t->ntracks * BENCH_PHASES, sizeof *sums);
  for (int64_t i = 0; i < t->nsteps; i++) {
    int phase = phase_of(&t->step[i].is);
    if (phase == BENCH_PHASES)
      continue;
    double *sum = &sums[t->step[i].track * BENCH_PHASES + phase];
    *sum += t->step[i].end - t->step[i].begin;
    b->row.phase_us[phase] = fmax(b->row.phase_us[phase], *sum);
  }
  free(sums);
}

void bench_trace_write(const bench_state *b, const char *json, const char *svg) {
  char title[512], note[512];
  const cli_options *o = b->o;
  snprintf(title, sizeof title, "%s %s: %s to %s", b->row.shape, b->row.dtype, o->src, o->dst);
  bool virtual = b->s.cuda && strncmp(b->gpu, "virtual ", 8) == 0;
  snprintf(note, sizeof note, "%lld rank%s, %s, %s communicator, %s%s", (long long)b->s.world, cli_plural(b->s.world),
           b->row.path, b->s.comm, b->s.cuda ? b->gpu : "threads of the CPU",
           virtual ? " and its like: times are a model's, not measured" : "");
  size_t used = strlen(note);
  if (b->s.processes.n > 1 && b->clock_error > 0)
    snprintf(note + used, sizeof note - used, "; clocks of several nodes, within %.1f us", 1e6 * b->clock_error);
  if (b->s.processes.me != 0)
    return; /* the first one has the traces of all */
  if (json != NULL)
    trace_json(b->trace, title, note, json);
  if (svg != NULL)
    trace_svg(b->trace, title, note, svg);
}
