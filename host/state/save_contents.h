/* The contents of a checkpoint that is saved, from the calls of all ranks. */
#ifndef RS_STATE_SAVE_CONTENTS_H
#define RS_STATE_SAVE_CONTENTS_H

#include "file/write/writer.h"
#include "state/checkpoint.h"

#include <stdatomic.h>

/* A writer of all ranks. */
typedef struct rs_shared_writer {
  atomic_llong users;
  reshard_writer writer; /* NULL once it is committed or abandoned */
  reshard_state_save_report report;
  double start;                  /* of the current phase */
  rs_exchanged_leaves exchanged; /* tensors whose shards the ranks exchange */
} rs_shared_writer;

/* One rank's call. */
typedef struct rs_save_call {
  rs_state_call base;
  reshard_state_save_options options;
  rs_shared_writer *shared;
  reshard_sharder sharder;
  rs_exchanged_leaves exchanged; /* tensors whose shards were exchanged */
} rs_save_call;

/* The contents of a checkpoint, in the view of all ranks. */
typedef struct rs_save_contents {
  int64_t n; /* ranks */
  rs_save_call *const *calls;
  const rs_save_call *mine; /* one of them, of this process */
  rs_state_paths paths;
  rs_exchanged_leaves exchanged;         /* those whose shards the ranks still have to exchange */
  RS_VEC(reshard_writer_tensor) tensors; /* with a reference of the layout */
  int64_t converted, unconverted;        /* as in the report */
  rs_json leaves;
} rs_save_contents;

/* Checks that the n calls of a meeting are saves of one thing. */
reshard_status rs_save_check_calls(int64_t n, void **all);
/* Compares all calls, and lists the contents; or the tensors whose shards are to be exchanged first. On error the
 * contents can be freed. */
reshard_status rs_save_compare_calls(rs_save_contents *m);
/* Makes the writer of the contents, with the headers in its files. */
reshard_status rs_save_create_writer(rs_save_contents *m, rs_shared_writer *s);
void rs_save_contents_free(rs_save_contents *m);

#endif
