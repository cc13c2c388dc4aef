/* Every public call with NULL for each handle, list, text and output. A status is RESHARD_ERROR_INVALID with a text of
 * its own, a value is the one that its header names. tests/exports checks that no call is missing in test_null*.c.
 * Calls that a build may lack have tests of their own: reshard_comm_from_nccl, reshard_comm_from_nccl_library,
 * reshard_nccl_unique_id, reshard_comm_create_nccl, reshard_comm_from_mpi, reshard_comm_from_mpi_fortran; and so has
 * reshard_assert. */
#include "test_null.h"

#include <reshard/comm.h>
#include <reshard/device.h>
#include <reshard/dtype.h>
#include <reshard/file.h>
#include <reshard/layout.h>
#include <reshard/module.h>
#include <reshard/move.h>
#include <reshard/plan.h>
#include <reshard/sync.h>
#include <reshard/tensor.h>
#include <reshard/transfer.h>
#include <reshard/tree.h>

CASE(null_is_refused_by_calls_of_comm) {
  for (int all = 0; all < 2; all++) {
    REFUSED(reshard_comm_create_local(0, ROOM, ROOM));
    REFUSED(reshard_comm_create_node(1, 0, NULL, ROOM, NULL, ROOM));
    REFUSED(reshard_rendezvous_from_environment(NULL));
    REFUSED(reshard_rendezvous_allgather(NULL, ROOM, 1, ROOM));
    REFUSED(reshard_comm_alloc(NULL, 1, ROOM));
    REFUSED(reshard_comm_free(NULL, ROOM));
    REFUSED(reshard_comm_abort(NULL));
    REFUSED(reshard_comm_agree(NULL, RESHARD_SUCCESS));
    REFUSED(reshard_comm_barrier(NULL));
    REFUSED(reshard_comm_nodes(NULL, ROOM));
    REFUSED(reshard_comm_split(NULL, 0, 0, ROOM));
    REFUSED(reshard_comm_missing(NULL, ROOM, ROOM));
    REFUSED(reshard_comm_set_poll(NULL, NULL, NULL));
    REFUSED(reshard_comm_shrink(NULL, 0, NULL, ROOM));
    REFUSED(reshard_comm_report(NULL, 0, ROOM, 1, ROOM));
    REFUSED(reshard_comm_get_stats(NULL, ROOM));
  }
}

CASE(null_is_refused_by_calls_of_device) {
  for (int all = 0; all < 2; all++) {
    REFUSED(reshard_device_create(TEXT, ROOM, ROOM));
    REFUSED(reshard_device_get_info(NULL, ROOM));
    REFUSED(reshard_device_get_memory_stats(NULL, ROOM));
    REFUSED(reshard_device_trim(NULL, 0));
    REFUSED(reshard_device_forget_stream(NULL, ROOM));
    REFUSED(reshard_stream_create(NULL, ROOM));
    REFUSED(reshard_stream_order(NULL, ROOM, ROOM));
    REFUSED(reshard_stream_synchronize(NULL, ROOM));
  }
}

CASE(null_is_refused_by_calls_of_dtype) {
  for (int all = 0; all < 2; all++) {
    REFUSED(reshard_dtype_parse(TEXT, ROOM));
    REFUSED(reshard_path_parse(TEXT, ROOM));
    REFUSED(reshard_dtype_parse_blocks(TEXT, ROOM, ROOM));
  }
}

CASE(null_is_refused_by_calls_of_file) {
  for (int all = 0; all < 2; all++) {
    REFUSED(reshard_model_preset(TEXT, ROOM));
    REFUSED(reshard_model_load(TEXT, ROOM));
    REFUSED(reshard_model_open(TEXT, ROOM));
    REFUSED(reshard_model_get(NULL, 0, ROOM));
    REFUSED(reshard_rules_parse(NULL, NULL, NULL));
    REFUSED(reshard_rules_set_size(NULL, TEXT, 2, ROOM));
    REFUSED(reshard_rules_load(TEXT, ROOM));
    REFUSED(reshard_rules_match(NULL, TEXT, ROOM, ROOM));
    REFUSED(reshard_rules_dtype(NULL, TEXT, ROOM, ROOM));
    REFUSED(reshard_rules_layout(NULL, TEXT, 0, ROOM, 0, ROOM));
    REFUSED(reshard_rules_world(NULL, ROOM));
    REFUSED(reshard_rules_check(NULL, ROOM, 1));
    REFUSED(reshard_rules_use(NULL, ROOM, NULL, ROOM));
    REFUSED(reshard_checkpoint_open(TEXT, ROOM));
    REFUSED(reshard_checkpoint_open_ranks(TEXT, NULL, TEXT, NULL, 1, ROOM));
    REFUSED(reshard_checkpoint_get_info(NULL, ROOM));
    REFUSED(reshard_checkpoint_find(NULL, TEXT, ROOM));
    REFUSED(reshard_checkpoint_layout(NULL, 0, ROOM));
    REFUSED(reshard_checkpoint_stored(NULL, 0, 0, ROOM, ROOM, ROOM));
    REFUSED(reshard_checkpoint_map(NULL, 0, ROOM));
    REFUSED(reshard_error_set(RESHARD_ERROR_PEER, NULL));
    REFUSED(reshard_checkpoint_read(NULL, 0, NULL, 0, 0, ROOM));
    REFUSED(reshard_checkpoint_read_box(NULL, 0, ROOM, 0, ROOM));
    REFUSED(reshard_checkpoint_check(TEXT, ROOM, ROOM));
    REFUSED(reshard_writer_create(TEXT, 0, ROOM, ROOM, ROOM));
    REFUSED(reshard_checkpoint_metadata(NULL, 0, NULL, ROOM));
    REFUSED(reshard_writer_put(NULL, 0, 0, ROOM));
    REFUSED(reshard_writer_commit(NULL));
    REFUSED(reshard_map_parse(NULL, NULL, NULL));
    REFUSED(reshard_map_load(TEXT, ROOM));
    REFUSED(reshard_map_model(NULL, NULL, ROOM));
    REFUSED(reshard_convert(TEXT, TEXT, ROOM, ROOM));
  }
}

CASE(null_is_refused_by_calls_of_layout) {
  for (int all = 0; all < 2; all++) {
    REFUSED(reshard_layout_parse(TEXT, 0, ROOM, 0, ROOM));
    REFUSED(reshard_layout_parse_world(TEXT, ROOM));
    REFUSED(reshard_layout_create_chunk(0, ROOM, 0, 0, 0, ROOM, ROOM));
    REFUSED(reshard_layout_create_mesh(0, ROOM, 0, 0, ROOM, ROOM, ROOM, ROOM, ROOM, ROOM));
    REFUSED(reshard_layout_create_cyclic(0, ROOM, 0, ROOM, ROOM, ROOM, ROOM));
    REFUSED(reshard_layout_scalapack(ROOM, 0, 1, ROOM, ROOM));
    REFUSED(reshard_layout_extend(NULL, 1, ROOM));
    REFUSED(reshard_layout_create_single(0, ROOM, 0, 0, ROOM));
    REFUSED(reshard_layout_create_flat(0, ROOM, 0, 0, ROOM, ROOM));
    REFUSED(reshard_layout_create_boxes(0, ROOM, 0, 0, ROOM, ROOM, 0, ROOM));
    REFUSED(reshard_layout_print(NULL, ROOM, 0, ROOM));
    REFUSED(reshard_layout_check_source(NULL));
    REFUSED(reshard_layout_array_count(NULL, 0, ROOM));
    REFUSED(reshard_layout_array(NULL, 0, 0, ROOM));
    REFUSED(reshard_layout_array_intervals(NULL, 0, 0, 0, 0, 0, ROOM, ROOM));
    REFUSED(reshard_layout_buffer_count(NULL, 0, ROOM));
    REFUSED(reshard_layout_buffer_elements(NULL, 0, 0, ROOM));
    REFUSED(reshard_layout_buffer_shape(NULL, 0, 0, ROOM, ROOM, ROOM));
    REFUSED(reshard_layout_meet(NULL, ROOM, NULL, ROOM));
    REFUSED(reshard_layout_lost(NULL, 0, NULL, NULL, ROOM));
  }
}

CASE(null_is_refused_by_calls_of_module) {
  for (int all = 0; all < 2; all++) {
    REFUSED(reshard_module_create(NULL));
    REFUSED(reshard_module_set_child(NULL, TEXT, NULL));
    REFUSED(reshard_module_set_parameter(NULL, TEXT, NULL));
    REFUSED(reshard_module_set_buffer(NULL, TEXT, NULL));
    REFUSED(reshard_module_get_child(NULL, TEXT, ROOM));
    REFUSED(reshard_module_get_parameter(NULL, TEXT, ROOM));
    REFUSED(reshard_module_get_buffer(NULL, TEXT, ROOM));
    REFUSED(reshard_module_visit_modules(NULL, NULL, ROOM));
    REFUSED(reshard_module_visit_parameters(NULL, NULL, ROOM));
    REFUSED(reshard_module_visit_buffers(NULL, NULL, ROOM));
    REFUSED(reshard_module_visit_states(NULL, ROOM, NULL, ROOM));
    REFUSED(reshard_module_roots(1, NULL, NULL, NULL));
  }
}

CASE(null_is_refused_by_calls_of_move) {
  for (int all = 0; all < 2; all++) {
    REFUSED(reshard_tree_cast(NULL, 0, NULL, ROOM, ROOM));
    REFUSED(reshard_tree_to(NULL, NULL, ROOM, ROOM, ROOM));
    REFUSED(reshard_tree_to_kwargs(NULL, NULL, NULL, ROOM, ROOM, ROOM, ROOM));
  }
}

CASE(null_is_refused_by_calls_of_plan) {
  for (int all = 0; all < 2; all++) {
    REFUSED(reshard_plan_create(0, ROOM, 0, ROOM, ROOM));
    REFUSED(reshard_plan_create_all(0, ROOM, 1, ROOM, ROOM, NULL));
    REFUSED(reshard_plan_reverse(NULL, ROOM));
    REFUSED(reshard_plan_get_info(NULL, ROOM));
    REFUSED(reshard_plan_get_pattern(NULL, ROOM));
    REFUSED(reshard_plan_peer(NULL, 0, ROOM, ROOM, ROOM));
    REFUSED(reshard_plan_get_info_at(NULL, 0, 0, ROOM));
    REFUSED(reshard_plan_workspace(NULL, ROOM));
    REFUSED(reshard_plan_explain(NULL, 0, ROOM, 0, ROOM));
  }
}

CASE(null_is_refused_by_calls_of_sync) {
  for (int all = 0; all < 2; all++) {
    REFUSED(reshard_verify_shapes(NULL, 0, ROOM, ROOM));
    REFUSED(reshard_sync_tensors(NULL, 0, 0, ROOM, ROOM, ROOM, ROOM, ROOM));
    REFUSED(reshard_sync_module_states(NULL, 0, NULL, ROOM, ROOM, ROOM, ROOM));
  }
}

CASE(null_is_refused_by_calls_of_tensor) {
  for (int all = 0; all < 2; all++) {
    REFUSED(reshard_tensor_create(0, 0, ROOM, ROOM));
    REFUSED(reshard_tensor_wrap(0, 0, ROOM, ROOM, ROOM, NULL, ROOM, ROOM));
    REFUSED(reshard_tensor_create_on(NULL, 0, 0, ROOM, ROOM, ROOM));
    REFUSED(reshard_tensor_wrap_on(NULL, 0, 0, ROOM, ROOM, ROOM, NULL, ROOM, ROOM));
    REFUSED(reshard_tensor_as_strided(NULL, 0, ROOM, ROOM, 0, ROOM));
    REFUSED(reshard_tensor_narrow(NULL, 0, 0, 0, ROOM));
    REFUSED(reshard_tensor_permute(NULL, ROOM, ROOM));
    REFUSED(reshard_tensor_reshape(NULL, 0, ROOM, ROOM));
    REFUSED(reshard_storage_alloc(NULL, 0, ROOM, ROOM));
    REFUSED(reshard_storage_free(NULL, ROOM, ROOM));
    REFUSED(reshard_storage_record_use(NULL, ROOM));
    REFUSED(reshard_tensor_from_dlpack(NULL, 0, 0, NULL));
    REFUSED(reshard_tensor_to_dlpack(NULL, 0, ROOM));
    REFUSED(reshard_tensor_get_info(NULL, ROOM));
    REFUSED(reshard_index_select(NULL, 0, NULL, NULL, 0, ROOM));
    REFUSED(reshard_index_select_async(NULL, 0, NULL, NULL, NULL, 0, ROOM));
  }
}

CASE(null_is_refused_by_calls_of_transfer) {
  for (int all = 0; all < 2; all++) {
    REFUSED(reshard_transfer_create(NULL, NULL, ROOM, ROOM, ROOM));
    REFUSED(reshard_transfer_create_all(1, NULL, ROOM, ROOM, ROOM, ROOM));
    REFUSED(reshard_transfer_create_all(1, ROOM, NULL, ROOM, ROOM, ROOM));
    REFUSED(reshard_transfer_create_all(1, ROOM, ROOM, ROOM, ROOM, NULL));
    REFUSED(reshard_transfer_rebind(NULL, ROOM));
    REFUSED(reshard_transfer_rebind_all(1, NULL, ROOM));
    REFUSED(reshard_transfer_get_info(NULL, ROOM));
    REFUSED(reshard_execute(NULL, ROOM));
    REFUSED(reshard_execute_all(0, ROOM, ROOM));
  }
}

CASE(null_is_refused_by_calls_of_tree) {
  for (int all = 0; all < 2; all++) {
    REFUSED(reshard_tree_dict(NULL));
    REFUSED(reshard_tree_list(NULL));
    REFUSED(reshard_tree_tuple(NULL));
    REFUSED(reshard_tree_struct(NULL, NULL));
    REFUSED(reshard_tree_tensor(NULL, ROOM));
    REFUSED(reshard_tree_packed(NULL, 0, ROOM, ROOM, ROOM, ROOM));
    REFUSED(reshard_tree_opaque(ROOM, ROOM, ROOM));
    REFUSED(reshard_tree_bytes(NULL, 0, NULL));
    REFUSED(reshard_tree_int(0, NULL));
    REFUSED(reshard_tree_float(0, NULL));
    REFUSED(reshard_tree_bool(0, NULL));
    REFUSED(reshard_tree_null(NULL));
    REFUSED(reshard_tree_set(NULL, TEXT, NULL));
    REFUSED(reshard_tree_set_int(NULL, 0, NULL));
    REFUSED(reshard_tree_create_set(NULL));
    REFUSED(reshard_tree_append(NULL, NULL));
    REFUSED(reshard_tree_replace_by_prefix(NULL, TEXT, TEXT));
    REFUSED(reshard_tree_child(NULL, 0, ROOM, ROOM));
    REFUSED(reshard_tree_find(NULL, TEXT, ROOM));
    REFUSED(reshard_tree_find_int(NULL, 0, ROOM));
    REFUSED(reshard_tree_at(NULL, TEXT, ROOM));
    REFUSED(reshard_tree_get_struct(NULL, ROOM));
    REFUSED(reshard_tree_get_packed(NULL, ROOM, ROOM, ROOM, ROOM, ROOM));
    REFUSED(reshard_tree_get_tensor(NULL, ROOM));
    REFUSED(reshard_tree_get_opaque(NULL, ROOM, ROOM));
    REFUSED(reshard_tree_get_bytes(NULL, ROOM, ROOM));
    REFUSED(reshard_tree_get_int(NULL, ROOM));
    REFUSED(reshard_tree_get_float(NULL, ROOM));
    REFUSED(reshard_tree_get_bool(NULL, ROOM));
    REFUSED(reshard_tree_visit(NULL, NULL, ROOM));
    REFUSED(reshard_tree_equal(NULL, NULL, ROOM));
    REFUSED(reshard_tree_print(NULL, ROOM, 0, ROOM));
    REFUSED(reshard_tree_map(NULL, NULL, ROOM, ROOM));
    REFUSED(reshard_tree_map_tensors(NULL, NULL, ROOM, ROOM));
    REFUSED(reshard_tree_flatten(NULL, ROOM));
    REFUSED(reshard_tree_rebuild(NULL, 0, ROOM, ROOM));
    REFUSED(reshard_tree_pack_kwargs(NULL, NULL, NULL, NULL));
    REFUSED(reshard_tree_unpack_kwargs(NULL, NULL, NULL, NULL));
  }
}

CASE(null_has_the_values_that_headers_say) {
  assert_int_equal(reshard_comm_rank(NULL), -1);
  assert_int_equal(reshard_comm_size(NULL), 0);
  assert_null(reshard_comm_global_ranks(NULL));
  assert_null(reshard_device_retain(NULL));
  assert_int_equal(reshard_tree_int_key(NULL, 0, NULL), 0);
  assert_int_equal(reshard_model_count(NULL), 0);
  assert_int_equal(reshard_model_bytes(NULL), 0);
  assert_null(reshard_checkpoint_model(NULL));
  assert_null(reshard_layout_retain(NULL));
  assert_int_equal(reshard_layout_get_kind(NULL), RESHARD_LAYOUT_KIND_COUNT);
  assert_int_equal(reshard_layout_world(NULL), 0);
  assert_int_equal(reshard_layout_ndim(NULL), 0);
  assert_null(reshard_layout_shape(NULL));
  assert_int_equal(reshard_layout_elements(NULL), 0);
  assert_int_equal(reshard_layout_equal(NULL, NULL), 1);
  assert_null(reshard_module_retain(NULL));
  assert_int_equal(reshard_data_allocated(NULL), 0);
  assert_null(reshard_tensor_retain(NULL));
  assert_null(reshard_tree_retain(NULL));
  assert_int_equal(reshard_tree_get_kind(NULL), 0);
  assert_int_equal(reshard_tree_count(NULL), 0);
  assert_null(reshard_tree_get_type(NULL));
}

CASE(null_may_be_released) {
  reshard_comm_destroy(NULL);
  reshard_device_release(NULL);
  reshard_stream_destroy(NULL, NULL);
  reshard_model_free(NULL);
  reshard_rules_free(NULL);
  reshard_checkpoint_close(NULL);
  reshard_checkpoint_unmap(NULL, 0);
  reshard_writer_abandon(NULL);
  reshard_map_free(NULL);
  reshard_layout_release(NULL);
  reshard_module_release(NULL);
  reshard_plan_destroy(NULL);
  reshard_tensor_set_requires_grad(NULL, 0);
  reshard_tensor_set_pin_memory(NULL, 0);
  reshard_tensor_release(NULL);
  reshard_transfer_destroy(NULL);
  reshard_tree_release(NULL);
  reshard_tree_leaves_release(NULL);
}

RUN_CASES
