/* Records that ranks exchange in collective calls of transfers. Each brings what it has found out alone, with its
 * status, so nobody waits for one that failed. */
#ifndef RS_EXEC_RECORD_H
#define RS_EXEC_RECORD_H

#include "comm/comm.h"
#include "device/cpu/segment.h"
#include "exec/differ.h"

#include <reshard/transfer.h>

/* The collective that a rank's messages are a part of, as all ranks publish it. */
typedef struct rs_proposal {
  int32_t kind; /* reshard_collective */
  int64_t root, bytes;
  char why[64];
} rs_proposal;

/* Memory in which a rank publishes its sources for processes that map it. Equal versions are equal sources. */
typedef struct rs_published {
  rs_shared_place place;
  int64_t bytes;
  uint64_t version;
  bool freed; /* the rank has freed memory that others have open */
} rs_published;

/* Calls that exchange records: those of different calls are not to be compared. An error may meet any call. */
enum { RS_RECORD_ERROR, RS_RECORD_CREATE, RS_RECORD_REBIND, RS_RECORD_AGREE, RS_RECORD_SHARDER };

/* Options of a sharder that all its ranks give alike. */
typedef struct rs_sharder_terms {
  int32_t path; /* reshard_path */
  int64_t cached_plans;
  uint64_t group, plans; /* hashes of the global ranks, and of options of the plans */
} rs_sharder_terms;

/* Record that ranks exchange and compare: of fixed size, whatever the plan. */
typedef struct rs_record {
  int32_t status, path, call, use;
  union {
    rs_proposal collective; /* create */
    rs_published published; /* agree: of the request */
    rs_sharder_terms terms; /* sharder */
  };
  uint64_t fields[RS_FIELDS];
  uint64_t key;                           /* create: rank 0's is taken; rebind: compared */
  const struct rs_descriptor *descriptor; /* read by ranks of the same process only */
  int64_t entries, value;                 /* of the plan; of the argument */
  int64_t cached;                         /* agree: of the request */
  int64_t rounds, staged;                 /* that this rank needs at least where all is sent; bytes that it stages */
  int64_t mixed_rounds, mixed_staged;     /* the same on the mixed path, if that is taken */
  union {
    struct {
      int64_t needed, mixed_needed; /* of blocks that are not cut: the limits that take so many rounds */
    };
    /* Create, of plans that pass bytes on, which have no blocks: streams of the rank, the most of a message, and the
     * hops of the longest way. */
    struct {
      int64_t streams;
      int32_t of_pair, hops;
    };
  };
  int64_t strided_rounds;          /* where messages go from strided sources, too */
  int64_t private_entry;           /* of the first source that no other process can map; -1: there is none */
  int64_t eager_limit, most_bytes; /* create, of paths between processes: as in reshard_comm_s; sent, or received */
  int32_t moved;                   /* 1: what the rank has bound is not what it brings */
  int32_t only;                    /* 1: no other path will do */
  int32_t malloced, of_malloc;     /* create, rebind: 1: as in rs_sources_describe, rs_sources */
  char argument[48];               /* its name; "": there is none */
  char text[680];                  /* of an error, else the library's version */
} rs_record;

/* Sets the status, and the text of an error. */
void rs_record_set_status(rs_record *mine, reshard_status status);
/* Sets what all ranks have alike of a plan. */
void rs_record_set_plan(rs_record *mine, const struct reshard_plan_s *plan);

/* Next step of all ranks after they have met. */
typedef enum rs_verdict {
  RS_VERDICT_FAIL,   /* all have the same error */
  RS_VERDICT_RUN,    /* what is bound runs */
  RS_VERDICT_REBIND, /* what runs is made, or bound to what all bring */
  RS_VERDICT_PACK    /* all leave the path on which ranks read each other's sources */
} rs_verdict;
/* A function of the records of all ranks alone: all come to the same verdict. *rank: whose record decides it; -1: that
 * of none alone. A failure comes before all else, and a source that others cannot map before arrays that have moved. */
rs_verdict rs_records_judge(int64_t n, const rs_record *all, int64_t *rank);
/* Everybody's record; the error of all where the verdict on them is FAIL. Collective. plan: NULL where the call
 * compares none. If plans differ the ranks exchange more to name the tensor, and *all is no more. */
reshard_status rs_records_exchange(reshard_comm comm, const struct reshard_plan_s *plan, const rs_record *mine,
                                   const rs_record **all);

/* The same of records that one thread has of all ranks of its process. */
reshard_status rs_records_compare(reshard_comm comm, const rs_record *all);

/* Collective: success when every rank brings success, else the first failing rank's status, and its text with its
 * number, on all ranks. */
reshard_status rs_agree(reshard_comm comm, reshard_status mine);
/* The same of a status that follows from what all ranks have alike: where all bring one error it is that, without a
 * number. A rank that fails alone, as without memory, is heard of by all. */
reshard_status rs_agree_alike(reshard_comm comm, reshard_status mine);
/* One call for arrays that are used once, as a rank publishes it. */
typedef struct rs_request_terms {
  const struct reshard_plan_s *plan; /* NULL: none is compared, as where the status is no success */
  reshard_path path;                 /* asked for */
  const rs_argument *argument;       /* NULL: none */
  /* A transfer is cached for it, on all ranks or on none; or may be, where the rank has failed before it could tell. */
  bool cached;
  const rs_published *published; /* not compared; NULL: nothing, and the call reads no memory: */
  int64_t private_entry;         /* as in rs_record */
  bool moved;
} rs_request_terms;
/* Agrees where all ranks also give the same request. If not, RESHARD_ERROR_MISMATCH with both values: of unequal
 * arguments whatever the statuses. *all: everybody's record, until the next collective call. */
reshard_status rs_agree_on(reshard_comm comm, reshard_status mine, const rs_request_terms *terms,
                           const rs_record **all);

#endif
