/* The user's arrays of a transfer, checked. */
#ifndef RS_EXEC_ARRAYS_H
#define RS_EXEC_ARRAYS_H

#include "comm/comm.h"
#include "plan/plan.h"

#include <reshard/transfer.h>

/* Most bytes that a buffer may reach below or above its pointer. */
#define RS_EXTENT_MOST (INT64_MAX / 8)

/* One buffer of the user that holds something: bytes [begin, end), and the walk through them. */
typedef struct rs_extent {
  const struct reshard_plan_s *plan; /* of its rank */
  const char *at, *begin, *end;
  bool source, dense; /* dense: every byte of the range is an element's */
  int ndim;
  int64_t shape[RESHARD_MAX_DIMS], strides[RESHARD_MAX_DIMS]; /* strides in bytes, any sign; shape without 0 */
  int64_t width, entry;
  int64_t buffer; /* of the rank's, in the entry's layout */
} rs_extent;

typedef RS_VEC(rs_extent) rs_extents;

/* RESHARD_ERROR_INVALID naming a destination and the source or destination that shares a byte with it, of one rank or
 * of several. Entries of a rank whose regions in the destination are disjoint may name the same array: q, k, v into
 * qkv. Sorts the list. The strides of a destination are those of rs_arrays_bind: none overlaps itself. */
reshard_status rs_check_overlap(rs_extents *all);

/* The user's arrays: one per buffer of this rank, in the order of the plan's entries. */
typedef struct rs_arrays {
  void **src, **dst;           /* [plan->nsrc], [plan->ndst] */
  const int64_t **src_strides; /* NULL element: contiguous; NULL: all are */
  const int64_t **dst_strides;
  int64_t *stride_values; /* storage behind them */
  bool has_private;       /* another GPU of the process does not reach a source: */
  int64_t private_entry;  /* the first entry of which that is so */
} rs_arrays;

/* Copies the caller's lists, checked: pointers, strides, overlap. */
reshard_status rs_arrays_bind(const struct reshard_plan_s *plan, const reshard_arrays *given, rs_arrays *out);
void rs_arrays_free(rs_arrays *arrays);
/* rs_arrays_bind for lists that are all there and outlive *out, which has nothing to free. extents: memory for the
 * check, whatever is in it. */
reshard_status rs_arrays_borrow(const struct reshard_plan_s *plan, const reshard_arrays *given, rs_extents *extents,
                                rs_arrays *out);

/* True where lists that are all there have the pointers and strides of bound ones. */
bool rs_arrays_same(const struct reshard_plan_s *plan, const rs_arrays *bound, const reshard_arrays *given);
/* Address of the message to a peer, or from it, where that is one contiguous range of the arrays, at a multiple of
 * `alignment`. NULL: it goes through staging. */
char *rs_arrays_message(const rs_arrays *arrays, const struct reshard_plan_s *plan, const rs_peer *peer, bool sending,
                        size_t alignment);

/* A message that lies in its source as runs of one length, a stride apart. */
typedef struct rs_strided {
  const char *at;            /* of the first; NULL: the message is no such one */
  int64_t runs, run, stride; /* 2 or more; bytes */
} rs_strided;
/* Looks if the message to a peer is one, of 2 GiB at most, in runs of `least` bytes or more. */
reshard_status rs_arrays_strided(const rs_arrays *arrays, const struct reshard_plan_s *plan, const rs_peer *peer,
                                 int64_t least, rs_strided *strided);

/* One array of a rank in memory: its address, and a byte stride per dim. Where its values have scales, the same of the
 * scales of its blocks. */
typedef struct rs_view {
  char *at;
  int64_t strides[RESHARD_MAX_DIMS];
  char *scales;
  int64_t scale_strides[RESHARD_MAX_DIMS];
} rs_view;
void rs_arrays_view(const rs_arrays *arrays, const struct reshard_plan_s *plan, int64_t entry, bool source,
                    int64_t array, rs_view *view);

/* The same of a rank's buffers; first: of the entry's, in the list of the side. */
void rs_buffer_view(const rs_arrays *arrays, const rs_class *c, bool source, int64_t rank, int64_t first, int64_t array,
                    rs_view *view);
/* Appends the buffers that hold something; lists the source buffers. */
reshard_status rs_arrays_add(const struct reshard_plan_s *plan, const rs_arrays *arrays, rs_extents *all);
reshard_status rs_arrays_sources(const struct reshard_plan_s *plan, const rs_arrays *arrays, rs_extents *all);

/* Appends all copies to the plan's rank, from itself and from others, from array to array. *foreign_bytes grows by what
 * others send. hops: what these pass on is not copied; NULL: nothing is. view_of: where an array of an entry is on a
 * rank. reaches: tells whose arrays are copied; NULL: all ranks'. */
typedef bool (*rs_maps_rank)(void *user, int64_t rank);
typedef reshard_status (*rs_view_of)(void *user, int64_t rank, int64_t entry, bool source, int64_t array,
                                     rs_view *view);
reshard_status rs_pull(const struct reshard_plan_s *plan, const struct rs_hops *hops, rs_view_of view_of,
                       rs_maps_rank maps, void *user, rs_copies *copies, int64_t *foreign_bytes);
/* Appends the copies of the data that stays on the rank alone. */
reshard_status rs_pull_own(const struct reshard_plan_s *plan, const rs_arrays *arrays, rs_copies *copies);

/* Appends to `copies` the part of a segment in positions [lo, hi) of its (cut) axes. A side is a view of the
 * array, or a message: `linear` is then the address of the segment's first byte in it. */
typedef struct rs_lowering {
  const rs_class *class_;
  bool sending; /* the segment is of the class' send side, else of its receive side */
  rs_route route;
  const rs_segment *segment;
  const rs_view *src, *dst; /* NULL: linear */
  char *linear;
  bool passed; /* linear is as it is passed on, from a destination: in its dtype, unless the wire's is narrower */
  bool back;   /* from the view of the destination to linear */
} rs_lowering;
/* The whole segment. */
reshard_status rs_lower(const rs_lowering *lowering, rs_copies *copies);
/* Elements [begin, end) of the segment in message order; linear is where element `begin` is. */
reshard_status rs_lower_range(const rs_lowering *lowering, int64_t begin, int64_t end, rs_copies *copies);

/* Looks where the arrays are: memory that the rank's GPU reaches, not another GPU's. direct_only: a source that another
 * GPU of the process does not reach is RESHARD_ERROR_UNSUPPORTED, else noted in *arrays. extents: as in
 * rs_arrays_borrow. */
reshard_status rs_arrays_look_up(reshard_comm comm, const struct reshard_plan_s *plan, rs_extents *extents,
                                 bool direct_only, rs_arrays *arrays);
/* rs_arrays_bind, and looks where they are. *out is to be freed after an error, too. */
reshard_status rs_arrays_bind_on(reshard_comm comm, const struct reshard_plan_s *plan, const reshard_arrays *given,
                                 bool direct_only, rs_arrays *out);
/* RESHARD_ERROR_UNSUPPORTED where a GPU of the process that may fetch messages there does not reach staging. */
reshard_status rs_staging_look_up(reshard_comm comm, const void *staging, size_t bytes);

#endif
