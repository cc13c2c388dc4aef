/* How fast: each case beside the GPU's own copy of as many bytes from device memory to device memory, in turns,
 * with empty caches; some beside what else there is for the same work. Goals are those of one H100 or H200. */
#define _GNU_SOURCE
#include "bench/gpu/rows.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

reshard_status gpu_plain_copy(void *user, void *stream) {
  gpu_plain *p = user;
  return p->b->gpu->memory->memcpy(p->b->gpu, p->to, p->from, (size_t)p->bytes, stream);
}

reshard_status gpu_run_box(void *user, void *stream) {
  gpu_box *j = user;
  return j->b->gpu->work->run(j->b->gpu, 1, &j->program, stream);
}

/* The host's, by large pages where there are such: touching some GiB for the first time takes longer than all else. */
static char *pages(int64_t bytes) {
  const size_t page = 2 << 20, n = ((size_t)bytes + page - 1) / page * page;
  char *memory = aligned_alloc(page, n > 0 ? n : page);
  if (memory == NULL)
    cli_exit(EXIT_FAILED, "out of memory: %zu bytes refused", n);
  madvise(memory, n, MADV_HUGEPAGE);
  return memory;
}

static gpu_sides make_sides(bed *b, int64_t from_bytes, int64_t to_bytes, int64_t sets) {
  gpu_sides s = {.from_bytes = from_bytes, .to_bytes = to_bytes, .sets = sets};
  s.from_step = (from_bytes + 255) & -256;
  s.to_step = (to_bytes + 255) & -256;
  s.from = bed_alloc(b, sets * s.from_step);
  s.to = bed_alloc(b, sets * s.to_step);
  s.host = pages(from_bytes);
  s.image = pages(to_bytes);
  s.seen = pages(to_bytes);
  for (int64_t i = 0; i < from_bytes; i += 8) {
    uint64_t word = (uint64_t)(i + 1) * 0x9e3779b97f4a7c15u;
    memcpy(s.host + i, &word, 8);
  }
  for (int64_t i = 0; i < sets; i++)
    bed_to_gpu(b, s.from + i * s.from_step, s.host, from_bytes);
  gpu_clear(b, &s);
  bed_wait(b);
  return s;
}

gpu_sides gpu_make_sides(bed *b, int64_t from_bytes, int64_t to_bytes) {
  return make_sides(b, from_bytes, to_bytes, gpu_sets(b->info.l2, from_bytes + to_bytes));
}

gpu_sides gpu_make_one(bed *b, int64_t from_bytes, int64_t to_bytes) { return make_sides(b, from_bytes, to_bytes, 1); }

bool gpu_right(bed *b, gpu_sides *s) {
  bool right = true;
  for (int64_t i = 0; i < s->sets && right; i++) {
    bed_to_host(b, s->seen, s->to + i * s->to_step, s->to_bytes);
    right = memcmp(s->seen, s->image, (size_t)s->to_bytes) == 0;
  }
  return right;
}

void gpu_free_sides(bed *b, gpu_sides *s) {
  bed_free(b, s->from);
  bed_free(b, s->to);
  free(s->host);
  free(s->image);
  free(s->seen);
}

void gpu_clear(bed *b, gpu_sides *s) {
  CLI_TRY("", b->gpu->memory->memset(b->gpu, s->to, 0, (size_t)(s->sets * s->to_step), b->stream[0]));
}

void gpu_race(gpu_bench_run *x, int64_t sets, int n, const gpu_runner *runners, double *seconds) {
  int64_t turns = x->o->iterations;
  for (int i = 0; x->o->profile && i < n; i++) {
    CLI_TRY("", runners[i].work(runners[i].user, x->b->stream[0]));
    seconds[i] = 1;
  }
  if (x->o->profile)
    return;
  double *times = cli_alloc(n * turns, sizeof *times);
  x->b->hold = 1;
  for (int64_t t = -1; t < turns; t++)
    for (int i = 0; i < n; i++) {
      double one = bed_time(x->b, runners[i].work, runners[i].user, sets, runners[i].size);
      if (t >= 0)
        times[i * turns + t] = one;
    }
  for (int i = 0; i < n; i++)
    seconds[i] = cli_median(times + i * turns, turns);
  free(times);
}

gpu_row *gpu_add_row(gpu_bench_run *x, const char *name, const char *unit, double goal, bool at_least) {
  gpu_row *r = &x->row[x->rows++];
  *r = (gpu_row){.unit = unit, .goal = goal, .at_least = at_least};
  snprintf(r->name, sizeof r->name, "%s", name);
  return r;
}

bool gpu_wanted(const gpu_bench_run *x, const char *name) {
  return x->o->only == NULL || strncmp(name, x->o->only, strlen(x->o->only)) == 0;
}

static bool met(const gpu_row *r) { return !r->wrong && (r->at_least ? r->figure >= r->goal : r->figure <= r->goal); }

void gpu_tell(const gpu_bench_run *x, const gpu_row *r) {
  if (x->o->profile) {
    printf("%-38s %11lld B  %s\n", r->name, (long long)r->bytes, r->wrong ? "WRONG DATA" : "run once");
    return;
  }
  printf("%-38s %11lld B  %9.1f us  %6.3f %s, goal %s %g: %s", r->name, (long long)r->bytes, r->us, r->figure, r->unit,
         r->at_least ? ">=" : "<=", r->goal,
         r->wrong ? "WRONG DATA"
         : met(r) ? "met"
                  : "short");
  if (r->memcpy_us > 0)
    printf("; memcpy %.1f us", r->memcpy_us);
  for (int i = 0; i < RIVALS; i++)
    if (r->rival[i] != NULL && r->rival_us[i] > 0)
      printf("; %s %.1f us", r->rival[i], r->rival_us[i]);
    else if (r->rival[i] != NULL)
      printf("; %s: not here", r->rival[i]);
  printf("\n");
  fflush(stdout);
}

static void write_json(const gpu_bench_run *x) {
  json j = {0};
  cli_json_open(&j, NULL, '{');
  cli_json_int(&j, "version", 1);
  cli_json_string(&j, "reshard", reshard_version());
  cli_json_string(&j, "gpu", x->b->info.name);
  cli_json_int(&j, "iterations", x->o->iterations);
  cli_json_open(&j, "rows", '[');
  for (int64_t i = 0; i < x->rows; i++) {
    const gpu_row *r = &x->row[i];
    cli_json_line(&j);
    cli_json_open(&j, NULL, '{');
    cli_json_string(&j, "name", r->name);
    cli_json_int(&j, "bytes", r->bytes);
    cli_json_real(&j, "time_us", r->us);
    cli_json_real(&j, "memcpy_us", r->memcpy_us);
    for (int k = 0; k < RIVALS; k++)
      if (r->rival[k] != NULL && r->rival_us[k] > 0)
        cli_json_real(&j, r->rival[k], r->rival_us[k]);
    cli_json_real(&j, "figure", r->figure);
    cli_json_string(&j, "of", r->unit);
    cli_json_real(&j, r->at_least ? "at_least" : "at_most", r->goal);
    cli_json_bool(&j, "met", met(r));
    cli_json_bool(&j, "wrong", r->wrong);
    cli_json_close(&j, '}');
  }
  cli_json_close(&j, ']');
  cli_json_close(&j, '}');
  cli_json_write(&j, x->o->json);
}

int gpu_bench(bed *b, const gpu_bench_options *o) {
  gpu_bench_run x = {.b = b, .o = o, .small = o->bytes < 64 << 20};
  gpu_box_case(&x, "box copy, runs of 4 KiB", 4096, 4, 1.03);
  gpu_box_case(&x, "box copy, runs of 256 B", 256, 4, 1.10);
  gpu_box_case(&x, "box copy, runs of 32 B", 32, 4, 1.5);
  gpu_box_case(&x, "transposing pack of 2-byte elements", 2, 0, 1.15);
  gpu_batch_case(&x, x.small ? "20 boxes of 4-64 KiB" : "100,000 boxes of 4-64 KiB", x.small ? 20 : 100000, 0, false);
  gpu_batch_case(&x, "8 large boxes", 8, o->bytes / 8 & -16, false);
  gpu_batch_case(&x, "8 large spans of an exchange", 8, o->bytes / 8 & -16, true);
  gpu_select_case(&x, x.small ? "index_select 16 x 64 bf16" : "index_select 4096 x 5120 bf16", x.small ? 16 : 4096,
                  x.small ? 64 : 5120);
  gpu_select_case(&x, x.small ? "index_select 256 x 64 bf16" : "index_select 65536 x 5120 bf16", x.small ? 256 : 65536,
                  x.small ? 64 : 5120);
  gpu_host_cases(&x);
  if (o->json != NULL)
    write_json(&x);
  int64_t wrong = 0;
  for (int64_t i = 0; i < x.rows; i++)
    wrong += x.row[i].wrong;
  if (wrong > 0)
    cli_error("%lld cases have wrong data", (long long)wrong);
  return wrong > 0 ? EXIT_FAILED : EXIT_DONE;
}
