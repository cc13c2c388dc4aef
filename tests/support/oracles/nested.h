/* Random nested sharded tensors, drawn as a tree of boxes with owners, and what becomes of them element by element.
 * Elements are i32, and each is its row-major number in the outermost tensor. */
#ifndef TESTS_NESTS_H
#define TESTS_NESTS_H

#include <reshard/state_dict.h>

#include <stdbool.h>
#include <stdint.h>

typedef struct nest nest;

/* depth: outer tensors above the plain ones, 1 or more. Each level is cut in boxes at random, each box is had by some
 * of the ranks, or by two groups of them as replicas; some are empty. */
nest *nest_make(uint64_t seed, int64_t ranks, int depth);
void nest_free(nest *n);

/* As a rank has it: the outer metadata name this rank for what it has a part of, and any rank that has for the rest. */
reshard_tree nest_state(const nest *n, reshard_sharder sharder, int64_t rank);

/* How many elements have another owner than they should: this rank where it has the element, else the lowest of those
 * that the metadata this rank was given tell; global: the lowest of all ranks that have it, and the layout should name
 * all of these. Elements that are held not once count, and shards that are not in the order of ranks. */
int64_t nest_check_owners(const nest *n, reshard_sharded_tensor flat, int64_t rank, bool global);

/* This rank's arrays of an inner tensor that is a box of a tensor of a shape. */
void nests_fill(reshard_sharded_tensor inner, int64_t rank, const reshard_box *outer, const int64_t *shape);
/* How many elements of this rank's arrays, which are boxes, are wrong. */
int64_t nests_check(reshard_sharded_tensor flat);

#endif
