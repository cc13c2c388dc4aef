/* Records that ranks exchange in collective calls of transfers. Each brings what it has found out alone, with its
 * status, so nobody waits for one that failed. */
#ifndef RS_EXEC_RECORD_H
#define RS_EXEC_RECORD_H

#include "comm/comm.h"
#include "exec/differ.h"
#include "exec/offer.h"

/* The collective that a rank's messages are a part of, as all ranks show it to each other. */
typedef struct rs_proposal {
  int32_t kind; /* reshard_collective */
  int64_t root, bytes;
  char why[64];
} rs_proposal;

/* Calls that exchange records: those of different calls are not to be compared. */
enum { RS_RECORD_CREATE = 1, RS_RECORD_REBIND, RS_RECORD_AGREE, RS_RECORD_SHARDER };

/* Options of a sharder that all its ranks give alike. */
typedef struct rs_sharder_terms {
  int64_t cached_plans, workspace_limit;
  uint64_t group; /* hash of the global ranks */
} rs_sharder_terms;

/* Record that ranks exchange and compare: of fixed size, whatever the plan. */
typedef struct rs_record {
  int32_t status, path, call, use;
  union {
    rs_proposal collective; /* create */
    rs_shown shown;         /* agree: of the request */
    rs_sharder_terms terms; /* sharder */
  };
  uint64_t fields[RS_FIELDS];
  uint64_t key;                       /* create: rank 0's is taken; rebind: compared */
  const rs_offer *offer;              /* read by ranks of the same process only */
  int64_t entries, value;             /* of the plan; of the argument */
  int64_t cached;                     /* agree: of the request */
  int64_t rounds, staged;             /* that this rank needs at least where all is sent; bytes that it stages */
  int64_t mixed_rounds, mixed_staged; /* the same on the mixed path, if that is taken */
  int64_t strided_rounds;             /* where messages go from strided sources, too */
  int64_t private_entry;              /* create, rebind: as in rs_shown */
  int64_t mailed, moved;              /* create: as in reshard_comm_s; bytes that the rank sends, or receives */
  int32_t only;                       /* 1: no other path will do */
  int32_t of_malloc;                  /* create, rebind: 1: as in rs_sources */
  char argument[48];                  /* its name; "": there is none */
  char text[176];                     /* of an error, else the library's version */
} rs_record;

/* Sets the status, and the text of an error. */
void rs_record_set_status(rs_record *mine, reshard_status status);
/* Sets what all ranks have alike of a plan. */
void rs_record_set_plan(rs_record *mine, const struct reshard_plan_s *plan);
/* Everybody's record, compared: the same verdict on every rank. Collective. plan: NULL where the call compares none.
 * Where plans differ the ranks exchange more to name the tensor, and *all is no more. */
reshard_status rs_records_exchange(reshard_comm comm, const struct reshard_plan_s *plan, const rs_record *mine,
                                   const rs_record **all);

/* Collective: success when every rank brings success, else the first failing rank's status, and its text with its
 * number, on all ranks. */
reshard_status rs_agree(reshard_comm comm, reshard_status mine);
/* The same of a status that follows from what all ranks have alike: where all bring one error it is that, without a
 * number. A rank that fails alone, as without memory, is heard of by all. */
reshard_status rs_agree_alike(reshard_comm comm, reshard_status mine);
/* One call for arrays that are used once, as a rank shows it to the others. */
typedef struct rs_request {
  const struct reshard_plan_s *plan; /* NULL: none is compared, as where the status is no success */
  reshard_path path;                 /* wished */
  const rs_argument *argument;       /* NULL: none */
  bool cached;                       /* a transfer is cached for it */
  const rs_shown *shown;             /* not compared; NULL: nothing */
} rs_request;
/* Agrees where all ranks also give the same request. Else RESHARD_ERROR_MISMATCH with both values: of unequal arguments
 * whatever the statuses. *all: everybody's record, until the next collective call. */
reshard_status rs_agree_on(reshard_comm comm, reshard_status mine, const rs_request *request, const rs_record **all);

#endif
