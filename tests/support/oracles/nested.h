/* Random nested sharded tensors: a tree of boxes with owners, and the expected result of flattening, element by
 * element. Elements are i32, and each is its row-major number in the outermost tensor. */
#ifndef TESTS_NESTED_H
#define TESTS_NESTED_H

#include <reshard/state_dict.h>

#include <stdbool.h>
#include <stdint.h>

typedef struct nested_case nested_case;

/* Draws a case. depth: outer tensors above the plain ones, 1 or more. Each level is cut in boxes at random. Each box
 * belongs to some of the ranks, or to two groups of them as replicas; some are empty. */
nested_case *nested_create(uint64_t seed, int64_t ranks, int depth);
void nested_free(nested_case *n);

/* The tensor as a rank has it: the outer metadata names this rank for its own parts, and any owner for the rest. */
reshard_tree nested_state(const nested_case *n, reshard_sharder sharder, int64_t rank);

/* Counts the elements with another owner than expected: this rank where it has the element, else the lowest rank that
 * this rank's metadata names. global: the lowest of all ranks that have it, and the layout names all of these. Elements
 * that are not held exactly once count, and so do shards that are not in the order of ranks. */
int64_t nested_check_owners(const nested_case *n, reshard_sharded_tensor flat, int64_t rank, bool global);

/* Fills this rank's arrays of an inner tensor that is a box of a tensor of a shape. */
void nested_fill(reshard_sharded_tensor inner, int64_t rank, const reshard_box *outer, const int64_t *shape);
/* Counts the wrong elements of this rank's arrays, which are boxes. */
int64_t nested_check(reshard_sharded_tensor flat);

#endif
