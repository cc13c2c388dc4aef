/* Inside of sharded tensors: local arrays, the sharder with its cache of plans, and how data moves. */
#ifndef RS_SHARDED_SHARDER_H
#define RS_SHARDED_SHARDER_H

#include "exec/call.h"
#include "plan/plan.h"
#include "tensor/tensor.h"
#include "tree/tree.h"

#include <reshard/sharded.h>

/* A rank's arrays of a layout, in its order. An array without elements may be NULL. */
typedef struct rs_local_arrays {
  reshard_layout layout; /* retained, as the arrays are */
  int64_t n;
  reshard_tensor *arrays;
} rs_local_arrays;

/* Creates new ones, from the pool of a device in the order of stream. */
reshard_status rs_local_arrays_create(reshard_device device, reshard_layout layout, int64_t rank,
                                      const reshard_properties *properties, void *stream, rs_local_arrays *local);
/* Fills all elements, in the order of stream. element NULL: zeros. */
reshard_status rs_local_arrays_fill(reshard_device device, const rs_local_arrays *local, int64_t rank,
                                    const void *element, void *stream);
/* Wraps tensors that are there, of any strides, but several of one buffer lie as if made here. Compares their number,
 * shapes and dtype with the layout's arrays of the rank. what names them in errors: "shard". */
reshard_status rs_local_arrays_wrap(const char *what, reshard_layout layout, int64_t rank, reshard_dtype dtype,
                                    int64_t n, reshard_tensor const *tensors, rs_local_arrays *local);
/* The same of views of the buffers, as reshard_sharded_tensor_from_buffers has them. */
reshard_status rs_local_arrays_over(reshard_device device, reshard_layout layout, int64_t rank,
                                    const reshard_properties *properties, void *const *buffers,
                                    const int64_t *const *strides, rs_local_arrays *local);
void rs_local_arrays_free(rs_local_arrays *local);
int64_t rs_local_arrays_bytes(const rs_local_arrays *local);
/* A function that maps local tensors, as reshard_tree_type.map_tensors has it (map_tensors.c). */
typedef struct rs_tensor_mapper {
  const char *path;
  reshard_tree_tensor_map map;
  void *user;
} rs_tensor_mapper;
/* Maps local arrays to others of the same layout and shapes, on the CPU or on the sharder's device. *properties and
 * *type (of their device): in, those of the arrays; out, those of the mapped ones. A rank without tensors maps one that
 * has no elements. *changed false: nothing is made. */
reshard_status rs_local_arrays_map(reshard_sharder sharder, const rs_local_arrays *local,
                                   const rs_tensor_mapper *mapper, reshard_properties *properties,
                                   reshard_device_type *type, rs_local_arrays *mapped, bool *changed);
/* The same for a placeholder without elements, on the device of the sharder, or on the CPU. */
reshard_status rs_placeholder_map(reshard_sharder sharder, const rs_tensor_mapper *mapper,
                                  reshard_properties *properties, reshard_device_type *type, bool *changed);
/* Copies metadata with other properties, on devices of a type: those of another type lose their number. */
reshard_status rs_metadata_as(reshard_metadata metadata, const reshard_properties *properties, reshard_device_type type,
                              reshard_metadata *as);
/* Type of the devices that shards are on; of shards of several types that of the first. */
reshard_device_type rs_metadata_type(reshard_metadata metadata, reshard_sharder sharder);
/* Maps a sharded tensor to one of the same layout; NULL where nothing changed. */
reshard_status rs_sharded_map(reshard_sharded_tensor tensor, const rs_tensor_mapper *mapper,
                              reshard_sharded_tensor *mapped);
/* Bounds of an array: from its first to its last global index in each dim. */
reshard_status rs_local_arrays_bounds(const rs_local_arrays *local, int64_t rank, int64_t i, reshard_box *bounds);

/* One tensor to be moved. Neither side is owned. */
typedef struct rs_sharder_entry {
  const rs_local_arrays *src, *dst;
  reshard_dtype dtype, dst_dtype; /* dst_dtype NONE: the same */
} rs_sharder_entry;

/* A plan for tensors of given layouts and dtypes, in the cache. */
typedef struct rs_cached_plan_entry {
  reshard_layout src, dst; /* retained */
  reshard_dtype dtype, dst_dtype;
  reshard_metadata metadata; /* of the destination, as last asked for; NULL: never */
} rs_cached_plan_entry;
typedef struct rs_cached_plan {
  uint64_t hash;
  int64_t n;
  rs_cached_plan_entry *tensors;
  reshard_plan plan;
  void **pointers;         /* scratch for the lists of a transfer: sources, then destinations */
  const int64_t **strides; /* likewise */
  rs_cached_transfer cached;
} rs_cached_plan;
typedef RS_VEC(rs_cached_plan *) rs_cached_plans; /* used last first */

struct reshard_sharder_s {
  reshard_comm comm;   /* borrowed */
  reshard_group group; /* ranks are a copy */
  reshard_path path;
  struct reshard_plan_s options; /* of its plans: the limit and the topology, without entries */
  int64_t limit;                 /* plans in a cache; 0: none */
  rs_cached_plans plans;         /* of collective calls that succeeded: the same on all ranks */
  rs_cached_plans own;           /* of this rank's calls that are local */
  rs_cached_plan *candidate;     /* of the collective call under way, where the cache has none; NULL: there is none */
  bool looked_up;                /* the plan of the call under way, in the cache */
  void *attached;                /* of a room above; freed with the sharder; NULL: nothing */
  void (*attached_free)(void *attached);
  rs_request_memory memory;
  reshard_device device; /* whose pool new arrays come from; retained */
  reshard_sharder_stats stats;
};

/* Makes one alone, of options that are known to be alike on all its ranks. Local. */
reshard_status rs_sharder_new(reshard_comm comm, const reshard_sharder_options *options, reshard_sharder *sharder);
/* Finds the plan of a collective call in the cache, or makes it. The layouts and dtypes of the entries are read, not
 * their arrays. Valid until the end of the next rs_sharder_execute, which caches it on all ranks or on none. Local. */
reshard_status rs_sharder_plan(reshard_sharder sharder, int64_t n, const rs_sharder_entry *entries,
                               rs_cached_plan **plan);
/* The same for rs_sharder_copy_local, from a cache of this rank alone. Local. */
reshard_status rs_sharder_plan_local(reshard_sharder sharder, int64_t n, const rs_sharder_entry *entries,
                                     rs_cached_plan **plan);
/* Metadata of a layout over the sharder's ranks: their global ranks, and its kind of device. */
reshard_status rs_sharder_describe(reshard_sharder sharder, const reshard_properties *properties, reshard_layout layout,
                                   reshard_metadata *metadata);
/* Metadata of the i-th destination, one reference. Local. */
reshard_status rs_sharder_metadata(reshard_sharder sharder, rs_cached_plan *plan, int64_t i,
                                   const reshard_properties *properties, reshard_metadata *metadata);
/* Collective: moves the data of all entries, on all ranks or on none. mine: as in rs_request_execute; plan may be NULL
 * where it is not success, and is not to be used after the call. *workspace_bytes (may be NULL): staging that was
 * used. */
reshard_status rs_sharder_execute(reshard_sharder sharder, rs_cached_plan *plan, const rs_sharder_entry *entries,
                                  reshard_status mine, void *stream, int64_t *workspace_bytes);
/* Ends a call that does not come to execute. Local. */
void rs_sharder_end_call(reshard_sharder sharder);
/* The same as execute, where all ranks also give an argument alike: as in rs_agree_on. */
reshard_status rs_sharder_execute_with(reshard_sharder sharder, rs_cached_plan *plan, const rs_sharder_entry *entries,
                                       reshard_status mine, const rs_argument *argument, void *stream,
                                       int64_t *workspace_bytes);
/* Local: copies the parts of the destinations that this rank has; an error where it lacks some. */
reshard_status rs_sharder_copy_local(reshard_sharder sharder, rs_cached_plan *plan, const rs_sharder_entry *entries,
                                     void *stream);

/* Passes a status on; where it is no success the text becomes "where: text". */
reshard_status rs_error_in(const char *where, reshard_status status);
/* Checks that a layout is over the sharder's ranks, has every element, and is of a shape (ndim -1: of any). call begins
 * the errors. */
reshard_status rs_check_layout(const char *call, reshard_sharder sharder, reshard_layout layout, int ndim,
                               const int64_t *shape);
/* Finds the sharder of the first of n tensors that is no NULL; none for n = 0. An error without one stays on this rank.
 * tensor_sharder: of tensor i, NULL where that is. */
reshard_status rs_find_sharder(const char *call, int64_t n, const void *tensors,
                               reshard_sharder (*tensor_sharder)(const void *tensors, int64_t i),
                               reshard_sharder *sharder);
/* Checks the arguments of every new sharded tensor. */
reshard_status rs_check_new(const char *call, reshard_sharder sharder, reshard_layout layout,
                            const reshard_properties *properties);

struct reshard_sharded_tensor_s {
  atomic_int references;
  reshard_sharder sharder; /* borrowed */
  reshard_metadata metadata;
  reshard_metadata holders; /* with replicas, where metadata has each box once; NULL: metadata */
  rs_local_arrays local;
  bool moving; /* in the list of the current call */
};
/* Metadata with every box of every rank. */
static inline reshard_metadata rs_sharded_holders(reshard_sharded_tensor tensor) {
  return tensor->holders != NULL ? tensor->holders : tensor->metadata;
}

/* Takes metadata and local arrays over on success. */
reshard_status rs_sharded_new(reshard_sharder sharder, reshard_metadata metadata, const rs_local_arrays *local,
                              reshard_sharded_tensor *tensor);
/* Returns a new tensor, or releases it after an error. */
reshard_status rs_sharded_return(reshard_status status, reshard_sharded_tensor made, reshard_sharded_tensor *tensor);
/* Makes the tensor whose layout names all `holders` and whose metadata has each of their boxes once. tensors: this
 * rank's, in the order of holders; their flags are not compared. Both metadata are retained; they may be one. Local. */
reshard_status rs_sharded_replicated(reshard_sharder sharder, reshard_metadata holders, reshard_metadata once,
                                     int64_t n, reshard_tensor const *tensors, reshard_sharded_tensor *tensor);
/* Checks that n tensors have requires_grad and pin_memory as in the properties. */
reshard_status rs_check_flags(const reshard_properties *properties, int64_t n, reshard_tensor const *tensors);

#endif
