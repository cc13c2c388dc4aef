#include "fault_collective.h"
#include "support/fixtures/case.h"

static void fault_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const fault_collective *t = p->user;
  fault_mark(t->watched == FAULT_ANY_RANK || t->watched == r);
  reshard_status status = t->call(p, t->act, r);
  fault_mark(false);
  rank_result_set(&p->results[r], status);
}

static void fault_check(const fault_collective *t, int64_t k, bool done) {
  for (int64_t r = 0; r < t->ranks; r++)
    if (!(done ? t->good : t->same)(t->act, r))
      fail_msg("%s, allocation %d of rank %d fails: rank %d is %s", t->name, (int)k, (int)t->watched, (int)r,
               done ? "wrong" : "not as it was");
}

void fault_collective_no_leak(const char *name, int64_t live, int64_t watched, int64_t k) {
  if (fault_live() != live)
    fail_msg("%s, allocation %d of rank %d fails: %d blocks leak", name, (int)k, (int)watched,
             (int)(fault_live() - live));
}

/* One k. False: nothing was left to fail. */
static bool fail_once(const fault_collective *t, int64_t k) {
  sharded_ranks p;
  int64_t live = fault_live();
  sharded_ranks_open(&p, t->ranks, t->options);
  t->open(&p, t->act);
  fault_arm(k);
  sharded_ranks_run(&p, fault_body, (void *)t);
  fault_disarm();
  fault_kind kind = fault_fired();
  sharded_ranks_assert(&p, fault_status(kind), NULL);
  if (kind != FAULT_NONE) {
    assert_true(p.results[0].text[0] != '\0');
    fault_check(t, k, false);
    sharded_ranks_run(&p, fault_body, (void *)t);
    sharded_ranks_assert(&p, RESHARD_SUCCESS, NULL);
  }
  fault_check(t, k, true);
  t->close(t->act);
  sharded_ranks_close(&p);
  fault_collective_no_leak(t->name, live, t->watched, k);
  return kind != FAULT_NONE;
}

int64_t fault_collective_run(const fault_collective *t, int64_t step) {
  int64_t failed = 0;
  for (int64_t k = 0; fail_once(t, k); k += step)
    failed++;
  return failed;
}
