/* Steps that a rank of support/losses/losses.h takes, and the places that it passes. */
#ifndef TESTS_LOSSES_STEPS_H
#define TESTS_LOSSES_STEPS_H

#include "losses.h"

enum { LOSS_POISON = 0x5a };
/* Of a rank in a trial: it has made the calls before the loss; it has its error; it has gone on with those that are
 * left; the victim has come through. */
enum { LOSS_BEGUN, LOSS_TOLD, LOSS_GONE_ON, LOSS_OUT, LOSS_STATES };

typedef enum loss_call {
  LOSS_CALL_MAKE,
  LOSS_CALL_MEET,
  LOSS_CALL_SPLIT,
  LOSS_CALL_BIND,
  LOSS_CALL_REBIND,
  LOSS_CALL_EXECUTE,
  LOSS_CALL_EXECUTES,
  LOSS_CALL_RESHARD,
  LOSS_CALL_DESTROY,
  LOSS_CALL_END
} loss_call;
/* Among the places of the kinds. RING: anywhere, and each rank's rows go to the next one as they are; else rows become
 * columns. 1 to 3: the place with this number. */
typedef enum loss_where {
  LOSS_ANYWHERE,
  LOSS_FIRST_HALF,
  LOSS_LAST_HALF,
  LOSS_RING,
  LOSS_1,
  LOSS_2,
  LOSS_3
} loss_where;

extern const struct loss_step_row {
  const char *name;
  loss_call call;
  int kinds;
  loss_where where;
} loss_steps[LOSS_STEPS];
static inline bool loss_has_ring(const loss_trial *t) { return loss_steps[t->step].where == LOSS_RING; }

void loss_rank_set_state(const loss_rank *me, int state);
/* Waits for the state of one rank, or of all but the victim. */
void loss_rank_await(const loss_rank *me, int rank, int state);
void loss_rank_await_others(const loss_rank *me, int state);

/* Makes all that the step begins with, on a communicator of the trial. */
reshard_status loss_rank_prepare(loss_rank *me, loss_which which);
/* Takes the step where nobody is lost; places: which the rank has passed. Then it is as before. */
reshard_status loss_rank_rehearse(loss_rank *me, int64_t *places);
/* Takes it where the victim is lost, at one of so many places. */
reshard_status loss_rank_take_step(loss_rank *me, int64_t places);
void loss_rank_drop_objects(loss_rank *me);
void loss_rank_synchronize(const loss_rank *me);
/* The time that calls have: of what is no loss, or of the trial. */
int64_t loss_patience(const loss_trial *t);
void loss_rank_set_deadline(loss_rank *me, int64_t ms);

/* data.c. Memory of the trial: allocated, by the transport or of the process, and freed. */
void loss_rank_open(loss_rank *me);
void loss_rank_close(loss_rank *me);
void loss_rank_fill_source(loss_rank *me, reshard_comm comm);
bool loss_rank_is_right(loss_rank *me, reshard_comm comm, const char *at, bool ring);
void loss_rank_set_destination(loss_rank *me, int value);
/* The destination has other bytes, and the source is taken away. */
void loss_rank_give_up_memory(loss_rank *me);
/* Bytes that were written since. */
int64_t loss_rank_count_overwritten(loss_rank *me);
/* A reshard of rows to columns by the ranks of a communicator, with right data. */
reshard_status loss_rank_reshard(loss_rank *me, reshard_comm comm);

#endif
