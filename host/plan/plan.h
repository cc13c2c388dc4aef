/* Inside of a plan, for its own room and those above.
 *
 * Entries that are equal in layouts, width, regions and permutation form a class, which is intersected once. A class
 * lists, per peer, the segments that it sends and receives. A message to a peer is, entry after entry (widest elements
 * first), the segments of the entry's class. */
#ifndef RS_PLAN_PLAN_H
#define RS_PLAN_PLAN_H

#include "layout/query.h"

#include <reshard/plan.h>

#include <stdatomic.h>

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
/* Elements of the region; 0 where an extent is, whatever the others are. */
int64_t rs_space_elements(const rs_space *space);

/* Ranks that a message goes from and to. */
typedef struct rs_route {
  int64_t src, dst;
} rs_route;
static inline rs_route rs_route_of(int64_t rank, bool sending, int64_t peer) {
  return sending ? (rs_route){rank, peer} : (rs_route){peer, rank};
}

/* Intersection of one source array and one destination array, row-major over the axes. Of this, rows of the outermost
 * axis with more than one index: all of them unless replicas share the work. Worlds have segments by the million, and
 * are planned as fast as that memory is filled. So ranks are the message's, arrays narrow (layouts with more boxes are
 * refused), and rows are counted where they are asked for (rs_segment_rows). */
typedef struct rs_segment {
  int32_t src_array, dst_array;
  int64_t lists; /* index in the side's ids of the naxes lists; -1: both arrays are boxes, compute it */
  int64_t begin; /* the first row */
  int64_t elements;
} rs_segment;

typedef struct rs_message {
  int64_t peer;
  const rs_segment *segments; /* by (destination array, source array) */
  int64_t elements;
  int64_t count : 62; /* of the segments */
  /* It is one contiguous range of a buffer of its source, of its destination, if arrays are contiguous. Known on this
   * rank's ends. */
  bool src_in_place : 1, dst_in_place : 1;
} rs_message;
typedef RS_VEC(rs_message) rs_messages;

/* Segments and messages that a rank sends (with those that it keeps, as peer = itself), or receives. Plans that were
 * made together share storage, and a receiver's messages consist of the senders' segments. */
typedef struct rs_side {
  rs_messages messages;        /* by peer */
  int64_t first_message;       /* number of the first among those of all classes */
  RS_VEC(rs_segment) segments; /* of all messages, where they are not shared */
  rs_lists lists;              /* runs: `ask` is the source's array where src_asks, else the destination's */
  RS_VEC(int64_t) ids;         /* naxes list numbers per segment that has lists */
  int64_t nsegments;           /* in all messages */
  bool src_asks;
  bool shared; /* storage is rs_shared's */
} rs_side;

/* An element where it lies or travels. */
typedef struct rs_format {
  int64_t width;       /* bytes */
  reshard_dtype dtype; /* NONE where elements are moved as they are */
} rs_format;
static inline bool rs_format_equal(rs_format a, rs_format b) { return a.width == b.width && a.dtype == b.dtype; }

/* Scales of the f8_e4m3 side of a class. Where values and scales travel, an element of the class is a whole
 * block with its scale, and its layouts and its space are those of blocks. Blocks at the end of a dim are shorter: an
 * entry then has a part for each shape of a block. */
typedef struct rs_scaling {
  reshard_layout src, dst;     /* of elements, retained */
  reshard_layout scales;       /* of blocks of the f8_e4m3 side, retained */
  reshard_layout other;        /* likewise of the other side; NULL where values and scales do not travel */
  rs_space space;              /* of elements: the region of the entry */
  bool source;                 /* the f8_e4m3 side is the source */
  bool whole;                  /* values and scales travel: `other` is there */
  bool relative;               /* blocks of the other side are counted from the region's begin, not from the tensor's */
  reshard_dtype dtype;         /* of scales */
  int64_t block[RS_MAX_AXES];  /* of each axis */
  int64_t extent[RS_MAX_AXES]; /* of a block of the part, which has that of fewer indices at the end of a dim */
} rs_scaling;

typedef struct rs_class {
  reshard_layout src, dst; /* retained */
  rs_space space;
  rs_format from, to, wire; /* in the source, in the destination, in a message: as one of the two */
  int64_t entries;          /* of this class */
  int64_t first_entry;
  rs_side send, receive;
  int64_t kept;        /* elements */
  int64_t wanted;      /* elements of the region that the rank's destination arrays hold */
  int64_t exclusive;   /* elements that only this rank holds and others need */
  rs_scaling *scaling; /* NULL: there are no scales */
} rs_class;

/* The layout and the region of an entry, in elements. */
static inline reshard_layout rs_class_layout(const rs_class *c, bool source) {
  return c->scaling == NULL ? (source ? c->src : c->dst) : source ? c->scaling->src : c->scaling->dst;
}
static inline const rs_space *rs_class_space(const rs_class *c) {
  return c->scaling != NULL ? &c->scaling->space : &c->space;
}
/* True where a class counts blocks, which travel with their scales. */
static inline bool rs_class_in_blocks(const rs_class *c) { return c->scaling != NULL && c->scaling->whole; }
/* True where a side has scales: behind its buffers are as many of them. */
static inline bool rs_class_scaled(const rs_class *c, bool source) {
  return c->scaling != NULL && c->scaling->source == source;
}
static inline int64_t rs_class_buffers(const rs_class *c, bool source, int64_t rank) {
  return rs_layout_buffers(rs_class_layout(c, source), rank) << rs_class_scaled(c, source);
}

typedef struct rs_entry {
  int64_t class_;
  int64_t of;                     /* the entry as it was given, for each of its parts */
  reshard_dtype dtype, dst_dtype; /* dst_dtype is never NONE */
  int64_t src_buffer, dst_buffer; /* first of its buffers in the lists of all entries */
  const char *name;               /* the plan's */
} rs_entry;

/* Names of all entries, one behind the other. Plans that were made together have one list. */
typedef struct rs_entry_names {
  atomic_int references;
  int64_t used;
  char at[];
} rs_entry_names;

typedef struct rs_peer {
  int64_t rank;
  int64_t sent, received; /* bytes */
  /* The message, where it is one entry's alone: its number among those of all classes. -1 when there is none, -2 when
   * there are several, or a number beyond 31 bits. Narrow, as a dense world has peers by the million. */
  int32_t send_message, receive_message;
} rs_peer;
/* The peers that messages go to and come from, by rank. */
typedef struct rs_partners {
  const rs_peer *at;
  int64_t n;
} rs_partners;
/* Notes one more message to or from a peer: the i-th of a side, of so many entries. */
static inline void rs_peer_add_message(rs_peer *peer, bool sending, const rs_side *side, int64_t i, int64_t entries) {
  int32_t *known = sending ? &peer->send_message : &peer->receive_message;
  int64_t number = side->first_message + i;
  *known = *known == -1 && entries == 1 && number <= INT32_MAX ? (int32_t)number : -2;
}

/* Storage of plans that were made together (world.c). */
typedef struct rs_shared rs_shared;
void rs_shared_release(rs_shared *shared);
/* rs_alloc, from the storage of plans that were made together where the plan is one of these. */
reshard_status rs_plan_alloc(const struct reshard_plan_s *plan, void *out, int64_t n, size_t element);

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
  bool smaller;     /* layouts may be of smaller worlds than the plan's */
  int64_t ngiven;   /* entries as they were given; their further parts are behind them */
  int64_t nentries; /* with these */
  rs_entry *entries;
  rs_entry_names *names;
  int64_t *order; /* entries by wire width descending: the order within messages */
  RS_VEC(rs_class) classes;
  int64_t nsrc, ndst;           /* buffers of this rank in all */
  RS_VEC(rs_peer) peers;        /* by rank */
  int64_t limit;                /* of the workspace, as it was asked for (rounds.h) */
  int64_t held;                 /* rs_plan_held where the default limit depends on it, else 0 */
  int64_t block;                /* bytes of the largest block that travels with its scale; 0: none does */
  bool on_cpu;                  /* its info is of a transfer on the CPU */
  int64_t *nodes;               /* [world] or NULL; the domains of a topology */
  struct rs_topology *topology; /* or NULL (topology.h) */
  struct rs_hops *hops;         /* what goes by message where bytes are passed on (hops.h); NULL: none are */
  uint64_t fields[RS_FIELDS];
  rs_shared *shared; /* NULL: the plan was made alone */
  reshard_plan_info info;
};

/* The hash of the options, RS_FIELD_OPTIONS: of the limit, the nodes and the topology. */
uint64_t rs_plan_hash_options(const struct reshard_plan_s *plan);
/* The hash of a field of entry i, chained to that of the entries before (0 for none); RS_FIELD_TENSORS to _REGIONS. */
uint64_t rs_plan_field(const struct reshard_plan_s *plan, int field, int64_t i, uint64_t before);

/* reshard_plan_create for a world that may be larger than those that the layouts were made for: the ranks beyond hold
 * nothing. */
reshard_status rs_plan_create_wide(int64_t nentries, const reshard_entry *entries, int64_t rank, int64_t world,
                                   reshard_plan *plan);

/* Steps of reshard_plan_create, for plans that are made together: options, entries and classes; the same from another
 * rank's plan; totals and rounds, once the classes are intersected. */
reshard_status rs_plan_begin(int64_t nentries, const reshard_entry *entries, int64_t rank, int64_t world, bool smaller,
                             const reshard_plan_options *options, struct reshard_plan_s **plan);
reshard_status rs_plan_begin_like(const struct reshard_plan_s *like, int64_t rank, struct reshard_plan_s **plan);
reshard_status rs_plan_finish(struct reshard_plan_s *plan);
/* World of the plan whose first entry this is. */
reshard_status rs_plan_world(const reshard_entry *first, int64_t *world);

/* The class of the message with this number, as rs_peer has it, of those that are sent or received. */
static inline const rs_class *rs_plan_class_of_message(const struct reshard_plan_s *plan, bool sent, int64_t number) {
  int64_t low = 0, high = plan->classes.n - 1;
  const rs_class *c = plan->classes.at;
  RS_LOWER_BOUND(low, high, (sent ? c[i + 1].send.first_message : c[i + 1].receive.first_message) <= number);
  return &c[low];
}

/* reshard_plan_get_pattern. */
reshard_pattern rs_plan_pattern(const struct reshard_plan_s *plan);
/* True when the rank keeps what it sends to everybody, as in an all-gather. */
bool rs_plan_keeps_what_it_sends(const struct reshard_plan_s *plan);
#endif
