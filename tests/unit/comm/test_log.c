/* The log of communicators: RESHARD_LOG=info and trace, and the names of RESHARD_LOG_FILE. */
#include "support/fixtures/case.h"
#include "support/fixtures/temporary.h"
#include "support/processes/processes.h"
#include "support/reshards/rows_to_columns.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { RANKS = 3, DEADLINE = 60000 };

static char path[TEMPORARY_PATH + 80], text[1 << 18];
static char prefix[160]; /* of this process's lines, without the rank */

static void set_log(const char *level, const char *name) {
  char pattern[TEMPORARY_PATH + 80];
  snprintf(pattern, sizeof pattern, "%s/%s", temporary(), name);
  setenv("RESHARD_LOG_FILE", pattern, 1);
  setenv("RESHARD_LOG", level, 1);
}

/* Reads the file of this name and removes it; false where there is none. */
static bool take_log(const char *name) {
  snprintf(path, sizeof path, "%s/%s", temporary(), name);
  FILE *file = fopen(path, "r");
  if (file == NULL)
    return false;
  text[fread(text, 1, sizeof text - 1, file)] = '\0';
  fclose(file);
  unlink(path);
  return true;
}

static int count_parts(const char *part) {
  int n = 0;
  for (const char *at = strstr(text, part); at != NULL; at = strstr(at + 1, part))
    n++;
  return n;
}

/* Every line begins with the host, the process and a rank. */
static void assert_prefixes(void) {
  for (const char *at = text; *at != '\0'; at = strchr(at, '\n') + 1) {
    if (strncmp(at, prefix, strlen(prefix)) != 0 || !isdigit((unsigned char)at[strlen(prefix)]))
      fail_msg("no '%s' before: %.100s", prefix, at);
    assert_non_null(strchr(at, '\n'));
  }
}

CASE(nothing_is_written_where_the_log_is_off) {
  rows_to_columns s;
  set_log("", "off.log");
  rows_to_columns_open(&s, RANKS, DEADLINE, RESHARD_PATH_AUTO, NULL);
  rows_to_columns_must_create(&s);
  rows_to_columns_close(&s);
  assert_false(take_log("off.log"));
}

CASE(transfers_tell_path_rounds_and_bytes) {
  const reshard_plan_options limit = {.size = RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = 8192};
  for (int packed = 0; packed < 2; packed++) {
    rows_to_columns s;
    reshard_transfer_info info;
    char line[400];
    set_log(packed ? "info" : "INFO", "transfers.log");
    rows_to_columns_open(&s, RANKS, DEADLINE, packed ? RESHARD_PATH_PACKED : RESHARD_PATH_AUTO, packed ? &limit : NULL);
    rows_to_columns_must_create(&s);
    rows_to_columns_must_execute(&s);
    assert_int_equal(reshard_transfer_get_info(s.transfers[2], &info), RESHARD_SUCCESS);
    rows_to_columns_close(&s);
    assert_true(take_log("transfers.log"));
    assert_prefixes();
    assert_int_equal(count_parts("\n"), RANKS); /* a line a transfer, and none for a call */
    assert_true(packed ? info.rounds > 1 : info.rounds == 1);
    snprintf(line, sizeof line,
             "rank 2: transfer 1: rank 2 of 3 over local on cpu, path %s, %lld round%s, %s, workspace %zu bytes; 1 "
             "tensor of 96000 bytes, sends 21440, receives 21120, self copy 10560, 2 peers; collective none: ",
             packed ? "packed: as asked" : "direct: all ranks reach each other's memory", (long long)info.rounds,
             packed ? "s" : "", packed ? "limit 8192 bytes" : "no limit", info.workspace_bytes);
    assert_text_has(text, line);
  }
}

static void abort_body(void *user, int64_t rank) {
  rows_to_columns *s = user;
  if (rank == 0)
    reshard_comm_abort(s->comms[rank]);
  rank_result_set(&s->results[rank], reshard_comm_barrier(s->comms[rank]));
}

CASE(errors_are_written_with_a_report) {
  rows_to_columns s;
  set_log("info", "errors.log");
  rows_to_columns_open(&s, RANKS, DEADLINE, RESHARD_PATH_AUTO, NULL);
  rank_threads_run(RANKS, abort_body, &s);
  for (int r = 0; r < RANKS; r++) {
    char line[1200];
    assert_int_equal(s.results[r].status, RESHARD_ERROR_PEER);
    assert_true(take_log("errors.log") || r > 0);
    snprintf(line, sizeof line, "%s%d: RESHARD_ERROR_PEER: %s\n", prefix, r, s.results[r].text);
    assert_text_has(text, line);
    snprintf(line, sizeof line, ": rank %d: ", r);
    assert_text_has(text, line); /* in the report */
  }
  assert_prefixes();
  assert_int_equal(count_parts(": local, 3 ranks\n"), 1); /* one report, for the first of a call that fails */
  rows_to_columns_close(&s);
}

CASE(trace_tells_every_call) {
  rows_to_columns s;
  set_log("trace", "trace.log");
  rows_to_columns_open(&s, RANKS, DEADLINE, RESHARD_PATH_AUTO, NULL);
  rows_to_columns_must_create(&s);
  rows_to_columns_must_execute(&s);
  rows_to_columns_must_execute(&s);
  rows_to_columns_close(&s);
  assert_true(take_log("trace.log"));
  assert_prefixes();
  assert_int_equal(count_parts("call 1, reshard_transfer_create: 96000 bytes, "), RANKS);
  assert_int_equal(count_parts("call 2, reshard_execute: 96000 bytes, 1 step, took "), RANKS);
  assert_int_equal(count_parts("call 3, reshard_execute: 96000 bytes, 1 step, took "), RANKS);
  assert_int_equal(count_parts(" ms, done\n"), 3 * RANKS);
}

/* A split has the log of what it came from, and says which of the world's ranks it is. */
static void split_body(void *user, int64_t rank) {
  rows_to_columns *s = user;
  reshard_comm half;
  rank_result_set(&s->results[rank], reshard_comm_split(s->comms[rank], rank > 0, 0, &half));
  if (s->results[rank].status == RESHARD_SUCCESS)
    (void)reshard_comm_barrier(half);
  reshard_comm_destroy(half);
}

CASE(calls_of_parts_are_told_apart) {
  rows_to_columns s;
  set_log("trace", "split.log");
  rows_to_columns_open(&s, RANKS, DEADLINE, RESHARD_PATH_AUTO, NULL);
  rank_threads_run(RANKS, split_body, &s);
  rows_to_columns_close(&s);
  assert_true(take_log("split.log"));
  assert_int_equal(count_parts("rank 1 (global 2): call 1, reshard_comm_barrier"), 1);
}

CASE(names_of_files_have_host_and_process) {
  rows_to_columns s;
  char name[160], host[64] = "";
  assert_int_equal(gethostname(host, sizeof host - 1), 0);
  host[strcspn(host, ".")] = '\0';
  setenv("RESHARD_SECRET", "drowssap", 1);
  set_log("trace", "%h-%p-%%h%x.log");
  rows_to_columns_open(&s, 1, DEADLINE, RESHARD_PATH_AUTO, NULL);
  rows_to_columns_must_create(&s);
  rows_to_columns_close(&s);
  snprintf(name, sizeof name, "%s-%lld-%%h%%x.log", host, (long long)getpid());
  assert_true(take_log(name));
  assert_prefixes();
  assert_null(strstr(text, "drowssap"));
  unsetenv("RESHARD_SECRET");
}

static void refuse_log(reshard_status status, const char *part) {
  reshard_comm comm = NULL;
  assert_int_equal(reshard_comm_create_local(1, NULL, &comm), status);
  assert_text_has(reshard_last_error(), part);
}

CASE(wrong_levels_and_paths_are_refused) {
  set_log("debug", "x.log");
  refuse_log(RESHARD_ERROR_INVALID, "RESHARD_LOG=debug is none of info, trace");
  set_log("info", "none/x.log");
  refuse_log(RESHARD_ERROR_INVALID, "/none/x.log': No such file or directory");
  set_log("info", "");
  refuse_log(RESHARD_ERROR_INVALID, "': Is a directory");
}

/* Processes of a node, of which one has a source of malloc's. */
static void private_body(processes *all, int64_t rank, void *user) {
  enum { SIDE = 1024 };
  static float rows[SIDE * SIDE], columns[SIDE * SIDE];
  const int64_t shape[2] = {SIDE, SIDE};
  reshard_entry entry = RESHARD_ENTRY_DEFAULTS;
  reshard_layout from, to;
  reshard_plan plan;
  reshard_comm comm;
  reshard_transfer transfer;
  CHILD_CHECK(processes_comm(all, rank, NULL, DEADLINE, &comm) == RESHARD_SUCCESS);
  CHILD_CHECK(reshard_layout_parse("chunk(0)", 2, shape, all->n, &from) == RESHARD_SUCCESS);
  CHILD_CHECK(reshard_layout_parse("chunk(1)", 2, shape, all->n, &to) == RESHARD_SUCCESS);
  entry.src = from, entry.dst = to, entry.dtype = RESHARD_F32;
  CHILD_CHECK(reshard_plan_create(1, &entry, rank, NULL, &plan) == RESHARD_SUCCESS);
  void *src = rows, *dst = columns;
  reshard_arrays arrays = RESHARD_ARRAYS_DEFAULTS;
  arrays.src = &src, arrays.dst = &dst;
  CHILD_CHECK(reshard_transfer_create(plan, comm, &arrays, NULL, &transfer) == RESHARD_SUCCESS);
  reshard_transfer_destroy(transfer);
  reshard_plan_destroy(plan);
  reshard_layout_release(from);
  reshard_layout_release(to);
  reshard_comm_destroy(comm);
}

CASE(processes_write_their_reasons) {
  set_log("info", "left.log");
  assert_int_equal(processes_run(2, 0, private_body, NULL), 0);
  assert_true(take_log("left.log"));
  assert_int_equal(count_parts("of 2 over node on cpu, path packed: rank 0 has sources that others cannot read, "), 2);
}

static int set_prefix(void **state) {
  char host[64] = "";
  if (gethostname(host, sizeof host - 1) != 0)
    return 1;
  host[strcspn(host, ".")] = '\0';
  snprintf(prefix, sizeof prefix, "reshard: %s:%lld rank ", host, (long long)getpid());
  return 0;
}

RUN_CASES_WITH(set_prefix, NULL)
