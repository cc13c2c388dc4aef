#include "losses.h"

#include "base/base.h"
#include "bench/cli/util.h"
#include "comm/comm.h"
#include "steps.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { SPARE_MS = 20000 };

static const char *const way_names[LOSS_WAYS] = {"kill", "stop", "late", "gone", "in-time", "gone", "abort", "fails"};

void loss_failed(const loss_rank *me, const char *file, int line, const char *condition, const char *format, ...) {
  const loss_trial *t = me->t;
  va_list list;
  if (t->board->failures++ > 20)
    return;
  flockfile(stdout);
  printf("%s, seed %llu: rank %d of %d, %d is lost, %s in %s: %s:%d: %s: ", t->transport->where,
         (unsigned long long)t->seed, me->number, t->n, t->victim, way_names[t->way], loss_steps[t->step].name, file,
         line, condition);
  va_start(list, format);
  vprintf(format, list);
  va_end(list);
  printf(" (last error: %s)\n", reshard_last_error());
  fflush(stdout);
  funlockfile(stdout);
}

static reshard_status meet(loss_rank *me) {
  if (me->comm == NULL)
    return RESHARD_SUCCESS;
  loss_board *board = me->t->board;
  int64_t ms = (rs_now_ns() - me->since) / 1000000;
  if (me->number != me->t->victim && ms > board->longest_ms)
    board->longest_ms = ms;
  me->since = rs_now_ns();
  return reshard_comm_barrier(me->comm);
}

/* --- Judgement ---------------------------------------------------------------------------------------------------- */

/* A rank that has not come yet may be one of another node. */
static bool is_missing_alone(const char *text, int victim, bool creates) {
  const char *at = strstr(text, "missing: "), *elsewhere = "not come, or out of sight: ";
  char *end;
  if (at == NULL)
    return false;
  at += strlen("missing: ");
  at += creates && strncmp(at, elsewhere, strlen(elsewhere)) == 0 ? strlen(elsewhere) : 0;
  return strtol(at, &end, 10) == victim && end != at && *end != '-' && *end != ',';
}

/* Tells whether a text names a rank and the call. On a busy machine another may be late than the one that was stopped.
 * A call has a number where the communicator is there, and its name alone before. */
static bool has_name(const char *text) {
  return (strstr(text, "missing: ") != NULL || strstr(text, "rank ") != NULL) &&
         (strstr(text, ", call ") != NULL || strstr(text, "reshard_comm_create_") != NULL ||
          strstr(text, "reshard_comm_from_") != NULL);
}

static bool is_named(const loss_rank *me, const char *text) {
  const loss_trial *t = me->t;
  const char *verb = t->way == LOSS_LEAVES   ? " has destroyed its handle"
                     : t->way == LOSS_ABORTS ? " aborted the communicator"
                                             : "";
  char name[64];
  snprintf(name, sizeof name, "rank %d%s", t->victim, verb);
  if (t->transport->unnamed != NULL && strstr(text, t->transport->unnamed) != NULL)
    return true;
  if (!has_name(text))
    return false;
  return t->way == LOSS_KILL || verb[0] != '\0'
             ? strstr(text, name) != NULL
             : is_missing_alone(text, t->victim, loss_steps[t->step].call == LOSS_CALL_MAKE);
}

/* The error has the deadline that the caller has given. */
static void check_deadline(const loss_rank *me) {
  const char *within = strstr(reshard_last_error(), " within ");
  int64_t ms = within != NULL ? atoll(within + strlen(" within ")) : 0;
  LOSS_CHECK(me, ms == me->t->deadline_ms, "%lld ms instead of %lld", (long long)ms, (long long)me->t->deadline_ms);
}

static void check_error(const loss_rank *me, reshard_status status) {
  const loss_trial *t = me->t;
  loss_board *board = t->board;
  loss_counts *counts = &board->counts[t->way][t->step];
  bool soon = t->way == LOSS_LEAVES || t->way == LOSS_ABORTS || (t->way == LOSS_KILL && t->transport->hears);
  int64_t ms = (rs_now_ns() - me->since) / 1000000, limit = soon ? 0 : t->deadline_ms;
  if (ms > board->longest_ms)
    board->longest_ms = ms;
  counts->late += ms > limit + 1000;
  LOSS_CHECK(me, ms <= limit + t->transport->spare_ms, "after %lld ms", (long long)ms);
  if (loss_steps[t->step].call == LOSS_CALL_END)
    return;
  bool exact = is_named(me, reshard_last_error());
  bool named = exact || (t->transport->approximate && has_name(reshard_last_error()));
  board->errors++;
  board->exact += exact;
  counts->errors += status != RESHARD_SUCCESS;
  counts->unnamed += !named;
  LOSS_CHECK(me, status == RESHARD_ERROR_PEER || (!soon && status == RESHARD_ERROR_TIMEOUT), "%s",
             reshard_status_string(status));
  LOSS_CHECK(me, named, "names the rank and the call");
  if (status == RESHARD_ERROR_TIMEOUT)
    check_deadline(me);
}

/* The communicator has ended, and knows who is missing. */
static void check_ended(const loss_rank *me) {
  const loss_trial *t = me->t;
  int64_t missing[LOSS_MOST], n = 0;
  bool there = false;
  LOSS_CHECK(me, reshard_comm_barrier(me->comm) == RESHARD_ERROR_PEER, "it has ended");
  LOSS_CHECK(me, reshard_comm_missing(me->comm, missing, &n) == RESHARD_SUCCESS, "missing");
  if (t->way == LOSS_ABORTS || t->way == LOSS_LEAVES)
    return;
  if (t->transport->approximate && t->way != LOSS_KILL)
    return;
  for (int64_t since = rs_now_ns(); !there && !rs_late(since, SPARE_MS); t->transport->wait(me)) /* a process ends */
    for (int64_t i = 0; i < n; i++)
      there |= missing[i] == t->victim || (t->transport->is_dead != NULL && t->transport->is_dead(me, (int)missing[i]));
  LOSS_CHECK(me, there && (n == 1 || t->transport->approximate), "%lld are missing", (long long)n);
}

static void use_rest(loss_rank *me, reshard_comm rest) {
  reshard_status status = loss_rank_reshard(me, rest);
  LOSS_CHECK(me, status == RESHARD_SUCCESS, "a reshard of the rest: %s", reshard_status_string(status));
  LOSS_CHECK(me, status != RESHARD_SUCCESS || loss_rank_is_right(me, rest, me->other, false),
             "the rest has wrong data");
}

static reshard_status make_rest(loss_rank *me, reshard_comm *rest) {
  const loss_trial *t = me->t;
  int64_t victim = t->victim, lost[LOSS_MOST], n = 0;
  if (t->board->without == t->number) /* on a busy machine a late verdict may come to some alone */
    return t->transport->make(me, LOSS_REST, loss_patience(t), rest);
  if (t->transport->shrink != NULL)
    return t->transport->shrink(me, rest);
  loss_rank_set_deadline(me, loss_patience(t));
  reshard_status status = reshard_comm_shrink(me->comm, 1, &victim, rest);
  for (int r = 0; r < t->n; r++)
    if (r == victim || (t->transport->is_dead != NULL && t->transport->is_dead(me, r)))
      lost[n++] = r;
  return status != RESHARD_SUCCESS && n > 1 ? reshard_comm_shrink(me->comm, n, lost, rest) : status;
}

/* Memory is the caller's from the error on; that of a GPU when the transfer has ended, for which its destroy waits. */
static void survive(loss_rank *me) {
  const loss_trial *t = me->t;
  bool asynchronous = t->transport->asynchronous;
  reshard_comm rest = NULL;
  if (!asynchronous)
    loss_rank_give_up_memory(me);
  if (me->comm != NULL)
    check_ended(me);
  else
    t->board->without = t->number;
  loss_rank_set_state(me, LOSS_TOLD);
  loss_rank_await_others(me, LOSS_TOLD);
  if (t->drops || (asynchronous && !t->transport->borrowed))
    loss_rank_drop_objects(me);
  reshard_status status = loss_steps[t->step].call != LOSS_CALL_END ? make_rest(me, &rest) : RESHARD_SUCCESS;
  LOSS_CHECK(me, status == RESHARD_SUCCESS || status == RESHARD_ERROR_UNSUPPORTED, "those that are there: %s",
             reshard_status_string(status));
  loss_rank_drop_objects(me);
  loss_rank_synchronize(me);
  if (asynchronous)
    loss_rank_set_destination(me, LOSS_POISON);
  if (rest != NULL)
    use_rest(me, rest);
  reshard_comm_destroy(rest);
}

/* --- Trials ------------------------------------------------------------------------------------------------------- */

static void check_in_time(loss_rank *me, reshard_status status) {
  const loss_trial *t = me->t;
  loss_rank_synchronize(me);
  LOSS_CHECK(me, status == RESHARD_SUCCESS, "%s", reshard_status_string(status));
  if (loss_steps[t->step].call == LOSS_CALL_EXECUTE)
    LOSS_CHECK(me, loss_rank_is_right(me, me->comm, me->dst, loss_has_ring(t)), "wrong data");
}

/* Where ranks do not hear of an end, what the others have sent the victim before is there. */
static void check_victim(const loss_rank *me, reshard_status status) {
  bool may_succeed = status == RESHARD_SUCCESS && !me->t->transport->hears;
  bool own = loss_steps[me->t->step].call == LOSS_CALL_MAKE || me->t->way == LOSS_FAILS; /* of its own */
  LOSS_CHECK(me, own || may_succeed || status == RESHARD_ERROR_PEER || status == RESHARD_ERROR_TIMEOUT,
             "the lost one: %s", reshard_status_string(status));
}

void loss_rank_run(const loss_trial *t, int number) {
  loss_rank own = {.t = t, .number = number}, *me = &own;
  bool is_victim = number == t->victim, gives_up = false;
  int64_t places = 0;
  t->transport->begin(me);
  loss_rank_open(me);
  reshard_status status = loss_rank_prepare(me, t->apart ? LOSS_REHEARSAL : LOSS_ALL);
  RS_THEN(status, loss_rank_rehearse(me, &places));
  LOSS_CHECK(me, status == RESHARD_SUCCESS, "before the loss: %s", reshard_status_string(status));
  loss_rank_set_state(me, LOSS_BEGUN);
  if (is_victim)
    loss_rank_await_others(me, LOSS_BEGUN); /* who is lost while they are in an earlier call is lost there */
  RS_THEN(status, loss_rank_take_step(me, places));
  RS_THEN(status, meet(me));
  if (t->way == LOSS_IN_TIME) {
    check_in_time(me, status);
  } else if (!is_victim) {
    check_error(me, status);
    survive(me);
    gives_up = true;
  } else {
    check_victim(me, status);
    gives_up = status != RESHARD_SUCCESS && !t->transport->asynchronous;
    if (gives_up)
      loss_rank_give_up_memory(me);
  }
  loss_rank_set_state(me, is_victim ? LOSS_BEGUN : LOSS_GONE_ON);
  loss_rank_await_others(me, LOSS_GONE_ON); /* the victim keeps what it has: the others do without */
  loss_rank_set_state(me, LOSS_OUT);
  for (int r = 0; r < t->n; r++)
    loss_rank_await(me, r, LOSS_OUT);
  t->transport->end(me);
  int64_t wrong = gives_up ? loss_rank_count_overwritten(me) : 0;
  t->board->counts[t->way][t->step].wrong += wrong;
  LOSS_CHECK(me, wrong == 0, "%lld bytes were written after the error", (long long)wrong);
  loss_rank_close(me);
  if (t->transport->left != NULL)
    t->transport->left(me);
}

static int64_t trials_run; /* by this process, of one board */

static int run_once(loss_trial *t) {
  t->number = ++trials_run;
  int before = t->board->failures;
  int64_t stops = t->board->counts[t->way][t->step].stops;
  t->transport->run(t);
  if (t->board->counts[t->way][t->step].stops == stops)
    t->board->failures += printf("%s in %s: nobody was lost\n", way_names[t->way], loss_steps[t->step].name) > 0;
  int failures = t->board->failures - before;
  return t->transport->agree != NULL ? t->transport->agree(failures) : failures;
}

/* Where the fault may be a short deadline that a busy machine has missed, it is what is wrong with a long one. */
static int run_trial(loss_trial t) {
  const loss_counts counts = t.board->counts[t.way][t.step];
  int before = t.board->failures;
  bool may_miss = t.transport->patience_ms > 0 && (t.way == LOSS_STOP || t.way == LOSS_LATE);
  t.deadline_ms = t.transport->deadline(&t);
  int failures = run_once(&t);
  for (int i = 0; i < 2 && failures > 0 && may_miss; i++) {
    t.deadline_ms *= 5;
    printf("%s in %s: once more with a deadline of %lld ms\n", way_names[t.way], loss_steps[t.step].name,
           (long long)t.deadline_ms);
    t.board->failures = before;
    t.board->counts[t.way][t.step] = counts;
    failures = run_once(&t);
  }
  return failures;
}

static uint64_t draw(uint64_t seed, int what) { return (seed * 16 + (uint64_t)what + 1) * 0x9e3779b97f4a7c15u >> 24; }

static loss_trial make_trial(const loss_transport *p, loss_board *board, int n, uint64_t seed, loss_step step,
                             loss_way way) {
  return (loss_trial){.transport = p,
                      .board = board,
                      .n = n,
                      .victim = (int)(draw(seed, 0) % (uint64_t)n),
                      .step = step,
                      .way = way,
                      .seed = seed,
                      .place = draw(seed, 1),
                      .limited = draw(seed, 2) % 2,
                      .packed = draw(seed, 3) % 2,
                      .apart = !p->asynchronous && draw(seed, 4) % 2,
                      .drops = draw(seed, 5) % 2};
}

static bool is_in(const char *list, const char *name) {
  size_t length = strlen(name);
  for (const char *at = list; at != NULL && *at != '\0'; at += strcspn(at, ",") + (strchr(at, ',') != NULL))
    if (strcspn(at, ",") == length && strncmp(at, name, length) == 0)
      return true;
  return list == NULL;
}

static bool has_steps(const loss_transport *p, int step, int way) {
  bool aborts = step == LOSS_ABORT || step == LOSS_ABORT_STRIDED;
  bool fails = step == LOSS_WITHIN_FIRST_EXECUTE || step == LOSS_WITHIN_SECOND_EXECUTE;
  return (p->steps >> step & 1) && (p->ways >> way & 1) && (!aborts || way == LOSS_ABORTS) &&
         (p->aborts != NULL || way != LOSS_ABORTS || aborts) && fails == (way == LOSS_FAILS);
}

int loss_run(const loss_transport *p, loss_board *board, int n, int64_t trials, uint64_t seed, const char *in,
             const char *ways, int of) {
  int failures = 0;
  int64_t done = 0;
  for (int64_t i = 0; i < trials; i++)
    for (int w = 0; w < LOSS_WAYS; w++)
      for (int s = 0; s < LOSS_STEPS; s++)
        if (has_steps(p, s, w) && (w + s + (int)(seed % (uint64_t)of)) % of == 0 && is_in(in, loss_steps[s].name) &&
            is_in(ways, way_names[w]))
          failures += run_trial(make_trial(p, board, n, seed + (uint64_t)done++, (loss_step)s, (loss_way)w));
  if (!p->approximate || board->errors < 20 || board->exact > 0)
    return failures;
  board->failures++;
  return failures + (printf("%s: no error names the lost rank alone\n", p->where) > 0);
}

void loss_counts_print(const char *where, const char *way, const char *step, const loss_counts *c) {
  if (c->stops > 0 || c->errors > 0)
    printf("stops: %s | %s | %s | %lld | %lld | %lld | %lld | %lld\n", where, way, step, (long long)c->stops,
           (long long)c->errors, (long long)c->wrong, (long long)c->late, (long long)c->unnamed);
}

void loss_report(const loss_transport *p, const loss_board *board) {
  for (int way = 0; way < LOSS_WAYS; way++)
    for (int step = 0; step < LOSS_STEPS; step++)
      loss_counts_print(p->where, way == LOSS_ABORTS && p->aborts != NULL ? p->aborts : way_names[way],
                        loss_steps[step].name, &board->counts[way][step]);
  printf("calls lasted %lld ms at most, %d checks failed\n", (long long)board->longest_ms, (int)board->failures);
}

loss_board *loss_board_make(void) {
  loss_board *board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (board == MAP_FAILED)
    cli_exit(EXIT_FAILED, "no shared memory");
  return board;
}
