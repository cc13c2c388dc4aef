/* Parts of parts of meshes against lists of ranks: sub-meshes, slices and flattened dims in random chains, of meshes
 * over regular and other rank lists; every question for every rank, text, equality, layouts. */
#include "bench/verify/random.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"
#include "support/fixtures/scale.h"

#include <reshard/mesh.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIMS = 4, MOST = 256 /* ranks */, WORLD = 300 };

typedef struct model {
  int ndim;
  int64_t shape[DIMS], size, world;
  char names[DIMS][16]; /* names[0][0] NUL: none */
  int64_t ranks[MOST];
} model;

static void coordinate_of(const model *m, int64_t index, int64_t *at) {
  for (int d = m->ndim - 1; d >= 0; d--) {
    at[d] = index % m->shape[d];
    index /= m->shape[d];
  }
}

static int64_t index_of(const model *m, const int64_t *at) {
  int64_t index = 0;
  for (int d = 0; d < m->ndim; d++)
    index = index * m->shape[d] + at[d];
  return index;
}

static int64_t find(const model *m, int64_t rank) {
  for (int64_t i = 0; i < m->size; i++)
    if (m->ranks[i] == rank)
      return i;
  return -1;
}

static void draw_model(rng *r, model *m) {
  *m = (model){.ndim = 1 + (int)rng_below(r, DIMS), .size = 1};
  bool named = rng_below(r, 2) == 0;
  for (int d = 0; d < m->ndim; d++) {
    m->shape[d] = 1 + rng_below(r, 4);
    m->size *= m->shape[d];
    if (named)
      snprintf(m->names[d], sizeof m->names[d], "%c%d", 'a' + d, d);
  }
  int64_t kind = rng_below(r, 5), room = WORLD - m->size, first = rng_below(r, room / 2);
  for (int64_t i = 0; i < m->size; i++)
    m->ranks[i] = kind == 0 ? i : kind == 1 ? first + i : kind == 2 ? first + m->size - 1 - i : i;
  int64_t at[DIMS], strides[DIMS], stride = 1 + rng_below(r, WORLD / m->size);
  bool turned = rng_below(r, 2) == 0;
  for (int d = 0; d < m->ndim; d++) { /* the first dim varies fastest, or the last */
    int e = turned ? d : m->ndim - 1 - d;
    strides[e] = stride;
    stride *= m->shape[e];
  }
  for (int64_t i = 0; kind == 3 && i < m->size; i++) {
    coordinate_of(m, i, at);
    m->ranks[i] = 0;
    for (int d = 0; d < m->ndim; d++)
      m->ranks[i] += at[d] * strides[d];
  }
  if (kind == 4) { /* any order of any ranks */
    int64_t all[WORLD];
    for (int64_t i = 0; i < WORLD; i++)
      all[i] = i;
    for (int64_t i = 0; i < m->size; i++) {
      int64_t j = i + rng_below(r, WORLD - i), rank = all[j];
      all[j] = all[i];
      m->ranks[i] = all[i] = rank;
    }
  }
  m->world = 0;
  for (int64_t i = 0; i < m->size; i++)
    m->world = m->ranks[i] >= m->world ? m->ranks[i] + 1 : m->world;
  m->world += rng_below(r, 3);
}

static const char *const *names_of(const model *m, const char *list[DIMS]) {
  for (int d = 0; d < m->ndim; d++)
    list[d] = m->names[d];
  return m->names[0][0] != '\0' ? list : NULL;
}

/* Every answer, for every rank of the world and some beyond. */
static void assert_same(const model *m, reshard_mesh mesh) {
  assert_int_equal(reshard_mesh_ndim(mesh), m->ndim);
  assert_int_equal(reshard_mesh_size(mesh), m->size);
  assert_int_equal(reshard_mesh_world(mesh), m->world);
  assert_memory_equal(reshard_mesh_shape(mesh), m->shape, (size_t)m->ndim * sizeof *m->shape);
  for (int d = 0; d < m->ndim; d++)
    if (m->names[0][0] == '\0')
      assert_null(reshard_mesh_name(mesh, d));
    else
      assert_string_equal(reshard_mesh_name(mesh, d), m->names[d]);
  int64_t ranks[MOST], at[DIMS], is[DIMS] = {0}, rank = -1;
  GOOD(reshard_mesh_ranks(mesh, ranks));
  assert_memory_equal(ranks, m->ranks, (size_t)m->size * sizeof *ranks);
  for (int64_t i = 0; i < m->size; i++) {
    coordinate_of(m, i, at);
    GOOD(reshard_mesh_rank_at(mesh, at, &rank));
    assert_int_equal(rank, m->ranks[i]);
  }
  for (int64_t r = 0; r < m->world + 2; r++) {
    int64_t i = find(m, r);
    assert_int_equal(reshard_mesh_contains(mesh, r), i >= 0);
    if (i >= 0) {
      coordinate_of(m, i, at);
      GOOD(reshard_mesh_coordinate(mesh, r, is));
      assert_memory_equal(is, at, (size_t)m->ndim * sizeof *at);
    } else {
      assert_int_equal(reshard_mesh_coordinate(mesh, r, is), RESHARD_ERROR_INVALID);
    }
  }
  const char *list[DIMS];
  reshard_mesh fresh, again;
  GOOD(reshard_mesh_create(NULL, m->world, m->ndim, m->shape, names_of(m, list), m->size, m->ranks, &fresh));
  char text[4096];
  GOOD(reshard_mesh_print(mesh, text, sizeof text, NULL));
  GOOD(reshard_mesh_parse(NULL, m->world, text, &again));
  if (reshard_mesh_base_comm(mesh) == NULL)
    assert_true(reshard_mesh_equal(mesh, fresh) && reshard_mesh_equal(again, mesh));
  assert_true(reshard_mesh_equal(fresh, again));
  assert_true(reshard_mesh_hash(mesh) == reshard_mesh_hash(fresh) &&
              reshard_mesh_hash(mesh) == reshard_mesh_hash(again));
  reshard_mesh_release(fresh);
  reshard_mesh_release(again);
}

/* The layout is the one that the public constructor makes of the list. */
static void assert_layout(rng *r, const model *m, reshard_mesh mesh) {
  const int64_t shape[2] = {13, 7};
  reshard_placement placements[DIMS];
  int order[DIMS];
  for (int d = 0; d < m->ndim; d++) {
    placements[d] =
        (reshard_placement){.kind = (reshard_placement_kind)rng_below(r, 3), .dim = (int)rng_below(r, 4) - 2};
    placements[d].split_factor = placements[d].kind == RESHARD_PLACEMENT_STRIDED_SHARD ? 1 + rng_below(r, 3) : 0;
    order[d] = d;
  }
  for (int d = m->ndim - 1; d > 0; d--) {
    int e = (int)rng_below(r, d + 1), swapped = order[d];
    order[d] = order[e];
    order[e] = swapped;
  }
  const int *cut = rng_below(r, 2) == 0 ? order : NULL;
  const char *list[DIMS];
  reshard_layout is, should;
  GOOD(reshard_mesh_layout(mesh, 2, shape, placements, cut, &is));
  GOOD(reshard_layout_create_mesh(2, shape, m->world, m->ndim, m->shape, names_of(m, list), placements, cut, m->ranks,
                                  &should));
  assert_true(reshard_layout_equal(is, should));
  char texts[2][4096];
  GOOD(reshard_layout_print(is, texts[0], sizeof texts[0], NULL));
  GOOD(reshard_layout_print(should, texts[1], sizeof texts[1], NULL));
  assert_string_equal(texts[0], texts[1]);
  reshard_layout_release(is);
  reshard_layout_release(should);
}

static void draw_dims(rng *r, const model *m, int *dims, int *n, char *text) {
  for (int d = 0; d < m->ndim; d++)
    dims[d] = d;
  for (int d = m->ndim - 1; d > 0; d--) {
    int e = (int)rng_below(r, d + 1), swapped = dims[d];
    dims[d] = dims[e];
    dims[e] = swapped;
  }
  *n = 1 + (int)rng_below(r, m->ndim);
  *text = '\0';
  for (int i = 0; i < *n; i++) {
    if (m->names[0][0] != '\0' && rng_below(r, 4) > 0)
      sprintf(text + strlen(text), "%s%s", i > 0 ? "," : "", m->names[dims[i]]);
    else
      sprintf(text + strlen(text), "%s%d", i > 0 ? "," : "", dims[i] - (rng_below(r, 2) == 0 ? m->ndim : 0));
  }
}

static void model_sub(const model *m, const int *dims, int n, int64_t index, model *out) {
  int64_t at[DIMS], inner[DIMS];
  *out = (model){.ndim = n, .size = 1, .world = m->world};
  for (int i = 0; i < n; i++) {
    out->shape[i] = m->shape[dims[i]];
    out->size *= out->shape[i];
    strcpy(out->names[i], m->names[dims[i]]);
  }
  coordinate_of(m, index, at);
  for (int64_t j = 0; j < out->size; j++) {
    coordinate_of(out, j, inner);
    for (int i = 0; i < n; i++)
      at[dims[i]] = inner[i];
    out->ranks[j] = m->ranks[index_of(m, at)];
  }
}

static void model_slice(const model *m, int dim, int64_t begin, int64_t end, int64_t step, model *out) {
  int64_t at[DIMS];
  *out = *m;
  out->shape[dim] = (end - begin + step - 1) / step;
  out->size = m->size / m->shape[dim] * out->shape[dim];
  for (int64_t j = 0; j < out->size; j++) {
    coordinate_of(out, j, at);
    at[dim] = begin + at[dim] * step;
    out->ranks[j] = m->ranks[index_of(m, at)];
  }
}

static void model_flatten(const model *m, const int *dims, int n, const char *name, model *out) {
  int64_t at[DIMS], to[DIMS];
  int kept[DIMS];
  *out = (model){.size = m->size, .world = m->world};
  for (int d = 0; d < m->ndim; d++) {
    bool listed = false;
    for (int i = 0; i < n; i++)
      listed |= dims[i] == d;
    if (listed && d != dims[0])
      continue;
    kept[out->ndim] = listed ? -1 : d;
    out->shape[out->ndim] = listed ? 1 : m->shape[d];
    for (int i = 0; listed && i < n; i++)
      out->shape[out->ndim] *= m->shape[dims[i]];
    strcpy(out->names[out->ndim++], listed ? name : m->names[d]);
  }
  for (int64_t j = 0; j < m->size; j++) {
    coordinate_of(m, j, at);
    for (int e = 0; e < out->ndim; e++) {
      to[e] = kept[e] >= 0 ? at[kept[e]] : 0;
      for (int i = 0; kept[e] < 0 && i < n; i++)
        to[e] = to[e] * m->shape[dims[i]] + at[dims[i]];
    }
    out->ranks[index_of(out, to)] = m->ranks[j];
  }
}

/* One random part of a part of a part ..., with the view of one rank of a communicator, or dry. */
static void chain(rng *r, const reshard_comm *comms, int64_t *counts) {
  model m, next;
  const char *list[DIMS];
  draw_model(r, &m);
  int64_t viewer = m.ranks[rng_below(r, m.size)];
  bool dry = comms == NULL;
  if (!dry)
    m.world = WORLD;
  reshard_mesh mesh, part;
  GOOD(reshard_mesh_create(dry ? NULL : comms[viewer], m.world, m.ndim, m.shape, names_of(&m, list), m.size, m.ranks,
                           &mesh));
  assert_same(&m, mesh);
  assert_layout(r, &m, mesh);
  for (int step = 0; step < 4; step++) {
    int dims[DIMS], n, dim;
    char text[128], name[16] = "";
    draw_dims(r, &m, dims, &n, text);
    int64_t kind = rng_below(r, 3);
    reshard_status status;
    if (kind == 0) {
      bool mine = !dry && find(&m, viewer) >= 0 && rng_below(r, 2) == 0;
      int64_t rank = mine ? viewer : m.ranks[rng_below(r, m.size)];
      model_sub(&m, dims, n, find(&m, rank), &next);
      status = reshard_mesh_sub(mesh, text, mine ? RESHARD_MESH_MINE : rank, &part);
    } else if (kind == 1) {
      dim = dims[0];
      text[strcspn(text, ",")] = '\0';
      int64_t begin = rng_below(r, m.shape[dim]);
      int64_t end = begin + 1 + rng_below(r, m.shape[dim] - begin), by = 1 + rng_below(r, 3);
      model_slice(&m, dim, begin, end, by, &next);
      status = reshard_mesh_slice(mesh, text, begin, end, by, &part);
    } else {
      if (m.names[0][0] != '\0')
        snprintf(name, sizeof name, "f%d", step);
      model_flatten(&m, dims, n, name, &next);
      status = reshard_mesh_flatten(mesh, text, name[0] != '\0' ? name : NULL, &part);
    }
    counts[kind]++;
    if (status == RESHARD_ERROR_UNSUPPORTED && kind == 1) {
      counts[3]++;
      continue;
    }
    GOOD(status);
    reshard_mesh_release(mesh);
    mesh = part;
    m = next;
    assert_same(&m, mesh);
    assert_layout(r, &m, mesh);
  }
  reshard_mesh_release(mesh);
}

CASE(test_against_lists) {
  int64_t counts[4] = {0};
  reshard_comm comms[WORLD];
  reshard_local_options options = {RESHARD_LOCAL_OPTIONS_INIT, 1, RESHARD_ISA_AUTO, 0, NULL, 0};
  GOOD(reshard_comm_create_local(WORLD, &options, comms));
  for (int64_t seed = 1; seed <= test_scaled(1500, 1); seed++) {
    rng r;
    rng_seed(&r, (uint64_t)seed);
    chain(&r, seed % 2 == 0 ? comms : NULL, counts);
  }
  rank_comms_close(WORLD, comms);
  assert_true(test_scaled(1500, 1) < 1500 ||
              (counts[0] > 1000 && counts[1] > 1000 && counts[2] > 1000 && counts[3] > 20));
}

RUN_CASES
