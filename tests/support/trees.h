/* Trees written down in one expression: each call takes over the references of the children that it is given. For the
 * test's own thread: what fails ends the test. */
#ifndef TESTS_TREES_H
#define TESTS_TREES_H

#include <reshard/tree.h>

reshard_tree integer(int64_t value);
reshard_tree real(double value);
reshard_tree flag(int value);
reshard_tree nothing(void);
reshard_tree text(const char *text); /* as bytes */
reshard_tree dict(void);
reshard_tree list(void);
reshard_tree tuple(void);
reshard_tree structure(const char *name);
/* The tensor's reference is taken over. */
reshard_tree leaf_of(reshard_tensor tensor);
reshard_tree packed(reshard_tensor data, int64_t steps, const int64_t *sizes);
/* Return the container. */
reshard_tree set(reshard_tree container, const char *key, reshard_tree child);
reshard_tree append(reshard_tree container, reshard_tree child);

/* A new f32 tensor of n elements, not initialised. */
reshard_tensor floats(int64_t n);
/* Borrowed. */
reshard_tree node_at(reshard_tree tree, const char *path);
int64_t value_at(reshard_tree tree, const char *path);

#endif
