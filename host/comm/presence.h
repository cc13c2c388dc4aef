/* Presence: which step of a communicator each of its ranks has come to, in a segment that the ranks of a node share
 * beside whatever carries their messages. A transport uses it that does not say for whom it waits. Ranks are threads of
 * one process or processes of the node, mixed as they like.
 *
 * Each rank makes a presence with a segment of its own, and offers that in the first all-gather that there is. Of the
 * ranks that see each other the lowest one's segment is everyone's from then on. No file names it, and it ends with the
 * last process that has it, however that ends. Ranks that do not join, on other nodes or without a descriptor, are out
 * of sight: nothing is known of them. Nothing that goes wrong here is an error.
 *
 * Ranks that know a name of their communicator, which no other one has, find each other before that. */
#ifndef RS_COMM_PRESENCE_H
#define RS_COMM_PRESENCE_H

#include "base/base.h"

typedef struct rs_presence rs_presence;

/* A rank's segment, as others find it. */
typedef struct rs_presence_offer {
  uint64_t node, key; /* node: hash of the system and of the processes that it sees */
  int32_t pid, fd;    /* -1: there is none */
} rs_presence_offer;

/* Kinds of what ranks come to, each counted by itself. A rank is absent where it has come less often than this one. */
typedef enum rs_presence_kind {
  RS_PRESENCE_STEP,
  RS_PRESENCE_CALL,
  RS_PRESENCE_SHRINK,
  RS_PRESENCE_KINDS
} rs_presence_kind;

enum { RS_PRESENCE_TEXT = 240, RS_PRESENCE_REASON = 512 };

/* RESHARD_ERROR_OUT_OF_MEMORY. */
reshard_status rs_presence_make(int64_t n, int64_t rank, rs_presence **presence);
void rs_presence_destroy(rs_presence *presence); /* NULL is allowed, here and below: nothing is known then */
rs_presence_offer rs_presence_own_offer(const rs_presence *presence);
/* Joins the ranks of the node that have given the same name, before the first all-gather. If that cannot be, nothing is
 * known before it. Of these ranks the first one listens at a socket until it has met the others. A secret of 8 bytes in
 * the name stays one: the socket's address does not give it away. */
void rs_presence_find(rs_presence *presence, const void *name, size_t bytes);
/* Listens in place of the rank that did, if that has gone. Told from time to time until the first all-gather, so that
 * ranks which come later find the same segment. */
void rs_presence_hold(rs_presence *presence);
/* After each all-gather, with its offers, `stride` bytes apart, of which at[r] is that of rank r; NULL: in rank order.
 * The first one joins. After the second one all have joined, and no descriptor is kept. */
void rs_presence_join(rs_presence *presence, const rs_presence_offer *first, size_t stride, const int64_t *at);

/* Tells that the rank has come to the next step, to the call of that number, or to a shrink, in which it waits now. */
void rs_presence_come(rs_presence *presence, rs_presence_kind kind, uint64_t number);
/* Tells that the rank is through with what it came to. */
void rs_presence_pass(rs_presence *presence);
/* Tells that the rank waits there for others, again and again while it does. */
void rs_presence_wait(rs_presence *presence);
/* Prepares to give up: waits, limit_ms at most, until all that are in the same with it have told that they
 * wait. Of those that have come, the ones that do not tell are absent from then on: they are held up before others can
 * meet them. */
void rs_presence_ask(rs_presence *presence, int64_t limit_ms);
/* Tells that the rank comes to no more steps, and others wait for it in vain. From any thread. */
void rs_presence_leave(rs_presence *presence);
/* Ranks that have not come to what this one waits in, have left, or whose process has ended; else those that do not
 * tell. Ascending, `most` at most. In a shrink those `lost`, ascending, are not waited for. */
int64_t rs_presence_absent(const rs_presence *presence, int64_t nlost, const int64_t *lost, int64_t most,
                           int64_t *ranks);
/* The absent ranks in words: "1-2", "1; not known of: 4-7", "not known, of: 4-7", "none: all ranks have come". Before
 * the first all-gather: "1; not come, or out of sight: 4-7", "not come, or out of sight: 4-7". "" where none was
 * joined. Returns buffer. */
const char *rs_presence_text(const rs_presence *presence, int64_t nlost, const int64_t *lost,
                             char buffer[RS_PRESENCE_TEXT]);

/* The reason why the communicator has ended, with its status, of the first rank that gives one; it is there for all
 * ranks in sight. NULL: there is no presence. With RESHARD_ERROR_TIMEOUT the absent ranks are kept. */
const char *rs_presence_conclude(rs_presence *presence, reshard_status status, const char *reason);
/* The reason of the end; NULL: the communicator goes on. Others have written it: RS_PRESENCE_REASON bytes at most,
 * maybe without an end. */
const char *rs_presence_reason(const rs_presence *presence);
/* The status of the end; SUCCESS: the communicator goes on. */
reshard_status rs_presence_status(const rs_presence *presence);
/* The absent ranks that were kept, to ranks [n]; 0 where some rank is out of sight. */
int64_t rs_presence_missing(const rs_presence *presence, int64_t *ranks);

#endif
