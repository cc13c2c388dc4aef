#include "bench/bench/record.h"

#include "bench/trace/trace.h"

#include "comm/comm.h"
#include "device/stream.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    for (int64_t g = 0; g < comm->lanes; g++)
      trace_start(b->trace, comm->lane_devices[g]);
  }
}

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
}

/* The phase of a step; BENCH_PHASES: none. On the CPU an exchange has packs and unpacks in it. */
static int phase_of(const rs_trace_step *step) {
  static const struct {
    const char *step;
    int phase;
  } phases[] = {{"pack", BENCH_PACK},     {"move", BENCH_EXCHANGE}, {"round", BENCH_EXCHANGE},
                {"unpack", BENCH_UNPACK}, {"copy", BENCH_COPY},     {"keep", BENCH_KEEP}};
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

/* Writes FILE; process 1 writes FILE.1. */
static void write_trace(const bench_state *b, void (*write)(const trace *t, const char *, const char *, const char *),
                        const char *title, const char *note, const char *path) {
  char own[4096];
  bool alone = b->s.processes.me == 0 || strcmp(path, "-") == 0;
  snprintf(own, sizeof own, alone ? "%s" : "%s.%lld", path, (long long)b->s.processes.me);
  write(b->trace, title, note, own);
}

void bench_trace_write(const bench_state *b, const char *json, const char *svg) {
  char title[512], note[512];
  const cli_options *o = b->o;
  snprintf(title, sizeof title, "%s %s: %s to %s", b->row.shape, b->row.dtype, o->src, o->dst);
  bool virtual = b->s.cuda && strncmp(b->gpu, "virtual ", 8) == 0;
  snprintf(note, sizeof note, "%lld rank%s, %s, %s communicator, %s%s", (long long)b->s.world, cli_plural(b->s.world),
           b->row.path, b->s.comm, b->s.cuda ? b->gpu : "threads of the CPU",
           virtual ? " and its like: times are a model's, not measured" : "");
  if (json != NULL)
    write_trace(b, trace_json, title, note, json);
  if (svg != NULL)
    write_trace(b, trace_svg, title, note, svg);
}
