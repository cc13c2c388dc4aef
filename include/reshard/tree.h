/* Trees: nested containers of tensors and other values, as the arguments of a function, the outputs of a model or a
 * state dict are. Visited, mapped, flattened and rebuilt, printed, cast, moved to a device.
 *
 * A NULL tree has kind 0, 0 children and a NULL type; calls that return a status refuse it (RESHARD_ERROR_INVALID),
 * but for the arguments that may be NULL.
 *
 * Source: torch/distributed/utils.py (_apply_to_tensors, _pack_kwargs, _unpack_kwargs, _cast_forward_inputs,
 * _recursive_to, _to_kwargs), torch.utils._pytree. */
#ifndef RESHARD_TREE_H
#define RESHARD_TREE_H

#include <reshard/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A node, reference counted: a container, or a leaf. Leaves never change. Containers may be filled by one thread at a
 * time, while no other reads them; counting references is thread-safe. A node may be in several containers (it is
 * shared, and stays one where trees are mapped or rebuilt); cycles are refused. Nothing here is limited by how deep
 * containers are. */
typedef struct reshard_tree_s *reshard_tree;

typedef enum reshard_tree_kind {
  RESHARD_TREE_DICT = 1, /* keys in the order of insertion: strings, and integers beside them */
  RESHARD_TREE_LIST,
  RESHARD_TREE_TUPLE,  /* as a list; another kind when printed, compared and rebuilt */
  RESHARD_TREE_STRUCT, /* named fields, and a name of the type: named tuples, dataclasses */
  RESHARD_TREE_PACKED, /* packed sequence: data (a tensor), batch sizes and indices, which are carried and not mapped */
  RESHARD_TREE_SET,    /* distinct leaves, in the order of insertion, which makes no difference when compared */
  RESHARD_TREE_TENSOR,
  RESHARD_TREE_OPAQUE, /* a value of a type of the caller's */
  RESHARD_TREE_BYTES,
  RESHARD_TREE_INT,   /* int64_t */
  RESHARD_TREE_FLOAT, /* double */
  RESHARD_TREE_BOOL,
  RESHARD_TREE_NULL
} reshard_tree_kind;

/* What becomes of a tensor. *mapped is NULL at first: left so, or made the tensor that was given, nothing changes. What
 * is put there is taken over with one reference, on success. path is borrowed. */
typedef reshard_status (*reshard_tree_tensor_map)(void *user, const char *path, reshard_tensor tensor,
                                                  reshard_tensor *mapped);

/* What the library knows of an opaque leaf's type: one static object a type; types are equal where their addresses are.
 * retain and release may be NULL: the value is borrowed, or a number in a pointer. Fields that are added are NULL where
 * a type is made with designated initializers. */
typedef struct reshard_tree_type {
  const char *name; /* "DTensor" */
  void (*retain)(void *value);
  void (*release)(void *value);
  /* NULL: the value has no tensors that trees know of. Calls map with user and path for each tensor that it has on this
   * rank, and for one without elements where it has none but would have. *mapped (NULL at first): a new value of the
   * type with what they became, with one reference; left NULL where none of them changed. */
  reshard_status (*map_tensors)(void *value, const char *path, reshard_tree_tensor_map map, void *user, void **mapped);
  /* What reshard_tree_print draws behind the name: text of one line, cut off at size - 1 bytes. NULL: nothing. */
  void (*print)(const void *value, char *text, size_t size);
} reshard_tree_type;

/* --- Making and filling --------------------------------------------------------------------------------------- */

/* Containers, and leaves; tensors and values are retained, bytes and names copied. Each returns one reference for the
 * caller. */
RESHARD_API reshard_status reshard_tree_dict(reshard_tree *tree);
RESHARD_API reshard_status reshard_tree_list(reshard_tree *tree);
RESHARD_API reshard_status reshard_tree_tuple(reshard_tree *tree);
RESHARD_API reshard_status reshard_tree_struct(const char *name, reshard_tree *tree);
/* A Python set: it holds leaves, each once (equal as in reshard_tree_equal; an integer, a float and a bool are never).
 */
RESHARD_API reshard_status reshard_tree_create_set(reshard_tree *tree);
RESHARD_API reshard_status reshard_tree_tensor(reshard_tensor tensor, reshard_tree *tree);
/* data is packed by step: batch_sizes[t] rows of step t, 1 or more, not increasing, their sum data's first extent.
 * sorted and unsorted: orders of the batch (batch_sizes[0] numbers each), the inverse of one another, or NULL. The node
 * has one child, the data, with the key "data"; it is complete as it is made: set and append refuse it.
 * Errors: RESHARD_ERROR_INVALID with the numbers. Source: torch.nn.utils.rnn.PackedSequence. */
RESHARD_API reshard_status reshard_tree_packed(reshard_tensor data, int64_t steps, const int64_t *batch_sizes,
                                               const int64_t *sorted, const int64_t *unsorted, reshard_tree *tree);
/* A type with a release and without a retain takes over the reference that the caller has, on success. */
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

/* Puts a child under a key (a dict or a struct; an existing key is replaced and keeps its place) or at the end (a list,
 * a tuple, or a set, which stays as it is where it has an equal leaf). The child is retained. Errors:
 * RESHARD_ERROR_INVALID for other kinds, for a container as a set's child, and for a child that has the container
 * inside it. A tree that is built from its leaves or from its root costs no search for that. */
RESHARD_API reshard_status reshard_tree_set(reshard_tree container, const char *key, reshard_tree child);
/* An integer key of a dict, as an optimizer's state has for its parameters: another one than the string of its digits,
 * by which a path names both. */
RESHARD_API reshard_status reshard_tree_set_int(reshard_tree dict, int64_t key, reshard_tree child);
RESHARD_API reshard_status reshard_tree_append(reshard_tree container, reshard_tree child);

/* Keys of a dict (not of what is in it) that begin with old_prefix begin with new_prefix instead, all at once, in place
 * and in their places; integer keys stay. Local. Errors, and nothing is changed: RESHARD_ERROR_INVALID for equal
 * prefixes, and for a key that would become one that the dict has and keeps, naming both. Source: _replace_by_prefix.
 */
RESHARD_API reshard_status reshard_tree_replace_by_prefix(reshard_tree dict, const char *old_prefix,
                                                          const char *new_prefix);

/* --- Looking -------------------------------------------------------------------------------------------------- */

RESHARD_API reshard_tree_kind reshard_tree_get_kind(reshard_tree tree); /* 0 for NULL */
/* Children: 0 for leaves, and for NULL. */
RESHARD_API int64_t reshard_tree_count(reshard_tree tree);
/* Child i and its key (NULL in a list, tuple or set; the digits of an integer key); both borrowed, either may be NULL.
 */
RESHARD_API reshard_status reshard_tree_child(reshard_tree tree, int64_t i, const char **key, reshard_tree *child);
/* 1 where child i has an integer key, which is written; else 0. */
RESHARD_API int reshard_tree_int_key(reshard_tree dict, int64_t i, int64_t *key);
/* By key of a dict, struct or packed sequence: O(1). Borrowed. Errors: RESHARD_ERROR_INVALID naming it. */
RESHARD_API reshard_status reshard_tree_find(reshard_tree container, const char *key, reshard_tree *child);
/* Likewise, by an integer key of a dict. */
RESHARD_API reshard_status reshard_tree_find_int(reshard_tree dict, int64_t key, reshard_tree *child);
/* By path: keys and indices joined by '.', as in a flattened state dict ("optimizer.state.0.exp_avg"; integer keys by
 * their digits, leaves of a set by their order: flatten_state_dict's). A key with '.' in it is tried whole as well, and
 * "0" as both kinds of key: the first match in depth-first order is found. The empty path is the tree itself.
 * Borrowed. Errors: RESHARD_ERROR_INVALID naming the path. */
RESHARD_API reshard_status reshard_tree_at(reshard_tree tree, const char *path, reshard_tree *found);
/* What a node has; each is an error for other kinds (get_opaque: for other types, too). Borrowed. Outputs of get_packed
 * may be NULL; *sorted and *unsorted are NULL where there is none. */
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
/* Of an opaque leaf; NULL for other kinds, and for NULL. */
RESHARD_API const reshard_tree_type *reshard_tree_get_type(reshard_tree tree);

/* Calls visit for every leaf, depth first in order, with its path (borrowed during the call); a node that is at several
 * places is visited at each. Non-success ends the walk and is returned. The tree must not change meanwhile. */
typedef reshard_status (*reshard_tree_visitor)(void *user, const char *path, reshard_tree leaf);
RESHARD_API reshard_status reshard_tree_visit(reshard_tree tree, reshard_tree_visitor visit, void *user);

/* 1 where both trees have the same kinds in the same places, with the same names in the same order, and equal leaves
 * (of sets in any order): tensors and values of opaque types are equal where they are the same, numbers where their
 * values are (a NaN equals a NaN). Which nodes are shared makes no difference. */
RESHARD_API reshard_status reshard_tree_equal(reshard_tree a, reshard_tree b, int *equal);

/* The tree as a person would draw it, a line for each node, in UTF-8:
 *   dict
 *   ├── weight: &1 tensor f32 13x21 requires_grad
 *   ├── tied: *1
 *   └── hyper: struct Options
 *       ├── lr: 0.1
 *       ├── name: "adam"
 *       └── norm: <DTensor> bf16 4096 mesh(dp=2,tp=2@0-3;S0,R)
 * A container, tensor or value that is at several places is drawn at the first of them, marked &n, and is *n at the
 * others. An integer key is drawn as [0]. From 32 levels on lines do not begin further to the right; they tell their
 * depth. needed (may be NULL): bytes with the NUL; RESHARD_ERROR_INVALID where size is less, and then as much of the
 * text as fits. */
RESHARD_API reshard_status reshard_tree_print(reshard_tree tree, char *buffer, size_t size, size_t *needed);

/* --- Other trees of the same structure ------------------------------------------------------------------------ */

/* What becomes of a leaf, as reshard_tree_tensor_map says it of a tensor. */
typedef reshard_status (*reshard_tree_leaf_map)(void *user, const char *path, reshard_tree leaf, reshard_tree *mapped);
/* A tree in which each leaf is what `map` makes of it, depth first in order. What has not changed is the same node: a
 * container is new only where something in it has changed, and has the names, order and batch sizes of the one before.
 * A node that is at several places is mapped once, with its first path, and is one node at all of them. A leaf may
 * become any node; the data of a packed sequence stays a tensor of as many rows, a leaf of a set a leaf
 * (RESHARD_ERROR_INVALID naming the path). Leaves of a set that have become equal are one. Non-success of `map` ends it
 * and is returned; nothing is kept then. The tree must not change meanwhile. Source: torch.utils._pytree.tree_map. */
RESHARD_API reshard_status reshard_tree_map(reshard_tree tree, reshard_tree_leaf_map map, void *user,
                                            reshard_tree *mapped);
/* The same for tensors alone, wherever they are, also in opaque leaves whose type has map_tensors: the local tensors of
 * sharded tensors, nested ones and DTensors, which become ones of the same layout, and which a flat piece has as one
 * 1-d tensor. Theirs keep their shapes and are alike in dtype and flags on all ranks (RESHARD_ERROR_INVALID naming the
 * path). Other leaves stay. A tensor that several leaves have is mapped once. Source: torch/distributed/utils.py,
 * _apply_to_tensors. */
RESHARD_API reshard_status reshard_tree_map_tensors(reshard_tree tree, reshard_tree_tensor_map map, void *user,
                                                    reshard_tree *mapped);

/* The leaves of a tree, depth first in order, each node once: one that is at several places, or in containers that are,
 * with the first of its paths. */
typedef struct reshard_tree_leaves {
  int64_t n;
  const char *const *paths;
  const reshard_tree *leaves; /* a reference of each is held */
} reshard_tree_leaves;
/* Source: torch.utils._pytree.tree_flatten. */
RESHARD_API reshard_status reshard_tree_flatten(reshard_tree tree, const reshard_tree_leaves **leaves);
/* NULL is allowed. */
RESHARD_API void reshard_tree_leaves_release(const reshard_tree_leaves *leaves);
/* The way back: a tree of the structure of another one, with other leaves, in the order in which flattening that one
 * gives its own; nodes as in reshard_tree_map: with its own leaves it is the same tree again.
 * Errors: RESHARD_ERROR_INVALID for another number of leaves, with both. Source: torch.utils._pytree.tree_unflatten. */
RESHARD_API reshard_status reshard_tree_rebuild(reshard_tree structure, int64_t n, const reshard_tree *leaves,
                                                reshard_tree *tree);

/* --- Arguments of a call -------------------------------------------------------------------------------------- */

/* Positional and named arguments as one tuple of values, and a tuple with the names of the last ones (bytes). args: a
 * tuple or list, kwargs: a dict; either may be NULL: none. Errors: RESHARD_ERROR_INVALID for an integer key. Source:
 * _pack_kwargs. */
RESHARD_API reshard_status reshard_tree_pack_kwargs(reshard_tree args, reshard_tree kwargs, reshard_tree *values,
                                                    reshard_tree *names);
/* The way back: values and names (tuples or lists; NULL: none) become a tuple and a dict. Errors: RESHARD_ERROR_INVALID
 * for more names than values, with both numbers; for a name that is no bytes, has a NUL in it or is there twice.
 * Source: _unpack_kwargs. */
RESHARD_API reshard_status reshard_tree_unpack_kwargs(reshard_tree values, reshard_tree names, reshard_tree *args,
                                                      reshard_tree *kwargs);

#ifdef __cplusplus
}
#endif
#endif
