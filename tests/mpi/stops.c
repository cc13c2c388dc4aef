/* A rank is stopped inside a call, at one of the calls of MPI that it makes there; the others give up, and it goes on
 * then. Or there is no deadline, and another thread of it aborts. From the error on nothing is written to memory of
 * those that gave up, or read from it: they give the destination other bytes and take the source away, and look again
 * when the stopped rank has come through.
 *
 * usage: mpi_stops STEP LOSSES [SEED [kill|late]], by mpirun with 2 or more ranks. STEP: one of the table below, or
 * all. LOSSES: of each step, which RESHARD_TEST_SCALE scales. kill: the rank is killed instead, which ends the program.
 * late: it sleeps, and comes back by itself. STOPS_PER_NODE: so many ranks are on a node, and read each other's
 * sources: the mixed path, or the direct one where all are on one. 0 or unset: there are messages alone. */
#include "device/handle.h"
#include "support/fixtures/scale.h"
#include "support/fixtures/stop_counts.h"
#include "support/processes/check_ranks.h"

#include <reshard/reshard.h>

#include <dirent.h>
#include <mpi.h>
#include <pthread.h>
#include <reshard/mpi.h>
#include <reshard/tensor.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { COLUMNS = 4 << 20, BYTES = COLUMNS + 64, POISON = 0xa5, SPARE_MS = 20000 };

/* Of all ranks: a file that they map. */
typedef struct board {
  atomic_int left; /* ranks that are still in the step */
  atomic_int stopped;
} board;

typedef struct trial {
  MPI_Comm mpi; /* one a trial: MPI takes a duplication that was given up for the next one of the same */
  reshard_comm comm, sub;
  reshard_plan plan;
  reshard_transfer transfer;
  reshard_device device; /* with shared storage where ranks read each other's */
  reshard_tensor source; /* of the device */
  char *src, *dst;
  bool strided, aborts;
} trial;

static int countdown, work_countdown, destroy_countdown, skipped;
static int work_passed, work_found; /* pieces of work so far; of a step in which nobody is lost */
static int per_node;                /* 0: no rank reads memory of another */
static bool kills, sleeps;
static int deadline_ms = 300;
static pid_t *pids;
static board *shared;

/* --- Stops ------------------------------------------------------------------------------------------------------- */

static void pass(int *left) {
  if (*left <= 0 || --*left > 0)
    return;
  shared->stopped++;
  if (sleeps)
    nanosleep(&(struct timespec){2 * deadline_ms / 1000, 2 * deadline_ms % 1000 * 1000000}, NULL);
  else
    raise(kills ? SIGKILL : SIGSTOP);
}

static void step_pass(void) { pass(&countdown); }

static void pass_work(void) {
  work_passed++;
  pass(&work_countdown);
}

/* These stand before MPI's. */
int MPI_Test(MPI_Request *request, int *flag, MPI_Status *status) {
  step_pass();
  return PMPI_Test(request, flag, status);
}

int MPI_Testsome(int n, MPI_Request requests[], int *ngot, int got[], MPI_Status statuses[]) {
  step_pass();
  return PMPI_Testsome(n, requests, ngot, got, statuses);
}

int MPI_Isend(const void *at, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request) {
  step_pass();
  return PMPI_Isend(at, n, type, to, tag, comm, request);
}

int MPI_Irecv(void *at, int n, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request *request) {
  step_pass();
  return PMPI_Irecv(at, n, type, from, tag, comm, request);
}

int MPI_Iprobe(int from, int tag, MPI_Comm comm, int *flag, MPI_Status *status) {
  step_pass();
  return PMPI_Iprobe(from, tag, comm, flag, status);
}

int MPI_Comm_idup(MPI_Comm comm, MPI_Comm *made, MPI_Request *request) {
  step_pass();
  return PMPI_Comm_idup(comm, made, request);
}

static const rs_device_work *real_work;
static rs_device_work counted_work;

static reshard_status counted_run(rs_device *device, int64_t n, rs_program *const *programs, void *stream) {
  pass_work();
  return real_work->run(device, n, programs, stream);
}

static reshard_status counted_compile(rs_device *device, const rs_copies *copies, int64_t bytes, rs_program **program) {
  pass_work();
  return real_work->compile(device, copies, bytes, program);
}

static int64_t now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void open_board(void) {
  char name[] = "stops.XXXXXX";
  int fd = rank == 0 ? mkstemp(name) : -1;
  MPI_Bcast(name, sizeof name, MPI_CHAR, 0, MPI_COMM_WORLD);
  if (rank == 0 && ftruncate(fd, sizeof *shared) != 0)
    MPI_Abort(MPI_COMM_WORLD, 1);
  MPI_Barrier(MPI_COMM_WORLD);
  FILE *file = fopen(name, "r+");
  void *at =
      file != NULL ? mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0) : MAP_FAILED;
  if (at == MAP_FAILED)
    MPI_Abort(MPI_COMM_WORLD, 1);
  shared = at;
  fclose(file);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) {
    close(fd);
    unlink(name);
  }
  pids = calloc((size_t)size, sizeof *pids);
  int mine = (int)getpid();
  MPI_Allgather(&mine, 1, MPI_INT, pids, 1, MPI_INT, MPI_COMM_WORLD);
}

/* --- Steps ------------------------------------------------------------------------------------------------------- */

static char element_value(int from, int64_t i) {
  return (char)((uint64_t)(i * size + from + 1) * 0x9e3779b97f4a7c15u >> 56);
}

static void open_memory(trial *t) {
  const reshard_device_options options = {.size = RESHARD_DEVICE_OPTIONS_INIT, .threads = 1, .shared = per_node > 0};
  reshard_tensor_info info = {.data = NULL};
  t->dst = malloc(BYTES);
  CHECK(reshard_device_create("cpu", &options, &t->device) == RESHARD_SUCCESS, "device");
  real_work = t->device->device->work;
  counted_work = *real_work;
  counted_work.run = counted_run;
  counted_work.compile = counted_compile;
  t->device->device->work = &counted_work;
  if (per_node == 0) {
    t->src = mmap(NULL, COLUMNS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  } else {
    CHECK(reshard_tensor_create_on(t->device, RESHARD_U8, 1, (int64_t[]){COLUMNS}, NULL, &t->source) == RESHARD_SUCCESS,
          "source");
    CHECK(reshard_tensor_get_info(t->source, &info) == RESHARD_SUCCESS, "source");
    t->src = info.data;
  }
  for (int64_t i = 0; i < COLUMNS; i++)
    t->src[i] = element_value(rank, i);
  memset(t->dst, 0, BYTES);
}

/* Others may still have the source mapped: they would read other bytes. */
static void take_source(trial *t) {
  if (t->source != NULL)
    memset(t->src, POISON, COLUMNS);
  else if (t->src != NULL)
    munmap(t->src, COLUMNS);
  reshard_tensor_release(t->source);
  t->source = NULL;
  t->src = NULL;
}

static reshard_status make_comm(trial *t) {
  return reshard_comm_from_mpi(&t->mpi, t->device, t->aborts ? 0 : deadline_ms, &t->comm);
}

static reshard_status split_comm(trial *t) { return reshard_comm_split(t->comm, rank % 2, 0, &t->sub); }
static reshard_status trial_meet(trial *t) { return reshard_comm_barrier(t->comm); }

static reshard_status make_transfer(trial *t) {
  int64_t shape[] = {size, COLUMNS};
  char ring[256] = "chunk(0;1";
  for (int r = 2; r <= size; r++)
    snprintf(ring + strlen(ring), sizeof ring - strlen(ring), ",%d", r % size);
  snprintf(ring + strlen(ring), sizeof ring - strlen(ring), ")");
  reshard_layout from = NULL, to = NULL;
  CHECK(reshard_layout_parse("chunk(0)", 2, shape, size, &from) == RESHARD_SUCCESS, "from");
  CHECK(reshard_layout_parse(t->strided ? "chunk(1)" : ring, 2, shape, size, &to) == RESHARD_SUCCESS, "to");
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = from, .dst = to, .dtype = RESHARD_U8};
  CHECK(reshard_plan_create(1, &entry, rank, NULL, &t->plan) == RESHARD_SUCCESS, "plan");
  reshard_layout_release(from);
  reshard_layout_release(to);
  reshard_arrays arrays = {RESHARD_ARRAYS_INIT, (void *[]){t->src}, (void *[]){t->dst}, NULL, NULL, 0, 0};
  return reshard_transfer_create(t->plan, t->comm, &arrays, NULL, &t->transfer);
}

static reshard_status trial_execute(trial *t) { return reshard_execute(t->transfer, NULL); }

/* Destroying a transfer is no call of MPI: the others notice when they meet. */
static reshard_status destroy_transfer(trial *t) {
  reshard_status status = reshard_execute(t->transfer, NULL);
  if (status != RESHARD_SUCCESS)
    return status;
  pass(&destroy_countdown);
  reshard_transfer_destroy(t->transfer);
  t->transfer = NULL;
  pass(&destroy_countdown);
  return reshard_comm_barrier(t->comm);
}

/* Where a rank is lost: at a call of MPI, or at a piece of work. COPY: where ranks read each other's memory. PACK and
 * UNPACK: that of a message. DESTROY: before it or after it. */
typedef enum place { AT_CALL, AT_WORK, AT_COPY, AT_PACK, AT_UNPACK, AT_DESTROY } place;

static const struct step {
  const char *name;
  reshard_status (*run)(trial *t);
  int calls;  /* about: it is lost at one of these. 0: at a piece of work, which a rehearsal counts */
  int before; /* steps: a communicator, a transfer */
  bool strided, aborts;
  place place;
} steps[] = {{"make", make_comm, 24, 0, false, false, AT_CALL},
             {"meet", trial_meet, 6, 1, false, false, AT_CALL},
             {"split", split_comm, 24, 1, false, false, AT_CALL},
             {"transfer", make_transfer, 24, 1, false, false, AT_CALL},
             {"execute", trial_execute, 16, 2, false, false, AT_CALL},
             {"strided", trial_execute, 16, 2, true, false, AT_CALL},
             {"bind", make_transfer, 0, 1, true, false, AT_WORK},
             {"copy", trial_execute, 0, 2, true, false, AT_COPY},
             {"abort", trial_execute, 4000, 2, false, true, AT_CALL},
             {"abort strided", trial_execute, 4000, 2, true, true, AT_CALL},
             {"pack", trial_execute, 0, 2, true, false, AT_PACK},
             {"unpack", trial_execute, 0, 2, true, false, AT_UNPACK},
             {"destroy", destroy_transfer, 2, 2, true, false, AT_DESTROY}};
enum { STEPS = sizeof steps / sizeof *steps };

/* Ranks that messages go to, and come from; 0: all read each other's memory. */
static int count_remote(void) { return per_node == 0 ? size - 1 : per_node < size ? size - per_node : 0; }

static bool has_place(const struct step *step) {
  return step->place == AT_COPY                               ? per_node > 0
         : step->place == AT_PACK || step->place == AT_UNPACK ? count_remote() > 0
                                                              : true;
}

/* Ranks that read each other's memory meet and show more. */
static int draw_call(const struct step *step, uint64_t seed) {
  return 1 + (int)(seed % (uint64_t)(per_node > 0 ? 2 * step->calls : step->calls));
}

/* The victim's part: it is to be lost at a place that the seed draws. */
static void set_countdown(const struct step *step, uint64_t seed) {
  int remote = count_remote();
  if (step->place == AT_CALL)
    countdown = draw_call(step, seed);
  else if (step->place == AT_DESTROY)
    destroy_countdown = 1 + (int)(seed % (uint64_t)step->calls);
  else if (step->place == AT_PACK) /* of one round: all packs come first */
    work_countdown = 1 + (int)(seed % (uint64_t)remote);
  else if (step->place == AT_UNPACK) /* then the node's sources are read */
    work_countdown = 1 + remote + (per_node > 0) + (int)(seed % (uint64_t)remote);
  else
    work_countdown = 1 + (int)(seed % (uint64_t)work_found);
}

/* --- Trials ------------------------------------------------------------------------------------------------------ */

static int64_t count_wrong(const trial *t) {
  int64_t wrong = 0, width = (COLUMNS + size - 1) / size, first = rank * width;
  if (!t->strided) {
    for (int64_t i = 0; i < COLUMNS; i++)
      wrong += t->dst[i] != element_value((rank + size - 1) % size, i);
    return wrong;
  }
  width = width < COLUMNS - first ? width : COLUMNS - first; /* this rank's columns of every row */
  for (int64_t i = 0; i < size * width; i++)
    wrong += t->dst[i] != element_value((int)(i / width), first + i % width);
  return wrong;
}

static void progress(int64_t ms) {
  int there;
  for (int64_t since = now_ms(); now_ms() - since < ms; nanosleep(&(struct timespec){0, 200000}, NULL))
    PMPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE);
}

/* Lets the stopped one go on until all have come through the step. */
static void victim_release(int victim) {
  int64_t since = now_ms();
  while (shared->left > 0) {
    if (victim >= 0)
      kill(pids[victim], SIGCONT);
    progress(1);
    if (now_ms() - since > 3 * SPARE_MS) {
      printf("rank %d: a rank does not return\n", rank);
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
  }
}

/* Those that are there go on. Another rank may be gone by now, ended by Open MPI: it is lost too. */
static void shrink(trial *t, int64_t victim) {
  reshard_comm rest = NULL;
  int64_t lost[64], n = 0;
  reshard_status status = reshard_comm_shrink(t->comm, 1, &victim, &rest);
  for (int r = 0; r < size && n < 64; r++)
    if (r == victim || kill(pids[r], 0) != 0)
      lost[n++] = r;
  if (status == RESHARD_ERROR_TIMEOUT && n > 1)
    status = reshard_comm_shrink(t->comm, n, lost, &rest);
  CHECK(status == RESHARD_SUCCESS, "without rank %lld: %s", (long long)victim, reshard_status_string(status));
  CHECK(reshard_comm_barrier(rest) == RESHARD_SUCCESS, "barrier without rank %lld", (long long)victim);
  reshard_comm_destroy(rest);
}

static int64_t longest;
static int abort_us;
static stop_counts counts[STEPS]; /* of this rank */

/* MPI does not tell who is missing while it makes the duplicate. */
static bool is_named(const char *text) { return stop_is_named(text) || strstr(text, "not known yet") != NULL; }

/* The error of one that is not the victim. */
static void count_error(stop_counts *c, const struct step *step, int64_t took) {
  c->errors++;
  c->late += !step->aborts && took > deadline_ms + 1000;
  c->unnamed += !is_named(reshard_last_error());
  CHECK(is_named(reshard_last_error()), "names the rank and the call");
}

/* A rank that was killed is missing from the communicator, or one that Open MPI has ended for it. On a busy machine
 * others may be, too. */
static void check_missing(reshard_comm comm, int victim) {
  int64_t missing[64], n = 0;
  bool there = strstr(reshard_last_error(), "has shrunk") != NULL;
  CHECK(reshard_comm_missing(comm, missing, &n) == RESHARD_SUCCESS, "missing");
  for (int64_t since = now_ms(); !there && now_ms() - since < SPARE_MS; progress(1)) /* a process ends, and is reaped */
    for (int64_t i = 0; i < n; i++)
      there |= missing[i] == victim || kill(pids[missing[i]], 0) != 0;
  CHECK(there, "rank %d is not among the %lld that are missing, and all of these are there", victim, (long long)n);
}

static void *abort_soon(void *comm) {
  nanosleep(&(struct timespec){0, abort_us * 1000}, NULL);
  shared->stopped++;
  reshard_comm_abort(comm);
  return NULL;
}

/* Segments of other processes' memory files that are mapped here; own: the inode of this one's. */
static int count_segments(uint64_t own) {
  char line[512], path[64];
  unsigned long long inode;
  int n = 0;
  FILE *maps = fopen("/proc/self/maps", "r");
  while (maps != NULL && fgets(line, sizeof line, maps) != NULL)
    if (sscanf(line, "%*s %*s %*s %*s %llu %63s", &inode, path) == 2 && strstr(path, "memfd:reshard") != NULL)
      n += inode != own;
  if (maps != NULL)
    fclose(maps);
  return n;
}

/* Descriptors of the same files. */
static int count_files(uint64_t own) {
  char path[512];
  struct stat info;
  int n = 0;
  DIR *list = opendir("/proc/self/fd");
  for (struct dirent *entry; list != NULL && (entry = readdir(list)) != NULL;) {
    ssize_t length = readlinkat(dirfd(list), entry->d_name, path, sizeof path - 1);
    path[length > 0 ? length : 0] = '\0';
    if (strstr(path, "memfd:reshard") != NULL && fstat(atoi(entry->d_name), &info) == 0)
      n += info.st_ino != own;
  }
  if (list != NULL)
    closedir(list);
  return n;
}

/* Inode of this process's own memory file, where it has one. */
static uint64_t find_own_file(const void *inside) {
  char line[512];
  unsigned long long begin, end, inode, own = 0;
  FILE *maps = fopen("/proc/self/maps", "r");
  while (maps != NULL && fgets(line, sizeof line, maps) != NULL)
    if (sscanf(line, "%llx-%llx %*s %*s %*s %llu", &begin, &end, &inode) == 3 && begin <= (uintptr_t)inside &&
        (uintptr_t)inside < end)
      own = inode;
  if (maps != NULL)
    fclose(maps);
  return own;
}

/* Returns whether this rank got an error. rehearses: nobody is lost. */
static bool stop_in(const struct step *step, uint64_t seed, bool rehearses) {
  trial t = {.strided = step->strided, .aborts = step->aborts};
  int victim = rehearses ? -1 : (int)((seed >> 8) % (uint64_t)size);
  open_memory(&t);
  uint64_t own = find_own_file(t.src);
  reshard_status status = RESHARD_SUCCESS;
  MPI_Comm_dup(MPI_COMM_WORLD, &t.mpi);
  if (step->before > 0)
    status = make_comm(&t);
  if (step->before > 1 && status == RESHARD_SUCCESS)
    status = make_transfer(&t);
  skipped += status != RESHARD_SUCCESS;
  int stopped = shared->stopped, ready = status == RESHARD_SUCCESS,
      all = 0; /* a busy machine: there is nothing to see */
  shared->left = size;
  MPI_Allreduce(&ready, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  bool failed = false;
  pthread_t thread;
  if (all) {
    int64_t since = now_ms();
    if (rank == victim && step->aborts) {
      abort_us = draw_call(step, seed >> 16);
      pthread_create(&thread, NULL, abort_soon, t.comm);
    } else if (rank == victim) {
      set_countdown(step, seed >> 16);
    }
    stop_counts *count = &counts[step - steps];
    work_passed = 0;
    status = step->run(&t);
    work_found = rehearses ? work_passed : work_found;
    countdown = work_countdown = destroy_countdown = 0;
    failed = status != RESHARD_SUCCESS;
    if (failed && rank != victim && !rehearses)
      count_error(count, step, now_ms() - since);
    if (failed && kills && t.comm != NULL && !rehearses)
      check_missing(t.comm, victim);
    if (failed) {
      memset(t.dst, POISON, BYTES);
      take_source(&t);
      if (rank != victim && now_ms() - since > longest)
        longest = now_ms() - since;
    }
    CHECK(!failed || status == RESHARD_ERROR_TIMEOUT || status == RESHARD_ERROR_PEER, "%s, seed %llu: %s", step->name,
          (unsigned long long)seed, reshard_status_string(status));
    shared->left--;
    while (kills && shared->left > 0 && shared->stopped == stopped) /* the rank is lost, or not */
      progress(1);
    if (!kills)
      victim_release(step->aborts ? -1 : victim);
    if (rank == victim && step->aborts)
      pthread_join(thread, NULL);
    if (!kills)
      MPI_Barrier(MPI_COMM_WORLD);
    if (kills && shared->stopped > 0) {
      if (t.comm != NULL)
        shrink(&t, victim);
      progress(300);
    } else if (failed && step->before == 0) /* the duplication ends */
      progress(20);
    count->stops += (kills || rank == (victim + 1) % size) && shared->stopped > stopped; /* by one that lives */
    CHECK(step->calls > 0 || rehearses || failed || shared->stopped > stopped, "%s, seed %llu: nobody was lost",
          step->name, (unsigned long long)seed);
    int64_t wrong = 0;
    if (failed)
      for (int64_t i = 0; i < BYTES; i++)
        wrong += (unsigned char)t.dst[i] != POISON;
    else if (step->run == trial_execute || step->run == destroy_transfer)
      wrong = count_wrong(&t);
    count->wrong += wrong;
    CHECK(wrong == 0, "%s, seed %llu: after %s %lld bytes of the destination are wrong", step->name,
          (unsigned long long)seed, reshard_status_string(status), (long long)wrong);
  }
  reshard_transfer_destroy(t.transfer);
  reshard_plan_destroy(t.plan);
  reshard_comm_destroy(t.sub);
  reshard_comm_destroy(t.comm);
  take_source(&t);
  reshard_device_release(t.device);
  free(t.dst);
  /* Staging of messages that never come stays, in this process's own file. */
  CHECK(count_segments(own) + count_files(own) == 0, "%d segments and %d memory files of others are left",
        count_segments(own), count_files(own));
  return failed;
}

/* Counts the work of a step, by which all come through it: again where the machine is too busy for that. */
static bool rehearse(const struct step *step) {
  int good = 0;
  for (int i = 0; i < 20 && !good; i++) {
    work_found = 0;
    good = !stop_in(step, 0, true) && work_found > 0;
    MPI_Allreduce(MPI_IN_PLACE, &good, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  }
  CHECK(good, "%s: %d pieces of work", step->name, work_found);
  return good;
}

/* A line of each step that was run. kills: of this rank alone. */
static void print_counts(void) {
  char where[64];
  const char *over = getenv("OMPI_MCA_btl");
  snprintf(where, sizeof where, "mpi, %s%s, %d processes",
           over == NULL                  ? "any"
           : strstr(over, "tcp") != NULL ? "tcp"
                                         : "shared memory",
           per_node == 0     ? ""
           : per_node < size ? ", mixed path"
                             : ", direct path",
           size);
  for (int s = 0; s < STEPS; s++) {
    int64_t sum[] = {counts[s].stops, counts[s].errors, counts[s].wrong, counts[s].late, counts[s].unnamed};
    if (!kills)
      MPI_Allreduce(MPI_IN_PLACE, sum, 5, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    const stop_counts all = {sum[0], sum[1], sum[2], sum[3], sum[4]};
    if (rank == 0 || kills)
      stop_counts_print(where,
                        kills             ? "kill"
                        : steps[s].aborts ? "abort"
                        : sleeps          ? "late"
                                          : "stop",
                        steps[s].name, &all);
  }
}

int main(int argc, char **argv) {
  int level, all[2], errors = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const char *name = argc > 1 ? argv[1] : "all";
  int64_t losses = test_scaled(argc > 2 ? atoll(argv[2]) : 10, 1);
  uint64_t seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
  kills = argc > 4 && strcmp(argv[4], "kill") == 0;
  sleeps = argc > 4 && strcmp(argv[4], "late") == 0;
  const char *nodes = getenv("STOPS_PER_NODE");
  per_node = nodes != NULL ? atoi(nodes) : 0;
  if (per_node > 0) {
    char node[16];
    snprintf(node, sizeof node, "%d", rank / per_node);
    setenv("RESHARD_NODE", node, 1);
  }
  if (size > 8) /* on few cores */
    deadline_ms = 1000;
  if (kills) /* those that are left meet again by it, while Open MPI looks after the loss and the machine is busy */
    deadline_ms = 4000;
  open_board();
  for (int s = 0; s < STEPS; s++) {
    if ((strcmp(name, "all") != 0 && strcmp(name, steps[s].name) != 0) || !has_place(&steps[s]))
      continue;
    if (steps[s].calls == 0 && !rehearse(&steps[s]))
      continue;
    int64_t most = shared->stopped + losses; /* a step may be over before the call that is drawn */
    for (int64_t i = 0; i < 8 * losses && shared->stopped < most; i++)
      errors += stop_in(&steps[s], (seed + (uint64_t)i + 1000 * (uint64_t)s) * 0x9e3779b97f4a7c15u >> 8, false);
  }
  if (shared->stopped > 0 && kills) { /* MPI would wait for that rank */
    print_counts();
    printf("%s: a rank was killed, %lld ms at most, deadline %d ms: %d checks failed\n", name, (long long)longest,
           deadline_ms, failures);
    fflush(stdout);
    _exit(failures > 0);
  }
  MPI_Allreduce((int[]){failures, errors}, all, 2, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, &longest, 1, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD);
  print_counts();
  if (rank == 0)
    printf("%s: %d stops, %d errors, %d skipped, %lld ms at most, deadline %d ms: %d checks failed\n", name,
           (int)shared->stopped, all[1], skipped, (long long)longest, deadline_ms, all[0]);
  MPI_Finalize();
  return all[0] > 0;
}
