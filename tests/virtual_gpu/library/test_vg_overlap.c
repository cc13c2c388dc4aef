/* The training step of examples/fsdp_tp.c, as it is, on two virtual GPUs: the next layer is gathered beside the
 * use of this one. Times are the virtual GPU's: an operation begins as soon as what it comes after has ended. */
#include "support/fixtures/case.h"
#include "support/fixtures/rank_threads.h"
#include "virtual_gpu.h"

#define main fsdp_tp_main
#include "../../examples/fsdp_tp.c"
#undef main

enum { GPUS = 2, STEP_RANKS = GPUS, MOST_OPERATIONS = 256 };

typedef struct step_rank {
  rank r;
  model m;
  void *side;
  int one_stream; /* both roles by one stream: nothing overlaps */
} step_rank;

static void open_rank(void *ranks, int64_t i) {
  step_rank *s = (step_rank *)ranks + i;
  open_model(&s->r, &s->m);
  s->side = s->m.side;
  if (s->one_stream)
    s->m.side = s->m.compute;
}

static void run_step(void *ranks, int64_t i) {
  step_rank *s = (step_rank *)ranks + i;
  train_step(&s->m, &s->r);
}

static void close_rank(void *ranks, int64_t i) {
  step_rank *s = (step_rank *)ranks + i;
  s->m.side = s->side;
  close_model(&s->m);
}

/* Operations of one kind on one GPU, by when they begin. */
typedef struct timeline {
  int n;
  vg_span at[MOST_OPERATIONS];
} timeline;

static int by_begin(const void *a, const void *b) {
  const vg_span *x = a, *y = b;
  return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Gathers are kernels; a use copies to the host. */
static timeline read_timeline(const vg_span *spans, size_t n, int gpu, bool kernels) {
  timeline t = {0};
  char name[16];
  int length = snprintf(name, sizeof name, "GPU %d ", gpu);
  for (size_t i = 0; i < n; i++)
    if (strncmp(spans[i].stream, name, (size_t)length) == 0 && (strncmp(spans[i].what, "kernel", 6) == 0) == kernels &&
        (kernels || spans[i].to_host)) {
      assert_true(t.n < MOST_OPERATIONS);
      t.at[t.n++] = spans[i];
    }
  qsort(t.at, (size_t)t.n, sizeof *t.at, by_begin);
  return t;
}

/* Returns how many of a GPU's layers are in use while another is gathered. That is the next one: this one's gather
 * comes before its use, and the one after the next is only asked for when the host has seen this one's use. */
static int count_overlaps(const vg_span *spans, size_t n, int gpu) {
  const timeline gathers = read_timeline(spans, n, gpu, true), uses = read_timeline(spans, n, gpu, false);
  int overlaps = 0;
  assert_int_equal(uses.n, LAYERS * PARAMETERS);
  assert_true(gathers.n >= LAYERS);
  for (int l = 0; l < LAYERS; l++) {
    double begin = uses.at[l * PARAMETERS].begin, end = uses.at[l * PARAMETERS + PARAMETERS - 1].end;
    int beside = 0;
    for (int i = 0; i < gathers.n; i++)
      beside += gathers.at[i].begin < end && begin < gathers.at[i].end;
    printf("GPU %d: layer %d is in use from %.1f to %.1f us, beside it run %d of %d kernels that gather\n", gpu, l,
           begin, end, beside, gathers.n);
    overlaps += beside > 0;
    assert_true(l + 1 < LAYERS || beside == 0); /* no layer follows the last one */
  }
  return overlaps;
}

static int run_steps(uint64_t seed, int one_stream) {
  reshard_device devices[GPUS];
  reshard_comm comms[STEP_RANKS];
  step_rank ranks[STEP_RANKS];
  const vg_span *spans;
  int overlaps = 0;
  vg_begin(&(vg_options){.devices = GPUS, .seed = seed, .spans = true});
  for (int i = 0; i < GPUS; i++)
    require_success(reshard_device_create(i == 0 ? "cuda:0" : "cuda:1", NULL, &devices[i]));
  const reshard_local_options on = {.size = RESHARD_LOCAL_OPTIONS_INIT, .devices = devices, .ndevices = GPUS};
  require_success(reshard_comm_create_local(STEP_RANKS, &on, comms));
  for (int i = 0; i < STEP_RANKS; i++)
    ranks[i] =
        (step_rank){.r = {.comm = comms[i], .device = devices[i % GPUS], .mesh = {GPUS, 1}}, .one_stream = one_stream};
  rank_threads_run(STEP_RANKS, open_rank, ranks);
  size_t before = vg_spans(&spans);
  rank_threads_run(STEP_RANKS, run_step, ranks);
  size_t after = vg_spans(&spans);
  for (int i = 0; i < GPUS; i++)
    overlaps += count_overlaps(spans + before, after - before, i);
  rank_threads_run(STEP_RANKS, close_rank, ranks);
  rank_comms_close(STEP_RANKS, comms);
  for (int i = 0; i < GPUS; i++)
    reshard_device_release(devices[i]);
  assert_int_equal(vg_end(), 0);
  return overlaps;
}

CASE(test_next_layer_is_gathered_beside_use) {
  for (uint64_t seed = 1; seed <= 5; seed++)
    assert_int_equal(run_steps(seed, 0), GPUS * (LAYERS - 1));
}

/* The test would see a step that does one after the other. */
CASE(test_one_stream_overlaps_nothing) { assert_int_equal(run_steps(1, 1), 0); }

int main(void) {
  if (!vg_sees_kernels()) {
    print_message("skipped: what kernels touch is not seen in this build, so that they take no time\n");
    return 77;
  }
  return case_list_run(__FILE__, NULL, NULL);
}
