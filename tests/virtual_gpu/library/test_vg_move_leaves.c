/* Sharded tensors and DTensors in a tree that is moved to a GPU and back, and cast there, on the virtual GPU; what
 * cannot be on a device; sets, which a move leaves where they are. */
#include "support/fixtures/expect.h"
#include "support/fixtures/sharded_ranks.h"
#include "support/fixtures/trees.h"
#include "virtual_gpu.h"

#include <reshard/dtensor.h>
#include <reshard/move.h>
#include <reshard/reshard.h>
#include <reshard/state_dict.h>

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "support/fixtures/case.h"

enum { RANKS = 3, ROWS = 5, COLUMNS = 7 };
static const int64_t shape[2] = {ROWS, COLUMNS};
static const reshard_properties f32 = {.dtype = RESHARD_F32};

typedef struct fixture {
  reshard_device cpu, gpus[2];
  cudaStream_t stream;
  reshard_comm comms[RANKS];
  reshard_sharder sharders[RANKS];
} fixture;

static void fixture_begin(fixture *s, uint64_t seed) {
  vg_begin(&(vg_options){.devices = 2, .seed = seed});
  GOOD(reshard_device_create("cpu", &(reshard_device_options){RESHARD_DEVICE_OPTIONS_INIT, .threads = 1}, &s->cpu));
  GOOD(reshard_device_create("cuda:0", NULL, &s->gpus[0]));
  GOOD(reshard_device_create("cuda:1", NULL, &s->gpus[1]));
  assert_int_equal(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking), cudaSuccess);
  const reshard_local_options local = {.size = RESHARD_LOCAL_OPTIONS_INIT, .devices = s->gpus, .ndevices = 1};
  GOOD(reshard_comm_create_local(RANKS, &local, s->comms));
  const reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT, .device = s->gpus[0]};
  sharders_open(RANKS, s->comms, &options, s->sharders);
}

static void fixture_end(fixture *s) {
  for (int r = 0; r < RANKS; r++) {
    reshard_sharder_destroy(s->sharders[r]);
    reshard_comm_destroy(s->comms[r]);
  }
  reshard_device_release(s->cpu);
  for (int i = 0; i < 2; i++)
    reshard_device_release(s->gpus[i]);
  cudaStreamSynchronize(s->stream);
  cudaStreamDestroy(s->stream);
  vg_end();
}

static reshard_sharded_tensor sharded_at(reshard_tree tree, const char *path) {
  reshard_sharded_tensor tensor;
  GOOD(reshard_state_get_sharded(node_at(tree, path), &tensor));
  return tensor;
}

/* A rank's arrays of a layout on the CPU: pieces of one buffer, in which element i is rank * 100 + i. */
static reshard_tree on_cpu(fixture *s, const char *text, int rank) {
  reshard_layout layout;
  reshard_sharded_tensor tensor;
  reshard_tensor buffer, arrays[8];
  int64_t n, at = 0;
  const int64_t room = ROWS * COLUMNS;
  reshard_tree leaf;
  GOOD(reshard_layout_parse(text, 2, shape, RANKS, &layout));
  GOOD(reshard_layout_array_count(layout, rank, &n));
  GOOD(reshard_tensor_create(RESHARD_F32, 1, &room, &buffer));
  for (int i = 0; i < room; i++)
    ((float *)tensor_info(buffer).data)[i] = (float)(rank * 100 + i);
  for (int64_t i = 0; i < n; i++) {
    reshard_array_info array;
    GOOD(reshard_layout_array(layout, rank, i, &array));
    GOOD(reshard_tensor_as_strided(buffer, 2, array.shape, NULL, at, &arrays[i]));
    at += array.elements;
  }
  GOOD(reshard_sharded_tensor_from_layout(s->sharders[rank], layout, &f32, n, arrays, &tensor));
  GOOD(reshard_state_sharded(tensor, &leaf));
  reshard_sharded_tensor_release(tensor);
  for (int64_t i = 0; i < n; i++)
    reshard_tensor_release(arrays[i]);
  reshard_tensor_release(buffer);
  reshard_layout_release(layout);
  return leaf;
}

/* Checks places and contents of all arrays (as f64 or f32), and the metadata. */
static void leaf_check(fixture *s, reshard_sharded_tensor is, reshard_sharded_tensor was, int rank,
                       reshard_device_type type, reshard_dtype dtype) {
  int64_t at = 0;
  const char *end = NULL;
  reshard_metadata m = reshard_sharded_tensor_metadata(is);
  assert_true(reshard_layout_equal(reshard_sharded_tensor_layout(is), reshard_sharded_tensor_layout(was)));
  assert_int_equal(reshard_metadata_properties(m).dtype, dtype);
  for (int64_t i = 0; i < reshard_metadata_count(m); i++) {
    const reshard_shard *shard = &reshard_metadata_shards(m)[i];
    assert_int_equal(shard->placement.type, type);
    assert_int_equal(shard->placement.rank,
                     reshard_metadata_shards(reshard_sharded_tensor_metadata(was))[i].placement.rank);
  }
  assert_int_equal(cudaStreamSynchronize(s->stream), cudaSuccess);
  for (int64_t i = 0; i < reshard_sharded_tensor_local_count(is); i++) {
    reshard_tensor array;
    double numbers[ROWS * COLUMNS];
    GOOD(reshard_sharded_tensor_local(is, i, &array, NULL));
    reshard_tensor_info info = tensor_info(array);
    size_t bytes = (size_t)info.elements * reshard_dtype_size(dtype);
    assert_true(info.device_type == type && info.dtype == dtype && info.contiguous);
    if (type == RESHARD_DEVICE_CUDA)
      vg_peek(numbers, info.data, bytes);
    else
      memcpy(numbers, info.data, bytes);
    for (int64_t e = 0; e < info.elements; e++, at++)
      assert_true((dtype == RESHARD_F64 ? numbers[e] : (double)((float *)numbers)[e]) == (double)(rank * 100 + at));
    if (reshard_layout_get_kind(reshard_sharded_tensor_layout(is)) == RESHARD_LAYOUT_FLAT && end != NULL)
      assert_ptr_equal(info.data, end); /* end to end */
    end = (char *)info.data + bytes;
  }
}

static const char *const layouts[] = {"chunk(0)", "chunk(0;2,0)", "flat()", "rank(1)"};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

CASE(test_there_and_back) {
  for (uint64_t seed = 0; seed < 6; seed++) {
    fixture s;
    fixture_begin(&s, seed);
    for (int r = 0; r < RANKS; r++) {
      reshard_tree root = dict(), moved, cast, back, none = NULL;
      for (int l = 0; l < LAYOUTS; l++)
        set(root, layouts[l], on_cpu(&s, layouts[l], r));
      const reshard_move_options options = {RESHARD_MOVE_OPTIONS_INIT, seed % 2 == 1, 0};
      GOOD(reshard_tree_to(root, s.gpus[0], s.stream, &options, &moved));
      GOOD(reshard_tree_cast(moved, RESHARD_F64, s.gpus[0], s.stream, &cast));
      FAILS_WITH(
          reshard_tree_to(moved, s.gpus[1], NULL, NULL, &none), RESHARD_ERROR_UNSUPPORTED,
          "path 'chunk(0)': a local tensor would be on cuda:1; those of its sharder are on the CPU or on cuda:0");
      assert_null(none);
      for (int l = 0; l < LAYOUTS; l++) {
        reshard_sharded_tensor was = sharded_at(root, layouts[l]);
        leaf_check(&s, sharded_at(moved, layouts[l]), was, r, RESHARD_DEVICE_CUDA, RESHARD_F32);
        leaf_check(&s, sharded_at(cast, layouts[l]), was, r, RESHARD_DEVICE_CUDA, RESHARD_F64);
      }
      reshard_tree_release(root); /* before it comes back */
      GOOD(reshard_tree_to(moved, s.cpu, s.stream, &options, &back));
      for (int l = 0; l < LAYOUTS; l++)
        leaf_check(&s, sharded_at(back, layouts[l]), sharded_at(moved, layouts[l]), r, RESHARD_DEVICE_CPU, RESHARD_F32);
      reshard_tree_release(cast);
      reshard_tree_release(moved);
      reshard_tree_release(back);
    }
    fixture_end(&s);
    assert_int_equal(vg_reports(), 0);
  }
}

CASE(dtensors_go_to_a_gpu_and_back) {
  const int64_t one = 1, rank = 2;
  const reshard_placement rows = {.kind = RESHARD_PLACEMENT_SHARD, .dim = 0};
  fixture s;
  fixture_begin(&s, 3);
  for (int r = 0; r < RANKS; r++) { /* the mesh has one of the ranks */
    reshard_mesh mesh;
    reshard_dtensor made, is;
    reshard_tree leaf, back, cast;
    GOOD(reshard_mesh_create(s.comms[r], 0, 1, &one, NULL, 1, &rank, &mesh));
    GOOD(reshard_dtensor_empty(s.sharders[r], &(reshard_placing){mesh, &rows, NULL}, 2, shape, &f32, s.stream, &made));
    if (r == rank)
      assert_int_equal(
          cudaMemsetAsync(tensor_info(reshard_dtensor_local(made)).data, 0x3f, ROWS * COLUMNS * 4, s.stream),
          cudaSuccess);
    GOOD(reshard_state_dtensor(made, &leaf));
    GOOD(reshard_tree_to(leaf, s.cpu, s.stream, NULL, &back));
    GOOD(reshard_tree_cast(back, RESHARD_F64, s.cpu, NULL, &cast));
    GOOD(reshard_state_get_dtensor(cast, &is));
    assert_ptr_equal(reshard_dtensor_mesh(is), mesh);
    assert_true(reshard_layout_equal(reshard_dtensor_layout(is), reshard_dtensor_layout(made)));
    reshard_metadata m = reshard_sharded_tensor_metadata(reshard_dtensor_sharded(is));
    assert_true(reshard_metadata_count(m) == 1 && reshard_metadata_shards(m)->placement.type == RESHARD_DEVICE_CPU);
    assert_int_equal(reshard_metadata_properties(m).dtype, RESHARD_F64);
    if (r == rank)
      for (int i = 0; i < ROWS * COLUMNS; i++)
        assert_true(((double *)tensor_info(reshard_dtensor_local(is)).data)[i] == (double)0x1.7e7e7ep-1f);
    reshard_tree_release(cast);
    reshard_tree_release(back);
    reshard_tree_release(leaf);
    reshard_dtensor_release(made);
    reshard_mesh_release(mesh);
  }
  fixture_end(&s);
}

/* A communicator of the CPU has no tensors on a GPU. */
CASE(test_cpu_alone) {
  fixture s;
  fixture_begin(&s, 4);
  reshard_comm comm;
  reshard_sharder sharder;
  reshard_tree moved = NULL;
  GOOD(reshard_comm_create_local(1, NULL, &comm));
  GOOD(reshard_sharder_create(comm, NULL, &sharder));
  reshard_sharded_tensor tensor;
  reshard_layout layout;
  reshard_tree leaf;
  GOOD(reshard_layout_parse("chunk(0)", 2, shape, 1, &layout));
  GOOD(reshard_sharded_tensor_zeros(sharder, layout, &f32, NULL, &tensor));
  GOOD(reshard_state_sharded(tensor, &leaf));
  reshard_tree root = set(dict(), "w", leaf);
  FAILS(reshard_tree_to(root, s.gpus[0], s.stream, NULL, &moved), RESHARD_ERROR_UNSUPPORTED,
        "path 'w': a local tensor would be on cuda:0; those of its sharder are on the CPU");
  assert_null(moved);
  reshard_tree_release(root);
  reshard_sharded_tensor_release(tensor);
  reshard_layout_release(layout);
  reshard_sharder_destroy(sharder);
  reshard_comm_destroy(comm);
  fixture_end(&s);
}

/* _recursive_to leaves them. */
CASE(test_sets_stay) {
  fixture s;
  fixture_begin(&s, 5);
  reshard_tree members, moved;
  reshard_tensor in, beside;
  GOOD(reshard_tree_create_set(&members));
  append(append(members, leaf_of(floats(4))), integer(1));
  reshard_tree root = set(set(dict(), "set", members), "tensor", leaf_of(floats(4)));
  GOOD(reshard_tree_get_tensor(node_at(root, "tensor"), &beside));
  memset(tensor_info(beside).data, 0, 16);
  GOOD(reshard_tree_to(root, s.gpus[0], s.stream, NULL, &moved));
  assert_ptr_equal(node_at(moved, "set"), members);
  GOOD(reshard_tree_get_tensor(node_at(moved, "set.0"), &in));
  GOOD(reshard_tree_get_tensor(node_at(moved, "tensor"), &beside));
  assert_int_equal(tensor_info(in).device_type, RESHARD_DEVICE_CPU);
  assert_int_equal(tensor_info(beside).device_type, RESHARD_DEVICE_CUDA);
  reshard_tree_release(moved);
  GOOD(reshard_tree_to(members, s.gpus[0], s.stream, NULL, &moved));
  assert_ptr_equal(moved, members);
  reshard_tree_release(moved);
  reshard_tree_release(root);
  fixture_end(&s);
}

RUN_CASES
