/* Figures of ranks that are processes, each beside what bounds it, in one run: medians of ratios, or of differences, of
 * calls that alternate. Over MPI WORLD_PER_NODE says how many of them read each other's memory; unset: none do.
 *
 * usage: node_figures RANKS FIGURE TURNS, or mpirun -n RANKS mpi_figures FIGURE TURNS. FIGURE: redistribute, matrix,
 * private, small, small_private or sync. */
#define _GNU_SOURCE
#include "comm/comm.h"
#include "device/cpu/cpu.h"
#include "support/processes/check_ranks.h"
#include "support/processes/world.h"

#include <reshard/dtensor.h>
#include <reshard/reshard.h>
#include <reshard/sync.h>
#include <reshard/tensor.h>

#include <linux/perf_event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static reshard_comm comm;
static reshard_device device; /* of arrays that others reach, or not */

static int compare_doubles(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

static double median_of(int n, double *values) {
  qsort(values, (size_t)n, sizeof *values, compare_doubles);
  return values[n / 2];
}

static reshard_tensor alloc_bytes(int64_t bytes, char **at) {
  reshard_tensor tensor = NULL;
  reshard_tensor_info info = {.data = NULL};
  CHECK(reshard_tensor_create_on(device, RESHARD_U8, 1, &bytes, NULL, &tensor) == RESHARD_SUCCESS, "tensor");
  CHECK(reshard_tensor_get_info(tensor, &info) == RESHARD_SUCCESS, "tensor");
  *at = info.data;
  memset(*at, rank + 1, (size_t)bytes);
  return tensor;
}

static void open_device(bool shared) {
  const reshard_device_options options = {.size = RESHARD_DEVICE_OPTIONS_INIT, .threads = 1, .shared = shared};
  CHECK(reshard_device_create("cpu", &options, &device) == RESHARD_SUCCESS, "device");
}

/* --- Rows to columns ---------------------------------------------------------------------------------------------- */

typedef struct matrix {
  int64_t bytes; /* of a rank */
  reshard_tensor tensors[3];
  char *src, *dst, *copy;
  reshard_plan plan;
  reshard_transfer transfer;
} matrix;

static void make_matrix(int64_t n, matrix *m) {
  int64_t shape[] = {n, n};
  reshard_layout rows = NULL, columns = NULL;
  m->bytes = n * n * 4 / size;
  m->tensors[0] = alloc_bytes(m->bytes, &m->src);
  m->tensors[1] = alloc_bytes(m->bytes, &m->dst);
  m->tensors[2] = alloc_bytes(m->bytes, &m->copy);
  CHECK(reshard_layout_parse("chunk(0)", 2, shape, size, &rows) == RESHARD_SUCCESS, "rows");
  CHECK(reshard_layout_parse("chunk(1)", 2, shape, size, &columns) == RESHARD_SUCCESS, "columns");
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = rows, .dst = columns, .dtype = RESHARD_F32};
  CHECK(reshard_plan_create(1, &entry, rank, NULL, &m->plan) == RESHARD_SUCCESS, "plan");
  reshard_arrays arrays = {RESHARD_ARRAYS_INIT, (void *[]){m->src}, (void *[]){m->dst}, NULL, NULL, 1, 1};
  CHECK(reshard_transfer_create(m->plan, comm, &arrays, NULL, &m->transfer) == RESHARD_SUCCESS, "transfer");
  reshard_layout_release(rows);
  reshard_layout_release(columns);
}

static void free_matrix(matrix *m) {
  reshard_transfer_destroy(m->transfer);
  reshard_plan_destroy(m->plan);
  for (int i = 0; i < 3; i++)
    reshard_tensor_release(m->tensors[i]);
}

/* Beside time: what this rank's last timed call took. Processor time tells more than the clock where the machine is
 * busy. Waits and system calls are of this thread alone: MPI has others. */
static struct spent {
  double processor_ns;
  int64_t meetings, waits, system_calls;
} spent;
static int call_counter = -1; /* of system calls; -1: the system has none for this user */

static void open_call_counter(void) {
  struct perf_event_attr event = {.type = PERF_TYPE_TRACEPOINT, .size = sizeof event};
  FILE *number = fopen("/sys/kernel/tracing/events/raw_syscalls/sys_enter/id", "r");
  unsigned long long id;
  if (number != NULL && fscanf(number, "%llu", &id) == 1) {
    event.config = id;
    call_counter = (int)syscall(SYS_perf_event_open, &event, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
  }
  if (number != NULL)
    fclose(number);
}

/* The number so far, of which each reading is one. */
static int64_t count_system_calls(void) {
  int64_t n = 0;
  return call_counter >= 0 && read(call_counter, &n, sizeof n) == sizeof n ? n : 0;
}

static int64_t count_waits(void) {
  struct rusage u;
  getrusage(RUSAGE_THREAD, &u);
  return u.ru_nvcsw;
}

static double read_processor(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* From the first rank's begin to the last one's end: the clock is the node's. Where there are more ranks than cores, a
 * rank that a barrier wakes may read it late, when others have done half of the call. */
static double span_of_all(int64_t begun, int64_t ended) {
  const int64_t mine[2] = {begun, ended};
  const void *gathered;
  CHECK(rs_comm_allgather(comm, mine, sizeof mine, &gathered) == RESHARD_SUCCESS, "times");
  const int64_t *all = gathered;
  for (int r = 0; r < size; r++) {
    begun = rs_min(begun, all[2 * r]);
    ended = rs_max(ended, all[2 * r + 1]);
  }
  return (double)(ended - begun);
}

/* Nanoseconds of a call by all ranks. */
#define TIMED(ns, call) \
  do { \
    reshard_comm_barrier(comm); \
    int64_t meetings_ = world_meetings(comm), waits_ = count_waits(), begun_ = rs_now_ns(); \
    double processor_ = read_processor(); \
    int64_t system_calls_ = count_system_calls(); \
    call; \
    spent.system_calls = count_system_calls() - system_calls_ - 1; \
    spent.processor_ns = read_processor() - processor_; \
    int64_t ended_ = rs_now_ns(); \
    spent.waits = count_waits() - waits_; \
    spent.meetings = world_meetings(comm) - meetings_; \
    (ns) = span_of_all(begun_, ended_); \
  } while (0)

static void print_ratios(const char *name, int turns, double ratios[4][1000]) {
  double plain = median_of(turns, ratios[0]), streaming = median_of(turns, ratios[1]);
  double cpu_plain = median_of(turns, ratios[2]), cpu_streaming = median_of(turns, ratios[3]);
  printf("%s, %d ranks: straight copy / ours %.2f (plain %.2f, streaming %.2f); of processor time on rank %d %.2f "
         "(plain %.2f, streaming %.2f)\n",
         name, size, plain < streaming ? plain : streaming, plain, streaming, rank,
         cpu_plain < cpu_streaming ? cpu_plain : cpu_streaming, cpu_plain, cpu_streaming);
}

static void copy_straight(const matrix *m, bool streaming) {
  rs_device_cpu_straight(comm->device, m->copy, m->src, m->bytes, streaming);
}

/* The straight copy of as many bytes, by as many processes, over the execute. */
static void measure_matrix(const char *name, int64_t n, int turns) {
  matrix m;
  static double ratios[4][1000];
  double ours, straight, processor = 0;
  make_matrix(n, &m);
  for (int i = -1; i < turns; i++)
    for (int streaming = 0; streaming < 2; streaming++) {
      TIMED(straight, copy_straight(&m, streaming));
      processor = spent.processor_ns;
      TIMED(ours, CHECK(reshard_execute(m.transfer, NULL) == RESHARD_SUCCESS, "execute"));
      if (i >= 0) {
        ratios[streaming][i] = straight / ours;
        ratios[2 + streaming][i] = processor / spent.processor_ns;
      }
    }
  if (rank == 0)
    print_ratios(name, turns, ratios);
  free_matrix(&m);
}

/* 64 KiB: beside an empty barrier and the copies alone. */
static void measure_small(const char *name, int turns) {
  enum { BATCH = 200 };
  matrix m;
  double ratios[1000], ours = 0, empty = 0, copies = 0;
  make_matrix(128, &m);
  for (int i = -1; i < turns; i++) {
    TIMED(empty, for (int k = 0; k < BATCH; k++) reshard_comm_barrier(comm));
    TIMED(copies, for (int k = 0; k < BATCH; k++) copy_straight(&m, false));
    TIMED(ours, for (int k = 0; k < BATCH; k++) reshard_execute(m.transfer, NULL));
    if (i >= 0)
      ratios[i] = ours / (empty + copies);
  }
  if (rank == 0)
    printf("%s, %d ranks, 64 KiB: ours / (a barrier and the copies) %.2f; the last: %.1f us, %.1f + %.1f\n", name, size,
           median_of(turns, ratios), ours / BATCH * 1e-3, empty / BATCH * 1e-3, copies / BATCH * 1e-3);
  free_matrix(&m);
}

/* --- Redistribute ------------------------------------------------------------------------------------------------- */

/* Sums over batches of calls of one kind. */
typedef struct call_sums {
  double us[1000]; /* a call, of each batch */
  int64_t calls, meetings, waits, system_calls;
} call_sums;

static void add_batch(call_sums *sums, int turn, int64_t calls, double ns) {
  sums->us[turn] = ns / (double)calls * 1e-3;
  sums->calls += calls;
  sums->meetings += spent.meetings;
  sums->waits += spent.waits;
  sums->system_calls += spent.system_calls;
}

static double per_call(const call_sums *sums, int64_t n) { return (double)n / (double)sums->calls; }

/* A row of profiles/results/redistribute.md. */
static void print_redistribute(const matrix *m, int turns, call_sums *execute, call_sums *ours) {
  reshard_transfer_info info = {.path = RESHARD_PATH_AUTO};
  double beyond[1000];
  CHECK(reshard_transfer_get_info(m->transfer, &info) == RESHARD_SUCCESS, "info");
  for (int i = 0; i < turns; i++)
    beyond[i] = ours->us[i] - execute->us[i];
  printf("redistribute: %s | %s | %d | %lld | %.1f | %.1f", world_name, reshard_path_string(info.path), size,
         (long long)(m->bytes * size >> 10), median_of(turns, execute->us), median_of(turns, beyond));
  printf(" | %.1f / %.1f | %.2f / %.2f | ", per_call(execute, execute->meetings), per_call(ours, ours->meetings),
         per_call(execute, execute->waits), per_call(ours, ours->waits));
  if (call_counter >= 0)
    printf("%.2f / %.2f\n", per_call(execute, execute->system_calls), per_call(ours, ours->system_calls));
  else
    printf("not counted\n");
}

/* A cached pair, beyond the bare execute of a transfer between the same arrays. */
static void measure_redistribute(int64_t n, int turns) {
  enum { BATCH = 50 };
  int64_t shape[] = {n, n};
  static call_sums execute, ours;
  double ns;
  const reshard_properties properties = {.dtype = RESHARD_F32};
  reshard_sharder sharder = NULL;
  reshard_mesh mesh = NULL;
  reshard_placement placement[2];
  int order[2];
  char text[32];
  matrix m;
  reshard_dtensor rows = NULL, columns = NULL;
  make_matrix(n, &m);
  snprintf(text, sizeof text, "tp=%d", size);
  CHECK(reshard_sharder_create(comm, NULL, &sharder) == RESHARD_SUCCESS, "sharder");
  CHECK(reshard_mesh_parse(comm, 0, text, &mesh) == RESHARD_SUCCESS, "mesh");
  CHECK(reshard_placements_parse("S0", mesh, &placement[0], &order[0]) == RESHARD_SUCCESS, "S0");
  CHECK(reshard_placements_parse("S1", mesh, &placement[1], &order[1]) == RESHARD_SUCCESS, "S1");
  reshard_placing from = {mesh, &placement[0], &order[0]}, to = {mesh, &placement[1], &order[1]};
  CHECK(reshard_dtensor_empty(sharder, &from, 2, shape, &properties, NULL, &rows) == RESHARD_SUCCESS, "rows");
  reshard_tensor_info info = {.data = NULL};
  CHECK(reshard_tensor_get_info(reshard_dtensor_local(rows), &info) == RESHARD_SUCCESS, "rows");
  memset(info.data, 1, (size_t)m.bytes);
  for (int i = -1; i < turns; i++) {
    TIMED(ns, for (int k = 0; k < BATCH; k++) reshard_execute(m.transfer, NULL));
    if (i >= 0)
      add_batch(&execute, i, BATCH, ns);
    TIMED(
        ns, for (int k = 0; k < BATCH; k++) {
          CHECK(reshard_dtensor_redistribute(1, &rows, &to, NULL, &columns) == RESHARD_SUCCESS, "redistribute");
          reshard_dtensor_release(columns);
        });
    if (i >= 0)
      add_batch(&ours, i, BATCH, ns);
  }
  /* A meeting of a node alone is a fraction of one of all, and each batch rounds its sum. */
  CHECK(execute.meetings > 0 && llabs(ours.meetings - execute.meetings) <= turns,
        "%lld meetings, %lld of as many bare executes", (long long)ours.meetings, (long long)execute.meetings);
  if (rank == 0)
    print_redistribute(&m, turns, &execute, &ours);
  reshard_dtensor_release(rows);
  reshard_mesh_release(mesh);
  reshard_sharder_destroy(sharder);
  free_matrix(&m);
}

/* --- A module ----------------------------------------------------------------------------------------------------- */

enum { TENSORS = 1000, BYTES = 256 << 20 };

/* Half of the tensors are small, as in a model: in layers of a large weight, three of a third of it, one of a sixth,
 * and five of a row. */
static void measure_sync(int turns) {
  static const int64_t of_ten[10] = {95, 32, 32, 32, 16, 1, 1, 1, 1, 1};
  int64_t unit = BYTES / (TENSORS / 10) / 212 / 256 * 256;
  reshard_tensor tensors[TENSORS];
  char *data[TENSORS], *from = NULL;
  static double ratios[4][1000];
  double ours, straight, processor = 0;
  for (int64_t i = 0; i < TENSORS; i++)
    tensors[i] = alloc_bytes(of_ten[i % 10] * unit, &data[i]);
  int64_t bytes = unit * 212 * (TENSORS / 10);
  reshard_tensor whole[2] = {alloc_bytes(bytes, &from), NULL};
  char *into = NULL;
  whole[1] = alloc_bytes(bytes, &into);
  for (int i = -1; i < turns; i++)
    for (int streaming = 0; streaming < 2; streaming++) {
      TIMED(straight, if (rank != 0) rs_device_cpu_straight(comm->device, into, from, bytes, streaming));
      processor = spent.processor_ns;
      TIMED(ours,
            CHECK(reshard_sync_tensors(comm, 0, TENSORS, tensors, NULL, NULL, NULL, NULL) == RESHARD_SUCCESS, "sync"));
      if (i >= 0) {
        ratios[streaming][i] = straight / ours;
        ratios[2 + streaming][i] = processor / spent.processor_ns;
      }
    }
  for (int64_t i = 0; i < TENSORS; i++)
    CHECK(data[i][0] == 1 && data[i][of_ten[i % 10] * unit - 1] == 1, "tensor %lld", (long long)i);
  if (rank == 1)
    print_ratios("1000 tensors of 253 MiB from rank 0", turns, ratios);
  for (int64_t i = 0; i < TENSORS; i++)
    reshard_tensor_release(tensors[i]);
  reshard_tensor_release(whole[0]);
  reshard_tensor_release(whole[1]);
}

int main(int argc, char **argv) {
  world_open(&argc, &argv, &rank, &size);
  const char *what = argc > 1 ? argv[1] : "";
  int turns = argc > 2 ? atoi(argv[2]) : 21;
  turns = turns < 1 ? 1 : turns > 1000 ? 1000 : turns;
  CHECK(world_connect(600000, &comm) == RESHARD_SUCCESS, "a communicator");
  open_device(strstr(what, "private") == NULL);
  open_call_counter();
  if (strcmp(what, "redistribute") == 0)
    measure_redistribute(512, turns);
  else if (strcmp(what, "matrix") == 0 || strcmp(what, "private") == 0)
    measure_matrix(what, 8192, turns);
  else if (strncmp(what, "small", 5) == 0)
    measure_small(what, turns);
  else if (strcmp(what, "sync") == 0)
    measure_sync(turns);
  else
    CHECK(false, "%s is no figure", what);
  if (call_counter >= 0)
    close(call_counter);
  reshard_device_release(device);
  reshard_comm_destroy(comm);
  return world_close(failures) > 0;
}
