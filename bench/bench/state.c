#include "bench/bench/state.h"

#include "device/cpu/cpu.h"
#include "device/environment.h"

#include <stdlib.h>

static void start_cpu(bench_state *b) {
  reshard_isa isa = RESHARD_ISA_AUTO;
  CLI_TRY("", rs_environment_cpu(&b->s.threads, &isa));
  CLI_TRY("", rs_device_cpu_create(b->s.threads, isa, &b->cpu));
}

static void start_gpu(bench_state *b) {
  const session *s = &b->s;
  gpu_info info;
  b->stream = cli_alloc(s->locals, sizeof *b->stream);
  b->done = cli_alloc(s->locals, sizeof *b->done);
  b->scratch = cli_alloc(s->ndevices, sizeof *b->scratch);
  for (int64_t l = 0; l < s->locals; l++) {
    CLI_TRY("", bench_streams(b, l)->create(session_device(s, l), &b->stream[l]));
    CLI_TRY("", bench_streams(b, l)->event_create(session_device(s, l), &b->done[l]));
  }
  CLI_TRY("", gpu_info_read(session_device(s, 0)->index, &info));
  snprintf(b->gpu, sizeof b->gpu, "%s", info.name);
  b->l2 = info.l2;
  b->scratch_bytes = (size_t)gpu_flushed(info.l2);
  for (int64_t d = 0; d < s->ndevices; d++)
    CLI_TRY("", session_device(s, d)->memory->alloc(session_device(s, d), b->scratch_bytes, &b->scratch[d]));
  CLI_TRY("", gpu_time_create(session_device(s, 0), &b->begin));
  CLI_TRY("", gpu_time_create(session_device(s, 0), &b->end));
}

void bench_start(bench_state *b) {
  const cli_options *o = b->o;
  session_connect(&b->s, b->w.world);
  b->ends = cli_alloc(b->s.locals, sizeof *b->ends);
  b->transfers = cli_alloc(GPU_MOST_SETS * b->s.locals, sizeof(reshard_transfer));
  b->samples = o->launches > 0 ? o->launches : o->iterations;
  b->each = o->aggregate * (o->launches > 0 ? o->iterations : 1);
  b->ours = cli_alloc(b->samples, sizeof *b->ours);
  b->straight = cli_alloc(b->samples, sizeof *b->straight);
  if (b->s.cuda)
    start_gpu(b);
  else
    start_cpu(b);
}

static void finish_gpu(bench_state *b) {
  const session *s = &b->s;
  bench_streams(b, 0)->event_destroy(session_device(s, 0), b->begin);
  bench_streams(b, 0)->event_destroy(session_device(s, 0), b->end);
  for (int64_t d = 0; d < s->ndevices; d++)
    session_device(s, d)->memory->free(session_device(s, d), b->scratch[d]);
  for (int64_t l = 0; l < s->locals; l++) {
    bench_streams(b, l)->event_destroy(session_device(s, l), b->done[l]);
    bench_streams(b, l)->destroy(session_device(s, l), b->stream[l]);
  }
  free(b->stream);
  free(b->done);
  free(b->scratch);
}

void bench_finish(bench_state *b) {
  if (b->s.cuda)
    finish_gpu(b);
  else
    b->cpu->destroy(b->cpu);
  trace_destroy(b->trace);
  free(b->ends);
  free(b->transfers);
  free(b->ours);
  free(b->straight);
  session_end(&b->s);
  workload_free(&b->w);
}
