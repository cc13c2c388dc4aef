/* A rank of mpirun is lost inside a call, also at one of the calls of MPI that it makes there
 * (support/losses/losses.h). It is stopped, late, or killed, or another thread of it aborts where there is no deadline.
 * A loss leaves no memory of other processes mapped.
 *
 * usage: mpi_losses LOSSES SEED [STEP [stop|late|kill|abort]], by mpirun with 2 or more ranks. LOSSES: of each step,
 * which RESHARD_TEST_SCALE scales. kill: of one step, and the program ends with it. LOSSES_PER_NODE: so many ranks are
 * on a node, and read each other's sources: the mixed path, or the direct one where all are on one. 0 or unset: there
 * are messages alone. */
#define _GNU_SOURCE
#include "support/losses/losses.h"
#include "bench/cli/util.h"
#include "support/fixtures/scale.h"

#include <dirent.h>
#include <mpi.h>
#include <reshard/mpi.h>
#include <reshard/reshard.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Of all ranks: a file that they map. */
typedef struct mpi_board {
  loss_board all;
  atomic_bool reported;
  atomic_int pids[LOSS_MOST];
} mpi_board;

static mpi_board *board;
static int world_rank, world_size, per_node; /* 0: no rank reads memory of another */
static MPI_Comm comms[LOSS_COMMS]; /* of a trial: MPI takes a duplication that was given up for the next of the same */
static ino_t own_file;             /* of this process's shared storage */
static reshard_tensor sources[2];  /* of the trial, and of those that are left */

/* These stand before MPI's. */
int MPI_Test(MPI_Request *request, int *flag, MPI_Status *status) {
  loss_pass(LOSS_CALLS);
  return PMPI_Test(request, flag, status);
}

int MPI_Testsome(int n, MPI_Request requests[], int *ngot, int got[], MPI_Status statuses[]) {
  loss_pass(LOSS_CALLS);
  return PMPI_Testsome(n, requests, ngot, got, statuses);
}

int MPI_Isend(const void *at, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request) {
  loss_pass(LOSS_CALLS);
  return PMPI_Isend(at, n, type, to, tag, comm, request);
}

int MPI_Irecv(void *at, int n, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request *request) {
  loss_pass(LOSS_CALLS);
  return PMPI_Irecv(at, n, type, from, tag, comm, request);
}

int MPI_Iprobe(int from, int tag, MPI_Comm comm, int *flag, MPI_Status *status) {
  loss_pass(LOSS_CALLS);
  return PMPI_Iprobe(from, tag, comm, flag, status);
}

int MPI_Comm_idup(MPI_Comm comm, MPI_Comm *made, MPI_Request *request) {
  loss_pass(LOSS_CALLS);
  return PMPI_Comm_idup(comm, made, request);
}

/* --- Ranks -------------------------------------------------------------------------------------------------------- */

static void open_board(void) {
  char name[] = "losses.XXXXXX";
  int fd = world_rank == 0 ? mkstemp(name) : -1;
  if (world_rank == 0 && (fd < 0 || ftruncate(fd, sizeof *board) != 0))
    MPI_Abort(MPI_COMM_WORLD, 1);
  MPI_Bcast(name, sizeof name, MPI_CHAR, 0, MPI_COMM_WORLD);
  FILE *file = fopen(name, "r+");
  if (file == NULL)
    MPI_Abort(MPI_COMM_WORLD, 1);
  board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
  if (board == MAP_FAILED)
    MPI_Abort(MPI_COMM_WORLD, 1);
  fclose(file);
  board->pids[world_rank] = (int)getpid();
  MPI_Barrier(MPI_COMM_WORLD);
  if (world_rank == 0) {
    close(fd);
    unlink(name);
  }
}

/* Other ranks, and the messages to them, go on meanwhile. */
static void progress(int ms) {
  int there;
  for (int i = 0; i < 5 * ms; i++) {
    nanosleep(&(struct timespec){0, 200000}, NULL);
    PMPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE);
  }
}

static void wait_some(const loss_rank *me) {
  if (loss_rank_resumes(me))
    kill(board->pids[me->t->victim], SIGCONT);
  progress(1);
}

/* Open MPI ends a process whose connection to a killed one breaks. */
static bool is_dead(const loss_rank *me, int r) { return me->t->way == LOSS_KILL && kill(board->pids[r], 0) != 0; }

/* Counts what is open or mapped of memory files, but of its own: there staging of messages that never come stays.
 * first: finds the inode of that, where nothing else is open. */
static int count_files(bool first) {
  char path[512];
  struct stat info;
  unsigned long long inode;
  int n = 0;
  DIR *list = opendir("/proc/self/fd");
  FILE *maps = fopen("/proc/self/maps", "r");
  for (struct dirent *entry; list != NULL && (entry = readdir(list)) != NULL;) {
    ssize_t length = readlinkat(dirfd(list), entry->d_name, path, sizeof path - 1);
    path[length > 0 ? length : 0] = '\0';
    if (strstr(path, "memfd:reshard") == NULL || fstat(atoi(entry->d_name), &info) != 0)
      continue;
    own_file = first ? info.st_ino : own_file;
    n += info.st_ino != own_file;
  }
  while (maps != NULL && fgets(path, sizeof path, maps) != NULL)
    n +=
        strstr(path, "memfd:reshard") != NULL && sscanf(path, "%*s %*s %*s %*s %llu", &inode) == 1 && inode != own_file;
  closedir(list);
  fclose(maps);
  return n;
}

static void begin_rank(loss_rank *me) {
  const reshard_device_options options = {.size = RESHARD_DEVICE_OPTIONS_INIT, .threads = 1, .shared = per_node > 0};
  own_file = 0;
  LOSS_CHECK(me, reshard_device_create("cpu", &options, &me->device) == RESHARD_SUCCESS, "a device");
  loss_count_device(me->device);
}

static void end_rank(loss_rank *me) {
  loss_rank_drop(me);
  reshard_device_release(me->device);
}

static void check_left(loss_rank *me) {
  LOSS_CHECK(me, count_files(false) == 0, "%d memory files of others are left", count_files(false));
}

static char *alloc(loss_rank *me, size_t bytes, bool source) {
  reshard_tensor_info info = {.data = NULL};
  if (per_node == 0 || !source)
    return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  reshard_tensor *tensor = &sources[sources[0] != NULL];
  LOSS_CHECK(me,
             reshard_tensor_create_on(me->device, RESHARD_U8, 1, (int64_t[]){(int64_t)bytes}, NULL, tensor) ==
                 RESHARD_SUCCESS,
             "a source");
  LOSS_CHECK(me, reshard_tensor_get_info(*tensor, &info) == RESHARD_SUCCESS, "a source");
  if (own_file == 0)
    (void)count_files(true);
  return info.data;
}

/* Others may still have a source mapped: they would read other bytes. */
static void release(loss_rank *me, char *at, size_t bytes, bool source) {
  (void)me;
  if (per_node == 0 || !source) {
    munmap(at, bytes);
    return;
  }
  memset(at, 0xa5, bytes);
  reshard_tensor_release(sources[0]);
  sources[0] = sources[1];
  sources[1] = NULL;
}

static void copy(loss_rank *me, void *dst, const void *src, size_t bytes) {
  (void)me;
  memcpy(dst, src, bytes);
}

static reshard_status make_comm(loss_rank *me, loss_which which, int64_t timeout_ms, reshard_comm *comm) {
  *comm = NULL;
  return which != LOSS_REST ? reshard_comm_from_mpi(&comms[which], me->device, timeout_ms, comm)
                            : RESHARD_ERROR_UNSUPPORTED;
}

/* The last one that a killed rank leaves says how it went: MPI would wait for that rank. */
static void end_after_kill(const loss_trial *t) {
  int there = 0;
  for (int r = 0; r < t->n; r++)
    there += r != t->victim && t->board->state[r] == t->board->state[world_rank];
  if (!atomic_exchange(&board->reported, true)) {
    printf("a rank was killed, %d are there\n", there);
    loss_report(t->transport, t->board);
    fflush(stdout);
  }
  _exit(t->board->failures > 0);
}

static void run_ranks(loss_trial *t) {
  for (int i = 0; i < LOSS_REST; i++)
    MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
  loss_rank_run(t, world_rank);
  if (t->way == LOSS_KILL)
    end_after_kill(t);
  if (t->step == LOSS_MAKE)
    progress(20); /* a duplication that was given up ends */
  MPI_Barrier(MPI_COMM_WORLD);
}

static int agree(int failures) {
  MPI_Allreduce(MPI_IN_PLACE, &failures, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  return failures;
}

/* On few cores; those that a killed rank leaves meet again by it, while Open MPI looks after the loss. */
static int64_t deadline_of(const loss_trial *t) {
  return t->way == LOSS_ABORTS ? 0 : t->way == LOSS_KILL ? 4000 : t->n > 8 ? 1000 : 300;
}

static uint32_t steps_of(void) {
  uint32_t steps = 1u << LOSS_MAKE | 1u << LOSS_MEET | 1u << LOSS_SPLIT | 1u << LOSS_TRANSFER | 1u << LOSS_EXECUTE |
                   1u << LOSS_STRIDED | 1u << LOSS_BIND | 1u << LOSS_ABORT | 1u << LOSS_ABORT_STRIDED |
                   1u << LOSS_DESTROY;
  return steps | (per_node > 0 ? 1u << LOSS_COPY : 0) |
         (per_node < world_size ? 1u << LOSS_PACK | 1u << LOSS_UNPACK : 0);
}

int main(int argc, char **argv) {
  int level;
  char where[64], node[16];
  const char *nodes = getenv("LOSSES_PER_NODE"), *over = getenv("OMPI_MCA_btl"), *way = argc > 4 ? argv[4] : NULL;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world_size);
  if (argc < 3 || world_size > LOSS_MOST)
    cli_exit(EXIT_USAGE, "mpi_losses LOSSES SEED [STEP [stop|late|kill|abort]], by mpirun");
  per_node = nodes != NULL ? atoi(nodes) : 0;
  snprintf(node, sizeof node, "%d", per_node > 0 ? world_rank / per_node : 0);
  if (per_node > 0)
    setenv("RESHARD_NODE", node, 1);
  snprintf(where, sizeof where, "mpi, %s%s, %d processes",
           over == NULL                  ? "any"
           : strstr(over, "tcp") != NULL ? "tcp"
                                         : "shared memory",
           per_node == 0           ? ""
           : per_node < world_size ? ", mixed path"
                                   : ", direct path",
           world_size);
  const loss_transport mpi = {.where = where,
                              .steps = steps_of(),
                              .ways = 1u << LOSS_STOP | 1u << LOSS_LATE | 1u << LOSS_KILL | 1u << LOSS_ABORTS,
                              .rows = world_size,
                              .columns = 4 << 20,
                              .patience_ms = 60000,
                              .spare_ms = 20000,
                              .most = per_node > 0 ? 48 : 24,
                              .approximate = true,
                              .unnamed = "not known yet",
                              .deadline = deadline_of,
                              .run = run_ranks,
                              .begin = begin_rank,
                              .end = end_rank,
                              .left = check_left,
                              .wait = wait_some,
                              .is_dead = is_dead,
                              .make = make_comm,
                              .agree = agree,
                              .alloc = alloc,
                              .release = release,
                              .copy = copy};
  open_board();
  loss_run(&mpi, &board->all, world_size, test_scaled(atoll(argv[1]), 1), strtoull(argv[2], NULL, 10),
           argc > 3 && strcmp(argv[3], "all") != 0 ? argv[3] : NULL, way != NULL ? way : "stop,abort", 1);
  if (world_rank == 0)
    loss_report(&mpi, &board->all);
  int failures = agree(board->all.failures);
  MPI_Finalize();
  return failures > 0;
}
