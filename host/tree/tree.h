/* Inside of trees: nodes, their forms, sets and texts. */
#ifndef RS_TREE_TREE_H
#define RS_TREE_TREE_H

#include "file/ground/names.h"

#include <reshard/tree.h>

#include <stdatomic.h>

/* Names and numbers of a container's children. A mapped container shares those of its original: a form never changes
 * while several containers have it; one that would change it takes a copy first. */
typedef struct rs_tree_form {
  atomic_int references;
  char *name;                    /* of a struct's type, else NULL */
  rs_names keys;                 /* of a dict, a struct, a packed sequence: by the number of the child; text owned.
                                    A NUL behind the digits of an integer is one of the name's bytes. Of a set: names
                                    of its leaves (set.c), in any order */
  size_t longest;                /* key, in characters */
  int64_t steps;                 /* of a packed sequence, and its batch sizes and orders: */
  int64_t *sizes, *order, *back; /* one piece of memory, at sizes; order and back may be NULL */
} rs_tree_form;

struct reshard_tree_s {
  atomic_int references;
  atomic_bool contained; /* was put in a container once: may be inside of others */
  reshard_tree_kind kind;
  reshard_tree next;           /* of those that are being freed */
  struct rs_node_block *block; /* of the node's memory; NULL: it has its own */
  union {
    struct {
      RS_VEC(reshard_tree) children; /* owned */
      rs_tree_form *form;            /* owned; NULL: no names, or those of a set are not known */
    };
    reshard_tensor tensor;
    struct {
      const reshard_tree_type *type;
      void *value;
    };
    struct {
      char *bytes;
      size_t size;
    };
    int64_t integer; /* of a bool, too */
    double real;
  };
};

static inline bool rs_node_is_container(reshard_tree node) { return node->kind <= RESHARD_TREE_SET; }
/* The container has its children under keys. An empty one may not know. */
static inline bool rs_node_keyed(reshard_tree node) { return node->form != NULL && node->kind != RESHARD_TREE_SET; }
/* Key of child i; NULL in a list, a tuple or a set. */
static inline const char *rs_node_key(reshard_tree node, int64_t i) {
  return rs_node_keyed(node) ? (const char *)node->form->keys.all.at[i].at : NULL;
}
/* The name is that of an integer key. */
static inline bool rs_key_is_int(const rs_name *key) {
  return key->size > 0 && ((const char *)key->at)[key->size - 1] == '\0';
}
/* Characters of a name. */
static inline size_t rs_key_length(const rs_name *key) { return key->size - rs_key_is_int(key); }
/* The node may be at several places of a finished tree. Each place has a reference. Acquires: the only one may free. */
static inline bool rs_node_shared(reshard_tree node) {
  return atomic_load_explicit(&node->references, memory_order_acquire) > 1;
}
/* The value of an opaque leaf of this type, else NULL. */
static inline void *rs_node_value(reshard_tree node, const reshard_tree_type *type) {
  return node != NULL && node->kind == RESHARD_TREE_OPAQUE && node->type == type ? node->value : NULL;
}

/* Makes nodes in blocks, for those who make many leaves at once. A block is freed with the last of its nodes, which
 * live as any others. All zero: no block yet. */
typedef struct rs_node_block rs_node_block;
typedef struct rs_node_maker {
  rs_node_block *block; /* the last one, which is being filled */
  int used;             /* nodes of it */
} rs_node_maker;
reshard_status rs_node_make(rs_node_maker *maker, reshard_tree_kind kind, reshard_tree *output);
/* Ends the last block. */
void rs_node_maker_end(rs_node_maker *maker);

/* Makes an empty node; call is for the error where output is NULL. */
reshard_status rs_node_new(const char *call, reshard_tree_kind kind, reshard_tree *output);
/* Makes a container without children that has the form of another one, and room for as many children. They are put
 * there in its order, without a check. */
reshard_status rs_node_like(reshard_tree container, reshard_tree *output);
/* Appends a child, which is retained, under a key that is not there yet (NULL in a list or tuple). The child does not
 * have the container inside it. */
reshard_status rs_node_add(reshard_tree container, const char *key, reshard_tree child);
/* Puts a node, which is retained, in the place of child i, which is released. */
void rs_node_replace(reshard_tree parent, int64_t i, reshard_tree child);
/* Marks a node that is put in a container. */
static inline void rs_node_mark_contained(reshard_tree child) {
  if (!atomic_load_explicit(&child->contained, memory_order_relaxed))
    atomic_store_explicit(&child->contained, true, memory_order_relaxed);
}
/* Gives up a reference of a node. The last one of an opaque leaf of this type: its value, which is the caller's then;
 * else NULL. So a type whose values hold leaves of that type frees them without recursion. */
void *rs_node_release_value(reshard_tree node, const reshard_tree_type *type);
/* Makes a form without names, or with those of another one. */
reshard_status rs_form_new(const rs_tree_form *like, rs_tree_form **output);
/* Adds a name of two pieces, unless it is there already. *number: its number. */
reshard_status rs_form_add(rs_tree_form *form, const char *prefix, const char *key, int64_t *number);
/* Likewise, any bytes. */
reshard_status rs_form_add_name(rs_tree_form *form, const rs_name *name, int64_t *number);
/* The name of an integer key, in a buffer. */
#define RS_INT_KEY 24
rs_name rs_int_name(char buffer[RS_INT_KEY], int64_t key);
void rs_form_release(rs_tree_form *form);

/* --- Sets (set.c) ------------------------------------------------------------------------------------------------ */

/* Appends a leaf, which is retained, unless the set has an equal one. */
reshard_status rs_set_append(reshard_tree set, reshard_tree leaf);
/* Drops all but one of equal leaves. */
reshard_status rs_set_merge(reshard_tree set);
/* Compares sets of as many children. */
reshard_status rs_sets_equal(reshard_tree a, reshard_tree b, bool *equal);

/* "a dict", "an integer"; of an opaque leaf the name of its type: "a DTensor"; "NULL" for a node that is none. */
#define RS_NODE_TEXT 80
const char *rs_node_text(char buffer[RS_NODE_TEXT], reshard_tree node);
const char *rs_kind_text(reshard_tree_kind kind);
/* "path 'x': " before the last error; returns status. */
reshard_status rs_path_error(const char *path, reshard_status status);

#endif
