/* The k-th allocation fails, for every k, in every local call on communicators, models and rules. */
#include "base/base.h"
#include "file/model/model.h"
#include "support/fault_local.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/temporary.h"

#include <reshard/file.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef RS_HAVE_JANSSON
#include <jansson.h>
#endif

enum { WORLD = 8 };
static const int64_t shape[3] = {12, 20, 3};
static char directory[TEMPORARY_PATH];

static const char *in_directory(const char *name) {
  static char path[2 * TEMPORARY_PATH];
  snprintf(path, sizeof path, "%s/%s", directory, name);
  return path;
}

static void write_file(const char *name, const char *bytes, size_t n) {
  FILE *file = fopen(in_directory(name), "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, n, file), n);
  assert_int_equal(fclose(file), 0);
}

static void drop_layout(fault_output *out) { reshard_layout_release(out->object); }
static bool one(const fault_output *out, const void *with) { return out->number == 1; }

/* Communicators: memory and copy threads. */
typedef struct comm_case {
  int64_t n;
  int threads;
} comm_case;

static reshard_comm made_comms[64];

static reshard_status make_comm(fault_output *out, const void *with) {
  const comm_case *c = with;
  reshard_local_options options = {RESHARD_LOCAL_OPTIONS_INIT, c->threads, RESHARD_ISA_AUTO, 60000, NULL, 0};
  reshard_comm before[64];
  memset(made_comms, 0x11, sizeof made_comms);
  memcpy(before, made_comms, sizeof before);
  reshard_status status = reshard_comm_create_local(c->n, &options, made_comms);
  if (status == RESHARD_SUCCESS || memcmp(before, made_comms, sizeof before) != 0)
    out->number = c->n;
  return status;
}
static bool good_comm(const fault_output *out, const void *with) {
  const comm_case *c = with;
  for (int64_t r = 0; r < c->n; r++)
    if (reshard_comm_rank(made_comms[r]) != r || reshard_comm_size(made_comms[r]) != c->n)
      return false;
  return out->number == c->n && (c->n > 1 || reshard_comm_barrier(made_comms[0]) == RESHARD_SUCCESS);
}
static void drop_comm(fault_output *out) {
  for (int64_t r = 0; r < out->number; r++)
    reshard_comm_destroy(made_comms[r]);
}

static reshard_status make_memory(fault_output *out, const void *with) {
  return reshard_comm_alloc(made_comms[0], 1000, &out->object);
}
static bool good_memory(const fault_output *out, const void *with) {
  memset(out->object, 1, 1000);
  return true;
}
static void drop_memory(fault_output *out) { (void)reshard_comm_free(made_comms[0], out->object); }

CASE(test_comm_memory) {
  GOOD(reshard_comm_create_local(1, NULL, made_comms));
  assert_true(fault_local_run(&(fault_local){"comm_alloc", make_memory, good_memory, drop_memory, NULL}) >= 1);
  reshard_comm_destroy(made_comms[0]);
}

CASE(communicators_survive_any_failed_allocation) {
  static const comm_case cases[] = {{1, 1}, {1, 3}, {2, 2}, {3, 1}, {64, 4}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    assert_true(fault_local_run(&(fault_local){"comm_create_local", make_comm, good_comm, drop_comm, &cases[i]}) >=
                cases[i].n + cases[i].threads);
}

/* Models and rules. */
typedef struct model_case {
  const char *name;
  reshard_status (*make)(const char *name, reshard_model *model);
  reshard_model wanted;
} model_case;

static reshard_status make_model(fault_output *out, const void *with) {
  const model_case *c = with;
  reshard_model made = out->object;
  reshard_status status = c->make(c->name, &made);
  out->object = made;
  return status;
}
static bool same_model(const fault_output *out, const void *with) {
  const model_case *c = with;
  int64_t n = reshard_model_count(c->wanted);
  bool same =
      reshard_model_count(out->object) == n && reshard_model_bytes(out->object) == reshard_model_bytes(c->wanted);
  for (int64_t i = 0; i < n && same; i += n > 1000 ? 97 : 1) {
    reshard_model_tensor a, b;
    same = reshard_model_get(out->object, i, &a) == RESHARD_SUCCESS &&
           reshard_model_get(c->wanted, i, &b) == RESHARD_SUCCESS && strcmp(a.name, b.name) == 0 &&
           a.dtype == b.dtype && a.ndim == b.ndim && memcmp(a.shape, b.shape, (size_t)a.ndim * sizeof *a.shape) == 0;
  }
  return same;
}
static void drop_model(fault_output *out) { reshard_model_free(out->object); }

static void each_model(const char *name, reshard_status (*make)(const char *name, reshard_model *model)) {
  model_case c = {name, make, NULL};
  if (make(name, &c.wanted) != RESHARD_SUCCESS)
    fail_msg("%s: %s", name, reshard_last_error());
  assert_true(fault_local_run(&(fault_local){name, make_model, same_model, drop_model, &c}) >= 2);
  reshard_model_free(c.wanted);
}

CASE(models_survive_any_failed_allocation) {
  for (int64_t i = 0; reshard_model_preset_name(i) != NULL; i++) {
    each_model(reshard_model_preset_name(i), reshard_model_preset);
    if (i == 0)
      each_model(reshard_model_preset_name(i), reshard_model_open);
  }
#ifdef RS_HAVE_JANSSON
  json_set_alloc_funcs(malloc, free); /* the wrapped ones */
  static const char list[] =
      "[{\"name\": \"a\", \"shape\": [4, 6], \"dtype\": \"bf16\"}, {\"name\": \"b.c\", \"shape\": [], \"dtype\": "
      "\"F32\"},"
      "{\"name\": \"d\", \"shape\": [3, 0, 5], \"dtype\": \"i8\", \"more\": {\"x\": [1.5, null, true]}}]";
  static const char header[] = "{\"__metadata__\": {\"format\": \"pt\"}, \"w\": {\"dtype\": \"F16\", \"shape\": [2, "
                               "3], \"data_offsets\": [0, 12]},"
                               "\"v\": {\"dtype\": \"U8\", \"shape\": [4], \"data_offsets\": [12, 16]}}";
  write_file("list.json", list, sizeof list - 1);
  char whole[512] = {0};
  whole[0] = (char)(sizeof header - 1);
  whole[1] = (char)((sizeof header - 1) >> 8);
  memcpy(whole + 8, header, sizeof header - 1);
  write_file("model.safetensors", whole, 8 + sizeof header - 1 + 16);
  char path[2 * TEMPORARY_PATH];
  snprintf(path, sizeof path, "%s", in_directory("list.json"));
  each_model(path, reshard_model_load);
  each_model(path, reshard_model_open);
  snprintf(path, sizeof path, "%s", in_directory("model.safetensors"));
  each_model(path, reshard_model_load);
#endif
}

typedef struct rules_case {
  const char *path, *text;
  reshard_rules rules; /* made without faults */
} rules_case;

static reshard_status make_rules(fault_output *out, const void *with) {
  const rules_case *c = with;
  reshard_rules made = out->object;
  reshard_status status =
      c->path != NULL ? reshard_rules_load(c->path, &made) : reshard_rules_parse(c->text, "text", &made);
  out->object = made;
  return status;
}
static bool good_rules(const fault_output *out, const void *with) {
  const char *layout;
  int64_t line = 0, world = 0;
  return reshard_rules_match(out->object, "layers.3.mlp.up", &layout, &line) == RESHARD_SUCCESS && line == 2 &&
         strcmp(layout, "mesh(tp=8;S0)") == 0 &&
         reshard_rules_match(out->object, "other", &layout, &line) == RESHARD_SUCCESS && line == 5 &&
         reshard_rules_world(out->object, &world) == RESHARD_SUCCESS && world == 8;
}
static void drop_rules(fault_output *out) { reshard_rules_free(out->object); }

static reshard_status rule_layout(fault_output *out, const void *with) {
  const rules_case *c = with;
  reshard_layout made = out->object;
  reshard_status status = reshard_rules_layout(c->rules, "layers.3.mlp.up", 3, shape, WORLD, &made);
  out->object = made;
  return status;
}
static bool good_rule_layout(const fault_output *out, const void *with) {
  reshard_layout wanted;
  if (reshard_layout_parse("mesh(tp=8;S0)", 3, shape, WORLD, &wanted) != RESHARD_SUCCESS)
    return false;
  bool same = reshard_layout_equal(out->object, wanted);
  reshard_layout_release(wanted);
  return same;
}
static reshard_status match_and_world(fault_output *out, const void *with) {
  const rules_case *c = with;
  const char *layout;
  int64_t line, world;
  reshard_status status = reshard_rules_match(c->rules, "layers.12.attention.k", &layout, &line);
  RS_THEN(status, reshard_rules_world(c->rules, &world));
  if (status == RESHARD_SUCCESS)
    out->number = line == 4 && world == 8;
  return status;
}

/* All rules have the size or none has it; the rules are new ones, which the test drops. */
static reshard_status set_size(fault_output *out, const void *with) {
  const rules_case *c = with;
  reshard_rules made;
  int64_t changed = -1;
  reshard_status status = reshard_rules_parse(c->text, NULL, &made);
  if (status != RESHARD_SUCCESS)
    return status;
  status = reshard_rules_set_size(made, "tp", 8, &changed);
  const char *first = "", *second = "", *wanted = status == RESHARD_SUCCESS ? "mesh(tp=8;S" : "mesh(tp;S";
  reshard_rules_match(made, "layers.1.mlp.up", &first, NULL);
  reshard_rules_match(made, "layers.1.mlp.down", &second, NULL);
  if (strncmp(first, wanted, strlen(wanted)) != 0 || strncmp(second, wanted, strlen(wanted)) != 0)
    fail_msg("after %s: %s and %s", reshard_status_string(status), first, second);
  reshard_rules_free(made);
  if (status == RESHARD_SUCCESS || changed != -1)
    out->number = changed == 2;
  return status;
}

/* A model whose scales of blocks go with their tensor. */
typedef struct blocks_case {
  reshard_rules rules;
  reshard_model model;
} blocks_case;

static int count_rule(void *user, const reshard_rule_use *use) {
  *(int64_t *)user += use->tensors;
  return 0;
}
static reshard_status check_and_use(fault_output *out, const void *with) {
  const blocks_case *c = with;
  int64_t tensors = 0;
  reshard_status status = reshard_rules_check(c->rules, c->model, 3);
  RS_THEN(status, reshard_rules_use(c->rules, c->model, count_rule, &tensors));
  if (status == RESHARD_SUCCESS)
    out->number = tensors == 4;
  return status;
}

CASE(rules_of_blocks_survive_any_failed_allocation) {
  static const char *const names[] = {"a.w", "a.w_inv", "b.w_inv", "b.w"};
  static const int64_t shapes[4][2] = {{12, 8}, {6, 4}, {3, 3}, {6, 5}};
  blocks_case c;
  assert_int_equal(reshard_rules_parse("blocks _inv 2x2\na* chunk(0)\n* mesh(tp;S0)\n", NULL, &c.rules), 0);
  GOOD(rs_model_new(&c.model));
  for (int i = 0; i < 4; i++)
    assert_int_equal(rs_model_add(c.model, "test", names[i], strlen(names[i]), RESHARD_F32, 2, shapes[i]), 0);
  assert_true(fault_local_run(&(fault_local){"rules_check, rules_use", check_and_use, one, NULL, &c}) >= 12);
  reshard_model_free(c.model);
  reshard_rules_free(c.rules);
}

CASE(rules_survive_any_failed_allocation) {
  static const char text[] =
      "# rules\n*.mlp.up mesh(tp=8;S0)\n*.mlp.* mesh(tp=8;S1)   # comment\nlayers.[0-9]*.attention.? chunk(0)\n"
      "* boxes(0:[0,0,0]+[12,20,1];7:[0,0,1]+[12,20,2])\n";
  write_file("some.rules", text, sizeof text - 1);
  char path[2 * TEMPORARY_PATH];
  snprintf(path, sizeof path, "%s", in_directory("some.rules"));
  rules_case c = {NULL, text, NULL}, from_file = {path, NULL, NULL};
  GOOD(reshard_rules_parse(text, NULL, &c.rules));
  assert_true(fault_local_run(&(fault_local){"rules_parse", make_rules, good_rules, drop_rules, &c}) >= 2);
  assert_true(fault_local_run(&(fault_local){"rules_load", make_rules, good_rules, drop_rules, &from_file}) >= 3);
  assert_true(fault_local_run(&(fault_local){"rules_layout", rule_layout, good_rule_layout, drop_layout, &c}) >= 1);
  fault_local_run(&(fault_local){"rules_match, rules_world", match_and_world, one, NULL, &c});
  reshard_rules_free(c.rules);
  static const char open[] = "*.mlp.up mesh(tp;S0)\n* mesh(tp;S1)\n*.experts.* rank(experts.#/9)\n";
  rules_case sized = {NULL, open, NULL};
  assert_true(fault_local_run(&(fault_local){"rules_set_size", set_size, one, NULL, &sized}) >= 6);
}

static int setup(void **state) {
  snprintf(directory, sizeof directory, "%s/reshard-alloc-XXXXXX", temporary());
  return mkdtemp(directory) != NULL ? 0 : -1;
}

static int teardown(void **state) {
  static const char *const names[] = {"list.json", "model.safetensors", "some.rules"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    unlink(in_directory(names[i]));
  return rmdir(directory);
}

RUN_CASES_WITH(setup, teardown)
