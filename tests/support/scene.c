#include "support/scene.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "util.h"

#include <stdlib.h>
#include <string.h>

enum { POISON = 0xdb };

static int64_t piece(int64_t extent, int64_t n, int64_t rank, int64_t *offset) {
  int64_t size = (extent + n - 1) / n;
  *offset = size * rank < extent ? size * rank : extent;
  return *offset + size < extent ? size : extent - *offset;
}

void scene_open(scene *s, int64_t n, int64_t timeout_ms, reshard_path path, const reshard_plan_options *options) {
  static const int64_t shape[2] = {SCENE_ROWS, SCENE_COLUMNS};
  *s = (scene){.n = n};
  reshard_local_options local = {RESHARD_LOCAL_OPTIONS_INIT, 1, RESHARD_ISA_AUTO, timeout_ms, NULL, 0};
  CLI_TRY("communicator: ", reshard_comm_create_local(n, &local, s->comms));
  CLI_TRY("source: ", reshard_layout_parse("chunk(0)", 2, shape, n, &s->src));
  CLI_TRY("destination: ", reshard_layout_parse("chunk(1)", 2, shape, n, &s->dst));
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = s->src, .dst = s->dst, .dtype = RESHARD_U32};
  for (int64_t r = 0; r < n; r++) {
    int64_t offset;
    CLI_TRY("plan: ", reshard_plan_create(1, &entry, r, options, &s->plans[r]));
    s->src_list[r] = s->rows[r] = cli_alloc(piece(SCENE_ROWS, n, r, &offset) * SCENE_COLUMNS + 1, sizeof(uint32_t));
    s->dst_list[r] = s->columns[r] = cli_alloc(piece(SCENE_COLUMNS, n, r, &offset) * SCENE_ROWS + 1, sizeof(uint32_t));
    s->arrays[r] = (reshard_arrays){RESHARD_ARRAYS_INIT, &s->src_list[r], &s->dst_list[r], NULL, NULL, 1, 1};
    s->options[r] = (reshard_transfer_options){RESHARD_TRANSFER_OPTIONS_INIT, .path = path};
  }
  scene_fill(s, 0);
}

void scene_destroy(scene *s) {
  for (int64_t r = 0; r < s->n; r++) {
    reshard_transfer_destroy(s->transfers[r]);
    s->transfers[r] = NULL;
  }
}

void scene_close(scene *s) {
  scene_destroy(s);
  for (int64_t r = 0; r < s->n; r++) {
    reshard_plan_destroy(s->plans[r]);
    reshard_comm_destroy(s->comms[r]);
    free(s->rows[r]);
    free(s->columns[r]);
  }
  reshard_layout_release(s->src);
  reshard_layout_release(s->dst);
}

static uint32_t value(uint32_t generation, int64_t i, int64_t j) {
  return generation * 1000003u + (uint32_t)(i * SCENE_COLUMNS + j);
}

void scene_fill(scene *s, uint32_t generation) {
  for (int64_t r = 0; r < s->n; r++) {
    int64_t row, column, rows = piece(SCENE_ROWS, s->n, r, &row), columns = piece(SCENE_COLUMNS, s->n, r, &column);
    for (int64_t i = 0; i < rows; i++)
      for (int64_t j = 0; j < SCENE_COLUMNS; j++)
        s->rows[r][i * SCENE_COLUMNS + j] = value(generation, row + i, j);
    memset(s->columns[r], POISON, (size_t)(columns * SCENE_ROWS + 1) * sizeof(uint32_t));
  }
}

bool scene_right(const scene *s, uint32_t generation) {
  for (int64_t r = 0; r < s->n; r++) {
    int64_t column, columns = piece(SCENE_COLUMNS, s->n, r, &column);
    for (int64_t i = 0; i < SCENE_ROWS; i++)
      for (int64_t j = 0; j < columns; j++)
        if (s->columns[r][i * columns + j] != value(generation, i, column + j))
          return false;
  }
  return true;
}

bool scene_untouched(const scene *s) {
  for (int64_t r = 0; r < s->n; r++) {
    int64_t column, bytes = (piece(SCENE_COLUMNS, s->n, r, &column) * SCENE_ROWS + 1) * (int64_t)sizeof(uint32_t);
    for (int64_t b = 0; b < bytes; b++)
      if (((const unsigned char *)s->columns[r])[b] != POISON)
        return false;
  }
  return true;
}

static void create_body(void *user, int64_t r) {
  scene *s = user;
  reshard_transfer made = (reshard_transfer)s; /* must stay when the call fails */
  reshard_status status = reshard_transfer_create(s->plans[r], s->comms[r], &s->arrays[r], &s->options[r], &made);
  crew_note(&s->results[r], status);
  if (status == RESHARD_SUCCESS)
    s->transfers[r] = made;
  else if (made != (reshard_transfer)s)
    s->results[r].status = RESHARD_ERROR_INTERNAL;
}

static void execute_body(void *user, int64_t r) {
  scene *s = user;
  crew_note(&s->results[r], reshard_execute(s->transfers[r], NULL));
}

static void rebind_body(void *user, int64_t r) {
  scene *s = user;
  crew_note(&s->results[r], reshard_transfer_rebind(s->transfers[r], &s->arrays[r]));
}

void scene_create(scene *s) { crew_run(s->n, create_body, s); }
void scene_execute(scene *s) { crew_run(s->n, execute_body, s); }
void scene_rebind(scene *s) { crew_run(s->n, rebind_body, s); }

void scene_ready(scene *s) {
  scene_create(s);
  scene_assert_all(s, RESHARD_SUCCESS, NULL);
}

void scene_works(scene *s) {
  static uint32_t generation = 1;
  generation++;
  scene_fill(s, generation);
  scene_execute(s);
  scene_assert_all(s, RESHARD_SUCCESS, NULL);
  assert_true(scene_right(s, generation));
}

void scene_assert_text(const char *text, const char *part) {
  if (strstr(text, part) == NULL)
    fail_msg("'%s' lacks '%s'", text, part);
}

void scene_assert_all(const scene *s, reshard_status status, ...) {
  for (int64_t r = 0; r < s->n; r++)
    if (s->results[r].status != status)
      fail_msg("rank %lld has %s: %s", (long long)r, reshard_status_string(s->results[r].status), s->results[r].text);
  if (status == RESHARD_SUCCESS)
    return;
  for (int64_t r = 1; r < s->n; r++)
    assert_string_equal(s->results[r].text, s->results[0].text);
  va_list parts;
  va_start(parts, status);
  for (const char *part; (part = va_arg(parts, const char *)) != NULL;)
    scene_assert_text(s->results[0].text, part);
  va_end(parts);
}
