/* The calls of <reshard/torch.h> with NULL, as in test_null.c. */
#include "test_null.h"

#include <reshard/dtensor.h>
#include <reshard/fsdp.h>
#include <reshard/mesh.h>
#include <reshard/metadata.h>
#include <reshard/sharded.h>
#include <reshard/state_dict.h>

CASE(null_is_refused_by_calls_of_dtensor) {
  for (int all = 0; all < 2; all++) {
    REFUSED(reshard_placements_parse(TEXT, NULL, ROOM, ROOM));
    REFUSED(reshard_dtensor_from_local(NULL, ROOM, NULL, 0, ROOM, 0, ROOM));
    REFUSED(reshard_dtensor_distribute(NULL, ROOM, NULL, 0, 0, ROOM, ROOM, ROOM, ROOM));
    REFUSED(reshard_dtensor_empty(NULL, ROOM, 0, ROOM, ROOM, ROOM, ROOM));
    REFUSED(reshard_dtensor_from_sharded(NULL, NULL, ROOM));
    REFUSED(reshard_dtensor_redistribute(1, NULL, NULL, NULL, NULL));
    REFUSED(reshard_dtensor_redistribute_as(1, NULL, NULL, NULL, NULL, NULL));
    REFUSED(reshard_dtensor_redistribute_into(1, NULL, NULL, NULL));
    REFUSED(reshard_dtensor_full(NULL, ROOM, ROOM));
    REFUSED(reshard_dtensor_local_shape(ROOM, 0, ROOM, ROOM, ROOM, ROOM));
    REFUSED(reshard_dtensor_print(NULL, ROOM, 0, ROOM));
    REFUSED(reshard_dtensor_local_box(NULL, ROOM));
    REFUSED(reshard_dtensor_box_for(NULL, 0, ROOM));
    REFUSED(reshard_dtensor_shard_metadata(NULL, ROOM));
    REFUSED(reshard_dtensor_metadata(NULL, ROOM));
    REFUSED(reshard_metadata_rewrite(NULL, NULL, 0, ROOM));
  }
}

CASE(null_is_refused_by_calls_of_fsdp) {
  for (int all = 0; all < 2; all++) {
    REFUSED(reshard_fsdp_flatten(NULL, ROOM, ROOM));
    REFUSED(reshard_fsdp_unflatten(NULL, NULL, NULL, ROOM));
    REFUSED(reshard_fsdp_extension_init(NULL, ROOM));
    REFUSED(reshard_fsdp_extension_check(ROOM));
    REFUSED(reshard_fsdp_chunk_tensor(NULL, ROOM, ROOM, ROOM));
    REFUSED(reshard_fsdp_chunk_dtensor(NULL, NULL, NULL, ROOM, ROOM));
    REFUSED(reshard_fsdp_chunk_dtensor_ordered(NULL, NULL, NULL, RESHARD_FSDP_TP_FIRST, ROOM, ROOM));
    REFUSED(reshard_fsdp_extension_set_order(ROOM, RESHARD_FSDP_TP_FIRST));
    REFUSED(reshard_fsdp_pre_load(NULL, ROOM, ROOM));
    REFUSED(reshard_fsdp_all_gather(NULL, NULL, NULL, ROOM, ROOM));
    REFUSED(reshard_fsdp_all_gather_as(NULL, NULL, NULL, RESHARD_BF16, ROOM, ROOM));
  }
}

CASE(null_is_refused_by_calls_of_mesh) {
  for (int all = 0; all < 2; all++) {
    REFUSED(reshard_mesh_create(NULL, 0, 0, ROOM, ROOM, 0, ROOM, ROOM));
    REFUSED(reshard_mesh_parse(NULL, 0, TEXT, ROOM));
    REFUSED(reshard_mesh_print(NULL, ROOM, 0, ROOM));
    REFUSED(reshard_mesh_dim(NULL, TEXT, ROOM));
    REFUSED(reshard_mesh_coordinate(NULL, 0, ROOM));
    REFUSED(reshard_mesh_local_rank(NULL, TEXT, 0, ROOM));
    REFUSED(reshard_mesh_rank_at(NULL, ROOM, ROOM));
    REFUSED(reshard_mesh_ranks(NULL, ROOM));
    REFUSED(reshard_mesh_sub(NULL, TEXT, 0, ROOM));
    REFUSED(reshard_mesh_slice(NULL, TEXT, 0, 0, 0, ROOM));
    REFUSED(reshard_mesh_flatten(NULL, TEXT, TEXT, ROOM));
    REFUSED(reshard_mesh_init_groups(NULL, 0, ROOM));
    REFUSED(reshard_mesh_layout(NULL, 0, ROOM, ROOM, ROOM, ROOM));
    REFUSED(reshard_mesh_comm(NULL, TEXT, ROOM));
    REFUSED(reshard_mesh_own(NULL, ROOM));
  }
}

CASE(null_is_refused_by_calls_of_metadata) {
  for (int all = 0; all < 2; all++) {
    REFUSED(reshard_workers_create(NULL));
    REFUSED(reshard_workers_add(NULL, TEXT, 0));
    REFUSED(reshard_remote_device_parse(TEXT, NULL, ROOM));
    REFUSED(reshard_remote_device_print(ROOM, ROOM, 0, ROOM));
    REFUSED(reshard_group_find(ROOM, 0, ROOM));
    REFUSED(reshard_metadata_create(ROOM, 0, ROOM, 0, ROOM, ROOM));
    REFUSED(reshard_metadata_from_chunk(ROOM, 0, ROOM, 0, 0, ROOM, ROOM));
    REFUSED(reshard_metadata_from_layout(ROOM, NULL, ROOM, ROOM, ROOM));
    REFUSED(reshard_metadata_layout(NULL, ROOM, 0, ROOM));
    REFUSED(reshard_metadata_check(NULL));
    REFUSED(reshard_metadata_recalc(NULL, 0, ROOM));
    REFUSED(reshard_metadata_serialize(NULL, ROOM, 0, ROOM));
    REFUSED(reshard_metadata_deserialize(ROOM, 0, ROOM));
    REFUSED(reshard_metadata_print_json(NULL, ROOM, 0, ROOM));
    REFUSED(reshard_metadata_build_local(0, ROOM, 0, ROOM, 0, ROOM));
    REFUSED(reshard_metadata_build_global(NULL, NULL, 0, 0, ROOM));
    REFUSED(reshard_metadata_merge(1, NULL, 0, ROOM));
    REFUSED(reshard_metadata_build_global_many(NULL, 0, ROOM, 0, ROOM));
    REFUSED(reshard_placements_find(0, ROOM, 0, ROOM));
    REFUSED(reshard_build_reshard_metadata(0, ROOM, 0, 0, ROOM, 0, ROOM, ROOM));
  }
}

CASE(null_is_refused_by_calls_of_sharded) {
  for (int all = 0; all < 2; all++) {
    REFUSED(reshard_sharder_create(NULL, ROOM, ROOM));
    REFUSED(reshard_sharder_get_stats(NULL, ROOM));
    REFUSED(reshard_sharded_tensor_from_local(NULL, 0, ROOM, 0, ROOM, ROOM));
    REFUSED(reshard_sharded_tensor_from_metadata(NULL, NULL, 0, ROOM, ROOM));
    REFUSED(reshard_sharded_tensor_from_layout(NULL, NULL, ROOM, 0, ROOM, ROOM));
    REFUSED(reshard_sharded_tensor_from_buffers(NULL, NULL, ROOM, ROOM, ROOM, ROOM));
    REFUSED(reshard_sharded_tensor_buffer(NULL, 0, ROOM));
    REFUSED(reshard_sharded_tensor_empty(NULL, NULL, ROOM, ROOM, ROOM));
    REFUSED(reshard_sharded_tensor_zeros(NULL, NULL, ROOM, ROOM, ROOM));
    REFUSED(reshard_sharded_tensor_full(NULL, NULL, ROOM, ROOM, ROOM, ROOM));
    REFUSED(reshard_sharded_tensor_generate(NULL, NULL, ROOM, NULL, ROOM, ROOM, ROOM));
    REFUSED(reshard_sharded_tensor_scatter(NULL, NULL, 0, NULL, ROOM, ROOM, ROOM));
    REFUSED(reshard_sharded_tensor_local(NULL, 0, ROOM, ROOM));
    REFUSED(reshard_sharded_tensor_reshard(1, NULL, NULL, NULL));
    REFUSED(reshard_sharded_tensor_reshard_to(1, NULL, NULL, NULL, NULL));
    REFUSED(reshard_sharded_tensor_reshard_to_as(1, NULL, NULL, NULL, NULL, NULL));
    REFUSED(reshard_sharded_tensor_gather(NULL, 0, NULL, ROOM));
    REFUSED(reshard_sharded_tensor_gather_as(NULL, 0, 0, NULL, ROOM));
    REFUSED(reshard_sharded_tensor_gather_all(NULL, NULL, ROOM));
    REFUSED(reshard_reshuffle_local_shard(NULL, ROOM, ROOM, NULL, ROOM));
    REFUSED(reshard_reshard_local_shard(NULL, ROOM, ROOM, NULL, ROOM));
  }
}

CASE(test_state_dict) {
  for (int all = 0; all < 2; all++) {
    REFUSED(reshard_state_sharded(NULL, ROOM));
    REFUSED(reshard_state_dtensor(NULL, ROOM));
    REFUSED(reshard_state_nested(NULL, NULL, 0, ROOM, ROOM, ROOM));
    REFUSED(reshard_state_get_sharded(NULL, ROOM));
    REFUSED(reshard_state_get_dtensor(NULL, ROOM));
    REFUSED(reshard_state_get_nested(NULL, ROOM, ROOM, ROOM, ROOM));
    REFUSED(reshard_state_flatten_sharded_tensors(NULL, ROOM));
    REFUSED(reshard_state_flatten_sharded_tensors_global(NULL, NULL, ROOM));
    REFUSED(reshard_state_save(NULL, NULL, TEXT, ROOM, ROOM));
    REFUSED(reshard_state_load(NULL, NULL, TEXT, ROOM, ROOM));
  }
}

CASE(null_has_the_values_that_headers_say) {
  assert_null(reshard_dtensor_sharded(NULL));
  assert_null(reshard_dtensor_retain(NULL));
  assert_null(reshard_dtensor_mesh(NULL));
  assert_null(reshard_dtensor_placements(NULL));
  assert_null(reshard_dtensor_order(NULL));
  assert_null(reshard_dtensor_layout(NULL));
  assert_int_equal(reshard_dtensor_ndim(NULL), 0);
  assert_null(reshard_dtensor_shape(NULL));
  assert_null(reshard_dtensor_stride(NULL));
  assert_null(reshard_dtensor_local(NULL));
  assert_int_equal(reshard_fsdp_is_flattened(NULL), 0);
  assert_null(reshard_mesh_retain(NULL));
  assert_int_equal(reshard_mesh_ndim(NULL), 0);
  assert_null(reshard_mesh_shape(NULL));
  assert_null(reshard_mesh_name(NULL, 0));
  assert_int_equal(reshard_mesh_size(NULL), 0);
  assert_int_equal(reshard_mesh_world(NULL), 0);
  assert_null(reshard_mesh_base_comm(NULL));
  assert_null(reshard_mesh_root(NULL));
  assert_int_equal(reshard_mesh_equal(NULL, NULL), 1);
  assert_int_equal(reshard_mesh_hash(NULL), 0);
  assert_int_equal(reshard_mesh_rank(NULL), -1);
  assert_int_equal(reshard_mesh_contains(NULL, 0), 0);
  assert_int_equal(reshard_remote_device_equal(NULL, NULL), 1);
  assert_null(reshard_metadata_retain(NULL));
  assert_int_equal(reshard_metadata_ndim(NULL), 0);
  assert_null(reshard_metadata_shape(NULL));
  assert_int_equal(reshard_metadata_properties(NULL).dtype, RESHARD_DTYPE_NONE);
  assert_int_equal(reshard_metadata_count(NULL), 0);
  assert_null(reshard_metadata_shards(NULL));
  assert_int_equal(reshard_metadata_equal(NULL, NULL), 1);
  assert_int_equal(reshard_metadata_hash(NULL), 0);
  assert_null(reshard_sharded_tensor_retain(NULL));
  assert_null(reshard_sharded_tensor_metadata(NULL));
  assert_null(reshard_sharded_tensor_layout(NULL));
  assert_int_equal(reshard_sharded_tensor_local_count(NULL), 0);
}

/* NULL and something are not equal. */
CASE(null_equals_null_alone) {
  const int64_t two = 2;
  const reshard_properties properties = {.dtype = RESHARD_F32};
  const reshard_remote_device cpu = {0, RESHARD_DEVICE_CPU, -1};
  reshard_layout layout;
  reshard_mesh mesh;
  reshard_metadata metadata;
  assert_int_equal(reshard_layout_create_single(1, &two, 1, 0, &layout), RESHARD_SUCCESS);
  assert_int_equal(reshard_mesh_create(NULL, 0, 1, &two, NULL, 0, NULL, &mesh), RESHARD_SUCCESS);
  assert_int_equal(reshard_metadata_from_chunk(&properties, 1, &two, 0, 1, &cpu, &metadata), RESHARD_SUCCESS);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(reshard_layout_equal(i ? layout : NULL, i ? NULL : layout), 0);
    assert_int_equal(reshard_mesh_equal(i ? mesh : NULL, i ? NULL : mesh), 0);
    assert_int_equal(reshard_metadata_equal(i ? metadata : NULL, i ? NULL : metadata), 0);
    assert_int_equal(reshard_remote_device_equal(i ? &cpu : NULL, i ? NULL : &cpu), 0);
  }
  reshard_layout_release(layout);
  reshard_mesh_release(mesh);
  reshard_metadata_release(metadata);
}

CASE(null_may_be_released) {
  reshard_dtensor_release(NULL);
  reshard_flat_record_free(NULL);
  reshard_fsdp_mark_flattened(NULL);
  reshard_mesh_release(NULL);
  reshard_workers_free(NULL);
  reshard_metadata_release(NULL);
  reshard_sharder_destroy(NULL);
  reshard_sharded_tensor_release(NULL);
}

RUN_CASES
