/* Stores made by hand from naive cuts, in memory or in files without a name, each block at a place of its own. */
#ifndef TESTS_NAIVE_STORE_H
#define TESTS_NAIVE_STORE_H

#include "file/map/region.h"
#include "file/move/store.h"
#include "file_random.h"

#ifdef RS_HAVE_JANSSON

/* A tensor per side; sides are cuts of the tensors' shapes, or of the reversed shapes where reversed says so (NULL:
 * none is). filled: with the tensors' values; else every byte is 0xEE. Between blocks every byte is 0x5A. */
void naive_store_make(rng *r, const naive_set *set, const naive_side *sides, const bool *reversed, bool in_files,
                      bool filled, rs_store *out);
void naive_store_free(rs_store *store); /* and its memory */

/* All that a store has of a tensor is what the tensor has, and nothing between the blocks was written; ranks below 0
 * are all, else the others' blocks must be 0xEE. */
bool naive_store_check(const rs_store *store, const naive_set *set, const naive_side *sides, int64_t only_rank,
                       rs_text *why);

/* File and offset of a shard's element. */
rs_stored_block naive_store_block(const rs_store *store, int64_t tensor, const naive_cut *cut, int64_t shard);

/* Moves a region, element by element; numbers of another dtype are converted. */
void naive_region(const naive_set *src, const rs_copy_region *region, naive_set *dst);

#endif
#endif
