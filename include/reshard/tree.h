/* Trees: nested containers of tensors and other values, as the arguments of a function, the outputs of a model or a
 * state dict are. They are visited, mapped, flattened and rebuilt, printed, cast, and moved to a device.
 *
 * A NULL tree has kind 0, 0 children and a NULL type. Calls that return a status refuse it (RESHARD_ERROR_INVALID), but
 * for the arguments that may be NULL.
 *
 * Source: torch/distributed/utils.py (_apply_to_tensors, _pack_kwargs, _unpack_kwargs, _cast_forward_inputs,
 * _recursive_to, _to_kwargs), torch.utils._pytree. */
#ifndef RESHARD_TREE_H
#define RESHARD_TREE_H

#include <reshard/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A node, reference counted: a container, or a leaf. Leaves never change. A container is filled by one thread at a
 * time, while no other reads it. Counting references is thread-safe. A node may be in several containers: it is shared,
 * and stays one where trees are mapped or rebuilt. Cycles are refused. Containers may be nested to any depth. */
typedef struct reshard_tree_s *reshard_tree;

typedef enum reshard_tree_kind {
  RESHARD_TREE_DICT = 1, /* keys in the order of insertion: strings, and integers beside them */
  RESHARD_TREE_LIST,
  RESHARD_TREE_TUPLE,  /* as a list; another kind when printed, compared and rebuilt */
  RESHARD_TREE_STRUCT, /* named fields, and a name of the type: named tuples, dataclasses */
  /* packed sequence: data (a tensor), and batch sizes and indices, which are carried and not mapped */
  RESHARD_TREE_PACKED,
  RESHARD_TREE_SET, /* distinct leaves, in the order of insertion, which comparisons ignore */
  RESHARD_TREE_TENSOR,
  RESHARD_TREE_OPAQUE, /* a value of one of the caller's types */
  RESHARD_TREE_BYTES,
  RESHARD_TREE_INT,   /* int64_t */
  RESHARD_TREE_FLOAT, /* double */
  RESHARD_TREE_BOOL,
  RESHARD_TREE_NULL
} reshard_tree_kind;

/* Maps one tensor. *mapped is NULL at first. Left so, or set to the tensor that was given, nothing changes. Another
 * tensor put there is taken over with one reference, on success. path is borrowed. */
typedef reshard_status (*reshard_tree_tensor_map)(void *user, const char *path, reshard_tensor tensor,
                                                  reshard_tensor *mapped);

/* Type of an opaque leaf: one static object a type. Types are equal where their addresses are. retain and release may
 * be NULL: the value is borrowed, or a number in a pointer. A type made with designated initializers has NULL in fields
 * that a later version adds. */
typedef struct reshard_tree_type {
  const char *name; /* "DTensor" */
  void (*retain)(void *value);
  void (*release)(void *value);
  /* Calls map with user and path for each tensor that the value has on this rank. A value that would have one, and has
   * none here, gives one without elements. *mapped is NULL at first, and stays so where no tensor changed; if not, it
   * receives a new value of the type with the mapped tensors, with one reference. A NULL function: trees know of no
   * tensors in the value. */
  reshard_status (*map_tensors)(void *value, const char *path, reshard_tree_tensor_map map, void *user, void **mapped);
  /* Writes the text of one line that reshard_tree_print draws behind the name, cut off at size - 1 bytes. NULL: no
   * text. */
  void (*print)(const void *value, char *text, size_t size);
} reshard_tree_type;

/* --- Making and filling --------------------------------------------------------------------------------------- */

/* Make containers and leaves. Tensors and values are retained, bytes and names copied. Each returns one reference for
 * the caller. */
RESHARD_API reshard_status reshard_tree_dict(reshard_tree *tree);
RESHARD_API reshard_status reshard_tree_list(reshard_tree *tree);
RESHARD_API reshard_status reshard_tree_tuple(reshard_tree *tree);
RESHARD_API reshard_status reshard_tree_struct(const char *name, reshard_tree *tree);
/* Makes a Python set, which holds leaves, each once: equal as in reshard_tree_equal, where an integer, a float and a
 * bool never are. */
RESHARD_API reshard_status reshard_tree_create_set(reshard_tree *tree);
RESHARD_API reshard_status reshard_tree_tensor(reshard_tensor tensor, reshard_tree *tree);
/* Makes a packed sequence, with one child: the data, under the key "data", complete as it is made: set and append
 * refuse it.
 *
 * - data: packed by step.
 * - batch_sizes: rows of each of the steps, 1 or more, not increasing, in sum data's first extent.
 * - sorted, unsorted: orders of the batch (batch_sizes[0] numbers each), the inverse of one another, or NULL.
 *
 * Errors: RESHARD_ERROR_INVALID with the numbers. Source: torch.nn.utils.rnn.PackedSequence. */
RESHARD_API reshard_status reshard_tree_packed(reshard_tensor data, int64_t steps, const int64_t *batch_sizes,
                                               const int64_t *sorted, const int64_t *unsorted, reshard_tree *tree);
/* Makes an opaque leaf. A type with a release and without a retain takes over the reference that the caller has, on
 * success. */
RESHARD_API reshard_status reshard_tree_opaque(const reshard_tree_type *type, void *value, reshard_tree *tree);
RESHARD_API reshard_status reshard_tree_bytes(const void *bytes, size_t size, reshard_tree *tree);
RESHARD_API reshard_status reshard_tree_int(int64_t value, reshard_tree *tree);
RESHARD_API reshard_status reshard_tree_float(double value, reshard_tree *tree);
RESHARD_API reshard_status reshard_tree_bool(int value, reshard_tree *tree);
RESHARD_API reshard_status reshard_tree_null(reshard_tree *tree);

/* One more reference; returns its argument. */
RESHARD_API reshard_tree reshard_tree_retain(reshard_tree tree);
/* One reference less; the last one frees. NULL is allowed. */
RESHARD_API void reshard_tree_release(reshard_tree tree);

/* Put a child in a container, which retains it. set: under a key of a dict or struct; an existing key is replaced and
 * keeps its place. append: at the end of a list, tuple or set; a set stays as it is where it has an equal leaf. Errors:
 * RESHARD_ERROR_INVALID for other kinds, for a container as a set's child, and for a child that has the container
 * inside it. A tree that is built from its leaves or from its root costs no search for that. */
RESHARD_API reshard_status reshard_tree_set(reshard_tree container, const char *key, reshard_tree child);
/* Puts a child under an integer key of a dict, as an optimizer's state has for its parameters: another key than the
 * string of its digits. A path names both by these digits. */
RESHARD_API reshard_status reshard_tree_set_int(reshard_tree dict, int64_t key, reshard_tree child);
RESHARD_API reshard_status reshard_tree_append(reshard_tree container, reshard_tree child);

/* Replaces old_prefix by new_prefix at the beginning of a dict's own keys, all at once, in place and in their places.
 * Keys of nested containers and integer keys stay. Local. Errors: RESHARD_ERROR_INVALID for equal prefixes, and for a
 * key that would become one that the dict has and keeps, naming both. After an error nothing is changed. Source:
 * _replace_by_prefix. */
RESHARD_API reshard_status reshard_tree_replace_by_prefix(reshard_tree dict, const char *old_prefix,
                                                          const char *new_prefix);

/* --- Looking -------------------------------------------------------------------------------------------------- */

RESHARD_API reshard_tree_kind reshard_tree_get_kind(reshard_tree tree); /* 0 for NULL */
/* Number of children: 0 for leaves, and for NULL. */
RESHARD_API int64_t reshard_tree_count(reshard_tree tree);
/* Child i and its key, both borrowed; either may be NULL. The key is NULL in a list, tuple or set, and the digits of an
 * integer key. */
RESHARD_API reshard_status reshard_tree_child(reshard_tree tree, int64_t i, const char **key, reshard_tree *child);
/* 1 where child i has an integer key, which is written to *key; else 0. */
RESHARD_API int reshard_tree_int_key(reshard_tree dict, int64_t i, int64_t *key);
/* Finds a child by key of a dict, struct or packed sequence: O(1). Borrowed. Errors: RESHARD_ERROR_INVALID naming it.
 */
RESHARD_API reshard_status reshard_tree_find(reshard_tree container, const char *key, reshard_tree *child);
/* Finds a child by an integer key of a dict, likewise. */
RESHARD_API reshard_status reshard_tree_find_int(reshard_tree dict, int64_t key, reshard_tree *child);
/* Finds a node by its path: keys and indices joined by '.', as in a flattened state dict ("optimizer.state.0.exp_avg").
 * Integer keys go by their digits, leaves of a set by their order, as in flatten_state_dict. A key with '.' in it is
 * tried whole as well, and "0" as both kinds of key. The first match in depth-first order is found. The empty path is
 * the tree itself. Borrowed. Errors: RESHARD_ERROR_INVALID naming the path. */
RESHARD_API reshard_status reshard_tree_at(reshard_tree tree, const char *path, reshard_tree *found);
/* Read the content of a node. Each is an error for other kinds, and get_opaque for other types too. Borrowed. Outputs
 * of get_packed may be NULL; *sorted and *unsorted are NULL where there is none. */
RESHARD_API reshard_status reshard_tree_get_struct(reshard_tree tree, const char **name);
RESHARD_API reshard_status reshard_tree_get_packed(reshard_tree tree, reshard_tensor *data, int64_t *steps,
                                                   const int64_t **batch_sizes, const int64_t **sorted,
                                                   const int64_t **unsorted);
RESHARD_API reshard_status reshard_tree_get_tensor(reshard_tree tree, reshard_tensor *tensor);
RESHARD_API reshard_status reshard_tree_get_opaque(reshard_tree tree, const reshard_tree_type *type, void **value);
RESHARD_API reshard_status reshard_tree_get_bytes(reshard_tree tree, const void **bytes, size_t *size);
RESHARD_API reshard_status reshard_tree_get_int(reshard_tree tree, int64_t *value);
RESHARD_API reshard_status reshard_tree_get_float(reshard_tree tree, double *value);
RESHARD_API reshard_status reshard_tree_get_bool(reshard_tree tree, int *value);
/* Type of an opaque leaf. NULL for other kinds, and for NULL. */
RESHARD_API const reshard_tree_type *reshard_tree_get_type(reshard_tree tree);

/* Calls visit for every leaf, depth first in order, with its path (borrowed during the call). A node that is at several
 * places is visited at each. Non-success ends the walk and is returned. The tree must not change meanwhile. */
typedef reshard_status (*reshard_tree_visitor)(void *user, const char *path, reshard_tree leaf);
RESHARD_API reshard_status reshard_tree_visit(reshard_tree tree, reshard_tree_visitor visit, void *user);

/* Compares two trees. *equal is 1 where they have the same kinds in the same places, with the same names in the same
 * order, and equal leaves. Leaves of sets may be in any order. Tensors and opaque values are equal where they are the
 * same, numbers where their values are (a NaN equals a NaN). Sharing of nodes makes no difference. */
RESHARD_API reshard_status reshard_tree_equal(reshard_tree a, reshard_tree b, int *equal);

/* Draws the tree, a line for each node, in UTF-8:
 *
 *     dict
 *     ├── weight: &1 tensor f32 13x21 requires_grad
 *     ├── tied: *1
 *     └── hyper: struct Options
 *         ├── lr: 0.1
 *         ├── name: "adam"
 *         └── norm: <DTensor> bf16 4096 mesh(dp=2,tp=2@0-3;S0,R)
 *
 * A container, tensor or value that is at several places is drawn at the first of them, marked &n, and is *n at the
 * others. An integer key is drawn as [0]. From 32 levels on lines do not begin further to the right; they give their
 * depth.
 *
 * - needed: receives the bytes with the NUL. May be NULL. If size is less, the call writes as much of the text as
 *   fits and returns RESHARD_ERROR_INVALID. */
RESHARD_API reshard_status reshard_tree_print(reshard_tree tree, char *buffer, size_t size, size_t *needed);

/* --- Other trees of the same structure ------------------------------------------------------------------------ */

/* Maps one leaf, with the rules of reshard_tree_tensor_map. */
typedef reshard_status (*reshard_tree_leaf_map)(void *user, const char *path, reshard_tree leaf, reshard_tree *mapped);
/* Makes a tree in which each leaf is replaced by its mapped one, depth first in order. Nodes without a change are the
 * same: a container is new only where something in it changed. A new container has the names, order and batch sizes of
 * the old one. A node that is at several places is mapped once, with its first path, and is one node at all of them.
 *
 * A leaf may become any node. The data of a packed sequence stays a tensor of as many rows, a leaf of a set a leaf
 * (RESHARD_ERROR_INVALID naming the path). Leaves of a set that have become equal are one. Non-success of `map` ends
 * the walk and is returned; nothing is kept then. The tree must not change meanwhile. Source:
 * torch.utils._pytree.tree_map. */
RESHARD_API reshard_status reshard_tree_map(reshard_tree tree, reshard_tree_leaf_map map, void *user,
                                            reshard_tree *mapped);
/* Maps tensors alone, and other leaves stay. Opaque leaves whose type has map_tensors are mapped too: sharded tensors,
 * nested ones and DTensors by their local tensors. The layout stays. A flat piece is one 1-d tensor. The local tensors
 * keep their shapes and are alike in dtype and flags on all ranks (RESHARD_ERROR_INVALID naming the path). A tensor
 * that several leaves have is mapped once. Source: torch/distributed/utils.py, _apply_to_tensors. */
RESHARD_API reshard_status reshard_tree_map_tensors(reshard_tree tree, reshard_tree_tensor_map map, void *user,
                                                    reshard_tree *mapped);

/* Leaves of a tree, depth first in order, each node once. A node that is at several places, or in containers that are,
 * has the first of its paths. */
typedef struct reshard_tree_leaves {
  int64_t n;
  const char *const *paths;
  const reshard_tree *leaves; /* a reference of each is held */
} reshard_tree_leaves;
/* Lists the leaves of a tree. Source: torch.utils._pytree.tree_flatten. */
RESHARD_API reshard_status reshard_tree_flatten(reshard_tree tree, const reshard_tree_leaves **leaves);
/* NULL is allowed. */
RESHARD_API void reshard_tree_leaves_release(const reshard_tree_leaves *leaves);
/* Makes a tree of the structure of another one with other leaves, in the order in which flattening that one lists its
 * own. Nodes are shared as in reshard_tree_map: with its own leaves it is the same tree again. Errors:
 * RESHARD_ERROR_INVALID for another number of leaves, with both. Source: torch.utils._pytree.tree_unflatten. */
RESHARD_API reshard_status reshard_tree_rebuild(reshard_tree structure, int64_t n, const reshard_tree *leaves,
                                                reshard_tree *tree);

/* --- Arguments of a call -------------------------------------------------------------------------------------- */

/* Packs positional and named arguments: one tuple of values, and a tuple with the names of the last ones (bytes). args:
 * a tuple or list. kwargs: a dict. Either may be NULL: none. Errors: RESHARD_ERROR_INVALID for an integer key. Source:
 * _pack_kwargs. */
RESHARD_API reshard_status reshard_tree_pack_kwargs(reshard_tree args, reshard_tree kwargs, reshard_tree *values,
                                                    reshard_tree *names);
/* Unpacks values and names (tuples or lists; NULL: none) to a tuple and a dict. Errors: RESHARD_ERROR_INVALID for more
 * names than values, with both numbers. The same for a name that is no bytes, has a NUL in it or is there twice.
 * Source: _unpack_kwargs. */
RESHARD_API reshard_status reshard_tree_unpack_kwargs(reshard_tree values, reshard_tree names, reshard_tree *args,
                                                      reshard_tree *kwargs);

#ifdef __cplusplus
}
#endif
#endif
