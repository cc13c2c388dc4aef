/* The k-th allocation fails, for every k, while maps are read, loaded and applied. */
#include "support/fault_local.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"

#include "file/map/dtypes.h"
#include "file/map/line.h"
#include "support/fixtures/temporary.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Every operation on both sides, stars, spread names, drop and quotes. */
static const char text[] = "# a map\n"
                           "layers.*.qk = concat(0; layers.*.q, layers.*.k)\n"
                           "layers.*.experts = transpose(1,0,2; stack(layers.*.experts.*.\"w\"))\n"
                           "concat(-1; stack(a, \"b b\"):2, stack(c.*)) = fused\n"
                           "drop(layers.*.rotary)\n"
                           "concat(0; n.*:2) = n\n"
                           "* = *\n";

typedef struct map_case {
  const char *path; /* NULL: the text */
  reshard_map map;
  reshard_model source, wanted; /* made without faults */
  int64_t regions;
  rs_names names; /* of the source's tensors, by number */
  reshard_blocks blocks;
} map_case;

static reshard_model make_source(void) {
  reshard_model model;
  GOOD(rs_model_new(&model));
  char name[64];
  for (int i = 0; i < 12; i++) {
    static const struct {
      const char *name;
      int ndim;
      int64_t shape[2];
    } parts[] = {{"q", 2, {4, 3}}, {"k", 2, {2, 3}}, {"rotary", 1, {5}}, {"norm", 1, {3}}};
    for (int p = 0; p < 4; p++) {
      snprintf(name, sizeof name, "layers.%d.%s", i, parts[p].name);
      GOOD(rs_model_add(model, "test", name, strlen(name), RESHARD_BF16, parts[p].ndim, parts[p].shape));
    }
    for (int e = 0; e < 11; e++) {
      snprintf(name, sizeof name, "layers.%d.experts.%d.w", i, e);
      GOOD(rs_model_add(model, "test", name, strlen(name), RESHARD_BF16, 2, (int64_t[]){2, 3}));
    }
  }
  GOOD(rs_model_add(model, "test", "fused", 5, RESHARD_F32, 2, (int64_t[]){2, 3}));
  GOOD(rs_model_add(model, "test", "n", 1, RESHARD_F32, 1, (int64_t[]){40}));
  return model;
}

static reshard_status read_map(fault_output *out, const void *with) {
  const map_case *c = with;
  reshard_map made = out->object;
  reshard_status status = c->path != NULL ? reshard_map_load(c->path, &made) : reshard_map_parse(text, "text", &made);
  out->object = made;
  return status;
}

static bool same_model(reshard_model a, reshard_model b) {
  if (a->tensors.n != b->tensors.n || a->names.n != b->names.n || a->bytes != b->bytes ||
      memcmp(a->names.at, b->names.at, (size_t)a->names.n) != 0)
    return false;
  for (int64_t i = 0; i < a->tensors.n; i++)
    if (a->tensors.at[i].dtype != b->tensors.at[i].dtype || a->tensors.at[i].ndim != b->tensors.at[i].ndim ||
        memcmp(a->tensors.at[i].shape, b->tensors.at[i].shape, sizeof a->tensors.at[i].shape) != 0)
      return false;
  return true;
}

static bool good_map(const fault_output *out, const void *with) {
  const map_case *c = with;
  reshard_model made;
  if (reshard_map_model(out->object, c->source, &made) != RESHARD_SUCCESS)
    return false;
  bool same = same_model(made, c->wanted);
  reshard_model_free(made);
  return same;
}

static void drop_map(fault_output *out) { reshard_map_free(out->object); }

static reshard_status map_model(fault_output *out, const void *with) {
  const map_case *c = with;
  reshard_model made = out->object;
  reshard_status status = reshard_map_model(c->map, c->source, &made);
  out->object = made;
  return status;
}

static bool good_model(const fault_output *out, const void *with) {
  const map_case *c = with;
  return same_model(out->object, c->wanted);
}

static void drop_model(fault_output *out) { reshard_model_free(out->object); }

/* Outputs are written on success alone: the number of regions shows it. */
static reshard_status count_regions(fault_output *out, const void *with) {
  const map_case *c = with;
  reshard_model made;
  rs_copy_regions regions;
  reshard_status status = rs_map_apply(c->map, c->source, &made, &regions);
  if (status != RESHARD_SUCCESS)
    return status;
  out->number = regions.n;
  free(regions.at);
  reshard_model_free(made);
  return status;
}

static bool good_count(const fault_output *out, const void *with) {
  const map_case *c = with;
  return out->number == c->regions;
}

/* All of the source in another dtype, with scales and without. */
static reshard_status choose_dtypes(fault_output *out, const void *with) {
  const map_case *c = with;
  const rs_layouts none = {0};
  reshard_model made;
  rs_copy_regions regions;
  reshard_convert_report report = {.converted = -1, .unconverted = -1};
  RS_TRY(rs_map_apply(NULL, c->source, &made, &regions));
  const rs_dtype_choice choice = {c->source, &c->names, &regions, &none, &none, RESHARD_F8_E4M3, &c->blocks};
  reshard_status status = rs_dtypes_choose(&choice, made, &report);
  if (status == RESHARD_SUCCESS)
    out->number = report.converted + report.unconverted;
  else if (report.unconverted != -1)
    status = RESHARD_ERROR_INTERNAL;
  free(regions.at);
  reshard_model_free(made);
  return status;
}

static void run_map_case(map_case *c) {
  assert_true(fault_local_run(&(fault_local){"map_model", map_model, good_model, drop_model, c}) >= 3);
  assert_true(fault_local_run(&(fault_local){"map_apply", count_regions, good_count, NULL, c}) >= 3);
}

CASE(maps_survive_any_failed_allocation) {
  char path[TEMPORARY_PATH];
  snprintf(path, sizeof path, "%s/reshard-alloc-map-%ld", temporary(), (long)getpid());
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(text, 1, sizeof text - 1, file), sizeof text - 1);
  assert_int_equal(fclose(file), 0);
  int64_t live = fault_live();
  map_case c = {.source = make_source()};
  rs_copy_regions regions;
  if (reshard_map_parse(text, NULL, &c.map) != RESHARD_SUCCESS ||
      rs_map_apply(c.map, c.source, &c.wanted, &regions) != RESHARD_SUCCESS)
    fail_msg("%s", reshard_last_error());
  free(regions.at);
  c.regions = regions.n;
  assert_int_equal(c.wanted->tensors.n, 12 + 12 + 4 + 20 + 12);
  assert_int_equal(c.regions, 12 * 2 + 12 * 11 + 4 + 20 + 12);
  assert_true(fault_local_run(&(fault_local){"map_parse", read_map, good_map, drop_map, &c}) >= 5);
  c.path = path;
  assert_true(fault_local_run(&(fault_local){"map_load", read_map, good_map, drop_map, &c}) >= 6);
  unlink(path);
  run_map_case(&c);
  reshard_map_free(c.map);
  reshard_model_free(c.wanted);
  c.map = NULL; /* no map: all as it is */
  c.wanted = c.source;
  c.regions = c.source->tensors.n;
  run_map_case(&c);
  GOOD(rs_names_reserve(&c.names, c.regions));
  for (int64_t i = 0, number; i < c.regions; i++)
    GOOD(rs_names_put(&c.names, rs_model_name(c.source, i), strlen(rs_model_name(c.source, i)), &number));
  assert_true(fault_local_run(&(fault_local){"choose_dtypes", choose_dtypes, good_count, NULL, &c}) >= 5);
  c.blocks = (reshard_blocks){2, 2, RESHARD_F32};
  assert_true(fault_local_run(&(fault_local){"choose_blocks", choose_dtypes, good_count, NULL, &c}) >= 6);
  rs_names_free(&c.names);
  reshard_model_free(c.source);
  assert_int_equal(fault_live(), live);
}

RUN_CASES
