/* Modules: a tree of named children, parameters and buffers, as a training program has them. Local to the process.
 *
 * Calls that return a status refuse a NULL module (RESHARD_ERROR_INVALID).
 *
 * Source: torch.nn.Module, as torch/distributed/utils.py uses it. */
#ifndef RESHARD_MODULE_H
#define RESHARD_MODULE_H

#include <reshard/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Reference counted. A module is filled by one thread at a time, while no other reads it. Reading, and counting
 * references, is thread-safe. A module may be a child of several, and a tensor may belong to several. Cycles are
 * refused. The tree may be of any depth. */
typedef struct reshard_module_s *reshard_module;

/* Makes an empty module, with one reference for the caller. */
RESHARD_API reshard_status reshard_module_create(reshard_module *module);
/* One more reference; returns its argument. */
RESHARD_API reshard_module reshard_module_retain(reshard_module module);
/* One reference less; the last one frees. NULL is allowed. */
RESHARD_API void reshard_module_release(reshard_module module);

/* Name a child, a parameter or a buffer of the module, and retain it. A name is not empty and has no '.' in it. All
 * three kinds of one module share their names. A member of the same kind that has the name already is replaced and
 * keeps its place. One of another kind is an error. A tree that is built from its leaves or from its root costs no
 * search for cycles. Errors: RESHARD_ERROR_INVALID naming name and kind; a child that has the module inside it. Source:
 * Module.register_module, register_parameter, register_buffer. */
RESHARD_API reshard_status reshard_module_set_child(reshard_module module, const char *name, reshard_module child);
RESHARD_API reshard_status reshard_module_set_parameter(reshard_module module, const char *name,
                                                        reshard_tensor parameter);
RESHARD_API reshard_status reshard_module_set_buffer(reshard_module module, const char *name, reshard_tensor buffer);

/* Find a member by full name: names joined by '.' ("layers.0.mlp.weight"). The child "" is the module itself. Borrowed.
 * Errors: RESHARD_ERROR_INVALID naming the missing part and its place. Source: Module.get_submodule, get_parameter,
 * get_buffer. */
RESHARD_API reshard_status reshard_module_get_child(reshard_module module, const char *name, reshard_module *child);
RESHARD_API reshard_status reshard_module_get_parameter(reshard_module module, const char *name,
                                                        reshard_tensor *parameter);
RESHARD_API reshard_status reshard_module_get_buffer(reshard_module module, const char *name, reshard_tensor *buffer);

/* Call visit for every module (the given one first, as ""), parameter or buffer of a tree with its full name. The name
 * is borrowed during the call. A module comes before its children, and each in the order in which it was named. Shared
 * members are visited once, under their first name; tensors are the same where their handles are. Non-success ends the
 * walk and is returned. The tree must not change meanwhile. Source: Module.named_modules, named_parameters,
 * named_buffers. */
typedef reshard_status (*reshard_module_visitor)(void *user, const char *name, reshard_module module);
typedef reshard_status (*reshard_module_tensor_visitor)(void *user, const char *name, reshard_tensor tensor);
RESHARD_API reshard_status reshard_module_visit_modules(reshard_module module, reshard_module_visitor visit,
                                                        void *user);
RESHARD_API reshard_status reshard_module_visit_parameters(reshard_module module, reshard_module_tensor_visitor visit,
                                                           void *user);
RESHARD_API reshard_status reshard_module_visit_buffers(reshard_module module, reshard_module_tensor_visitor visit,
                                                        void *user);

/* Tensors of a module: all but those that are named here. Begin with RESHARD_MODULE_SELECTION_DEFAULTS, or set `size`
 * to RESHARD_MODULE_SELECTION_INIT; the rest may be 0. Borrowed during the call. */
typedef struct reshard_module_selection {
  size_t size;
  int no_buffers; /* non-zero: parameters alone */
  /* Shell patterns on full names: '*', '?', '[a-z]', and '\' before a character that stands for itself. A shared tensor
   * has the name under which it is visited. */
  int64_t nignored_names;
  const char *const *ignored_names;
  int64_t nignored; /* tensors, by their handles */
  const reshard_tensor *ignored;
} reshard_module_selection;
#define RESHARD_MODULE_SELECTION_INIT sizeof(reshard_module_selection)
#define RESHARD_MODULE_SELECTION_DEFAULTS \
  { sizeof(reshard_module_selection), 0, 0, NULL, 0, NULL }

/* Visits all parameters of a tree, then all buffers, each tensor once. selection NULL: everything. Errors:
 * RESHARD_ERROR_INVALID, a pattern that is malformed. Source: _sync_module_states, which collects them so. */
RESHARD_API reshard_status reshard_module_visit_states(reshard_module module, const reshard_module_selection *selection,
                                                       reshard_module_tensor_visitor visit, void *user);

/* Lists those of n modules that are not inside another of them, in the order given. One that is given twice is twice
 * among them. Time is linear in the modules and children of the trees, however they share them.
 *
 * - roots: receives them, borrowed from the list. Has room for n.
 * - nroots: receives their number.
 *
 * Source: _get_root_modules. */
RESHARD_API reshard_status reshard_module_roots(int64_t n, const reshard_module *modules, int64_t *nroots,
                                                reshard_module *roots);

#ifdef __cplusplus
}
#endif
#endif
