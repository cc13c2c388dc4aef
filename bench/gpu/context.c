#include "bench/gpu/context.h"

#include "device/cpu/cpu.h"
#include "device/handle.h"
#include "device/stream.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_HELD = 256 };
static const double LEAST_MEMSET = 5e-5; /* seconds of one */

void gpu_context_open(gpu_context *b) {
  *b = (gpu_context){.hold = 1};
  const char *lacking = gpu_why_none();
  if (lacking != NULL)
    cli_exit(EXIT_LACKING, "%s", lacking);
  CLI_TRY("", reshard_device_create("cuda", NULL, &b->handle));
  CLI_TRY("", rs_device_cpu_create(cli_cores(), RESHARD_ISA_AUTO, &b->cpu));
  b->gpu = b->handle->device;
  CLI_TRY("", gpu_info_read(b->gpu->index, &b->info));
  for (int i = 0; i < GPU_STREAMS; i++)
    CLI_TRY("", b->gpu->streams->create(b->gpu, &b->stream[i]));
  CLI_TRY("", gpu_time_create(b->gpu, &b->begin));
  CLI_TRY("", gpu_time_create(b->gpu, &b->end));
  b->scratch_bytes = (size_t)gpu_flushed(b->info.l2);
  b->scratch = gpu_context_alloc(b, (int64_t)b->scratch_bytes);
}

void gpu_context_close(gpu_context *b) {
  gpu_context_free(b, b->scratch);
  b->gpu->streams->event_destroy(b->gpu, b->begin);
  b->gpu->streams->event_destroy(b->gpu, b->end);
  for (int i = 0; i < GPU_STREAMS; i++) {
    CLI_TRY("", reshard_device_forget_stream(b->handle, b->stream[i]));
    b->gpu->streams->destroy(b->gpu, b->stream[i]);
  }
  b->cpu->destroy(b->cpu);
  reshard_device_release(b->handle);
}

void *gpu_context_alloc(const gpu_context *b, int64_t bytes) {
  void *memory = NULL;
  CLI_TRY("", b->gpu->memory->alloc(b->gpu, (size_t)bytes, &memory));
  return memory;
}

void gpu_context_free(const gpu_context *b, void *memory) { b->gpu->memory->free(b->gpu, memory); }

void gpu_context_wait(const gpu_context *b) {
  for (int i = 0; i < GPU_STREAMS; i++)
    CLI_TRY("", b->gpu->streams->synchronize(b->gpu, b->stream[i]));
}

void gpu_context_to_gpu(const gpu_context *b, void *to, const void *from, int64_t bytes) {
  CLI_TRY("", b->gpu->memory->memcpy(b->gpu, to, from, (size_t)bytes, b->stream[0]));
  gpu_context_wait(b);
}

void gpu_context_to_host(const gpu_context *b, void *to, const void *from, int64_t bytes) {
  gpu_context_to_gpu(b, to, from, bytes);
}

double gpu_context_time(gpu_context *b, gpu_work work, void *user, int64_t n, size_t size) {
  for (double seconds = 0;;) {
    bool early = false;
    void *stream = b->stream[0];
    for (int64_t i = 0; i < b->hold; i++)
      CLI_TRY("", b->gpu->memory->memset(b->gpu, b->scratch, (int)i, b->scratch_bytes, stream));
    CLI_TRY("", rs_stream_record(b->gpu, b->begin, stream, "bench: begin"));
    double launches = rs_seconds();
    for (int64_t i = 0; i < n; i++)
      CLI_TRY("", work((char *)user + (size_t)i * size, stream));
    CLI_TRY("", rs_stream_record(b->gpu, b->end, stream, "bench: end"));
    launches = rs_seconds() - launches;
    CLI_TRY("", b->gpu->streams->event_done(b->gpu, b->begin, &early));
    CLI_TRY("", b->gpu->streams->synchronize(b->gpu, stream));
    CLI_TRY("", gpu_elapsed(b->begin, b->end, &seconds));
    if (!early || b->hold >= MOST_HELD || launches > MOST_HELD * LEAST_MEMSET) /* no hold is long enough */
      return seconds / (double)n;
    b->hold *= 2;
  }
}

void gpu_usual_numbers(char *memory, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 8) {
    uint64_t word;
    memcpy(&word, memory + i, 8);
    word = (word & 0x87ff87ff87ff87ffu) | 0x3800380038003800u;
    memcpy(memory + i, &word, 8);
  }
}
