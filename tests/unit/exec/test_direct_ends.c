/* The direct path between processes: which ranks have which memory files; when ranks are killed or late, when sources
 * are freed under their readers, and when all comes and goes often. */
#define _GNU_SOURCE /* syscall */
#include "device/cpu/segment.h"
#include "support/fixtures/case.h"
#include "support/fixtures/scale.h"
#include "support/processes/process_matrix.h"

#include "comm/node/node.h"

#include <reshard/sharded.h>

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>

/* --- Memory files ------------------------------------------------------------------------------------------------- */

/* Memory files of other processes that this one has open. */
static int64_t count_others(void) {
  struct stat own, other;
  int fd;
  int64_t n = 0;
  ino_t seen[64];
  CHILD_CHECK(rs_shared_open(&fd) == RESHARD_SUCCESS && fstat(fd, &own) == 0);
  rs_shared_close();
  for (fd = 0; fd < 1024; fd++) {
    char path[64], name[64] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (readlink(path, name, sizeof name - 1) < 0 || strncmp(name, "/memfd:reshard", 14) != 0 ||
        fstat(fd, &other) != 0 || other.st_ino == own.st_ino)
      continue;
    int64_t i = 0;
    while (i < n && seen[i] != other.st_ino)
      i++;
    seen[i] = other.st_ino;
    n += i == n;
  }
  return n;
}

/* Moves a matrix that one rank holds to one that another holds, and checks it there. */
static void move_whole(process_matrix *s, reshard_comm comm, int64_t from, int64_t to, reshard_sharder sharder) {
  enum { SIDE = 16 };
  int64_t shape[] = {SIDE, SIDE}, n = reshard_comm_size(comm), me = reshard_comm_rank(comm);
  char text[32];
  reshard_layout src, dst;
  reshard_plan plan;
  reshard_transfer transfer;
  snprintf(text, sizeof text, "rank(%d)", (int)from);
  CHILD_CHECK(reshard_layout_parse(text, 2, shape, n, &src) == RESHARD_SUCCESS);
  snprintf(text, sizeof text, "rank(%d)", (int)to);
  CHILD_CHECK(reshard_layout_parse(text, 2, shape, n, &dst) == RESHARD_SUCCESS);
  for (int64_t i = 0; i < SIDE * SIDE && me == from; i++)
    s->src[i] = (float)(i + from);
  memset(s->dst, 0, sizeof(float[SIDE * SIDE]));
  if (sharder != NULL) {
    const reshard_properties properties = {.dtype = RESHARD_F32};
    reshard_sharded_tensor tensor;
    reshard_tensor array;
    reshard_tensor_info info;
    CHILD_CHECK(reshard_sharded_tensor_empty(sharder, src, &properties, NULL, &tensor) == RESHARD_SUCCESS);
    if (me == from && reshard_sharded_tensor_local(tensor, 0, &array, NULL) == RESHARD_SUCCESS) {
      CHILD_CHECK(reshard_tensor_get_info(array, &info) == RESHARD_SUCCESS);
      memcpy(info.data, s->src, sizeof(float[SIDE * SIDE]));
    }
    CHILD_CHECK(reshard_sharded_tensor_reshard(1, &tensor, &dst, NULL) == RESHARD_SUCCESS);
    if (me == to && reshard_sharded_tensor_local(tensor, 0, &array, NULL) == RESHARD_SUCCESS) {
      CHILD_CHECK(reshard_tensor_get_info(array, &info) == RESHARD_SUCCESS);
      memcpy(s->dst, info.data, sizeof(float[SIDE * SIDE]));
    }
    reshard_sharded_tensor_release(tensor);
  } else {
    reshard_entry entry = {RESHARD_ENTRY_INIT, .src = src, .dst = dst, .dtype = RESHARD_F32};
    const reshard_transfer_options direct = {RESHARD_TRANSFER_OPTIONS_INIT, .path = RESHARD_PATH_DIRECT};
    reshard_arrays arrays = {RESHARD_ARRAYS_INIT, (void *[]){s->src}, (void *[]){s->dst}, NULL, NULL, 0, 0};
    CHILD_CHECK(reshard_plan_create(1, &entry, me, NULL, &plan) == RESHARD_SUCCESS);
    CHILD_CHECK(reshard_transfer_create(plan, comm, &arrays, &direct, &transfer) == RESHARD_SUCCESS);
    CHILD_CHECK(reshard_execute(transfer, NULL) == RESHARD_SUCCESS);
    reshard_transfer_destroy(transfer);
    reshard_plan_destroy(plan);
  }
  for (int64_t i = 0; i < SIDE * SIDE && me == to; i++)
    CHILD_CHECK(s->dst[i] == (float)(i + from));
  reshard_layout_release(src);
  reshard_layout_release(dst);
}

static void pass_what_is_read(processes *all, int64_t rank, void *user) {
  bool sharded = *(const bool *)user;
  process_matrix s;
  reshard_sharder sharder = NULL;
  reshard_comm part;
  matrix_open(all, rank, TIMEOUT_MS, &s);
  const reshard_sharder_options direct = {.size = RESHARD_SHARDER_OPTIONS_INIT, .path = RESHARD_PATH_DIRECT};
  if (sharded)
    CHILD_CHECK(reshard_sharder_create(s.comm, &direct, &sharder) == RESHARD_SUCCESS);
  CHILD_CHECK(count_others() == 0);
  for (int turn = 0; turn < 3; turn++) {
    move_whole(&s, s.comm, 2, 1, sharder);
    CHILD_CHECK(count_others() == (rank == 1));
  }
  move_whole(&s, s.comm, 3, 1, sharder);
  CHILD_CHECK(count_others() == (rank == 1 ? 2 : 0));
  move_whole(&s, s.comm, 1, 2, sharder);
  CHILD_CHECK(count_others() == (rank == 1 ? 2 : rank == 2));
  CHILD_CHECK(reshard_comm_split(s.comm, rank / 2, 0, &part) == RESHARD_SUCCESS); /* 0 and 1, 2 and 3 */
  CHILD_CHECK(count_others() == (rank == 1 ? 2 : rank == 2));
  move_whole(&s, part, 0, 1, NULL);
  CHILD_CHECK(count_others() == (rank == 1 ? 3 : rank >= 2));
  reshard_sharder_destroy(sharder);
  matrix_close(&s);
  CHILD_CHECK(count_others() == rank % 2);
  reshard_comm_destroy(part);
  CHILD_CHECK(count_others() == 0);
}

CASE(memory_files_go_to_ranks_that_read_them) {
  for (int sharded = 0; sharded < 2; sharded++)
    assert_int_equal(processes_run(4, 0, pass_what_is_read, &(bool){sharded}), 0);
}

/* --- Killed and late ---------------------------------------------------------------------------------------------- */

/* Steps at which a rank is killed; the last one after some time, wherever it is then. */
enum { KILL_CREATE, KILL_PASS, KILL_REBIND, KILL_EXECUTE, KILL_LATER, KILLS };

typedef struct kill_call {
  int step, delay_us;
  int64_t victim, messages; /* messages: of memory files, before one of which it is killed */
} kill_call;

static int64_t messages; /* until then; 0: never */

/* The library's call comes here. */
ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
  if (messages > 0 && --messages == 0)
    raise(SIGKILL);
  return syscall(SYS_sendmsg, fd, message, flags);
}

static void die(int signal) {
  (void)signal;
  raise(SIGKILL);
}

static void die_at(const kill_call *k, int64_t rank, int step) {
  if (k->step == step && rank == k->victim)
    raise(SIGKILL);
}

/* The survivors' error names the rank that is gone. A transfer over those that are left works, and is direct. */
static void go_on(process_matrix *s, const kill_call *k) {
  char gone[64];
  snprintf(gone, sizeof gone, "rank %lld is gone", (long long)k->victim);
  if (strstr(reshard_last_error(), gone) == NULL) {
    fprintf(stderr, "rank %lld: step %d: '%s'\n", (long long)s->rank, k->step, reshard_last_error());
    _exit(1);
  }
  CHILD_CHECK(s->transfer == NULL || reshard_execute(s->transfer, NULL) == RESHARD_ERROR_PEER);
  reshard_comm rest;
  CHILD_CHECK(reshard_comm_shrink(s->comm, 1, &k->victim, &rest) == RESHARD_SUCCESS);
  int64_t shape[] = {12, 12}, n = s->n - 1, rank = reshard_comm_rank(rest);
  reshard_layout rows, columns;
  reshard_plan plan;
  reshard_transfer transfer;
  reshard_transfer_info info;
  CHILD_CHECK(reshard_layout_parse("chunk(0)", 2, shape, n, &rows) == RESHARD_SUCCESS);
  CHILD_CHECK(reshard_layout_parse("chunk(1)", 2, shape, n, &columns) == RESHARD_SUCCESS);
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = rows, .dst = columns, .dtype = RESHARD_F32};
  CHILD_CHECK(reshard_plan_create(1, &entry, rank, NULL, &plan) == RESHARD_SUCCESS);
  reshard_arrays arrays = {RESHARD_ARRAYS_INIT, (void *[]){s->src}, (void *[]){s->dst}, NULL, NULL, 1, 1};
  const reshard_transfer_options options = {RESHARD_TRANSFER_OPTIONS_INIT, .path = RESHARD_PATH_DIRECT};
  CHILD_CHECK(reshard_transfer_create(plan, rest, &arrays, &options, &transfer) == RESHARD_SUCCESS);
  CHILD_CHECK(reshard_transfer_get_info(transfer, &info) == RESHARD_SUCCESS && info.path == RESHARD_PATH_DIRECT);
  int64_t own = 12 / n;
  for (int64_t i = 0; i < own * 12; i++)
    s->src[i] = (float)(rank * own * 12 + i);
  CHILD_CHECK(reshard_execute(transfer, NULL) == RESHARD_SUCCESS);
  for (int64_t i = 0; i < 12 * own; i++)
    CHILD_CHECK(s->dst[i] == (float)(i / own * 12 + rank * own + i % own));
  reshard_transfer_destroy(transfer);
  reshard_plan_destroy(plan);
  reshard_layout_release(rows);
  reshard_layout_release(columns);
  reshard_comm_destroy(rest);
}

static void lose_rank(processes *all, int64_t rank, void *user) {
  const kill_call *k = user;
  int descriptors = count_descriptors();
  process_matrix s;
  reshard_status status = RESHARD_SUCCESS;
  matrix_open(all, rank, TIMEOUT_MS, &s);
  fill_rows(&s, s.src, 0);
  die_at(k, rank, KILL_CREATE);
  if (k->step == KILL_LATER && rank == k->victim) {
    signal(SIGALRM, die);
    setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {0, k->delay_us}}, NULL);
  }
  messages = k->step == KILL_PASS && rank == k->victim ? k->messages : 0;
  status = matrix_bind(&s, s.src, RESHARD_PATH_DIRECT, false);
  if (k->step >= KILL_REBIND && k->step != KILL_LATER)
    CHILD_CHECK(status == RESHARD_SUCCESS);
  for (int turn = 0; status == RESHARD_SUCCESS; turn++) {
    CHILD_CHECK(turn < 1000000);
    fill_rows(&s, s.src, turn);
    status = reshard_execute(s.transfer, NULL);
    if (status == RESHARD_SUCCESS && turn % 16 == 0)
      CHILD_CHECK(columns_are(&s, turn));
    if (turn == 1)
      die_at(k, rank, KILL_REBIND);
    if (status == RESHARD_SUCCESS && turn % 2 == 1)
      status = matrix_bind(&s, s.src, RESHARD_PATH_AUTO, true);
    if (turn == 1)
      die_at(k, rank, KILL_EXECUTE);
  }
  CHILD_CHECK(status == RESHARD_ERROR_PEER);
  go_on(&s, k);
  matrix_close(&s);
  CHILD_CHECK(count_descriptors() == descriptors);
}

CASE(killed_rank_is_named_and_nothing_hangs) {
  int later = (int)(40 * test_scale()) + 2;
  for (int i = 0; i < KILL_LATER + later; i++) {
    kill_call k = {i < KILL_LATER ? i : KILL_LATER, 1 + i * 700 % 9000, i % 4, 1};
    assert_int_equal(processes_run(4, 1u << k.victim, lose_rank, &k), 0);
  }
  for (int i = 1; i < 4; i++) { /* each rank passes its file to three */
    kill_call k = {.step = KILL_PASS, .victim = i, .messages = i};
    assert_int_equal(processes_run(4, 1u << k.victim, lose_rank, &k), 0);
  }
}

/* A rank that does not come is named when the deadline has passed; its later calls tell it, too. */
static void come_late(processes *all, int64_t rank, void *user) {
  (void)user;
  process_matrix s;
  matrix_open(all, rank, TIMEOUT_MS, &s);
  CHILD_CHECK(matrix_bind(&s, s.src, RESHARD_PATH_DIRECT, false) == RESHARD_SUCCESS);
  memset(s.dst, 0x5a, (size_t)s.elements * sizeof *s.dst);
  fill_rows(&s, s.src, 1);
  s.comm->timeout_ms = 2000; /* of the execute alone */
  processes_wait(all, 0, 3);
  if (rank == 1)
    processes_wait(all, 1, 3); /* until the others have given up */
  reshard_status status = reshard_execute(s.transfer, NULL);
  if (rank != 1)
    atomic_fetch_add(&all->step[1], 1);
  CHILD_CHECK(status == RESHARD_ERROR_TIMEOUT || (rank == 1 && status == RESHARD_ERROR_PEER));
  CHILD_CHECK(strstr(reshard_last_error(), "missing: 1") != NULL);
  for (int64_t i = 0; i < s.elements; i++) /* nothing was written */
    CHILD_CHECK(memcmp(&s.dst[i], "ZZZZ", 4) == 0);
  matrix_close(&s);
}

CASE(late_rank_is_named_at_the_deadline) { assert_int_equal(processes_run(3, 0, come_late, NULL), 0); }

/* --- Memory ------------------------------------------------------------------------------------------------------- */

/* Rank 1 frees a source, as none should, while the others have it mapped and execute: they find zeros, not a fault. */
static void free_mapped(processes *all, int64_t rank, void *user) {
  (void)user;
  enum { SIDE = 600 };
  process_matrix s;
  matrix_open(all, rank, TIMEOUT_MS, &s);
  int64_t shape[] = {SIDE, SIDE};
  reshard_layout whole, halves;
  reshard_plan plan;
  float *src, *dst;
  CHILD_CHECK(reshard_layout_parse("rank(1)", 2, shape, 3, &whole) == RESHARD_SUCCESS);
  CHILD_CHECK(reshard_layout_parse("chunk(1;0,2)", 2, shape, 3, &halves) == RESHARD_SUCCESS);
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = whole, .dst = halves, .dtype = RESHARD_F32};
  CHILD_CHECK(reshard_plan_create(1, &entry, rank, NULL, &plan) == RESHARD_SUCCESS);
  reshard_tensor from = alloc_on(s.shared, sizeof(float[SIDE * SIDE]), (void **)&src);
  reshard_tensor to = alloc_on(s.private_, sizeof(float[SIDE * SIDE / 2]), (void **)&dst);
  reshard_arrays arrays = {
      RESHARD_ARRAYS_INIT, (void *[]){rank == 1 ? src : NULL}, (void *[]){rank != 1 ? dst : NULL}, NULL, NULL, 0, 0};
  CHILD_CHECK(reshard_transfer_create(plan, s.comm, &arrays, NULL, &s.transfer) == RESHARD_SUCCESS);
  CHILD_CHECK(path_of(&s) == RESHARD_PATH_DIRECT);
  for (int64_t i = 0; i < SIDE * SIDE; i++)
    src[i] = (float)(i + 1);
  for (int turn = 0; turn < 2; turn++) {
    memset(dst, 0x5a, sizeof(float[SIDE * SIDE / 2]));
    CHILD_CHECK(reshard_execute(s.transfer, NULL) == RESHARD_SUCCESS);
    for (int64_t i = 0; i < SIDE * SIDE / 2 && rank != 1; i++) {
      int64_t column = (rank / 2) * (SIDE / 2) + i % (SIDE / 2);
      CHILD_CHECK(dst[i] == (turn == 0 ? (float)(i / (SIDE / 2) * SIDE + column + 1) : 0));
    }
    if (rank == 1 && turn == 0) {
      reshard_tensor_release(from);
      CHILD_CHECK(reshard_device_trim(s.shared, 0) == RESHARD_SUCCESS);
    }
  }
  if (rank != 1)
    reshard_tensor_release(from);
  reshard_tensor_release(to);
  reshard_transfer_destroy(s.transfer);
  s.transfer = NULL;
  reshard_plan_destroy(plan);
  reshard_layout_release(whole);
  reshard_layout_release(halves);
  matrix_close(&s);
}

CASE(freed_source_reads_as_zeros) { assert_int_equal(processes_run(3, 0, free_mapped, NULL), 0); }

/* Everything comes and goes; the process holds no more of the system than before. */
static void make_and_destroy(processes *all, int64_t rank, void *user) {
  int64_t cycles = *(int64_t *)user, maps = 0, pages = 0;
  int descriptors = 0;
  process_matrix s;
  matrix_open(all, rank, TIMEOUT_MS, &s);
  for (int64_t i = 0; i < cycles; i++) {
    float *src;
    reshard_tensor tensor = alloc_on(s.shared, s.elements * 4, (void **)&src);
    fill_rows(&s, src, (int)(i % 100));
    CHILD_CHECK(matrix_bind(&s, src, RESHARD_PATH_DIRECT, false) == RESHARD_SUCCESS);
    CHILD_CHECK(reshard_execute(s.transfer, NULL) == RESHARD_SUCCESS && columns_are(&s, (int)(i % 100)));
    reshard_transfer_destroy(s.transfer);
    CHILD_CHECK(reshard_comm_barrier(s.comm) == RESHARD_SUCCESS);
    reshard_tensor_release(tensor);
    if (i % 3 == 0) /* another segment the next time */
      CHILD_CHECK(reshard_device_trim(s.shared, 0) == RESHARD_SUCCESS);
    if (i == cycles / 2) {
      descriptors = count_descriptors();
      maps = count_maps();
      pages = count_pages();
    }
  }
  CHILD_CHECK(count_descriptors() == descriptors);
  CHILD_CHECK(cycles < 20000 || count_maps() <= maps + 4); /* 1024 unused imports of each process stay */
  CHILD_CHECK(count_pages() <= pages + 256);
  s.transfer = NULL;
  matrix_close(&s);
}

static int64_t cycles = 200;

CASE(transfers_come_and_go_without_a_trace) { assert_int_equal(processes_run(3, 0, make_and_destroy, &cycles), 0); }

/* usage: test_direct_ends [CYCLES]. RESHARD_TEST_SCALE scales them. */
int main(int argc, char **argv) {
  cycles = argc > 1 ? test_scaled(strtoll(argv[1], NULL, 10), 200) : cycles;
  return case_list_run(__FILE__, NULL, NULL);
}
