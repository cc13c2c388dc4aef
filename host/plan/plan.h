/* Inside of a plan, for its own room and those above.
 *
 * Entries that are equal in layouts, width, regions and permutation form a class, which is intersected once. A class
 * lists, per peer, the segments that it sends and receives. A message to a peer is, entry after entry (widest elements
 * first), the segments of the entry's class. */
#ifndef RS_PLAN_PLAN_H
#define RS_PLAN_PLAN_H

#include "layout/layout.h"

#include <reshard/plan.h>

/* Axes of a region: the dims of the destination in their order, then source dims that the destination lacks. */
#define RS_MAX_AXES (2 * RESHARD_MAX_DIMS)
typedef struct rs_space {
  int naxes;
  int src_dim[RS_MAX_AXES], dst_dim[RS_MAX_AXES]; /* -1: this side lacks the axis; extent is 1 then */
  int64_t extent[RS_MAX_AXES];
  int64_t src_offset[RS_MAX_AXES], dst_offset[RS_MAX_AXES]; /* of the region, in the global tensors */
} rs_space;

/* Region and permutation of an entry, checked; what it says when it is wrong starts with `label`. */
reshard_status rs_space_create(const char *label, const reshard_entry *entry, rs_space *space);

/* Intersection of one source array and one destination array, row-major over the axes. Of this, rows [begin, end) of
 * the outermost axis with more than one index: all of them unless replicas share the work. */
typedef struct rs_segment {
  int64_t peer;
  int64_t src_array, dst_array;
  int64_t lists; /* index in the side's ids of the naxes lists; -1: both arrays are boxes, compute it */
  int64_t begin, end;
  int64_t elements;
} rs_segment;

typedef struct rs_message {
  int64_t peer;
  int64_t first, count; /* in the side's segments */
  int64_t elements;
} rs_message;

/* Segments and messages that a rank sends (with those that it keeps, as peer = itself), or receives. */
typedef struct rs_side {
  RS_VEC(rs_segment) segments; /* by (peer, destination array, source array) */
  RS_VEC(rs_message) messages; /* by peer */
  rs_lists lists;              /* runs: `ask` is this rank's array, `held` the peer's */
  RS_VEC(int64_t) ids;         /* naxes list numbers per segment that has lists */
} rs_side;

typedef struct rs_class {
  reshard_layout src, dst; /* retained */
  rs_space space;
  int64_t width;   /* bytes of an element */
  int64_t entries; /* of this class */
  int64_t first_entry;
  rs_side send, receive;
  int64_t kept;      /* elements */
  int64_t wanted;    /* elements of the region that the rank's destination arrays hold */
  int64_t exclusive; /* elements that only this rank holds and others need */
} rs_class;

typedef struct rs_entry {
  int64_t class_;
  reshard_dtype dtype;
  int64_t src_buffer, dst_buffer; /* first of its buffers in the lists of all entries */
  char *name;
} rs_entry;

typedef struct rs_peer {
  int64_t rank;
  int64_t sent, received;            /* bytes */
  int64_t send_entry, receive_entry; /* the only entry of that message; -1 when there is no message, -2 when several */
  int64_t send_message, receive_message; /* the message in that entry's class */
} rs_peer;

/* Fields that are alike on all ranks; one hash each. */
enum {
  RS_FIELD_VERSION,
  RS_FIELD_TENSORS,
  RS_FIELD_LAYOUTS,
  RS_FIELD_DTYPES,
  RS_FIELD_REGIONS,
  RS_FIELD_OPTIONS,
  RS_FIELDS
};

struct reshard_plan_s {
  int64_t rank, world;
  bool smaller; /* layouts may be of smaller worlds than the plan's */
  int64_t nentries;
  rs_entry *entries;
  int64_t *order; /* entries by width descending: the order within messages */
  RS_VEC(rs_class) classes;
  int64_t nsrc, ndst;    /* buffers of this rank in all */
  RS_VEC(rs_peer) peers; /* by rank */
  int64_t limit;         /* of the workspace, as it was asked for (rounds.h) */
  bool on_cpu;           /* its info is of a transfer on the CPU */
  int64_t *nodes;        /* [world] or NULL */
  uint64_t fields[RS_FIELDS];
  reshard_plan_info info;
};

/* The hash of a field of entry i, chained to that of the entries before (0 for none); RS_FIELD_TENSORS to _REGIONS. */
uint64_t rs_plan_field(const struct reshard_plan_s *plan, int field, int64_t i, uint64_t before);

/* reshard_plan_create for a world that may be larger than those that the layouts were made for: the ranks beyond hold
 * nothing. */
reshard_status rs_plan_create_wide(int64_t nentries, const reshard_entry *entries, int64_t rank, int64_t world,
                                   reshard_plan *plan);

/* One side of a segment, axis by axis, in elements of the rank's local arrays. */
typedef struct rs_span_list {
  const rs_run *runs;
  int64_t count, length;
} rs_span_list;
/* Geometry of a segment: per axis its runs (ask = source index, held = destination index where `src_asks`, the other
 * way round else). For segments without lists the runs are put into storage[naxes]. */
typedef struct rs_geometry {
  int naxes;
  bool src_asks;
  rs_span_list axis[RS_MAX_AXES];
  rs_run storage[RS_MAX_AXES];
  int cut; /* the axis that begin and end are about; -1 when no axis has more than one index */
} rs_geometry;
void rs_segment_geometry(const struct reshard_plan_s *plan, const rs_class *class_, bool sending,
                         const rs_segment *segment, rs_geometry *out);

/* Fills send and receive of a class for one rank. */
reshard_status rs_class_intersect(rs_class *class_, int64_t rank, int64_t world, const int64_t *nodes);
void rs_class_free(rs_class *class_);

/* reshard_plan_get_pattern. */
reshard_pattern rs_plan_pattern(const struct reshard_plan_s *plan);
/* True when the rank keeps what it sends to everybody, as in an all-gather. */
bool rs_plan_keeps_what_it_sends(const struct reshard_plan_s *plan);
/* The data that stays on the rank, as a message to itself, for rs_message_in_place. */
rs_peer rs_plan_own(const struct reshard_plan_s *plan);

/* Place of a message that is one contiguous range of one of the rank's own buffers, and so needs no packing (sending)
 * or unpacking. buffer: number in the lists of all entries. strides: per buffer of this side, NULL or NULL element for
 * contiguous. False when the message is no such range. For the data that stays on the rank both sides can be asked
 * for. */
typedef struct rs_place {
  int64_t buffer;
  int64_t offset; /* bytes */
} rs_place;
bool rs_message_in_place(const struct reshard_plan_s *plan, const rs_peer *peer, bool sending,
                         const int64_t *const *strides, rs_place *place);
/* The message of a class with a peer; NULL when there is none. */
const rs_message *rs_side_message(const rs_side *side, int64_t peer);

#endif
