/* A communicator of processes, one a rank: over MPI, started by mpirun, and of one node (CMakeLists.txt). Every rank
 * runs every check in the same order; an error that one of them finds is printed by it and fails all. */
#include "bench/verify/case_binding.h"
#include "bench/verify/case_make.h"
#include "support/contracts/dtensor.h"
#include "support/contracts/ends.h"
#include "support/contracts/fsdp.h"
#include "support/contracts/groups.h"
#include "support/contracts/mesh.h"
#include "support/contracts/sharded.h"
#include "support/contracts/state.h"
#include "support/contracts/steady.h"
#include "support/fixtures/rank_threads.h"
#include "support/processes/check_ranks.h"
#include "support/processes/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int64_t deadline_ms = 1000; /* that ranks run into */

static reshard_comm open_comm(int64_t timeout_ms) {
  reshard_comm comm = NULL;
  reshard_status status = world_connect(timeout_ms, &comm);
  CHECK(status == RESHARD_SUCCESS, "%s", reshard_status_string(status));
  if (comm == NULL && timeout_ms != deadline_ms)
    exit(1);
  return comm;
}

/* --- Random cases against the oracle ---------------------------------------------------------------------------- */

/* Runs the case of a seed; true where it took several rounds, of which all ranks take the same number. */
static bool run_case(reshard_comm comm, uint64_t seed, int64_t bytes) {
  case_choices fixed = {.ranks = size, .path = RESHARD_PATH_PACKED, .bytes = bytes};
  case_plan c;
  rs_text why = {0};
  CHECK(case_make(seed, &fixed, &c, &why), "seed %llu: %s", (unsigned long long)seed, why.at);
  case_binding src, dst;
  case_binding_make(&c, rank, true, 0, &src);
  case_binding_make(&c, rank, false, 0, &dst);
  reshard_entry *entries = case_entries(&c);
  reshard_plan plan = NULL;
  reshard_transfer transfer = NULL;
  reshard_arrays arrays = {RESHARD_ARRAYS_INIT, src.pointer, dst.pointer, src.stride_list,
                           dst.stride_list,     src.n,       dst.n};
  reshard_status status = reshard_plan_create(c.nentries, entries, rank, &c.options, &plan);
  CHECK(status == RESHARD_SUCCESS, "seed %llu", (unsigned long long)seed);
  /* Processes of a node go direct where they may. */
  reshard_transfer_options options = {RESHARD_TRANSFER_OPTIONS_INIT,
                                      .path = seed % 4 == 0 ? RESHARD_PATH_AUTO : RESHARD_PATH_PACKED};
  status = reshard_transfer_create(plan, comm, &arrays, &options, &transfer);
  CHECK(status == RESHARD_SUCCESS, "seed %llu", (unsigned long long)seed);
  reshard_transfer_info info = {.rounds = 0};
  CHECK(transfer == NULL || reshard_transfer_get_info(transfer, &info) == RESHARD_SUCCESS, "%s", reshard_last_error());
  for (int generation = 1; generation < 3 && transfer != NULL; generation++) {
    reshard_comm_stats before, after;
    case_binding_fill(&c, &src, FILL_SOURCE, generation);
    case_binding_fill(&c, &dst, FILL_DESTINATION, generation);
    reshard_comm_get_stats(comm, &before);
    status = generation == 1 ? reshard_execute(transfer, NULL) : reshard_execute_all(1, &transfer, NULL);
    reshard_comm_get_stats(comm, &after);
    CHECK(status == RESHARD_SUCCESS, "seed %llu", (unsigned long long)seed);
    CHECK(case_binding_check(&c, &dst, FILL_DESTINATION, generation, rank, &why), "seed %llu: %s",
          (unsigned long long)seed, why.at);
    CHECK(case_binding_check(&c, &src, FILL_SOURCE, generation, rank, &why), "seed %llu: %s", (unsigned long long)seed,
          why.at);
    CHECK(after.received_bytes - before.received_bytes == c.counts.lacked[rank], "seed %llu: %lld bytes came, not %lld",
          (unsigned long long)seed, (long long)(after.received_bytes - before.received_bytes),
          (long long)c.counts.lacked[rank]);
  }
  reshard_transfer_destroy(transfer);
  reshard_plan_destroy(plan);
  free(entries);
  case_binding_free(&src);
  case_binding_free(&dst);
  case_free(&c);
  free(why.at);
  return info.rounds > 1;
}

/* Limits make rounds. Between processes of a node there is no staging, and long messages make them. */
static void random_cases(int64_t n) {
  reshard_comm comm = open_comm(60000);
  bool by_limit = strcmp(world_name, "mpi") == 0;
  int64_t several = 0, large = size <= 8 && !by_limit ? 4 : 0;
  for (int64_t i = 0; i < n && failures == 0; i++)
    several += run_case(comm, 7000 + (uint64_t)i, 0);
  for (int64_t i = 0; i < large && failures == 0; i++)
    several += run_case(comm, 8000 + (uint64_t)i, 1 << 20);
  if (rank == 0)
    printf("%lld cases, %lld of them in several rounds\n", (long long)(n + large), (long long)several);
  CHECK(size > 8 || several >= (by_limit ? n / 4 : 1), "%lld of %lld cases took several rounds, too few",
        (long long)several, (long long)n);
  CHECK(reshard_comm_barrier(comm) == RESHARD_SUCCESS, "the last barrier");
  reshard_comm_destroy(comm);
}

/* --- Refusals: the same on all ranks ---------------------------------------------------------------------------- */

enum { SMALL = 256 }; /* bytes that the arrays of the transfers below have at least */

static reshard_status make_transfer(reshard_comm comm, const char *dst, reshard_path path, char *to_array,
                                    reshard_plan *plan, reshard_transfer *transfer) {
  int64_t shape[] = {8, 4};
  static char a[SMALL];
  reshard_layout from = NULL, to = NULL;
  reshard_transfer_options options = {RESHARD_TRANSFER_OPTIONS_INIT, .path = path};
  CHECK(reshard_layout_parse("chunk(0)", 2, shape, size, &from) == RESHARD_SUCCESS, "chunk(0)");
  CHECK(reshard_layout_parse(dst, 2, shape, size, &to) == RESHARD_SUCCESS, "%s", dst);
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = from, .dst = to, .dtype = RESHARD_F32};
  CHECK(reshard_plan_create(1, &entry, rank, NULL, plan) == RESHARD_SUCCESS, "plan");
  reshard_arrays arrays = {RESHARD_ARRAYS_INIT, (void *[]){a}, (void *[]){to_array}, NULL, NULL, 0, 0};
  reshard_status status = reshard_transfer_create(*plan, comm, &arrays, &options, transfer);
  reshard_layout_release(from);
  reshard_layout_release(to);
  return status;
}

static reshard_status try_transfer(reshard_comm comm, const char *dst, reshard_path path, bool execute) {
  static char b[SMALL];
  reshard_plan plan = NULL;
  reshard_transfer transfer = NULL;
  reshard_status status = make_transfer(comm, dst, path, b, &plan, &transfer);
  if (status == RESHARD_SUCCESS && execute)
    status = reshard_execute(transfer, NULL);
  reshard_transfer_destroy(transfer);
  reshard_plan_destroy(plan);
  return status;
}

/* One rank executes another transfer, or makes another call: all hear it before a byte moves, and go on. */
static void executes_apart(void) {
  reshard_comm comm = open_comm(60000);
  static char arrays[2][SMALL];
  reshard_plan plan[2] = {NULL};
  reshard_transfer transfer[2] = {NULL};
  char text[96];
  memset(arrays, 1, sizeof arrays);
  for (int i = 0; i < 2; i++)
    CHECK(make_transfer(comm, "chunk(1)", RESHARD_PATH_AUTO, arrays[i], &plan[i], &transfer[i]) == RESHARD_SUCCESS,
          "transfer");
  for (int odd = 0; odd < size; odd++) {
    reshard_status status = reshard_execute(transfer[rank == odd], NULL);
    CHECK(status == RESHARD_ERROR_MISMATCH, "%s", reshard_status_string(status));
    snprintf(text, sizeof text, "ranks 0 and %d execute different transfers", odd > 0 ? odd : 1);
    CHECK(strstr(reshard_last_error(), text) != NULL, "names both: %s", reshard_last_error());
    status = rank == odd ? reshard_comm_barrier(comm) : reshard_execute(transfer[0], NULL);
    CHECK(status == RESHARD_ERROR_MISMATCH, "%s", reshard_status_string(status));
    snprintf(text, sizeof text, "ranks 0 and %d make different collective calls at once", odd > 0 ? odd : 1);
    CHECK(strstr(reshard_last_error(), text) != NULL && strstr(reshard_last_error(), "reshard_execute, call") != NULL &&
              strstr(reshard_last_error(), "reshard_comm_barrier, call") != NULL,
          "names both: %s", reshard_last_error());
  }
  int64_t kept = 8 / size * 4; /* bytes, of one column */
  for (int64_t i = 0; i < 2 * SMALL; i++)
    CHECK(arrays[i / SMALL][i % SMALL] == 1, "byte %lld was written", (long long)i);
  for (int i = 0; i < 2; i++) {
    CHECK(reshard_execute(transfer[i], NULL) == RESHARD_SUCCESS, "it goes on: %s", reshard_last_error());
    CHECK(arrays[i][rank == 0 ? kept : 0] == 0, "what was sent is there");
    reshard_transfer_destroy(transfer[i]);
    reshard_plan_destroy(plan[i]);
  }
  reshard_comm_destroy(comm);
}

static void refusals(void) {
  reshard_comm comm = open_comm(60000);
  CHECK(try_transfer(comm, "chunk(1)", RESHARD_PATH_AUTO, true) == RESHARD_SUCCESS, "rows to columns");
  CHECK(try_transfer(comm, "chunk(1)", RESHARD_PATH_DIRECT, true) == RESHARD_ERROR_UNSUPPORTED, "the direct path");
  CHECK(strstr(reshard_last_error(), world_name) != NULL, "names the communicator");
  reshard_status status = try_transfer(comm, rank == 1 ? "chunk(0)" : "chunk(1)", RESHARD_PATH_AUTO, true);
  CHECK(status == RESHARD_ERROR_MISMATCH, "%s", reshard_status_string(status));
  CHECK(strstr(reshard_last_error(), "'tensor': destination layout chunk(1;0-") != NULL &&
            strstr(reshard_last_error(), ") on rank 0, chunk(0;0-") != NULL &&
            strstr(reshard_last_error(), ") on rank 1") != NULL,
        "names tensor, field and values: %s", reshard_last_error());
  CHECK(try_transfer(comm, "chunk(1)", RESHARD_PATH_AUTO, true) == RESHARD_SUCCESS, "still usable");
  reshard_comm_destroy(comm);

  char text[256];
  comm = NULL;
  status = world_connect(rank == 1 ? -1 : 7000, &comm);
  CHECK(status == RESHARD_ERROR_INVALID && comm == NULL, "one rank's bad option: %s", reshard_status_string(status));
  CHECK(strcmp(reshard_last_error(), world_bad_timeout) == 0, "names rank, call, field and value");
  status = world_connect(7000, rank == 2 ? NULL : &comm);
  CHECK(status == RESHARD_ERROR_INVALID && comm == NULL, "one rank's NULL: %s", reshard_status_string(status));
  snprintf(text, sizeof text, "rank 2: %s: comm is NULL", world_call);
  CHECK(strcmp(reshard_last_error(), text) == 0, "names the rank");
}

/* --- Deadlines and aborts --------------------------------------------------------------------------------------- */

/* The last error is the same on the ranks from `first` on. */
static void check_same_text(int first) {
  char mine[1024], all[1024];
  snprintf(mine, sizeof mine, "%s", reshard_last_error());
  memcpy(all, mine, sizeof all);
  world_broadcast(all, sizeof all, size - 1);
  CHECK(rank < first || strcmp(mine, all) == 0, "rank %d has '%s'", (int)size - 1, all);
}

/* The last error says who was not there by the deadline. */
static void check_missing(const char *who) {
  char text[64];
  snprintf(text, sizeof text, "not done within %lld ms; missing: %s", (long long)deadline_ms, who);
  CHECK(strstr(reshard_last_error(), text) != NULL, "names who is missing");
}

/* A rank that waits gets the same error whether its own deadline has passed or another's. */
static void deadline(void) {
  reshard_comm comm = open_comm(deadline_ms);
  world_barrier();
  if (rank != 0) {
    reshard_status status = reshard_comm_barrier(comm);
    CHECK(status == RESHARD_ERROR_TIMEOUT, "rank 0 is late: %s", reshard_status_string(status));
    check_missing("0");
  }
  check_same_text(1);
  CHECK(reshard_comm_barrier(comm) == RESHARD_ERROR_PEER, "after the deadline");
  CHECK(strstr(reshard_last_error(), "missing: 0") != NULL, "also the late rank is told who was late");
  world_barrier();
  reshard_comm_destroy(comm);
}

/* Some ranks do not create, or do not split, with the others. */
static void deadline_of_creation(void) {
  reshard_comm comm = NULL, sub = NULL;
  world_connect_without(0, NULL);
  if (rank != 0) {
    reshard_status status = world_connect_without(deadline_ms, &comm);
    CHECK(status == RESHARD_ERROR_TIMEOUT && comm == NULL, "no creation: %s", reshard_status_string(status));
  }
  world_barrier();
  comm = open_comm(deadline_ms);
  if (rank != 0) {
    reshard_status status = reshard_comm_split(comm, 0, 0, &sub);
    CHECK(status == RESHARD_ERROR_TIMEOUT && sub == NULL, "no split: %s", reshard_status_string(status));
    CHECK(strstr(reshard_last_error(), "missing: 0") != NULL, "names who is missing");
  }
  world_barrier();
  reshard_comm_destroy(comm);
}

/* --- Shrinks ----------------------------------------------------------------------------------------------------- */

/* All of sub move something between them; it ends so. */
static void use_rest(reshard_comm sub, int64_t n) {
  reshard_comm half = NULL;
  CHECK(reshard_comm_size(sub) == n, "%lld ranks", (long long)reshard_comm_size(sub));
  CHECK(reshard_comm_barrier(sub) == RESHARD_SUCCESS, "barrier of those that are there");
  CHECK(reshard_comm_split(sub, reshard_comm_rank(sub) % 2, 0, &half) == RESHARD_SUCCESS, "odd and even of them");
  CHECK(reshard_comm_barrier(half) == RESHARD_SUCCESS, "barrier of the half");
  int64_t me = reshard_comm_rank(half), old = me >= 0 ? reshard_comm_global_ranks(half)[me] : -1;
  CHECK(old == rank, "old rank %lld", (long long)old);
  reshard_comm_destroy(half);
}

/* The last rank does not come, then the one before it neither, then rank 0. */
static void shrinks(void) {
  reshard_comm comm = open_comm(deadline_ms), sub = NULL, next = NULL;
  int64_t missing[16], n = 0;
  world_barrier();
  if (rank != size - 1) {
    CHECK(reshard_comm_shrink(comm, 0, NULL, &sub) == RESHARD_ERROR_INVALID && sub == NULL, "nobody is missing");
    CHECK(reshard_comm_barrier(comm) == RESHARD_ERROR_TIMEOUT, "the last is not there");
    CHECK(reshard_comm_missing(comm, missing, &n) == RESHARD_SUCCESS && n == 1 && missing[0] == size - 1, "it is");
    CHECK(reshard_comm_shrink(comm, 0, NULL, &sub) == RESHARD_SUCCESS, "without the last");
    use_rest(sub, size - 1);
    CHECK(reshard_comm_barrier(comm) == RESHARD_ERROR_PEER, "the old one");
  }
  world_barrier();
  CHECK(reshard_comm_barrier(comm) == RESHARD_ERROR_PEER, "also where the last is");
  if (rank < size - 2) { /* of sub, of which nothing is wrong */
    if (rank == size - 3)
      test_sleep_ms(2 * deadline_ms + 200); /* it comes too late */
    reshard_status status = reshard_comm_shrink(sub, 1, (int64_t[]){size - 2}, &next);
    CHECK(rank == size - 3 || status == RESHARD_ERROR_TIMEOUT, "one more is late: %s", reshard_status_string(status));
    char text[32];
    snprintf(text, sizeof text, "missing: %d", (int)size - 3);
    CHECK(status != RESHARD_ERROR_TIMEOUT || strstr(reshard_last_error(), text) != NULL || rank == size - 3, "%s",
          text);
    if (rank < size - 3) {
      int64_t lost[] = {size - 3, size - 2};
      CHECK(reshard_comm_shrink(sub, 2, lost, &next) == RESHARD_SUCCESS, "without that one too");
      use_rest(next, size - 3);
    }
  }
  reshard_comm_destroy(next);
  reshard_comm_destroy(sub);
  reshard_comm_destroy(comm);
  world_barrier();
}

/* Ranks that shrink with lists that differ hear so, with a deadline and without one; then they agree. */
static void shrink_apart(int64_t timeout_ms) {
  reshard_comm comm = open_comm(timeout_ms), sub = NULL;
  int64_t few[] = {rank % 2 == 0, (int64_t)size - 1}, both[] = {0, 1, (int64_t)size - 1};
  world_barrier(); /* all have made it: one that shrinks ends it */
  bool there = rank > 1 && rank < size - 1;
  if (there) {
    reshard_status status = reshard_comm_shrink(comm, 2, few, &sub);
    CHECK(status == RESHARD_ERROR_MISMATCH && sub == NULL, "lists that differ: %s", reshard_status_string(status));
    CHECK(strstr(reshard_last_error(), "lost ranks 1,5 on rank 2, 0,5 on rank 3") != NULL, "names them");
  }
  world_barrier();
  if (there) {
    CHECK(reshard_comm_shrink(comm, 3, both, &sub) == RESHARD_SUCCESS, "lists that agree");
    CHECK(reshard_comm_barrier(sub) == RESHARD_SUCCESS, "barrier of those that are there");
  }
  world_barrier();
  reshard_comm_destroy(sub);
  reshard_comm_destroy(comm);
}

/* Years do not overflow to nothing. */
static void deadline_of_years(void) {
  int64_t years[] = {9300000000000, INT64_MAX};
  for (int i = 0; i < 2; i++) {
    reshard_comm comm = open_comm(years[i]);
    if (rank == 0)
      test_sleep_ms(20);
    CHECK(reshard_comm_barrier(comm) == RESHARD_SUCCESS, "%lld ms", (long long)years[i]);
    CHECK(try_transfer(comm, "chunk(1)", RESHARD_PATH_AUTO, true) == RESHARD_SUCCESS, "rows to columns");
    reshard_comm_destroy(comm);
  }
}

/* A rank makes the transfer with the others, and does not execute it. */
static void deadline_of_messages(void) {
  reshard_comm comm = open_comm(deadline_ms);
  char all[32]; /* to every rank comes something of rank 0's */
  snprintf(all, sizeof all, "mesh(%d;R)", (int)size);
  reshard_status status = try_transfer(comm, all, RESHARD_PATH_AUTO, rank != 0);
  if (rank != 0) {
    CHECK(status == RESHARD_ERROR_TIMEOUT, "rank 0 does not execute: %s", reshard_status_string(status));
    check_missing("0");
  } else {
    CHECK(status == RESHARD_SUCCESS, "made: %s", reshard_status_string(status));
  }
  check_same_text(1);
  world_barrier();
  reshard_comm_destroy(comm);
}

/* --- Meshes, DTensors, sharded tensors -------------------------------------------------------------------------- */

static void contracts(int64_t n, const char *directory) {
  contract_rank s = {.comm = open_comm(60000)};
  int64_t seen = 0;
  CHECK(reshard_sharder_create(s.comm, NULL, &s.sharder) == RESHARD_SUCCESS, "a sharder");
  for (int64_t i = 0; i < n; i++) {
    seen += contract_check_meshes(&s, 100 + (uint64_t)i);
    contract_check_dtensor(&s, 200 + (uint64_t)i);
    contract_check_sharded(&s, 300 + (uint64_t)i);
    contract_check_state(&s, 400 + (uint64_t)i, directory);
  }
  CHECK(seen > n, "%lld sub-communicators in %lld meshes", (long long)seen, (long long)n);
  contract_check_refusals(&s);
  contract_check_steady(&s);
  contract_check_ends(&s);
  contract_check_poll(&s, true);
  contract_check_losses(&s, true);
  contract_check_fsdp(&s, 1);
  contract_check_groups(&s, directory);
  CHECK(s.wrong == 0, "%lld things are not so", (long long)s.wrong);
  reshard_sharder_destroy(s.sharder);
  reshard_comm_destroy(s.comm);
}

/* --- Above what MPI counts -------------------------------------------------------------------------------------- */

static void one_large_message(void) { /* above INT_MAX bytes: 2 ranks, 9 GB of memory */
  int64_t rows = 2, columns = (int64_t)INT32_MAX / 8 * 9 + 12345, shape[] = {rows, columns};
  reshard_comm comm = open_comm(600000);
  reshard_layout from = NULL, to = NULL;
  reshard_plan plan = NULL;
  reshard_transfer transfer = NULL;
  CHECK(reshard_layout_parse("chunk(0;0-1)", 2, shape, size, &from) == RESHARD_SUCCESS, "from");
  CHECK(reshard_layout_parse("chunk(0;1,0)", 2, shape, size, &to) == RESHARD_SUCCESS, "to");
  char *a = cli_alloc(columns, 1), *b = cli_alloc(columns, 1);
  for (int64_t i = 0; i < columns; i++)
    a[i] = (char)((uint64_t)(i + rank) * 0x9e3779b97f4a7c15u >> 56);
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = from, .dst = to, .dtype = RESHARD_U8};
  CHECK(reshard_plan_create(1, &entry, rank, NULL, &plan) == RESHARD_SUCCESS, "plan");
  reshard_arrays arrays = {RESHARD_ARRAYS_INIT, (void *[]){a}, (void *[]){b}, NULL, NULL, 0, 0};
  CHECK(reshard_transfer_create(plan, comm, &arrays, NULL, &transfer) == RESHARD_SUCCESS, "transfer");
  CHECK(reshard_execute(transfer, NULL) == RESHARD_SUCCESS, "execute");
  int64_t wrong = 0;
  for (int64_t i = 0; i < columns; i++)
    wrong += b[i] != (char)((uint64_t)(i + 1 - rank) * 0x9e3779b97f4a7c15u >> 56);
  CHECK(wrong == 0, "%lld of %lld bytes are wrong", (long long)wrong, (long long)columns);
  reshard_transfer_destroy(transfer);
  reshard_plan_destroy(plan);
  reshard_layout_release(from);
  reshard_layout_release(to);
  reshard_comm_destroy(comm);
  free(a);
  free(b);
}

static int64_t failures_of_all(void) {
  int64_t sum = 0;
  for (int r = 0; r < size; r++) {
    int theirs = failures;
    world_broadcast(&theirs, sizeof theirs, r);
    sum += theirs;
  }
  return sum;
}

/* Runs a part; once more with a long deadline where it failed, as a busy machine misses a short one. */
static void run_timed(void (*part)(void)) {
  part();
  if (failures_of_all() == 0)
    return;
  if (rank == 0)
    printf("once more with a long deadline\n");
  failures = 0;
  deadline_ms = 15000;
  part();
}

static void all_deadlines(void) {
  deadline();
  deadline_of_creation();
  deadline_of_years();
  deadline_of_messages();
}

static void all_shrinks(void) {
  shrinks();
  shrink_apart(deadline_ms);
  shrink_apart(0);
}

int main(int argc, char **argv) {
  world_open(&argc, &argv, &rank, &size);
  const char *what = argc > 1 ? argv[1] : "";
  if (strcmp(what, "random") == 0)
    random_cases(argc > 2 ? atoll(argv[2]) : 100);
  else if (strcmp(what, "refusals") == 0)
    refusals(), executes_apart();
  else if (strcmp(what, "contracts") == 0)
    contracts(argc > 2 ? atoll(argv[2]) : 10, argc > 3 ? argv[3] : "contracts.state");
  else if (strcmp(what, "deadline") == 0)
    run_timed(all_deadlines);
  else if (strcmp(what, "shrinks") == 0)
    run_timed(all_shrinks);
  else if (strcmp(what, "large") == 0)
    one_large_message();
  else
    CHECK(false, "usage: ranks random [N] | refusals | contracts [N [DIRECTORY]] | deadline | shrinks | large");
  int64_t all = world_close(failures);
  if (rank == 0)
    printf("%s, %d ranks: %lld checks failed\n", what, size, (long long)all);
  return all > 0;
}
