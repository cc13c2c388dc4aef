/* Small worlds for tests: a tensor is dealt to the ranks of a layout, resharded by rank threads, and collected again.
 * Where elements lie comes from the layouts' public queries, which test_layout.c checks against lists of indices. */
#ifndef TESTS_DEAL_H
#define TESTS_DEAL_H

#include <reshard/reshard.h>

#include "util.h"

/* Buffers of all ranks for one layout; each is an allocation of its own, of exactly the bytes that are held, so that
 * AddressSanitizer sees what goes past an end. */
typedef struct deal {
  reshard_layout layout; /* borrowed */
  int64_t world, width;
  int64_t *first; /* [world + 1]: buffers of rank r are [first[r], first[r + 1]) */
  unsigned char **buffer;
} deal;

/* Every byte is 0xEE. */
void deal_create(reshard_layout layout, int64_t width, deal *out);
void deal_free(deal *d);
/* A whole tensor, row-major, into the buffers; out of them, `tensor` keeping what no rank holds. Collecting returns the
 * number of elements in which replicas, or boxes that overlap, differ. */
void deal_scatter(const deal *d, const unsigned char *tensor);
int64_t deal_collect(const deal *d, unsigned char *tensor);

/* A whole tensor of `elements`, every element different (as far as its width allows) for a given key. */
unsigned char *deal_tensor(int64_t elements, int64_t width, uint64_t key);

/* What an entry makes of a whole destination tensor, element by element from its definition. */
void deal_expect(const reshard_entry *entry, reshard_layout src, reshard_layout dst, int64_t width,
                 const unsigned char *from, unsigned char *to);

/* Ranks that are threads of this process, with communicators of their own. */
typedef struct deal_world deal_world;
deal_world *deal_world_create(int64_t n);
void deal_world_destroy(deal_world *w);

/* What one run has to say. */
typedef struct deal_result {
  reshard_status status;
  char error[512];         /* the last error of the rank that failed first */
  int64_t *wire_bytes;     /* [world] counted by the communicators during the run */
  reshard_plan_info *info; /* [world] */
} deal_result;

/* Plans and transfers on every rank, one execute_all from this thread, then all is destroyed. Side by side, src[i] and
 * dst[i] are the buffers of entry i; an entry's layouts may be NULL and are taken from there. reverse: plans are
 * reversed first, and dst is read. */
void deal_run(deal_world *w, int64_t nentries, const reshard_entry *entries, const deal *const *src,
              const deal *const *dst, const reshard_plan_options *options, reshard_path path, bool reverse,
              deal_result *result);
void deal_result_free(deal_result *result);

#endif
