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

/* Reference counted. May be filled by one thread at a time, while no other reads it; reading, and counting references,
 * is thread-safe. A module may be a child of several, and a tensor belong to several; cycles are refused. Nothing here
 * is limited by how deep the tree is. */
typedef struct reshard_module_s *reshard_module;

/* A module without anything in it; one reference for the caller. */
RESHARD_API reshard_status reshard_module_create(reshard_module *module);
/* One more reference; returns its argument. */
RESHARD_API reshard_module reshard_module_retain(reshard_module module);
/* One reference less; the last one frees. NULL is allowed. */
RESHARD_API void reshard_module_release(reshard_module module);

/* Names a child, a parameter, a buffer of the module, which is retained. Names are not empty, have no '.' in them, and
 * are one module's own: what has the name already is replaced and keeps its place when it is of the same kind, else it
 * is an error. A tree that is built from its leaves or from its root costs no search for cycles.
 * Errors: RESHARD_ERROR_INVALID naming name and kind; a child that has the module inside it.
 * Source: Module.register_module, register_parameter, register_buffer. */
RESHARD_API reshard_status reshard_module_set_child(reshard_module module, const char *name, reshard_module child);
RESHARD_API reshard_status reshard_module_set_parameter(reshard_module module, const char *name,
                                                        reshard_tensor parameter);
RESHARD_API reshard_status reshard_module_set_buffer(reshard_module module, const char *name, reshard_tensor buffer);

/* By full name: names joined by '.' ("layers.0.mlp.weight"); of children, "" is the module itself. Borrowed.
 * Errors: RESHARD_ERROR_INVALID naming what is missing and where.
 * Source: Module.get_submodule, get_parameter, get_buffer. */
RESHARD_API reshard_status reshard_module_get_child(reshard_module module, const char *name, reshard_module *child);
RESHARD_API reshard_status reshard_module_get_parameter(reshard_module module, const char *name,
                                                        reshard_tensor *parameter);
RESHARD_API reshard_status reshard_module_get_buffer(reshard_module module, const char *name, reshard_tensor *buffer);

/* Calls visit for every module (the one given first, as ""), parameter or buffer of a tree with its full name (borrowed
 * during the call): a module before its children, each in the order in which it was named. What is shared is visited
 * once, under its first name; tensors are the same where their handles are. Non-success ends the walk and is returned.
 * The tree must not change meanwhile. Source: Module.named_modules, named_parameters, named_buffers. */
typedef reshard_status (*reshard_module_visitor)(void *user, const char *name, reshard_module module);
typedef reshard_status (*reshard_module_tensor_visitor)(void *user, const char *name, reshard_tensor tensor);
RESHARD_API reshard_status reshard_module_visit_modules(reshard_module module, reshard_module_visitor visit,
                                                        void *user);
RESHARD_API reshard_status reshard_module_visit_parameters(reshard_module module, reshard_module_tensor_visitor visit,
                                                           void *user);
RESHARD_API reshard_status reshard_module_visit_buffers(reshard_module module, reshard_module_tensor_visitor visit,
                                                        void *user);

/* Which tensors of a module: all but those that are named here. Set `size` through RESHARD_MODULE_SELECTION_INIT; the
 * rest may be 0. Borrowed during the call. */
typedef struct reshard_module_selection {
  size_t size;
  int no_buffers; /* non-zero: parameters alone */
  /* Shell patterns ('*', '?', '[a-z]', '\' before what stands for itself) on full names. A shared tensor has the name
   * under which it is visited. */
  int64_t nignored_names;
  const char *const *ignored_names;
  int64_t nignored; /* tensors, by their handles */
  const reshard_tensor *ignored;
} reshard_module_selection;
#define RESHARD_MODULE_SELECTION_INIT sizeof(reshard_module_selection)
#define RESHARD_MODULE_SELECTION_DEFAULTS {sizeof(reshard_module_selection), 0, 0, NULL, 0, NULL}

/* All parameters of a tree, then all buffers, each tensor once. selection NULL: everything.
 * Errors: RESHARD_ERROR_INVALID, a pattern that is malformed. Source: _sync_module_states, which collects them so. */
RESHARD_API reshard_status reshard_module_visit_states(reshard_module module, const reshard_module_selection *selection,
                                                       reshard_module_tensor_visitor visit, void *user);

/* Those of n modules that are not inside another of them, in the order given (one that is given twice is twice among
 * them): *nroots of them in roots, which has room for n; borrowed from the list. Time is linear in what the trees have,
 * modules and children, however they share them. Source: _get_root_modules. */
RESHARD_API reshard_status reshard_module_roots(int64_t n, const reshard_module *modules, int64_t *nroots,
                                                reshard_module *roots);

#ifdef __cplusplus
}
#endif
#endif
