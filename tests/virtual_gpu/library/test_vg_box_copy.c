/* Programs and spans of the CUDA device on the virtual GPU: data, launches, order, captured graphs, faults. */
#include "device/cuda/cuda.h"
#include "device/stream.h"
#include "support/oracles/box_copy.h"

#include "simt/simt.h"
#include "support/fixtures/draw.h"
#include "support/fixtures/rank_threads.h"
#include "virtual_gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/fixtures/case.h"

#define OK(call) assert_int_equal((call), 0)

enum { ROOM = 256 << 10 };

/* A device with memory to copy from and to, what the host knows of it, and two streams. */
typedef struct fixture {
  rs_device *device;
  char *from, *to;       /* of the device */
  char *source, *wanted; /* copies on the host */
  void *stream[2];
} fixture;

static void fixture_fill(fixture *b) {
  for (int64_t i = 0; i < ROOM; i += 8) {
    uint64_t word = draw();
    memcpy(b->source + i, &word, 8);
  }
  memset(b->wanted, 0x5a, ROOM);
  vg_poke(b->from, b->source, ROOM);
  vg_poke(b->to, b->wanted, ROOM);
}

static fixture fixture_begin(const vg_options *options) {
  fixture b = {0};
  vg_begin(options);
  OK(rs_device_cuda_create(-1, &b.device));
  OK(b.device->memory->alloc(b.device, ROOM, (void **)&b.from));
  OK(b.device->memory->alloc(b.device, ROOM, (void **)&b.to));
  b.source = malloc(ROOM);
  b.wanted = malloc(ROOM);
  for (int i = 0; i < 2; i++)
    OK(b.device->streams->create(b.device, &b.stream[i]));
  fixture_fill(&b);
  return b;
}

static int end_machine(fixture *b) {
  for (int i = 0; i < 2; i++)
    b->device->streams->destroy(b->device, b->stream[i]);
  b->device->memory->free(b->device, b->from);
  b->device->memory->free(b->device, b->to);
  b->device->destroy(b->device);
  free(b->source);
  free(b->wanted);
  return vg_end();
}

static void fixture_check(fixture *b, const char *what) {
  char *got = malloc(ROOM);
  vg_peek(got, b->to, ROOM);
  for (int64_t i = 0; i < ROOM; i++)
    if (got[i] != b->wanted[i])
      fail_msg("%s: byte %lld is %02x, not %02x", what, (long long)i, got[i] & 255, b->wanted[i] & 255);
  free(got);
}

static void copies_add(fixture *b, rs_copies *copies, int64_t src, int64_t dst, int32_t element, int naxes,
                       const rs_axis *axes) {
  OK(rs_copies_add(copies, b->from + src, b->to + dst, element, naxes, axes));
  oracle_box_copy(b->source + src, b->wanted + dst, element, naxes, axes);
}

/* A copy of about 6 KiB to [dst, dst + 8 KiB): rows, a transpose, or long rows. */
enum { PLACE = 8 << 10 };
static void add_some(fixture *b, rs_copies *copies, int64_t dst) {
  int32_t element = 1 << below(5);
  int64_t src = below(64) * 16, shift = below(2) * element;
  int64_t n = 64 / element + below(30), m = 6000 / element / n;
  if (below(3) == 0) {
    rs_axis turned[2] = {{n, element, m * element}, {m, (n + 7) * element, element}};
    copies_add(b, copies, src, dst + shift, element, 2, turned);
  } else {
    rs_axis rows[2] = {{m, (n + below(5)) * element, n * element}, {n, element, element}};
    copies_add(b, copies, src + below(3), dst + shift, element, 2, rows);
  }
}

/* --- Programs --- */

CASE(several_programs_run_in_one_launch) {
  for (uint64_t seed = 1; seed <= 40; seed++) {
    draw_state = seed;
    fixture b = fixture_begin(&(vg_options){.seed = seed});
    rs_program *programs[70] = {NULL};
    int n = seed % 10 == 0 ? 70 : 1 + (int)below(6), made = 0;
    for (int i = 0; i < n; i++) {
      rs_copies copies = {0};
      for (int64_t k = below(3); k > 0 && made < ROOM / PLACE; k--)
        add_some(&b, &copies, PLACE * made++);
      if (seed % 10 == 0 && made < ROOM / PLACE - 1 && i >= 5)
        made = ROOM / PLACE;
      if (below(8) > 0)
        OK(b.device->work->compile(b.device, &copies, below(2) << 30, &programs[i]));
      else if (copies.copy.n > 0)
        OK(b.device->work->compile(b.device, &copies, 0, &programs[i]));
      assert_true((b.device->work->count(programs[i]) > 0) == (copies.copy.n > 0));
      rs_copies_free(&copies);
    }
    vg_counts before = vg_count();
    OK(b.device->work->run(b.device, n, programs, b.stream[0]));
    vg_counts after = vg_count();
    assert_int_equal(after.allocs, before.allocs);
    assert_int_equal(after.host_syncs, before.host_syncs);
    assert_true(after.launches - before.launches <= 2);
    OK(b.device->streams->synchronize(b.device, b.stream[0]));
    fixture_check(&b, "several");
    for (int i = 0; i < n; i++)
      b.device->work->release(b.device, programs[i]);
    OK(end_machine(&b));
  }
}

/* More programs than fit a launch, each one row. */
CASE(programs_beyond_a_launch_are_more_launches) {
  enum { MANY = 150 };
  draw_state = 3;
  fixture b = fixture_begin(NULL);
  rs_program *programs[MANY];
  for (int i = 0; i < MANY; i++) {
    rs_copies copies = {0};
    rs_axis row = {1000 - i, 1, 1};
    copies_add(&b, &copies, i * 7, i * 1001, 1, 1, &row);
    OK(b.device->work->compile(b.device, &copies, 0, &programs[i]));
    rs_copies_free(&copies);
  }
  vg_counts before = vg_count();
  OK(b.device->work->run(b.device, MANY, programs, b.stream[1]));
  assert_int_equal(vg_count().launches - before.launches, 3);
  OK(b.device->streams->synchronize(b.device, b.stream[1]));
  fixture_check(&b, "many");
  for (int i = 0; i < MANY; i++)
    b.device->work->release(b.device, programs[i]);
  OK(end_machine(&b));
}

/* Long rows, more than RS_BOX_BULK_FROM of them, with a program of short ones: a launch for each, since they are of two
 * classes. */
CASE(long_rows_have_a_launch_of_their_own) {
  vg_begin(NULL);
  rs_device *device;
  OK(rs_device_cuda_create(-1, &device));
  enum { ROWS = 800, ROW = 8 << 10 };
  char *from, *to, *host = malloc(ROWS * ROW), *got = malloc(ROWS * ROW + 16);
  void *stream;
  OK(device->memory->alloc(device, ROWS * ROW, (void **)&from));
  OK(device->memory->alloc(device, ROWS * ROW + 16, (void **)&to));
  OK(device->streams->create(device, &stream));
  for (int64_t i = 0; i < ROWS * ROW; i += 8) {
    uint64_t word = draw();
    memcpy(host + i, &word, 8);
  }
  vg_poke(from, host, ROWS * ROW);
  rs_copies copies = {0};
  rs_axis turned[2] = {{ROWS, ROW, -ROW}, {ROW, 1, 1}}; /* upside down */
  OK(rs_copies_add(&copies, from, to + (ROWS - 1) * ROW, 1, 2, turned));
  rs_program *program[2] = {NULL, NULL};
  OK(device->work->compile(device, &copies, copies.bytes, &program[0]));
  rs_copies_clear(&copies);
  OK(rs_copies_add(&copies, from, to + ROWS * ROW, 1, 1, &(rs_axis){16, 1, 1}));
  OK(device->work->compile(device, &copies, copies.bytes, &program[1]));
  int64_t before = vg_count().launches;
  OK(device->work->run(device, 2, program, stream));
  assert_int_equal(vg_count().launches - before, 2);
  OK(device->streams->synchronize(device, stream));
  vg_peek(got, to, ROWS * ROW + 16);
  for (int64_t r = 0; r < ROWS; r++)
    assert_memory_equal(got + r * ROW, host + (ROWS - 1 - r) * ROW, ROW);
  assert_memory_equal(got + ROWS * ROW, host, 16);
  for (int i = 0; i < 2; i++)
    device->work->release(device, program[i]);
  rs_copies_free(&copies);
  device->streams->destroy(device, stream);
  device->memory->free(device, from);
  device->memory->free(device, to);
  device->destroy(device);
  free(host);
  free(got);
  OK(vg_end());
}

CASE(captured_programs_run_with_the_graph) {
  draw_state = 11;
  fixture b = fixture_begin(NULL);
  rs_copies copies = {0};
  for (int i = 0; i < 4; i++)
    add_some(&b, &copies, PLACE * i);
  rs_program *program = NULL;
  OK(b.device->work->compile(b.device, &copies, 0, &program));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  OK(cudaStreamBeginCapture(b.stream[0], cudaStreamCaptureModeGlobal));
  OK(b.device->work->run(b.device, 1, &program, b.stream[0]));
  rs_span span = {b.from, b.to + ROOM / 2, 1000, false};
  OK(b.device->work->copy(b.device, 1, &span, 0, b.stream[0]));
  rs_program *once = NULL;
  OK(b.device->work->recompile(b.device, &copies, 0, &once));
  assert_int_equal(b.device->work->run(b.device, 1, &once, b.stream[0]), RESHARD_ERROR_UNSUPPORTED);
  OK(cudaStreamEndCapture(b.stream[0], &graph));
  OK(cudaGraphInstantiate(&exec, graph, 0));
  for (int k = 0; k < 3; k++) { /* other data each time */
    fixture_fill(&b);
    for (int64_t i = 0; i < copies.copy.n; i++) {
      const rs_copy *c = &copies.copy.at[i];
      rs_axis axes[4];
      memcpy(axes, copies.axis.at + c->axes, (size_t)c->naxes * sizeof *axes);
      axes[c->naxes] = (rs_axis){c->run, 1, 1};
      oracle_box_copy(b.source + (c->src - b.from), b.wanted + (c->dst - b.to), 1, c->naxes + 1, axes);
    }
    memcpy(b.wanted + ROOM / 2, b.source, 1000);
    OK(cudaGraphLaunch(exec, b.stream[1]));
    OK(b.device->streams->synchronize(b.device, b.stream[1]));
    fixture_check(&b, "captured");
  }
  OK(cudaGraphExecDestroy(exec));
  OK(cudaGraphDestroy(graph));
  b.device->work->release(b.device, once);
  b.device->work->release(b.device, program);
  rs_copies_free(&copies);
  OK(end_machine(&b));
}

/* --- Copies that run once --- */

/* Programs that are made again and again, on two streams, without the host waiting in between. */
static void once(void *user, const vg_options *options) {
  bool compare = user != NULL; /* else a wait is left out, and a kernel may have a fault that stays */
  draw_state = options->seed;
  fixture b = fixture_begin(options);
  rs_program *program = NULL;
  for (int k = 0; k < 24; k++) {
    rs_copies copies = {0};
    add_some(&b, &copies, PLACE * k);
    reshard_status status = b.device->work->recompile(b.device, &copies, 0, &program);
    RS_THEN(status, b.device->work->run(b.device, 1, &program, b.stream[k % 2]));
    rs_copies_free(&copies);
    if (k % 5 == 4) /* once more, on the other stream: after the first */
      RS_THEN(status, b.device->work->run(b.device, 1, &program, b.stream[(k + 1) % 2]));
    assert_true(status == RESHARD_SUCCESS || !compare);
  }
  b.device->work->release(b.device, program);
  for (int i = 0; i < 2; i++) {
    reshard_status status = b.device->streams->synchronize(b.device, b.stream[i]);
    assert_true(status == RESHARD_SUCCESS || !compare);
  }
  if (compare)
    fixture_check(&b, "once");
  int reports = end_machine(&b);
  if (compare)
    OK(reports);
}

CASE(once_each_policy) {
  for (uint64_t seed = 1; seed <= 40; seed++)
    once(&seed, &(vg_options){.seed = seed});
}

CASE(once_edges) {
  vg_quiet(true);
  vg_edge_result result = vg_for_each_edge(
      &(vg_edge_search){.path = "copies compiled for one run", .run = once, .options = {.seed = 5}, .seeds = 12});
  vg_quiet(false);
  assert_int_equal(result.false_alarms, 0);
  assert_int_equal(result.edges, 2);
  assert_int_equal(result.found, result.uses);
}

typedef struct own_stream {
  fixture *b;
  rs_program *program;
} own_stream;

static void run_on_own_stream(void *user, int64_t rank) {
  own_stream *o = user;
  OK(o->b->device->work->run(o->b->device, 1, &o->program, cudaStreamPerThread));
  OK(o->b->device->streams->synchronize(o->b->device, cudaStreamPerThread));
}

/* Once more by another thread, on the stream that the same handle means there. */
CASE(once_by_two_threads) {
  for (uint64_t seed = 1; seed <= 20; seed++) {
    draw_state = seed;
    fixture b = fixture_begin(&(vg_options){.seed = seed});
    own_stream o = {&b, NULL};
    rs_copies copies = {0};
    add_some(&b, &copies, 0);
    OK(b.device->work->recompile(b.device, &copies, 0, &o.program));
    OK(b.device->work->run(b.device, 1, &o.program, cudaStreamPerThread));
    rank_threads_run(1, run_on_own_stream, &o);
    OK(b.device->streams->synchronize(b.device, cudaStreamPerThread));
    b.device->work->release(b.device, o.program);
    rs_copies_free(&copies);
    OK(end_machine(&b));
  }
}

/* Memory that suffices is used again: nothing is allocated and the host waits for nothing. */
CASE(once_again) {
  draw_state = 17;
  fixture b = fixture_begin(&(vg_options){.policy = VG_IN_ORDER});
  rs_program *program = NULL;
  vg_counts before = vg_count();
  for (int k = 0; k < 200; k++) {
    rs_copies copies = {0};
    memset(b.wanted, 0x5a, ROOM);
    add_some(&b, &copies, PLACE * (k % 8));
    OK(b.device->work->recompile(b.device, &copies, 0, &program));
    if (k == 0)
      before = vg_count();
    OK(b.device->work->run(b.device, 1, &program, b.stream[0]));
    OK(b.device->streams->synchronize(b.device, b.stream[0]));
    rs_copies_free(&copies);
  }
  assert_int_equal(vg_count().allocs, before.allocs);
  assert_int_equal(vg_count().creates, before.creates);
  assert_int_equal(vg_count().host_syncs - before.host_syncs, 200); /* the test's own */
  b.device->work->release(b.device, program);
  OK(end_machine(&b));
}

/* A box of each class and kind of tile, which a block loads whole before its first store. */
static const struct guarded_box {
  int64_t src, dst;
  int32_t element;
  rs_axis axes[2];
} guarded_boxes[] = {
    {0, 0, 1, {{1, 0, 0}, {4096, 1, 1}}},         {3, 0, 1, {{1, 0, 0}, {3000, 1, 1}}},
    {0, 0, 1, {{60, 40, 31}, {31, 1, 1}}},        {0, 0, 2, {{60, 40, 30}, {15, 2, 2}}},
    {0, 0, 4, {{60, 40, 28}, {7, 4, 4}}},         {0, 0, 8, {{60, 40, 24}, {3, 8, 8}}},
    {0, 0, 16, {{60, 64, 48}, {3, 16, 16}}},      {0, 0, 1, {{9, 320, 304}, {300, 1, 1}}},
    {5, 2, 1, {{9, 300, 207}, {200, 1, 1}}},      {0, 0, 1, {{64, 1, 64}, {64, 128, 1}}},
    {1, 3, 1, {{61, 1, 70}, {67, 131, 1}}},       {0, 0, 2, {{64, 2, 128}, {64, 128, 2}}},
    {2, 2, 2, {{61, 2, 132}, {65, 134, 2}}},      {0, 0, 4, {{32, 4, 128}, {32, 128, 4}}},
    {0, 0, 8, {{16, 8, 256}, {32, 128, 8}}},      {0, 0, 16, {{16, 16, 256}, {16, 256, 16}}},
    {0, 0, 16, {{5, 4096, 3072}, {192, 16, 16}}},
};

static void run_guarded(fixture *b, const struct guarded_box *box, bool others, uint32_t *word) {
  const int64_t bytes = box->axes[0].n * box->axes[1].n * box->element;
  rs_copies copies = {.deal = others};
  rs_program *program;
  memset(b->wanted, 0x5a, ROOM);
  vg_poke(b->to, b->wanted, ROOM);
  OK(rs_copies_add(&copies, b->from + box->src, b->to + box->dst, box->element, 2, box->axes));
  OK(b->device->work->compile(b->device, &copies, 0, &program));
  rs_copies_free(&copies);
  rs_cuda_program_close(program, word);
  for (uint32_t closed = 2; closed-- > 0;) {
    vg_poke(word, &closed, sizeof closed);
    int64_t before = vg_count().closed_bytes;
    OK(b->device->work->run(b->device, 1, &program, b->stream[0]));
    OK(b->device->streams->synchronize(b->device, b->stream[0]));
    int64_t read = vg_count().closed_bytes - before;
    if (vg_sees_kernels() && (closed && !others ? read < bytes || read > bytes + 2000 : read != 0))
      fail_msg("element %d, %lld bytes, word %u, others' %d: %lld bytes are read for nothing", box->element,
               (long long)bytes, closed, others, (long long)read);
    if (!closed)
      oracle_box_copy(b->source + box->src, b->wanted + box->dst, box->element, 2, box->axes);
    fixture_check(b, closed ? "closed" : "open");
  }
  b->device->work->release(b->device, program);
}

/* Those that read this rank's memory alone: what they read is under way before they know. Others know first. */
CASE(guarded_programs_load_before_they_know) {
  draw_state = 19;
  fixture b = fixture_begin(NULL);
  uint32_t *word;
  OK(b.device->memory->alloc(b.device, sizeof *word, (void **)&word));
  rs_cuda_of(b.device)->bulk_from = 1;
  for (int limited = 0; limited < 2; limited++)
    for (size_t i = 0; i < sizeof guarded_boxes / sizeof *guarded_boxes; i++)
      for (int others = 0; others < 2; others++) {
        b.device->max_blocks = limited ? 1 : 0;
        run_guarded(&b, &guarded_boxes[i], others, word);
      }
  b.device->memory->free(b.device, word);
  OK(end_machine(&b));
}

/* --- Spans --- */

CASE(lists_of_spans_are_copied) {
  draw_state = 23;
  fixture b = fixture_begin(NULL);
  rs_span list[300];
  for (int k = 0; k < 12; k++) {
    int n = k == 0 ? 0 : k == 1 ? 1 : k == 2 ? 300 : (int)below(40);
    int64_t to = 0, some = 0;
    fixture_fill(&b);
    for (int i = 0; i < n; i++) {
      int64_t bytes = below(4) == 0 && n > 1 ? 0 : 1 + below(800), from = below(5000);
      list[i] = (rs_span){b.from + from, b.to + to, bytes, below(2) == 0};
      memcpy(b.wanted + to, b.source + from, (size_t)bytes);
      to += bytes;
      some += bytes > 0;
    }
    vg_counts before = vg_count();
    OK(b.device->work->copy(b.device, n, list, below(2) << 30, b.stream[0]));
    vg_counts after = vg_count();
    assert_int_equal(after.copies - before.copies, some == 1);
    assert_int_equal(after.launches - before.launches, some < 2 ? 0 : (some + 119) / 120);
    OK(b.device->streams->synchronize(b.device, b.stream[0]));
    fixture_check(&b, "spans");
  }
  OK(end_machine(&b));
}

/* --- Faults --- */

/* Everything once; the first failure ends it. */
static reshard_status everything(fixture *b, rs_program **program, rs_program **kept) {
  rs_copies copies = {0};
  rs_axis rows[2] = {{30, 200, 100}, {100, 1, 1}};
  copies_add(b, &copies, 8, PLACE, 1, 2, rows);
  memcpy(b->wanted, b->source, 100);
  memcpy(b->wanted + 200, b->source, 100);
  reshard_status status = b->device->work->compile(b->device, &copies, 0, program);
  RS_THEN(status, b->device->work->run(b->device, 1, program, b->stream[0]));
  for (int k = 0; k < 3 && status == RESHARD_SUCCESS; k++) {
    status = b->device->work->recompile(b->device, &copies, 0, kept);
    RS_THEN(status, b->device->work->run(b->device, 1, kept, b->stream[0]));
  }
  rs_span spans[2] = {{b->from, b->to, 100, false}, {b->from, b->to + 200, 100, false}};
  for (int n = 1; n <= 2 && status == RESHARD_SUCCESS; n++)
    status = b->device->work->copy(b->device, n, spans, 0, b->stream[0]);
  rs_copies_free(&copies);
  return status;
}

CASE(every_failing_call_leaves_the_programs_whole) {
  bool more = true;
  int failures = 0;
  for (int64_t k = 1; more; k++) {
    draw_state = 31;
    fixture b = fixture_begin(NULL);
    rs_program *program = NULL, *kept = NULL;
    vg_fail(NULL, k, false, 0);
    reshard_status status = everything(&b, &program, &kept);
    more = vg_failed() > 0;
    vg_fail(NULL, 0, false, 0);
    assert_true(status == RESHARD_SUCCESS || more);
    failures += status != RESHARD_SUCCESS;
    if (status != RESHARD_SUCCESS) { /* it goes on as if nothing had happened */
      OK(b.device->streams->finish(b.device));
      b.device->work->release(b.device, program);
      program = NULL;
      OK(everything(&b, &program, &kept));
    }
    OK(b.device->streams->finish(b.device));
    fixture_check(&b, "faults");
    b.device->work->release(b.device, program);
    b.device->work->release(b.device, kept);
    OK(end_machine(&b));
    assert_true(k < 500);
  }
  assert_true(failures > 25);
}

RUN_CASES
