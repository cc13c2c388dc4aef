/* Boxes of tensors, read from files that have them whole, in Fortran order or in shards; and headers with digests. */
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { A = 4, B = 3, C = 5, MOST = A * B * C };

/* Each box of tensor 0, of 16-bit numbers, has what reshard_checkpoint_read gives of the whole; no byte behind it. */
static void check_boxes(reshard_checkpoint checkpoint) {
  uint16_t whole[MOST], part[MOST + 1];
  reshard_box box = {{0}, {A, B, C}};
  GOOD(reshard_checkpoint_read_box(checkpoint, 0, &box, 0, whole));
  for (int64_t at = 0; at < A * A * B * B * C * C; at++) {
    box = (reshard_box){{at % A, at / A / A % B, at / A / A / B / B % C},
                        {at / A % A + 1, at / A / A / B % B + 1, at / A / A / B / B / C + 1}};
    int64_t n = 0;
    memset(part, 0xee, sizeof part);
    reshard_status status = reshard_checkpoint_read_box(checkpoint, 0, &box, 1, part);
    if (box.offset[0] + box.extent[0] > A || box.offset[1] + box.extent[1] > B || box.offset[2] + box.extent[2] > C) {
      assert_int_equal(status, RESHARD_ERROR_INVALID);
      continue;
    }
    assert_int_equal(status, RESHARD_SUCCESS);
    for (int64_t a = box.offset[0]; a < box.offset[0] + box.extent[0]; a++)
      for (int64_t b = box.offset[1]; b < box.offset[1] + box.extent[1]; b++)
        for (int64_t c = box.offset[2]; c < box.offset[2] + box.extent[2]; c++)
          assert_int_equal(part[n++], whole[(a * B + b) * C + c]);
    assert_int_equal(part[n], 0xeeee);
  }
}

static void write_tensor(const char *name, const char *layout, const uint16_t *numbers) {
  const int64_t shape[] = {A, B, C};
  reshard_writer_tensor t = {"w", RESHARD_U16, NULL};
  reshard_writer_options options = RESHARD_WRITER_OPTIONS_DEFAULTS;
  reshard_writer writer;
  options.force = 1;
  GOOD(reshard_layout_parse(layout, 3, shape, 0, &t.layout));
  GOOD(reshard_writer_create(scratch_path(name), 1, &t, &options, &writer));
  for (int64_t rank = 0; rank < reshard_layout_world(t.layout); rank++)
    GOOD(reshard_writer_put(writer, 0, rank, (const void *const[]){numbers + rank * A / 2 * B * C}));
  GOOD(reshard_writer_commit(writer));
  reshard_layout_release(t.layout);
}

static void fill_numbers(uint16_t numbers[MOST]) {
  for (int i = 0; i < MOST; i++)
    numbers[i] = (uint16_t)(i * 257 + 1);
}

CASE(a_box_is_the_part_of_the_whole_in_each_format) {
  static const char *const names[] = {"w.safetensors", "w.npy", "shards"};
  uint16_t numbers[MOST], got[MOST];
  fill_numbers(numbers);
  for (int i = 0; i < 3; i++) {
    write_tensor(names[i], i < 2 ? "rank(0)" : "chunk(0;0,1)", numbers);
    reshard_checkpoint checkpoint = scratch_open(names[i]);
    check_boxes(checkpoint);
    GOOD(reshard_checkpoint_read_box(checkpoint, 0, &(reshard_box){{0}, {A, B, C}}, 0, got));
    assert_memory_equal(got, numbers, sizeof got);
    reshard_checkpoint_close(checkpoint);
  }
  static const char head[] = "\x93NUMPY\1\0\x3d\0{'descr': '<u2', 'fortran_order': True, 'shape': (4, 3, 5), }";
  unsigned char fortran[sizeof head - 1 + sizeof numbers];
  memcpy(fortran, head, sizeof head - 1);
  memcpy(fortran + sizeof head - 1, numbers, sizeof numbers);
  scratch_write("f.npy", fortran, sizeof fortran);
  reshard_checkpoint checkpoint = scratch_open("f.npy");
  check_boxes(checkpoint);
  reshard_checkpoint_close(checkpoint);
}

CASE(a_box_beyond_the_tensor_or_no_memory_is_refused) {
  uint16_t numbers[MOST];
  fill_numbers(numbers);
  write_tensor("w.safetensors", "rank(0)", numbers);
  reshard_checkpoint checkpoint = scratch_open("w.safetensors");
  reshard_box box = {{0, 0, INT64_MAX}, {1, 1, 1}}, none = {{A, 0, 0}, {0, B, C}};
  FAILS_WITH(reshard_checkpoint_read_box(checkpoint, 0, &box, 0, numbers), RESHARD_ERROR_INVALID,
             "in dim 2, of extent 5");
  box.offset[2] = -1;
  FAILS_WITH(reshard_checkpoint_read_box(checkpoint, 0, &box, 0, numbers), RESHARD_ERROR_INVALID, "offset -1");
  box.offset[2] = 0;
  FAILS_WITH(reshard_checkpoint_read_box(checkpoint, 0, &box, -1, numbers), RESHARD_ERROR_INVALID, "-1 threads");
  FAILS_WITH(reshard_checkpoint_read_box(checkpoint, 0, &box, 0, NULL), RESHARD_ERROR_INVALID, "buffer");
  FAILS_WITH(reshard_checkpoint_read_box(checkpoint, 1, &box, 0, numbers), RESHARD_ERROR_INVALID, "tensor 1");
  GOOD(reshard_checkpoint_read_box(checkpoint, 0, &none, 0, NULL));
  reshard_checkpoint_close(checkpoint);
}

/* A place in a header is that of the file, also behind digests, which are not parsed. */
CASE(an_error_behind_the_digests_tells_its_column_in_the_file) {
  uint16_t numbers[MOST];
  size_t size;
  char column[32];
  fill_numbers(numbers);
  write_tensor("w.safetensors", "rank(0)", numbers);
  char *bytes = scratch_read("w.safetensors", &size);
  char *dtype = strstr(bytes + 8, "\"dtype\"");
  assert_non_null(strstr(bytes + 8, "reshard_digests"));
  assert_non_null(dtype);
  dtype[7] = '!';
  scratch_write("bad.safetensors", bytes, size);
  snprintf(column, sizeof column, "column %d", (int)(dtype + 8 - (bytes + 8)));
  scratch_refused("bad.safetensors", RESHARD_ERROR_INVALID, "line 1", column);
  free(bytes);
}

RUN_JSON_CASES(scratch_setup, scratch_teardown)
