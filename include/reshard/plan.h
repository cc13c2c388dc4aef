/* Plans: the way of one rank of a world to move tensors from one layout to another.
 *
 * A plan is built once from pairs of layouts. All arithmetic happens here: intersections, peers, messages, rounds,
 * workspace. A plan is immutable, holds no pointers to data and prints itself. No communicator is needed: a plan can be
 * built for any rank of any world on any machine. Making one is local. The ranks' plans are compared when a transfer is
 * made. Calls that return a status refuse a NULL plan (RESHARD_ERROR_INVALID). */
#ifndef RESHARD_PLAN_H
#define RESHARD_PLAN_H

#include <reshard/dtype.h>
#include <reshard/layout.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct reshard_plan_s *reshard_plan;

typedef enum reshard_op {
  RESHARD_OP_COPY = 0, /* the only one built; others are refused by name */
  RESHARD_OP_SUM,
  RESHARD_OP_AVG,
  RESHARD_OP_MIN,
  RESHARD_OP_MAX,
  RESHARD_OP_PROD
} reshard_op;

/* Block-scaled FP8: an entry with `block` has all buffers of the values of its f8_e4m3 side, then as many of scales, of
 * shape ceil(n / block) and laid out as the values. At most two dims have blocks of more than 1. For the largest
 * magnitude m of a block, 1e-4 at least, the scale s is m / 448, rounded up to a power of two for f8_e8m0. Values are
 * e4m3(x * (1 / s)), computed in f32, as are the products back. Values and scales travel where every cut of the other
 * side lies on blocks, which count from the region's begin (for arrays of several runs in a dim, from the tensor's).
 * Else the other dtype does, from f8_e4m3; to it that is refused. Calls that move such entries take 256 KiB of stack.
 *
 * Errors: RESHARD_ERROR_INVALID: cuts or regions of the f8_e4m3 side within a block. RESHARD_ERROR_UNSUPPORTED: blocks
 * of more than 32,768 elements, other dtypes, f8_e4m3 on both sides (values and scales are two plain entries), the
 * reverse of a plan. Nothing is passed on (reshard_topology).
 *
 * One tensor, or a part of one. Elements are converted where dst_dtype is another one, between f64, f32, f16, bf16,
 * f8_e4m3 and f8_e5m2. They are rounded to nearest even, once. What is too large becomes infinity, in f8_e4m3 the
 * largest number; every NaN becomes the one of which all bits but the sign are set. By message the narrower of both
 * dtypes travels, the source's where both are equally wide. It is converted in the pack or in the unpack. A direct copy
 * reads the source's dtype. So all paths give the same bits, on CPUs and on GPUs.
 *
 * The region [src_offset, + src_extent) of the source becomes the region [dst_offset, +
 * dst_extent) of the destination. Begin with RESHARD_ENTRY_DEFAULTS, or set `size` to RESHARD_ENTRY_INIT. The pointers
 * are read during reshard_plan_create only. */
typedef struct reshard_entry {
  size_t size;
  reshard_layout src, dst; /* borrowed during the call; the plan takes references of its own */
  reshard_dtype dtype;     /* of the source elements */
  reshard_dtype dst_dtype; /* of the destination elements; RESHARD_DTYPE_NONE: the same */
  reshard_op op;
  const int64_t *src_offset; /* per dim of src; NULL: 0 */
  const int64_t *src_extent; /* per dim of src; NULL: all from the offset on */
  const int64_t *dst_offset; /* per dim of dst; NULL: 0 */
  /* Per dim of dst. NULL: the extents of the source region, through the permutation. Without any region both tensors
   * are whole, and must fit. */
  const int64_t *dst_extent;
  /* Per dim of dst: the source dim that it walks, or -1 for a dim of extent 1 that the source lacks. NULL: identity.
   * Source dims that are not named must have extent 1 in the region. */
  const int *permutation;
  const char *name; /* Copied: for print-outs and errors, also on ranks whose plans differ. NULL: "tensor". */
  /* Per dim of the side that is f8_e4m3: extent of a block with one scale. The other side is f32, f16 or bf16. NULL:
   * there are no scales. */
  const int64_t *block;
  reshard_dtype scale_dtype; /* of scales: RESHARD_F32, also as RESHARD_DTYPE_NONE, or RESHARD_F8_E8M0 */
} reshard_entry;
#define RESHARD_ENTRY_INIT sizeof(reshard_entry)
#define RESHARD_ENTRY_DEFAULTS \
  { \
    sizeof(reshard_entry), NULL, NULL, RESHARD_DTYPE_NONE, RESHARD_DTYPE_NONE, RESHARD_OP_COPY, NULL, NULL, NULL, \
        NULL, NULL, NULL, NULL, RESHARD_DTYPE_NONE \
  }

/* Limits of the workspace by name. The default is the library's. On GPUs it is 64 MiB, 4 KiB x world, or 2 % of what a
 * rank holds on average, whichever is most. The share is that of the side where it is more: the bytes that all ranks
 * hold of the entries' regions, replicas included, over the ranks that hold any. The limit depends on nothing but the
 * plan and the kind of device, so all ranks have the same. A collective of the communicator is taken whatever staging
 * it needs then.
 *
 * On the CPU a transfer stages no more than 1 MiB, or 16 KiB x world, under any limit and without one, which stays in
 * the cache; more would be slower. Over MPI, where all ranks of the communicator that the caller made are on one node,
 * it is 256 KiB, or 16 KiB x world. Without a deadline, messages there may be sent from strided sources, by MPI's own
 * types: those that are runs of 1 KiB or more, at one stride, without staging. Such types are taken where all is one
 * round then, and would be several else.
 *
 * The least limit is 256 bytes x world, or 128 for each stream that a rank stages (of the info), where that is more.
 * Messages are cut in pieces of a 16th of limit / world or more: then those of all peers fit the staging of two rounds.
 * Pieces are steps of 256 bytes from 4 KiB x world on. Below, they are of 16 bytes, the widest element. */
#define RESHARD_DEFAULT_LIMIT 0
#define RESHARD_NO_LIMIT      (-1) /* one round, but where bytes are passed on, however much that stages */

/* Domains of ranks whose links within are faster than those between: nodes, or domains of NVLink. Begin with
 * RESHARD_TOPOLOGY_DEFAULTS: 50 GB/s between, 900 GB/s within, 30 us a round. */
typedef struct reshard_topology {
  size_t size;
  int64_t ranks;           /* of the world */
  const int64_t *domain;   /* the domain of each rank, any number, read during the call */
  int64_t between, within; /* bytes a second that a rank sends, and receives, to other domains and within; above 0 */
  int64_t round_ns;        /* what a round costs beside its bytes; above 0 */
  /* Of domains with equally many receivers; at most as many as domains. A chain's first domain gets bytes from the
   * holders, each other one from the one before, and its ranks pass them on. 0: by a model; RESHARD_NO_CHAINS: none.
   * Passing on takes rounds, without a limit, too: in a single one each hop would wait for all of the one before. */
  int64_t chains;
} reshard_topology;
#define RESHARD_NO_CHAINS     (-1)
#define RESHARD_TOPOLOGY_INIT sizeof(reshard_topology)
#define RESHARD_TOPOLOGY_DEFAULTS \
  { sizeof(reshard_topology), 0, NULL, 50000000000, 900000000000, 30000, 0 }

/* Begin with RESHARD_PLAN_OPTIONS_DEFAULTS, or set `size` to RESHARD_PLAN_OPTIONS_INIT; the rest may be 0. All fields
 * but on_cpu are compared between ranks. */
typedef struct reshard_plan_options {
  size_t size;
  int64_t workspace_limit; /* bytes of staging on every rank, 256 x world or more; or one of those above */
  /* Node of each rank, `world` of them, read during the call. NULL: none. Receivers on a node that has replicas of a
   * source are served from there. */
  const int64_t *nodes;
  /* Not 0: rounds and workspace of the plan's info and text are those of a transfer on the CPU; else on GPUs. A
   * transfer goes by the device of its communicator. */
  int on_cpu;
  /* Read during the call; NULL: none. Its domains are the nodes then, and a node map that says otherwise is
   * RESHARD_ERROR_INVALID. The info counts what goes between domains and within. */
  const reshard_topology *topology;
} reshard_plan_options;
#define RESHARD_PLAN_OPTIONS_INIT sizeof(reshard_plan_options)
#define RESHARD_PLAN_OPTIONS_DEFAULTS \
  { sizeof(reshard_plan_options), RESHARD_DEFAULT_LIMIT, NULL, 0, NULL }

/* Builds the plan of one rank for nentries tensors (0 is legal). All layouts must be of one world. options NULL:
 * defaults.
 *
 * Memory follows the runs: neighbouring indices of a dim that an array of this rank shares with one of the other side.
 * Each takes 24 bytes, and three times that while the plan is made. Blocks that are dealt in turn are a run each: from
 * cyclic(4;9) to chunk(0), 2^31 elements have 119 million of them on a rank, 3 GB.
 *
 * Errors:
 * - RESHARD_ERROR_INVALID: regions, permutation, a source that is not valid, a workspace limit below the least, which
 *   is named; a topology of another world, or numbers of it out of range.
 * - RESHARD_ERROR_UNSUPPORTED: dtypes without a cast, operations other than copy, more than 2,147,483,647 boxes of a
 *   layout.
 * - RESHARD_ERROR_OUT_OF_MEMORY: with the number of runs, where they are what there is no memory for. */
RESHARD_API reshard_status reshard_plan_create(int64_t nentries, const reshard_entry *entries, int64_t rank,
                                               const reshard_plan_options *options, reshard_plan *plan);
RESHARD_API void reshard_plan_destroy(reshard_plan plan);

/* Builds the plans of nranks ranks: plans[i] is that of ranks[i], equal to what reshard_plan_create makes for it. ranks
 * NULL: of all ranks, and nranks is their number, the world of the layouts. The list may be of any ranks in any order.
 * One that has each rank of the world once finds each intersection once, instead of at its sender and again at its
 * receiver. The plans share storage, which is freed with the last of them. Another list is planned rank by rank.
 *
 * plans has room for nranks, and is written only on success; each plan is destroyed by itself, in any order. plan_ns of
 * the info is an equal part of the time.
 *
 * Errors: those of reshard_plan_create; RESHARD_ERROR_INVALID where nranks without a list is not the world. */
RESHARD_API reshard_status reshard_plan_create_all(int64_t nentries, const reshard_entry *entries, int64_t nranks,
                                                   const int64_t *ranks, const reshard_plan_options *options,
                                                   reshard_plan *plans);

/* Builds the plan of the adjoint for the same rank: sides swapped, permutation inverted. Errors, where the forward
 * destination:
 * - was replicated or overlaps: RESHARD_ERROR_UNSUPPORTED by name, as the adjoint would have to sum;
 * - has gaps: RESHARD_ERROR_INVALID.
 * Dtypes are swapped, too. */
RESHARD_API reshard_status reshard_plan_reverse(reshard_plan plan, reshard_plan *reverse);

/* Collective that a plan's messages make together, for which a communicator may have one call. */
typedef enum reshard_collective {
  RESHARD_COLLECTIVE_NONE = 0,
  RESHARD_COLLECTIVE_ALL_GATHER, /* every rank sends the same bytes to all others; all ranks as many */
  RESHARD_COLLECTIVE_ALL_TO_ALL, /* every rank sends as many bytes to each other as it keeps; all ranks as many */
  RESHARD_COLLECTIVE_BROADCAST   /* one rank sends the same bytes to all others */
} reshard_collective;
/* "none", "all-gather", "all-to-all", "broadcast"; "unknown" else. */
RESHARD_API const char *reshard_collective_string(reshard_collective collective);

/* All bytes are of what travels by message: the narrower dtype of an entry that converts, or values and scales. */
typedef struct reshard_plan_info {
  int64_t rank, world, entries; /* world is 0 in a plan without entries, which fits any */
  int64_t bytes;                /* of all regions, counted once */
  int64_t sent_bytes;           /* by this rank to others */
  int64_t received_bytes;       /* by this rank from others */
  int64_t self_copy_bytes;      /* copied within the rank */
  int64_t peers;                /* ranks with which bytes are exchanged */
  int64_t messages_sent;        /* messages, after cutting in `rounds` */
  int64_t messages_received;
  int64_t rounds;            /* least that this rank needs with contiguous arrays; 0 where it exchanges nothing */
  int64_t workspace_bytes;   /* staging for the packed path in `rounds`, with contiguous arrays */
  int64_t packs_skipped;     /* peers that are sent to from the source in place (contiguous arrays) */
  int64_t unpacks_skipped;   /* peers that are received from in place */
  int64_t stages;            /* 1 today */
  int64_t segments;          /* descriptors: intersections of a source array and a destination array */
  int64_t memory_bytes;      /* taken by the plan itself */
  int64_t classes;           /* distinct geometries among the entries, each intersected once */
  int64_t lower_bound_bytes; /* bytes that this rank lacks, from the layouts alone */
  int64_t plan_ns;           /* duration of reshard_plan_create */
  int64_t exclusive_bytes;   /* bytes that only this rank holds and others need, each counted once */
  int64_t workspace_limit;   /* that holds; RESHARD_NO_LIMIT: none */
  int64_t staged_bytes;      /* sent and received through the workspace, with contiguous arrays */
  /* Rounds that staged_bytes would take if all of the limit were in use all the time: a lower bound of `rounds`. */
  int64_t least_rounds;
  int64_t domains; /* of the topology, which the rest is about; 0: there is none */
  int64_t domain;  /* of this rank: they are numbered from 0 on, in the order of their lowest ranks */
  int64_t between_sent_bytes, between_received_bytes; /* to and from ranks of other domains */
  int64_t within_sent_bytes, within_received_bytes;   /* to and from ranks of the same domain */
  /* Bytes that leave this rank's source cells for other domains, and the least that has to: each byte of a cell once,
   * counted at its lowest holder. */
  int64_t leaving_bytes, leaving_least_bytes;
  /* The least that has to come into the domain: each byte that ranks of it need and none holds, counted once, at the
   * lowest rank that needs it. */
  int64_t entering_least_bytes;
  int64_t source_bytes; /* of the entries' regions, that this rank holds as a source */
  /* Where bytes are passed on, sent and received bytes, peers, messages and rounds are of that: of transfers on the
   * packed and the mixed path. Others pass nothing on. */
  int64_t chains;       /* as they were asked for, or chosen; 0: nothing is passed on */
  int64_t hops;         /* of the longest way that bytes take to this rank, or from it; 1: none is passed on here */
  int64_t later_rounds; /* beyond `rounds`, in which bytes that came last are passed on */
  int64_t streams;      /* that this rank stages: what one rank sends another for the same receivers */
} reshard_plan_info;
RESHARD_API reshard_status reshard_plan_get_info(reshard_plan plan, reshard_plan_info *info);

/* Collective that this rank's messages are part of: one where all ranks have the same, which is compared when a
 * transfer is made (transfer.h). */
typedef struct reshard_pattern {
  reshard_collective kind;
  int64_t root;    /* of a broadcast, else -1 */
  int64_t bytes;   /* of each message; 0 for none */
  const char *why; /* in words; static */
} reshard_pattern;
/* Compares this rank's messages with one another: local, but not free. */
RESHARD_API reshard_status reshard_plan_get_pattern(reshard_plan plan, reshard_pattern *pattern);

/* The i-th peer (rank ascending) and the bytes exchanged with it. */
RESHARD_API reshard_status reshard_plan_peer(reshard_plan plan, int64_t i, int64_t *rank, int64_t *sent_bytes,
                                             int64_t *received_bytes);

/* The info with messages and workspace as they are when all ranks take so many rounds; 0: as many as this rank needs. A
 * transfer takes the largest `rounds` of all ranks. streams: the most of any rank, which bounds the pieces of messages
 * where bytes are passed on; 0: this rank's own. Over MPI on one node it stages less than the plan assumes, and takes
 * more rounds of shorter messages: a plan with the workspace_limit of the transfer's info tells these. Of one that
 * sends from strided sources no plan does: its messages are whole. RESHARD_ERROR_INVALID: fewer than this rank needs.
 */
RESHARD_API reshard_status reshard_plan_get_info_at(reshard_plan plan, int64_t rounds, int64_t streams,
                                                    reshard_plan_info *info);

/* Bytes of workspace that suffice on this rank to make a transfer on the packed path, for arrays of any strides. Never
 * more than the limit, where there is one. A rebind to arrays of which less goes in place keeps the rounds and may take
 * more: sent_bytes + received_bytes + 2 * self_copy_bytes + 512 * peers of the info always suffice, or this where it is
 * more. Where bytes are passed on, so does the larger of that and the same of a plan with RESHARD_NO_CHAINS, whose
 * messages a collective takes. The direct path needs none. */
RESHARD_API reshard_status reshard_plan_workspace(reshard_plan plan, size_t *bytes);

typedef enum reshard_format { RESHARD_TEXT = 0, RESHARD_JSON = 1 } reshard_format;
/* Prints the plan: peers, messages, rounds, bytes, workspace, skips, load. RESHARD_JSON gives one object, with peers:
 * the entry of this rank in `per_rank` of `reshard plan --json`. text, size and needed as in reshard_layout_print. */
RESHARD_API reshard_status reshard_plan_explain(reshard_plan plan, reshard_format format, char *text, size_t size,
                                                size_t *needed);

#ifdef __cplusplus
}
#endif
#endif
