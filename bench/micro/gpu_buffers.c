#define _GNU_SOURCE
#include "bench/micro/gpu.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

reshard_status gpu_memcpy_run(void *user, void *stream) {
  gpu_memcpy *p = user;
  return p->b->gpu->memory->memcpy(p->b->gpu, p->to, p->from, (size_t)p->bytes, stream);
}

reshard_status gpu_program_run(void *user, void *stream) {
  gpu_program *j = user;
  return j->b->gpu->work->run(j->b->gpu, 1, &j->program, stream);
}

/* Takes memory of the host, by large pages where there are such: the first touch of some GiB takes longer than all
 * else. */
static char *alloc_pages(int64_t bytes) {
  const size_t page = 2 << 20, n = ((size_t)bytes + page - 1) / page * page;
  char *memory = aligned_alloc(page, n > 0 ? n : page);
  if (memory == NULL)
    cli_exit(EXIT_FAILED, "out of memory: %zu bytes refused", n);
  madvise(memory, n, MADV_HUGEPAGE);
  return memory;
}

static void upload(gpu_context *b, gpu_buffers *s) {
  for (int64_t i = 0; i < s->sets; i++)
    gpu_context_to_gpu(b, s->from + i * s->from_step, s->host, s->from_bytes);
}

static gpu_buffers create_buffers(gpu_context *b, int64_t from_bytes, int64_t to_bytes, int64_t sets) {
  gpu_buffers s = {.from_bytes = from_bytes, .to_bytes = to_bytes, .sets = sets};
  s.from_step = (from_bytes + 255) & -256;
  s.to_step = (to_bytes + 255) & -256;
  s.from = gpu_context_alloc(b, sets * s.from_step);
  s.to = gpu_context_alloc(b, sets * s.to_step);
  s.host = alloc_pages(from_bytes);
  s.image = alloc_pages(to_bytes);
  s.seen = alloc_pages(to_bytes);
  for (int64_t i = 0; i < from_bytes; i += 8) {
    uint64_t word = (uint64_t)(i + 1) * 0x9e3779b97f4a7c15u;
    memcpy(s.host + i, &word, 8);
  }
  upload(b, &s);
  gpu_buffers_clear(b, &s);
  gpu_context_wait(b);
  return s;
}

gpu_buffers gpu_buffers_create(gpu_context *b, int64_t from_bytes, int64_t to_bytes) {
  return create_buffers(b, from_bytes, to_bytes, gpu_sets(b->info.l2, from_bytes + to_bytes));
}

gpu_buffers gpu_buffers_create_one(gpu_context *b, int64_t from_bytes, int64_t to_bytes) {
  return create_buffers(b, from_bytes, to_bytes, 1);
}

void gpu_buffers_make_numbers(gpu_context *b, gpu_buffers *s) {
  gpu_usual_numbers(s->host, s->from_bytes & -8);
  upload(b, s);
}

int gpu_buffers_wrong(gpu_context *b, gpu_buffers *s) {
  bool right = true;
  for (int64_t i = 0; i < s->sets && right; i++) {
    gpu_context_to_host(b, s->seen, s->to + i * s->to_step, s->to_bytes);
    right = memcmp(s->seen, s->image, (size_t)s->to_bytes) == 0;
  }
  if (!right)
    cli_error("wrong data");
  return !right;
}

void gpu_shuffle(uint64_t seed, int64_t n, int64_t *order) {
  rng r;
  rng_seed(&r, seed);
  for (int64_t i = 0; i < n; i++) {
    int64_t k = rng_in(&r, 0, i);
    order[i] = order[k];
    order[k] = i;
  }
}

void gpu_buffers_free(gpu_context *b, gpu_buffers *s) {
  gpu_context_free(b, s->from);
  gpu_context_free(b, s->to);
  free(s->host);
  free(s->image);
  free(s->seen);
}

void gpu_buffers_clear(gpu_context *b, gpu_buffers *s) {
  CLI_TRY("", b->gpu->memory->memset(b->gpu, s->to, 0, (size_t)(s->sets * s->to_step), b->stream[0]));
}
