/* The mixed path: processes of one machine that are of several nodes by RESHARD_NODE. Ranks of a node read each other's
 * sources, the others send messages, in one execute.
 *
 * usage: mpi_mixed RANKS_PER_NODE */
#include "comm/mpi/mpi.h"
#include "exec/transfer.h"

#include <mpi.h>
#include <reshard/dtensor.h>
#include <reshard/mpi.h>
#include <reshard/reshard.h>
#include <reshard/sync.h>
#include <reshard/tensor.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int rank, size, per_node, failures;

#define CHECK(right, ...) \
  do { \
    if (!(right)) { \
      failures++; \
      printf("rank %d, line %d: ", rank, __LINE__); \
      printf(__VA_ARGS__); \
      printf(": %s\n", reshard_last_error()); \
    } \
  } while (0)

enum { ROWS = 137, COLUMNS = 129 };

typedef struct moved {
  reshard_device device;
  reshard_comm comm;
  reshard_tensor src, dst;
  float *from, *to;
  int64_t rows, row, columns, column; /* of this rank's parts: how many, and the first */
  reshard_plan plan;
  reshard_transfer transfer;
} moved;

static int64_t begin_of(int64_t n, int64_t r) {
  int64_t step = (n + size - 1) / size;
  return r * step < n ? r * step : n;
}

static float *open_array(reshard_device device, int64_t elements, reshard_tensor *tensor) {
  reshard_tensor_info info = {.data = NULL};
  elements = elements > 0 ? elements : 1;
  CHECK(reshard_tensor_create_on(device, RESHARD_F32, 1, &elements, NULL, tensor) == RESHARD_SUCCESS, "array");
  CHECK(reshard_tensor_get_info(*tensor, &info) == RESHARD_SUCCESS, "array");
  return info.data;
}

/* node: this rank's. private: this rank's source is memory that no other process maps. */
static reshard_status open_moved(int node, int64_t timeout_ms, int64_t limit, reshard_path path, bool private,
                                 moved *m) {
  MPI_Comm world = MPI_COMM_WORLD;
  char number[16];
  int64_t shape[] = {ROWS, COLUMNS};
  const reshard_device_options device = {.size = RESHARD_DEVICE_OPTIONS_INIT, .threads = 1, .shared = true};
  const reshard_transfer_options options = {RESHARD_TRANSFER_OPTIONS_INIT, .path = path};
  const reshard_plan_options planned = {RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = limit};
  static float heap[ROWS * COLUMNS];
  reshard_layout rows = NULL, columns = NULL;
  *m = (moved){.device = NULL};
  snprintf(number, sizeof number, "%d", node);
  setenv("RESHARD_NODE", number, 1);
  CHECK(reshard_device_create("cpu", &device, &m->device) == RESHARD_SUCCESS, "device");
  CHECK(reshard_comm_from_mpi(&world, m->device, timeout_ms, &m->comm) == RESHARD_SUCCESS, "communicator");
  int64_t nodes[64] = {0}, first = node; /* of rank 0 */
  CHECK(size <= 64 && reshard_comm_nodes(m->comm, nodes) == RESHARD_SUCCESS && nodes[0] == 0, "nodes");
  MPI_Bcast(&first, 1, MPI_INT64_T, 0, world);
  CHECK((nodes[rank] == 0) == (node == first), "node of this rank");
  m->row = begin_of(ROWS, rank), m->rows = begin_of(ROWS, rank + 1) - m->row;
  m->column = begin_of(COLUMNS, rank), m->columns = begin_of(COLUMNS, rank + 1) - m->column;
  m->from = open_array(m->device, m->rows * COLUMNS, &m->src);
  m->to = open_array(m->device, ROWS * m->columns, &m->dst);
  m->from = private ? heap : m->from;
  CHECK(reshard_layout_parse("chunk(0)", 2, shape, size, &rows) == RESHARD_SUCCESS, "rows");
  CHECK(reshard_layout_parse("chunk(1)", 2, shape, size, &columns) == RESHARD_SUCCESS, "columns");
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = rows, .dst = columns, .dtype = RESHARD_F32};
  CHECK(reshard_plan_create(1, &entry, rank, &planned, &m->plan) == RESHARD_SUCCESS, "plan");
  reshard_arrays arrays = {RESHARD_ARRAYS_INIT, (void *[]){m->from}, (void *[]){m->to}, NULL, NULL, 1, 1};
  reshard_status status = reshard_transfer_create(m->plan, m->comm, &arrays, &options, &m->transfer);
  reshard_layout_release(rows);
  reshard_layout_release(columns);
  return status;
}

static void close_moved(moved *m) {
  reshard_transfer_destroy(m->transfer);
  reshard_plan_destroy(m->plan);
  reshard_tensor_release(m->src);
  reshard_tensor_release(m->dst);
  reshard_comm_destroy(m->comm);
  reshard_device_release(m->device);
}

static float value_of(int64_t row, int64_t column, int turn) {
  return (float)(row * COLUMNS + column + 100000 * (int64_t)turn);
}

static void fill(moved *m, int turn) {
  for (int64_t i = 0; i < m->rows * COLUMNS; i++)
    m->from[i] = value_of(m->row + i / COLUMNS, i % COLUMNS, turn);
  for (int64_t i = 0; i < ROWS * m->columns; i++)
    m->to[i] = -1;
}

/* Elements that are not right; or, with no turn, that were written. */
static int64_t count_wrong(const moved *m, int turn) {
  int64_t wrong = 0;
  for (int64_t i = 0; i < ROWS * m->columns; i++)
    wrong += m->to[i] != (turn < 0 ? -1 : value_of(i / m->columns, m->column + i % m->columns, turn));
  return wrong;
}

/* Every byte that comes from another node is a message's, and no other is. */
static void check_counts(const moved *m, int turns, int64_t rounds) {
  int64_t senders = 0, receives = 0;
  reshard_comm_stats stats;
  for (int r = 0; r < size; r++)
    if (r / per_node != rank / per_node && begin_of(ROWS, r + 1) > begin_of(ROWS, r) && m->columns > 0)
      senders++;
  receives = senders * turns;
  CHECK(reshard_comm_get_stats(m->comm, &stats) == RESHARD_SUCCESS, "statistics");
  CHECK(rounds > 1 || stats.received_messages == receives, "%lld messages for %lld", (long long)stats.received_messages,
        (long long)receives);
  CHECK(stats.received_bytes == turns * (ROWS - m->rows) * m->columns * 4, "%lld bytes",
        (long long)stats.received_bytes);
}

/* Sources change between executes: a rank that has returned may write to its own. */
static void mixes(int64_t timeout_ms, int64_t limit) {
  enum { TURNS = 100 };
  moved m;
  reshard_transfer_info info = {.rounds = 0};
  CHECK(open_moved(rank / per_node, timeout_ms, limit, RESHARD_PATH_AUTO, false, &m) == RESHARD_SUCCESS, "transfer");
  CHECK(reshard_transfer_get_info(m.transfer, &info) == RESHARD_SUCCESS && info.path == RESHARD_PATH_MIXED, "path %d",
        (int)info.path);
  CHECK((info.rounds > 1) == (limit > 0), "%lld rounds", (long long)info.rounds);
  for (int turn = 0; turn < TURNS; turn++) {
    fill(&m, turn);
    CHECK(reshard_execute(m.transfer, NULL) == RESHARD_SUCCESS, "execute");
    CHECK(count_wrong(&m, turn) == 0, "turn %d: %lld wrong", turn, (long long)count_wrong(&m, turn));
  }
  check_counts(&m, TURNS, info.rounds);
  close_moved(&m);
}

/* Other arrays, shown to the others; one that they cannot read is refused on all, and the transfer stays as it was. */
static void binds_again(void) {
  static float heap[ROWS * COLUMNS];
  moved m;
  reshard_tensor other = NULL;
  CHECK(open_moved(rank / per_node, 0, 0, RESHARD_PATH_AUTO, false, &m) == RESHARD_SUCCESS, "transfer");
  reshard_arrays arrays = {
      RESHARD_ARRAYS_INIT, (void *[]){rank == 0 ? heap : m.from}, (void *[]){m.to}, NULL, NULL, 1, 1};
  CHECK(reshard_transfer_rebind(m.transfer, &arrays) == RESHARD_ERROR_UNSUPPORTED, "a private source");
  fill(&m, 4);
  CHECK(reshard_execute(m.transfer, NULL) == RESHARD_SUCCESS && count_wrong(&m, 4) == 0, "as before");
  float *from = open_array(m.device, m.rows * COLUMNS, &other);
  arrays.src = (void *[]){from};
  CHECK(reshard_transfer_rebind(m.transfer, &arrays) == RESHARD_SUCCESS, "another source");
  m.from = from;
  fill(&m, 5);
  CHECK(reshard_execute(m.transfer, NULL) == RESHARD_SUCCESS && count_wrong(&m, 5) == 0, "the other one");
  reshard_transfer_destroy(m.transfer);
  m.transfer = NULL;
  reshard_tensor_release(other);
  close_moved(&m);
}

/* The path follows from what all ranks have. */
static void falls_back(void) {
  static const reshard_path wishes[] = {RESHARD_PATH_AUTO, RESHARD_PATH_MIXED, RESHARD_PATH_DIRECT};
  moved m;
  reshard_transfer_info info = {.rounds = 0};
  for (int one_node = 0; one_node < 2; one_node++) {
    reshard_path path = one_node ? RESHARD_PATH_DIRECT : RESHARD_PATH_PACKED;
    CHECK(open_moved(one_node ? 0 : rank, 0, 0, RESHARD_PATH_AUTO, false, &m) == RESHARD_SUCCESS, "transfer");
    CHECK(reshard_transfer_get_info(m.transfer, &info) == RESHARD_SUCCESS && info.path == path, "path %d",
          (int)info.path);
    fill(&m, 1);
    CHECK(reshard_execute(m.transfer, NULL) == RESHARD_SUCCESS && count_wrong(&m, 1) == 0, "execute");
    close_moved(&m);
    CHECK(open_moved(one_node ? 0 : rank, 0, 0, RESHARD_PATH_MIXED, false, &m) == RESHARD_ERROR_UNSUPPORTED, "mixed");
    close_moved(&m);
  }
  for (int i = 0; i < 3; i++) { /* one private source; and no node is all there is */
    reshard_status status = open_moved(rank / per_node, 0, 0, wishes[i], rank == 1 && i < 2, &m);
    CHECK(status == (i == 0 ? RESHARD_SUCCESS : RESHARD_ERROR_UNSUPPORTED), "wish %d: %s", (int)wishes[i],
          reshard_status_string(status));
    if (status == RESHARD_SUCCESS) {
      CHECK(reshard_transfer_get_info(m.transfer, &info) == RESHARD_SUCCESS && info.path == RESHARD_PATH_PACKED,
            "path %d", (int)info.path);
      fill(&m, 2);
      CHECK(reshard_execute(m.transfer, NULL) == RESHARD_SUCCESS && count_wrong(&m, 2) == 0, "execute");
    }
    close_moved(&m);
  }
}

/* A rank that makes another call: all hear it, nothing is written, and they go on. */
static void executes_apart(void) {
  moved m;
  CHECK(open_moved(rank / per_node, 0, 0, RESHARD_PATH_AUTO, false, &m) == RESHARD_SUCCESS, "transfer");
  for (int odd = 0; odd < size; odd++) {
    fill(&m, odd);
    reshard_status status = rank == odd ? reshard_comm_barrier(m.comm) : reshard_execute(m.transfer, NULL);
    CHECK(status == RESHARD_ERROR_MISMATCH, "%s", reshard_status_string(status));
    CHECK(count_wrong(&m, -1) == 0, "%lld were written", (long long)count_wrong(&m, -1));
    CHECK(reshard_execute(m.transfer, NULL) == RESHARD_SUCCESS && count_wrong(&m, odd) == 0, "it goes on");
  }
  close_moved(&m);
}

/* A rank that never comes: the others miss it by their deadline, which holds when all are there, and nothing was
 * written. One that is late itself may find the communicator at its end. */
static void misses_one(void) {
  moved m;
  int64_t missing[64] = {-1}, n = 0;
  CHECK(open_moved(rank / per_node, 60000, 0, RESHARD_PATH_AUTO, false, &m) == RESHARD_SUCCESS, "transfer");
  m.comm->timeout_ms = 700;
  fill(&m, 3);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank != size - 1) {
    reshard_status status = reshard_execute(m.transfer, NULL);
    CHECK(status == RESHARD_ERROR_TIMEOUT || status == RESHARD_ERROR_PEER, "%s", reshard_status_string(status));
    CHECK(reshard_comm_missing(m.comm, missing, &n) == RESHARD_SUCCESS && n > 0 && missing[n - 1] == size - 1,
          "%lld missing", (long long)n);
    CHECK(count_wrong(&m, -1) == 0, "%lld were written", (long long)count_wrong(&m, -1));
  }
  MPI_Barrier(MPI_COMM_WORLD);
  close_moved(&m);
}

static const rs_device_work *real_work;
static const struct reshard_transfer_s *held_up; /* in its copies */
static int mate_returned;                        /* meanwhile: a rank whose source it reads then */

static reshard_status held_up_run(rs_device *device, int64_t n, rs_program *const *programs, void *stream) {
  if (held_up != NULL && programs[0] == held_up->binding.self_copy) {
    held_up = NULL;
    MPI_Recv(NULL, 0, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (int ms = 0; ms < 50 && !mate_returned; ms++) { /* time for it to come, if it does not wait */
      MPI_Iprobe(size - 2, 2, MPI_COMM_WORLD, &mate_returned, MPI_STATUS_IGNORE);
      nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
  }
  return real_work->run(device, n, programs, stream);
}

/* The last rank reads its node's sources only when a rank of another node has returned. None of its own has. */
static void meets_its_node(void) {
  moved m;
  CHECK(open_moved(rank / per_node, 60000, 0, RESHARD_PATH_AUTO, false, &m) == RESHARD_SUCCESS, "transfer");
  rs_device *device = m.comm->device;
  rs_device_work work = *device->work;
  real_work = device->work;
  work.run = held_up_run;
  device->work = &work;
  held_up = rank == size - 1 ? m.transfer : NULL;
  m.comm->timeout_ms = 10000;
  fill(&m, 6);
  CHECK(reshard_execute(m.transfer, NULL) == RESHARD_SUCCESS && count_wrong(&m, 6) == 0, "execute");
  if (rank == 0)
    MPI_Send(NULL, 0, MPI_BYTE, size - 1, 0, MPI_COMM_WORLD);
  if (rank == size - 2)
    MPI_Send(NULL, 0, MPI_BYTE, size - 1, 2, MPI_COMM_WORLD);
  if (rank == size - 1)
    MPI_Recv(NULL, 0, MPI_BYTE, size - 2, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  CHECK(held_up == NULL && !mate_returned, "it has copied, and another of its node waits for that");
  fill(&m, 7);
  CHECK(reshard_execute(m.transfer, NULL) == RESHARD_SUCCESS && count_wrong(&m, 7) == 0, "again");
  device->work = real_work;
  close_moved(&m);
}

static bool waits_for_last; /* before its first message */
static int records_left;    /* of this rank's, until it has begun the meeting of its node */

/* Stands before MPI's. */
int MPI_Isend(const void *at, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request) {
  if (waits_for_last && tag % RS_MPI_TAGS == RS_MPI_TAG_REST) {
    waits_for_last = false;
    PMPI_Recv(NULL, 0, MPI_BYTE, size - 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
  if (records_left > 0 && tag % RS_MPI_TAGS == RS_MPI_TAG_RECORD && --records_left == 0)
    PMPI_Send(NULL, 0, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
  return PMPI_Isend(at, n, type, to, tag, comm, request);
}

/* The last rank has read its node's sources, and meets them, before a message of rank 0 to it is sent. */
static void reads_beside_messages(void) {
  moved m;
  CHECK(open_moved(rank / per_node, 60000, 0, RESHARD_PATH_AUTO, false, &m) == RESHARD_SUCCESS, "transfer");
  m.comm->timeout_ms = 10000;
  waits_for_last = rank == 0;
  records_left = rank == size - 1 ? size : 0;
  fill(&m, 8);
  CHECK(reshard_execute(m.transfer, NULL) == RESHARD_SUCCESS && count_wrong(&m, 8) == 0, "execute");
  CHECK(!waits_for_last && records_left == 0, "%d records", records_left);
  if (records_left > 0) /* rank 0 waits for it */
    PMPI_Send(NULL, 0, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
  close_moved(&m);
}

/* --- Parts of a communicator ------------------------------------------------------------------------------------ */

/* Rows of all ranks of the part to columns, by the path that its ranks have. */
static void part_moves(reshard_comm comm, reshard_device device, reshard_path path) {
  int64_t n = reshard_comm_size(comm), me = reshard_comm_rank(comm), shape[] = {4 * n, 3 * n}, wrong = 0;
  reshard_layout rows = NULL, columns = NULL;
  reshard_tensor src = NULL, dst = NULL;
  reshard_plan plan = NULL;
  reshard_transfer transfer = NULL;
  reshard_transfer_info info = {.rounds = 0};
  float *from = open_array(device, 4 * 3 * n, &src), *to = open_array(device, 4 * n * 3, &dst);
  CHECK(reshard_layout_parse("chunk(0)", 2, shape, n, &rows) == RESHARD_SUCCESS, "rows");
  CHECK(reshard_layout_parse("chunk(1)", 2, shape, n, &columns) == RESHARD_SUCCESS, "columns");
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = rows, .dst = columns, .dtype = RESHARD_F32};
  CHECK(reshard_plan_create(1, &entry, me, NULL, &plan) == RESHARD_SUCCESS, "plan");
  reshard_arrays arrays = {RESHARD_ARRAYS_INIT, (void *[]){from}, (void *[]){to}, NULL, NULL, 1, 1};
  CHECK(reshard_transfer_create(plan, comm, &arrays, NULL, &transfer) == RESHARD_SUCCESS, "transfer");
  CHECK(reshard_transfer_get_info(transfer, &info) == RESHARD_SUCCESS && info.path == path, "path %d of %lld ranks",
        (int)info.path, (long long)n);
  for (int turn = 0; turn < 5; turn++) {
    for (int64_t i = 0; i < 4 * 3 * n; i++)
      from[i] = value_of(4 * me + i / (3 * n), i % (3 * n), turn);
    CHECK(reshard_execute(transfer, NULL) == RESHARD_SUCCESS, "execute");
    for (int64_t i = 0; i < 4 * n * 3; i++)
      wrong += to[i] != value_of(i / 3, 3 * me + i % 3, turn);
  }
  CHECK(wrong == 0, "%lld wrong over %lld ranks", (long long)wrong, (long long)n);
  reshard_transfer_destroy(transfer);
  reshard_plan_destroy(plan);
  reshard_layout_release(rows);
  reshard_layout_release(columns);
  reshard_tensor_release(src);
  reshard_tensor_release(dst);
}

/* The path of ranks that are there: by the nodes that they are on. */
static reshard_path path_of(const bool *there) {
  bool neighbours = false, elsewhere = false;
  for (int a = 0; a < size; a++)
    for (int b = a + 1; b < size; b++)
      if (there[a] && there[b])
        *(a / per_node == b / per_node ? &neighbours : &elsewhere) = true;
  return !neighbours ? RESHARD_PATH_PACKED : elsewhere ? RESHARD_PATH_MIXED : RESHARD_PATH_DIRECT;
}

/* Ranks of a part are on the nodes that they are on in the whole. */
static void check_nodes(reshard_comm part) {
  int64_t nodes[64];
  const int64_t *there = reshard_comm_global_ranks(part);
  CHECK(reshard_comm_nodes(part, nodes) == RESHARD_SUCCESS, "nodes of a part");
  for (int64_t i = 0; i < reshard_comm_size(part); i++)
    for (int64_t j = 0; j < i; j++)
      CHECK((nodes[i] == nodes[j]) == (there[i] / per_node == there[j] / per_node), "ranks %d and %d", (int)j, (int)i);
}

static void splits(int64_t color, int64_t key) {
  moved m;
  reshard_comm part = NULL, again = NULL;
  int64_t colors[64];
  bool there[64];
  CHECK(open_moved(rank / per_node, 0, 0, RESHARD_PATH_AUTO, false, &m) == RESHARD_SUCCESS, "transfer");
  CHECK(reshard_comm_split(m.comm, color, key, &part) == RESHARD_SUCCESS, "split");
  MPI_Allgather(&color, 1, MPI_INT64_T, colors, 1, MPI_INT64_T, MPI_COMM_WORLD);
  for (int r = 0; r < size; r++)
    there[r] = colors[r] == color;
  part_moves(part, m.device, path_of(there));
  CHECK(reshard_comm_split(part, 0, -key, &again) == RESHARD_SUCCESS, "split of a split");
  check_nodes(part);
  check_nodes(again);
  reshard_transfer_destroy(m.transfer);
  m.transfer = NULL;
  reshard_comm_destroy(m.comm); /* a part keeps what it has */
  m.comm = NULL;
  part_moves(part, m.device, path_of(there));
  part_moves(again, m.device, path_of(there));
  reshard_comm_destroy(part);
  part_moves(again, m.device, path_of(there));
  reshard_comm_destroy(again);
  close_moved(&m);
}

/* Of all ranks but one, which is there no more. */
static void shrinks(int lost) {
  moved m;
  reshard_comm rest = NULL;
  bool there[64];
  CHECK(open_moved(rank / per_node, 0, 0, RESHARD_PATH_AUTO, false, &m) == RESHARD_SUCCESS, "transfer");
  for (int r = 0; r < size; r++)
    there[r] = r != lost;
  MPI_Barrier(MPI_COMM_WORLD); /* a shrink ends calls that are under way */
  if (rank != lost) {
    CHECK(reshard_comm_shrink(m.comm, 1, (int64_t[]){lost}, &rest) == RESHARD_SUCCESS, "shrink");
    part_moves(rest, m.device, path_of(there));
  }
  reshard_device device = reshard_device_retain(m.device);
  MPI_Barrier(MPI_COMM_WORLD);
  close_moved(&m);
  if (rank != lost)
    part_moves(rest, device, path_of(there));
  reshard_comm_destroy(rest);
  reshard_device_release(device);
}

/* --- Tensors ------------------------------------------------------------------------------------------------------ */

static int64_t messages_of(reshard_comm comm) {
  reshard_comm_stats stats = {.received_messages = -1};
  CHECK(reshard_comm_get_stats(comm, &stats) == RESHARD_SUCCESS, "statistics");
  return stats.received_messages;
}

static float *data_of(reshard_tensor tensor) {
  reshard_tensor_info info = {.data = NULL};
  CHECK(reshard_tensor_get_info(tensor, &info) == RESHARD_SUCCESS, "data");
  return info.data;
}

/* Rows to columns again and again, of other arrays each time. A source that no other rank can read makes all send.
 * Where the mixed path is wished, it is an error on all ranks. */
static void redistributes(reshard_path path) {
  const int64_t n = size, shape[] = {4 * n, 3 * n}, part[] = {4, 3 * n};
  const reshard_properties properties = {.dtype = RESHARD_F32};
  int64_t neighbours = 0;
  char text[32];
  moved m;
  reshard_sharder sharder = NULL;
  reshard_mesh mesh = NULL;
  reshard_placement placement[2];
  int order[2];
  reshard_dtensor held[3] = {NULL, NULL, NULL};
  CHECK(open_moved(rank / per_node, 0, 0, RESHARD_PATH_AUTO, false, &m) == RESHARD_SUCCESS, "transfer");
  const reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT, .path = path};
  CHECK(reshard_sharder_create(m.comm, &options, &sharder) == RESHARD_SUCCESS, "sharder");
  snprintf(text, sizeof text, "tp=%d", size);
  CHECK(reshard_mesh_parse(m.comm, 0, text, &mesh) == RESHARD_SUCCESS, "mesh");
  CHECK(reshard_placements_parse("S0", mesh, &placement[0], &order[0]) == RESHARD_SUCCESS, "S0");
  CHECK(reshard_placements_parse("S1", mesh, &placement[1], &order[1]) == RESHARD_SUCCESS, "S1");
  const reshard_placing rows = {mesh, &placement[0], &order[0]}, columns = {mesh, &placement[1], &order[1]};
  for (int r = 0; r < size; r++)
    neighbours += r / per_node == rank / per_node;
  for (int turn = 0; turn < 14; turn++) {
    reshard_dtensor source = NULL, result = NULL;
    reshard_tensor local = NULL;
    bool private = turn == 5 || turn == 6 || turn == 9;
    int64_t wrong = 0;
    if (private && rank == 1) {
      CHECK(reshard_tensor_create(RESHARD_F32, 2, part, &local) == RESHARD_SUCCESS, "private");
      CHECK(reshard_dtensor_from_local(sharder, &rows, local, 2, shape, 0, &source) == RESHARD_SUCCESS, "private");
      reshard_tensor_release(local);
    } else if (private) {
      CHECK(reshard_tensor_create_on(m.device, RESHARD_F32, 2, part, NULL, &local) == RESHARD_SUCCESS, "part");
      CHECK(reshard_dtensor_from_local(sharder, &rows, local, 2, shape, 0, &source) == RESHARD_SUCCESS, "part");
      reshard_tensor_release(local);
    } else {
      CHECK(reshard_dtensor_empty(sharder, &rows, 2, shape, &properties, NULL, &source) == RESHARD_SUCCESS, "empty");
    }
    float *from = data_of(reshard_dtensor_local(source));
    for (int64_t i = 0; i < part[0] * part[1]; i++)
      from[i] = value_of(4 * rank + i / part[1], i % part[1], turn);
    int64_t before = messages_of(m.comm);
    reshard_status status = reshard_dtensor_redistribute(1, &source, &columns, NULL, &result);
    if (private && path == RESHARD_PATH_MIXED) {
      CHECK(status == RESHARD_ERROR_UNSUPPORTED && strstr(reshard_last_error(), "the mixed path of a mpi") != NULL,
            "turn %d: %s", turn, reshard_status_string(status));
      reshard_dtensor_release(source);
      continue;
    }
    CHECK(status == RESHARD_SUCCESS, "turn %d", turn);
    int64_t messages = messages_of(m.comm) - before;
    CHECK(messages == n - (private ? 1 : neighbours), "turn %d: %lld messages", turn, (long long)messages);
    const float *to = data_of(reshard_dtensor_local(result));
    for (int64_t i = 0; i < 4 * n * 3; i++)
      wrong += to[i] != value_of(i / 3, 3 * rank + i % 3, turn);
    CHECK(wrong == 0, "turn %d: %lld wrong", turn, (long long)wrong);
    reshard_dtensor_release(source);
    reshard_dtensor_release(held[turn % 3]); /* so that arrays lie elsewhere */
    held[turn % 3] = result;
  }
  for (int i = 0; i < 3; i++)
    reshard_dtensor_release(held[i]);
  reshard_mesh_release(mesh);
  reshard_sharder_destroy(sharder);
  close_moved(&m);
}

/* Parts that messages bring to all ranks, where each has one and wants all, and a part enters a domain once: between
 * domains, and within. */
static void count_parts(const int64_t *domains, int64_t *between, int64_t *within) {
  *between = *within = 0;
  for (int r = 0; r < size; r++)
    for (int s = 0; s < size; s++) {
      bool entered = s > 0 && domains[s - 1] == domains[s]; /* an earlier rank of the domain has taken it */
      if (domains[r] != domains[s])
        *(entered ? within : between) += 1;
      else
        *within += r / per_node != s / per_node;
    }
}

/* Ranks of two domains gather all rows again and again, in other arrays each time. What is passed on goes by messages,
 * also from a rank of the node; in one turn all sends. */
static void passes_on(void) {
  enum { TURNS = 6, PRIVATE = 3 };
  const int64_t shape[] = {4 * (int64_t)size, 50}, part[] = {4, 50};
  char text[32];
  int64_t domains[64], between, within;
  moved m;
  reshard_sharder sharder = NULL;
  reshard_mesh mesh = NULL;
  reshard_placement placement[2];
  int order[2];
  CHECK(open_moved(rank / per_node, 0, 0, RESHARD_PATH_AUTO, false, &m) == RESHARD_SUCCESS, "transfer");
  for (int r = 0; r < size; r++)
    domains[r] = r >= 2; /* with nodes of three, one of whose ranks is in the other domain */
  count_parts(domains, &between, &within);
  reshard_topology topology = RESHARD_TOPOLOGY_DEFAULTS;
  topology.ranks = size;
  topology.domain = domains;
  topology.chains = 1;
  const reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT, .topology = &topology};
  CHECK(reshard_sharder_create(m.comm, &options, &sharder) == RESHARD_SUCCESS, "sharder");
  snprintf(text, sizeof text, "tp=%d", size);
  CHECK(reshard_mesh_parse(m.comm, 0, text, &mesh) == RESHARD_SUCCESS, "mesh");
  CHECK(reshard_placements_parse("S0", mesh, &placement[0], &order[0]) == RESHARD_SUCCESS, "S0");
  CHECK(reshard_placements_parse("R", mesh, &placement[1], &order[1]) == RESHARD_SUCCESS, "R");
  const reshard_placing rows = {mesh, &placement[0], &order[0]}, all = {mesh, &placement[1], &order[1]};
  for (int turn = 0; turn < TURNS; turn++) {
    reshard_dtensor source = NULL, result = NULL;
    reshard_tensor local = NULL;
    reshard_comm_stats before, after;
    int64_t wrong = 0;
    CHECK((turn == PRIVATE && rank == 1
               ? reshard_tensor_create(RESHARD_F32, 2, part, &local)
               : reshard_tensor_create_on(m.device, RESHARD_F32, 2, part, NULL, &local)) == RESHARD_SUCCESS,
          "part");
    CHECK(reshard_dtensor_from_local(sharder, &rows, local, 2, shape, 0, &source) == RESHARD_SUCCESS, "source");
    reshard_tensor_release(local);
    float *from = data_of(reshard_dtensor_local(source));
    for (int64_t i = 0; i < part[0] * part[1]; i++)
      from[i] = value_of(4 * rank + i / part[1], i % part[1], turn);
    CHECK(reshard_comm_get_stats(m.comm, &before) == RESHARD_SUCCESS, "statistics");
    CHECK(reshard_dtensor_redistribute(1, &source, &all, NULL, &result) == RESHARD_SUCCESS, "turn %d", turn);
    CHECK(reshard_comm_get_stats(m.comm, &after) == RESHARD_SUCCESS, "statistics");
    const float *to = data_of(reshard_dtensor_local(result));
    for (int64_t i = 0; i < shape[0] * shape[1]; i++)
      wrong += to[i] != value_of(i / part[1], i % part[1], turn);
    CHECK(wrong == 0, "turn %d: %lld wrong", turn, (long long)wrong);
    int64_t bytes[3] = {after.between_bytes - before.between_bytes, after.leaving_bytes - before.leaving_bytes,
                        after.within_bytes - before.within_bytes};
    MPI_Allreduce(MPI_IN_PLACE, bytes, 3, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < 3; i++)
      bytes[i] /= part[0] * part[1] * 4;
    CHECK(bytes[0] == between && bytes[1] == between && (turn == PRIVATE || bytes[2] == within),
          "turn %d: %lld parts between domains, %lld from sources, %lld within", turn, (long long)bytes[0],
          (long long)bytes[1], (long long)bytes[2]);
    reshard_dtensor_release(source);
    reshard_dtensor_release(result);
  }
  reshard_mesh_release(mesh);
  reshard_sharder_destroy(sharder);
  close_moved(&m);
}

/* One rank's tensors to all, of which those of its node read them. */
static void syncs(reshard_path path) {
  enum { TENSORS = 5, ELEMENTS = 1000 };
  const reshard_sync_options options = {RESHARD_SYNC_OPTIONS_INIT, .path = path};
  moved m;
  reshard_tensor tensor[TENSORS];
  float *data[TENSORS];
  CHECK(open_moved(rank / per_node, 0, 0, RESHARD_PATH_AUTO, false, &m) == RESHARD_SUCCESS, "transfer");
  for (int t = 0; t < TENSORS; t++)
    data[t] = open_array(m.device, ELEMENTS, &tensor[t]);
  for (int turn = 0; turn < 4; turn++) {
    int64_t wrong = 0, before = messages_of(m.comm);
    for (int t = 0; t < TENSORS; t++)
      for (int64_t i = 0; i < ELEMENTS; i++)
        data[t][i] = rank == 1 ? value_of(t, i, turn) : -1;
    CHECK(reshard_sync_tensors(m.comm, 1, TENSORS, tensor, NULL, &options, NULL, NULL) == RESHARD_SUCCESS, "turn %d",
          turn);
    int64_t messages = messages_of(m.comm) - before;
    CHECK(messages == (rank / per_node != 1 / per_node), "turn %d: %lld messages", turn, (long long)messages);
    for (int t = 0; t < TENSORS; t++)
      for (int64_t i = 0; i < ELEMENTS; i++)
        wrong += data[t][i] != value_of(t, i, turn);
    CHECK(wrong == 0, "turn %d: %lld wrong", turn, (long long)wrong);
  }
  for (int t = 0; t < TENSORS; t++)
    reshard_tensor_release(tensor[t]);
  close_moved(&m);
}

int main(int argc, char **argv) {
  int all = 0, level;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  per_node = argc > 1 ? atoi(argv[1]) : 2;
  mixes(0, 0);
  mixes(60000, 0);
  mixes(0, 256 * size);
  binds_again();
  falls_back();
  executes_apart();
  misses_one();
  meets_its_node();
  reads_beside_messages();
  splits(rank / per_node, 0); /* each node */
  splits(rank % per_node, 0); /* across nodes */
  splits(0, -rank);
  splits(rank == 0, rank);
  for (int lost = 0; lost < size; lost++)
    shrinks(lost);
  redistributes(RESHARD_PATH_AUTO);
  redistributes(RESHARD_PATH_MIXED);
  passes_on();
  syncs(RESHARD_PATH_AUTO);
  syncs(RESHARD_PATH_MIXED);
  MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0)
    printf("%d ranks, %d on a node: %d checks failed\n", size, per_node, all);
  MPI_Finalize();
  return all > 0;
}
