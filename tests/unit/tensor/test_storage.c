/* Storage of tensors: who frees it, when it may be freed and allocated again, and what is refused meanwhile. The rows
 * of torch/distributed/utils.py: _alloc_storage, _free_storage, _data_ptr_allocated. */
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"
#include "support/fixtures/sharded_ranks.h"
#include "tensor/tensor.h"

#include <reshard/dtensor.h>
#include <reshard/module.h>
#include <reshard/torch.h>

#include <stdio.h>
#include <string.h>

static reshard_device open_device(int64_t keep_bytes) {
  const reshard_device_options options = {.size = RESHARD_DEVICE_OPTIONS_INIT, .threads = 1, .keep_bytes = keep_bytes};
  reshard_device device;
  GOOD(reshard_device_create("cpu", &options, &device));
  return device;
}

static reshard_memory_stats stats_of(reshard_device device) {
  reshard_memory_stats stats;
  GOOD(reshard_device_get_memory_stats(device, &stats));
  return stats;
}

static reshard_tensor_info info_of(reshard_tensor tensor) {
  reshard_tensor_info info;
  GOOD(reshard_tensor_get_info(tensor, &info));
  return info;
}

static const int64_t shape[2] = {30, 40}; /* of f32: 4,800 bytes */
enum { BYTES = 30 * 40 * 4 };

/* A tensor from a device's pool, or plain memory where device is NULL. */
static reshard_tensor tensor_create(reshard_device device) {
  reshard_tensor t;
  if (device == NULL)
    GOOD(reshard_tensor_create(RESHARD_F32, 2, shape, &t));
  else
    GOOD(reshard_tensor_create_on(device, RESHARD_F32, 2, shape, NULL, &t));
  return t;
}

static void expect_freed(reshard_tensor t) {
  reshard_tensor_info info = info_of(t);
  assert_null(info.data);
  assert_int_equal(info.storage_bytes, 0);
  assert_int_equal(reshard_data_allocated(t), 0);
  assert_true(info.ndim == 2 && info.shape[0] == 30 && info.shape[1] == 40 && info.strides[0] == 40);
  assert_true(info.elements == 1200 && info.contiguous && info.dtype == RESHARD_F32 && info.requires_grad);
}

static void expect_there(reshard_tensor t, size_t bytes) {
  reshard_tensor_info info = info_of(t);
  assert_non_null(info.data);
  assert_int_equal((uintptr_t)info.data % 256, 0);
  assert_int_equal(info.storage_bytes, bytes);
  assert_int_equal(reshard_data_allocated(t), 1);
  memset(info.data, 3, BYTES);
}

CASE(test_alloc_and_free) {
  for (int pooled = 0; pooled < 2; pooled++) {
    reshard_device device = pooled ? open_device(0) : NULL;
    reshard_tensor t = tensor_create(device);
    int did = 7;
    reshard_tensor_set_requires_grad(t, 1);
    expect_there(t, BYTES);
    GOOD(reshard_storage_alloc(t, BYTES, NULL, &did));
    assert_int_equal(did, 0); /* it has this size already */
    BAD(reshard_storage_alloc(t, BYTES + 1, NULL, &did),
        "reshard_storage_alloc: the storage has 4800 bytes, 4801 are asked for");
    GOOD(reshard_storage_free(t, NULL, &did));
    assert_int_equal(did, 1);
    expect_freed(t);
    GOOD(reshard_storage_free(t, NULL, &did));
    assert_int_equal(did, 0); /* nothing to free */
    did = 7;
    BAD(reshard_storage_alloc(t, BYTES - 1, NULL, &did),
        "reshard_storage_alloc: 4799 bytes for a tensor of shape 30x40, which reaches to 4800");
    assert_int_equal(did, 7);
    expect_freed(t);
    GOOD(reshard_storage_alloc(t, BYTES, NULL, &did));
    assert_int_equal(did, 1);
    expect_there(t, BYTES);
    GOOD(reshard_storage_free(t, NULL, NULL));
    GOOD(reshard_storage_alloc(t, 2 * BYTES, NULL, NULL)); /* more than the tensor needs */
    expect_there(t, 2 * BYTES);
    reshard_tensor_release(t);
    if (device != NULL) {
      reshard_memory_stats stats = stats_of(device);
      assert_true(stats.allocs == 3 && stats.frees == 3 && stats.in_use_bytes == 0);
    }
    reshard_device_release(device);
  }
}

CASE(test_other_occupants) {
  reshard_device device = open_device(0);
  reshard_tensor t = tensor_create(device), view;
  void *managed;
  int did = 7;
  GOOD(reshard_tensor_narrow(t, 0, 10, 5, &view));
  for (int alone = 0; alone < 2; alone++) { /* the view keeps the storage, but is not at its beginning */
    BAD(reshard_storage_free(view, NULL, &did),
        "reshard_storage_free: a tensor of shape 5x40 at offset 400 is not the sole occupant of its storage of 4800 "
        "bytes");
    if (alone == 0)
      reshard_tensor_release(t);
  }
  reshard_tensor whole;
  GOOD(reshard_tensor_as_strided(view, 2, shape, NULL, 0, &whole));
  reshard_tensor_release(view);
  expect_there(whole, BYTES);
  for (int versioned = 0; versioned < 2; versioned++) {
    GOOD(reshard_tensor_to_dlpack(whole, versioned, &managed));
    BAD(reshard_storage_free(whole, NULL, &did), "reshard_storage_free: a tensor of shape 30x40 is not the sole "
                                                 "occupant of its storage of 4800 bytes: 1 managed tensors are over "
                                                 "it");
    GOOD(reshard_tensor_from_dlpack(managed, versioned, 0, &view)); /* it comes back: memory of its own owner */
    FAILS_WITH(reshard_storage_free(view, NULL, &did), RESHARD_ERROR_INVALID, "is its owner's");
    reshard_tensor_release(view);
  }
  reshard_tensor same = reshard_tensor_retain(whole); /* is one occupant */
  GOOD(reshard_storage_free(whole, NULL, &did));
  assert_int_equal(did, 1);
  reshard_tensor_release(same);
  reshard_tensor_release(whole);
  reshard_device_release(device);
}

/* A flat parameter and the views of it that a model uses, as FSDP has them: gathered, used, freed, and again. */
CASE(test_freed_under_views) {
  for (int pooled = 0; pooled < 2; pooled++) {
    reshard_device device = pooled ? open_device(0) : NULL;
    const int64_t elements = 1200;
    reshard_tensor flat, weight, bias, turned, nothing;
    int did = 7;
    if (pooled)
      GOOD(reshard_tensor_create_on(device, RESHARD_F32, 1, &elements, NULL, &flat));
    else
      GOOD(reshard_tensor_create(RESHARD_F32, 1, &elements, &flat));
    GOOD(reshard_tensor_as_strided(flat, 2, (int64_t[]){29, 40}, NULL, 0, &weight));
    GOOD(reshard_tensor_narrow(flat, 0, 1160, 40, &bias));
    for (int again = 0; again < 3; again++) {
      GOOD(reshard_storage_free(again == 1 ? weight : flat, NULL, &did)); /* any that begins the storage */
      assert_int_equal(did, 1);
      for (int i = 0; i < 3; i++) {
        reshard_tensor t = (reshard_tensor[]){flat, weight, bias}[i];
        assert_true(info_of(t).data == NULL && info_of(t).storage_bytes == 0 && !reshard_data_allocated(t));
        FAILS_WITH(reshard_storage_record_use(t, NULL), RESHARD_ERROR_INVALID, "is freed");
      }
      GOOD(reshard_tensor_permute(weight, (int[]){1, 0}, &turned)); /* made while there is nothing to see */
      GOOD(reshard_tensor_narrow(bias, 0, 3, 0, &nothing));
      assert_true(info_of(turned).data == NULL && info_of(turned).shape[0] == 40 && info_of(turned).strides[0] == 1);
      assert_int_equal(reshard_data_allocated(nothing), 1);
      GOOD(reshard_storage_alloc(again == 2 ? bias : flat, BYTES, NULL, &did));
      assert_int_equal(did, 1);
      float *data = info_of(flat).data;
      for (int i = 0; i < 1200; i++)
        data[i] = (float)(i + again);
      assert_ptr_equal(info_of(weight).data, data);
      assert_ptr_equal(info_of(turned).data, data);
      assert_ptr_equal(info_of(bias).data, data + 1160);
      assert_true(((float *)info_of(bias).data)[39] == (float)(1199 + again));
      assert_int_equal(info_of(bias).storage_bytes, BYTES);
      GOOD(reshard_storage_record_use(turned, NULL));
      reshard_tensor_release(turned);
      reshard_tensor_release(nothing);
    }
    reshard_tensor_release(flat); /* the views free it and bring it back as well */
    GOOD(reshard_storage_free(weight, NULL, NULL));
    assert_null(info_of(bias).data);
    GOOD(reshard_storage_alloc(weight, 29 * 40 * 4, NULL, NULL)); /* too little for the other one */
    assert_non_null(info_of(weight).data);
    assert_true(info_of(bias).data == NULL && !reshard_data_allocated(bias));
    BAD(reshard_storage_record_use(bias, NULL),
        "reshard_storage_record_use: a tensor of shape 40 at offset 1160 reaches to 4800 bytes, its storage has 4640 "
        "since it was allocated again");
    reshard_tensor_release(weight);
    reshard_tensor_release(bias);
    if (pooled)
      assert_int_equal(stats_of(device).in_use_bytes, 0);
    reshard_device_release(device);
  }
}

/* Refusals of views while the storage is freed. */
CASE(test_views_of_freed_storage) {
  static float memory[1];
  reshard_tensor t = tensor_create(NULL), view = NULL;
  GOOD(reshard_storage_free(t, NULL, NULL));
  FAILS_WITH(reshard_tensor_as_strided(t, 1, (int64_t[]){4}, NULL, INT64_MAX / 4, &view), RESHARD_ERROR_INVALID,
             "reaches beyond 9223372036854775807 bytes, the storage has 0");
  FAILS_WITH(reshard_tensor_narrow(t, 0, 29, 2, &view), RESHARD_ERROR_INVALID, "start 29 and length 2");
  assert_null(view);
  GOOD(reshard_tensor_as_strided(t, 1, (int64_t[]){100}, NULL, 1190, &view)); /* it may come back larger */
  BAD(reshard_storage_alloc(view, BYTES, NULL, NULL),
      "reshard_storage_alloc: 4800 bytes for a tensor of shape 100, which reaches to 5160");
  GOOD(reshard_storage_alloc(view, 5160, NULL, NULL));
  assert_ptr_equal(info_of(view).data, (char *)info_of(t).data + 4760);
  reshard_tensor_release(view);
  reshard_tensor_release(t);
  GOOD(reshard_tensor_wrap(RESHARD_F32, 1, (int64_t[]){0}, NULL, memory, NULL, NULL, &t)); /* lent, and empty */
  FAILS_WITH(reshard_tensor_as_strided(t, 1, (int64_t[]){1}, NULL, 0, &view), RESHARD_ERROR_INVALID,
             "reaches 4 bytes, the storage has 0");
  reshard_tensor_release(t);
}

static void count(void *user, void *data) {
  assert_non_null(data);
  ++*(int *)user;
}

CASE(lent_memory_is_released_once) {
  static float memory[1200];
  reshard_device device = open_device(0);
  for (int on = 0; on < 2; on++) {
    int released = 0, did = 7;
    reshard_tensor t;
    GOOD(reshard_tensor_wrap_on(on ? device : NULL, RESHARD_F32, 2, shape, (int64_t[]){0, 1}, memory, count, &released,
                                &t));
    reshard_tensor_info info = info_of(t);
    assert_true(info.overlapping && !info.contiguous && info.storage_bytes == 160 && info.offset == 0);
    BAD(reshard_storage_free(t, NULL, &did),
        "reshard_storage_free: memory of 160 bytes that the tensor was made over is its owner's");
    BAD(reshard_storage_alloc(t, 4800, NULL, &did),
        "reshard_storage_alloc: the storage has 160 bytes, 4800 are asked for");
    GOOD(reshard_storage_alloc(t, 160, NULL, &did));
    assert_int_equal(did, 0);
    assert_ptr_equal(rs_tensor_device(t), on ? device : NULL);
    reshard_tensor_release(t);
    assert_int_equal(released, 1);
  }
  assert_int_equal(stats_of(device).allocs, 0);
  reshard_device_release(device);
}

CASE(test_no_elements) {
  reshard_device device = open_device(0);
  reshard_tensor t, other;
  int did = 7;
  GOOD(reshard_tensor_create_on(device, RESHARD_F64, 2, (int64_t[]){0, 4}, NULL, &t));
  assert_int_equal(reshard_data_allocated(t), 1); /* all that it needs */
  GOOD(reshard_storage_free(t, NULL, &did));
  assert_int_equal(did, 0);
  GOOD(reshard_storage_alloc(t, 0, NULL, &did));
  assert_int_equal(did, 0);
  GOOD(reshard_storage_record_use(t, NULL));
  GOOD(reshard_tensor_narrow(t, 1, 1, 2, &other)); /* a view of no bytes */
  GOOD(reshard_storage_alloc(t, 64, NULL, &did));  /* for later views */
  assert_int_equal(did, 1);
  assert_ptr_equal(info_of(other).data, info_of(t).data);
  reshard_tensor_release(other);
  GOOD(reshard_tensor_as_strided(t, 1, (int64_t[]){8}, NULL, 0, &other));
  memset(info_of(other).data, 1, 64);
  reshard_tensor_release(other);
  reshard_tensor_release(t);
  assert_int_equal(reshard_data_allocated(NULL), 0);
  reshard_device_release(device);
}

CASE(wrong_arguments_are_invalid) {
  reshard_device device = open_device(0);
  reshard_tensor t = tensor_create(device), none = NULL;
  int stream, did = 7;
  char text[128];
  BAD(reshard_storage_alloc(NULL, 1, NULL, NULL), "reshard_storage_alloc: tensor is NULL");
  BAD(reshard_storage_free(NULL, NULL, NULL), "reshard_storage_free: tensor is NULL");
  BAD(reshard_storage_record_use(NULL, NULL), "reshard_storage_record_use: tensor is NULL");
  BAD(reshard_tensor_create_on(NULL, RESHARD_F32, 2, shape, NULL, &none), "reshard_tensor_create_on: device is NULL");
  BAD(reshard_tensor_create_on(device, RESHARD_F32, 2, shape, NULL, NULL), "reshard_tensor_create_on: tensor is NULL");
  BAD(reshard_tensor_wrap_on(device, RESHARD_F32, 2, shape, NULL, NULL, NULL, NULL, &none),
      "reshard_tensor_wrap_on: data is NULL and should hold 1200 elements");
  FAILS_WITH(reshard_tensor_create_on(device, RESHARD_F32, 2, shape, &stream, &none), RESHARD_ERROR_INVALID,
             "reshard_tensor_create_on: ");
  for (int pooled = 0; pooled < 2; pooled++) {
    reshard_tensor of = pooled ? t : tensor_create(NULL);
    snprintf(text, sizeof text, "%p", (void *)&stream);
    FAILS_WITH(reshard_storage_alloc(of, BYTES, &stream, &did), RESHARD_ERROR_INVALID, text);
    FAILS_WITH(reshard_storage_free(of, &stream, &did), RESHARD_ERROR_INVALID, text);
    FAILS_WITH(reshard_storage_record_use(of, &stream), RESHARD_ERROR_INVALID, text);
    GOOD(reshard_storage_record_use(of, NULL));
    if (!pooled)
      reshard_tensor_release(of);
  }
  assert_true(none == NULL && did == 7);
  reshard_tensor_release(t);
  reshard_device_release(device);
}

/* --- Use after free --------------------------------------------------------------------------------------------- */

#define GONE "the storage of a tensor of shape 30x40 is freed"

CASE(test_use_after_free) {
  reshard_device device = open_device(0);
  reshard_tensor gone = tensor_create(device), there = tensor_create(device), index, view = NULL;
  void *managed = NULL;
  GOOD(reshard_tensor_create(RESHARD_I64, 1, (int64_t[]){30}, &index));
  memset(info_of(index).data, 0, 240);
  GOOD(reshard_storage_free(gone, NULL, NULL));
  BAD(reshard_storage_record_use(gone, NULL), "reshard_storage_record_use: " GONE);
  BAD(reshard_tensor_to_dlpack(gone, 1, &managed), "reshard_tensor_to_dlpack: " GONE);
  BAD(reshard_index_select(gone, 0, index, there, 1, NULL), "reshard_index_select: src: " GONE);
  BAD(reshard_index_select(there, 0, index, gone, 1, NULL), "reshard_index_select: dst: " GONE);
  GOOD(reshard_tensor_narrow(gone, 0, 0, 1, &view));
  BAD(reshard_index_select(view, 0, index, there, 1, NULL),
      "reshard_index_select: src: the storage of a tensor of shape 1x40 is freed");
  reshard_tensor_release(view);
  GOOD(reshard_storage_free(index, NULL, NULL));
  BAD(reshard_index_select(there, 0, index, there, 1, NULL),
      "reshard_index_select: index: the storage of a tensor of shape 30 is freed");
  assert_null(managed);
  reshard_tensor_release(gone);
  reshard_tensor_release(there);
  reshard_tensor_release(index);
  reshard_device_release(device);
}

/* A call of every room that moves data, of two ranks, of which one has freed its tensor: all get the same error, and
 * nothing has moved. */
typedef struct world {
  reshard_layout rows, columns;
  reshard_sharded_tensor sharded[2];
  reshard_dtensor dtensor[2];
  reshard_tensor arrays[2], whole[2];
} world;

static reshard_status call_reshard(sharded_ranks *p, world *w, int64_t r) {
  return reshard_sharded_tensor_reshard(1, &w->sharded[r], &w->columns, NULL);
}
static reshard_status call_gather(sharded_ranks *p, world *w, int64_t r) {
  return reshard_sharded_tensor_gather_all(w->sharded[r], w->whole[r], NULL);
}
static reshard_status call_redistribute(sharded_ranks *p, world *w, int64_t r) {
  const reshard_placement columns = {.kind = RESHARD_PLACEMENT_SHARD, .dim = 1};
  const reshard_placing placing = {reshard_dtensor_mesh(w->dtensor[r]), &columns, NULL};
  reshard_dtensor result = NULL;
  reshard_status status = reshard_dtensor_redistribute(1, &w->dtensor[r], &placing, NULL, &result);
  reshard_dtensor_release(result);
  return status;
}
static reshard_status call_sync(sharded_ranks *p, world *w, int64_t r) {
  return reshard_sync_tensors(p->comms[r], 0, 1, &w->arrays[r], NULL, NULL, NULL, NULL);
}
static reshard_status (*const calls[])(sharded_ranks *p, world *w, int64_t r) = {call_reshard, call_gather,
                                                                                 call_redistribute, call_sync};
typedef struct turn {
  world w;
  int call;
} turn;

static void open_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  world *w = &((turn *)p->user)->w;
  const reshard_properties f32 = {.dtype = RESHARD_F32};
  const int64_t two = 2;
  const reshard_placement rows = {.kind = RESHARD_PLACEMENT_SHARD, .dim = 0};
  reshard_mesh mesh = NULL;
  reshard_status status = reshard_tensor_create(RESHARD_F32, 2, (int64_t[]){15, 40}, &w->arrays[r]);
  memset(rs_tensor_data(w->arrays[r]), (int)r + 1, BYTES / 2);
  RS_THEN(status, reshard_sharded_tensor_from_layout(p->sharders[r], w->rows, &f32, 1, &w->arrays[r], &w->sharded[r]));
  RS_THEN(status, reshard_mesh_create(p->comms[r], 0, 1, &two, NULL, 0, NULL, &mesh));
  RS_THEN(status, reshard_dtensor_from_local(p->sharders[r], &(reshard_placing){mesh, &rows, NULL}, w->arrays[r], 2,
                                             shape, 0, &w->dtensor[r]));
  RS_THEN(status, reshard_tensor_create(RESHARD_F32, 2, shape, &w->whole[r]));
  reshard_mesh_release(mesh);
  rank_result_set(&p->results[r], status);
}

static void call_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  turn *t = p->user;
  rank_result_set(&p->results[r], calls[t->call](p, &t->w, r));
}

static void close_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  world *w = &((turn *)p->user)->w;
  reshard_sharded_tensor_release(w->sharded[r]);
  reshard_dtensor_release(w->dtensor[r]);
  reshard_tensor_release(w->arrays[r]);
  reshard_tensor_release(w->whole[r]);
}

CASE(test_collective_use_after_free) {
  turn t = {
      .w = {.rows = layout_from_text("chunk(0)", 2, shape, 2), .columns = layout_from_text("chunk(1)", 2, shape, 2)}};
  for (t.call = 0; t.call < (int)(sizeof calls / sizeof *calls); t.call++)
    for (int r = 0; r < 2; r++) {
      sharded_ranks p;
      sharded_ranks_open(&p, 2, NULL);
      sharded_ranks_run(&p, open_body, &t);
      sharded_ranks_assert(&p, RESHARD_SUCCESS, NULL);
      GOOD(reshard_storage_free(t.w.arrays[r], NULL, NULL));
      sharded_ranks_run(&p, call_body, &t);
      sharded_ranks_assert(&p, RESHARD_ERROR_INVALID, "the storage of a tensor of shape 15x40 is freed");
      GOOD(reshard_storage_alloc(t.w.arrays[r], BYTES / 2, NULL, NULL));
      memset(rs_tensor_data(t.w.arrays[r]), r + 1, BYTES / 2);
      sharded_ranks_run(&p, call_body, &t); /* and now it works */
      sharded_ranks_assert(&p, RESHARD_SUCCESS, NULL);
      sharded_ranks_run(&p, close_body, &t);
      sharded_ranks_close(&p);
    }
  reshard_layout_release(t.w.rows);
  reshard_layout_release(t.w.columns);
}

/* --- Life ------------------------------------------------------------------------------------------------------- */

/* A tensor keeps its device, and a view the storage. */
CASE(tensor_keeps_its_device_and_a_view_its_storage) {
  reshard_device device = open_device(-1);
  reshard_tensor t = tensor_create(device), view;
  GOOD(reshard_tensor_permute(t, (int[]){1, 0}, &view));
  memset(info_of(t).data, 1, BYTES);
  reshard_tensor_release(t);
  reshard_memory_stats stats = stats_of(device);
  assert_true(stats.in_use_bytes >= BYTES && stats.frees == 0);
  reshard_device_release(device);
  memset(info_of(view).data, 2, BYTES);
  reshard_tensor_release(view);
}

/* Threads make and release views of one storage at the same time; then it is freed for all, and is back. */
static void viewing_body(void *user, int64_t r) {
  reshard_tensor *t = user, view;
  for (int i = 0; i < 500; i++)
    if (reshard_tensor_narrow(t[0], 0, r, 1, &view) == RESHARD_SUCCESS) {
      reshard_tensor_release(t[1 + r]);
      t[1 + r] = view;
    }
}

CASE(test_views_of_threads) {
  reshard_tensor t[1 + 4] = {tensor_create(NULL)};
  rank_threads_run(4, viewing_body, t);
  GOOD(reshard_storage_free(t[0], NULL, NULL));
  for (int i = 0; i < 5; i++)
    assert_null(info_of(t[i]).data);
  GOOD(reshard_storage_alloc(t[0], BYTES, NULL, NULL));
  for (int i = 0; i < 4; i++)
    assert_ptr_equal(info_of(t[1 + i]).data, (float *)info_of(t[0]).data + 40 * i);
  for (int i = 0; i < 5; i++)
    reshard_tensor_release(t[i]);
}

/* Threads take, use and give back at the same time, each sees its own bytes only. */
enum { THREADS = 4 };
static void busy_body(void *user, int64_t r) {
  reshard_device device = user;
  for (int i = 0; i < 200; i++) {
    reshard_tensor t;
    int64_t bytes = 4096 + (r + i) % 5 * 100000;
    if (reshard_tensor_create_on(device, RESHARD_U8, 1, &bytes, NULL, &t) != RESHARD_SUCCESS)
      return;
    for (int again = 0; again < 2; again++) {
      unsigned char *data = rs_tensor_data(t);
      memset(data, (int)r, 64);
      memset(data + bytes - 64, (int)r, 64);
      if (data[0] != r || data[63] != r || data[bytes - 1] != r)
        return;
      if (reshard_storage_free(t, NULL, NULL) || reshard_storage_alloc(t, (size_t)bytes, NULL, NULL))
        return;
    }
    reshard_tensor_release(t);
  }
}

CASE(threads_take_and_free_storage_of_one_device) {
  reshard_device device = open_device(0);
  rank_threads_run(THREADS, busy_body, device);
  reshard_memory_stats stats = stats_of(device);
  assert_int_equal(stats.allocs, THREADS * 200 * 3); /* else one has ended early */
  assert_true(stats.frees == stats.allocs && stats.in_use_bytes == 0);
  assert_true(stats.peak_held_bytes >= stats.peak_bytes && stats.kept_bytes <= stats.peak_held_bytes);
  reshard_device_release(device);
}

RUN_CASES
