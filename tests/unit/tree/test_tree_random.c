/* Random trees with shared nodes against a plain model of them: what a person would write in Python, by recursion and
 * with a mark on what was seen. Paths, flattening, mapping, rebuilding, equality, drawing. */
#include "bench/cli/util.h"
#include "bench/verify/random.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"
#include "support/fixtures/scale.h"
#include "support/fixtures/trees.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NODES = 80, CHILDREN = 5, PATHS = 1000, TENSORS = 4, TEXT = 1 << 17 };

typedef struct model {
  reshard_tree_kind kind;
  int number, n;
  int64_t value; /* of a leaf */
  struct model *child[CHILDREN];
  char key[CHILDREN][8];
  reshard_tree node;   /* borrowed from the root; NULL: not in the tree */
  reshard_tree become; /* of a leaf, owned; NULL: it stays */
  reshard_tree got;    /* what it became */
  bool seen;           /* in one pass */
  int drawn;           /* times, then its number in the drawing */
} model;

typedef struct forest {
  rng random;
  reshard_tensor tensors[TENSORS];
  model nodes[NODES];
  int n;
  reshard_tree root;
} forest;

static const reshard_tree_type opaque_type = {.name = "thing"};
static const int64_t sizes[2] = {2, 1};

static bool model_holds(const model *m) { return m->kind <= RESHARD_TREE_PACKED; }
static bool named(const model *m) { return m->kind != RESHARD_TREE_LIST && m->kind != RESHARD_TREE_TUPLE; }
static model *top(forest *f) { return &f->nodes[f->n - 1]; }

static void forest_forget(forest *f) {
  for (int i = 0; i < f->n; i++) {
    f->nodes[i].seen = false;
    f->nodes[i].got = NULL;
    f->nodes[i].drawn = 0;
  }
}

/* --- Making --------------------------------------------------------------------------------------------------- */

static bool has_key(const model *m, const char *key) {
  for (int i = 0; i < m->n; i++)
    if (strcmp(m->key[i], key) == 0)
      return true;
  return false;
}

static model *fresh(forest *f, reshard_tree_kind kind) {
  model *m = &f->nodes[f->n];
  *m = (model){.kind = kind, .number = f->n++, .value = rng_below(&f->random, TENSORS)};
  return m;
}

/* Children are nodes that are there: often the last ones, so that trees are deep, and often several times. */
static void add_children(forest *f, model *m) {
  static const char *const letters[3] = {"a", "b", "."};
  for (int64_t i = rng_below(&f->random, 8) ? 2 + rng_below(&f->random, CHILDREN - 1) : 0; i > 0; i--) {
    char key[8] = "";
    int64_t back = rng_below(&f->random, rng_below(&f->random, 3) ? 6 : m->number);
    for (int64_t j = rng_below(&f->random, 4); j > 0; j--)
      strcat(key, letters[rng_below(&f->random, 3)]);
    if (named(m) && has_key(m, key))
      continue;
    if (m->n == CHILDREN)
      return;
    strcpy(m->key[m->n], key);
    m->child[m->n++] = &f->nodes[back < m->number ? m->number - 1 - back : 0];
  }
}

static void grow(forest *f) {
  int n = rng_below(&f->random, 4) ? NODES - (int)rng_below(&f->random, 30) : 4 + (int)rng_below(&f->random, 30);
  f->n = 0;
  while (f->n < n - 1) {
    bool leaf = f->n < 2 || rng_below(&f->random, 3) == 0;
    int64_t kind = leaf ? RESHARD_TREE_TENSOR + rng_below(&f->random, RESHARD_TREE_NULL - RESHARD_TREE_TENSOR + 1)
                        : 1 + rng_below(&f->random, RESHARD_TREE_PACKED);
    model *data = kind == RESHARD_TREE_PACKED && f->n < n - 2 ? fresh(f, RESHARD_TREE_TENSOR) : NULL;
    if (kind == RESHARD_TREE_PACKED && data == NULL)
      continue;
    model *m = fresh(f, (reshard_tree_kind)kind);
    if (data != NULL) {
      strcpy(m->key[0], "data");
      m->child[m->n++] = data;
    } else if (!leaf) {
      add_children(f, m);
    }
  }
  model *root = fresh(f, rng_below(&f->random, 2) ? RESHARD_TREE_LIST : RESHARD_TREE_DICT);
  while (root->n < 2)
    add_children(f, root);
}

static reshard_tree make_leaf(const forest *f, const model *m) {
  reshard_tree made;
  char bytes[8];
  switch (m->kind) {
  case RESHARD_TREE_TENSOR: return leaf_of(reshard_tensor_retain(f->tensors[m->value]));
  case RESHARD_TREE_OPAQUE: GOOD(reshard_tree_opaque(&opaque_type, (void *)(intptr_t)m->value, &made)); return made;
  case RESHARD_TREE_BYTES: snprintf(bytes, sizeof bytes, "b%d", (int)m->value); return text(bytes);
  case RESHARD_TREE_INT: return integer(m->value);
  case RESHARD_TREE_FLOAT: return real((double)m->value / 2);
  case RESHARD_TREE_BOOL: return flag(m->value % 2 == 1);
  default: return nothing();
  }
}

static reshard_tree make_container(const forest *f, const model *m) {
  switch (m->kind) {
  case RESHARD_TREE_DICT: return dict();
  case RESHARD_TREE_LIST: return list();
  case RESHARD_TREE_TUPLE: return tuple();
  case RESHARD_TREE_STRUCT: return structure("S");
  default: return packed(reshard_tensor_retain(f->tensors[m->child[0]->value]), 2, sizes);
  }
}

/* All nodes, in the order in which they were thought of; then those that the root lacks go. */
static void build_forest(forest *f) {
  reshard_tree made[NODES] = {NULL};
  for (int i = 0; i < f->n; i++) {
    model *m = &f->nodes[i];
    bool data = i + 1 < f->n && m[1].kind == RESHARD_TREE_PACKED && m[1].child[0] == m;
    if (data) { /* the sequence makes it */
      made[i + 1] = make_container(f, m + 1);
      made[i] = reshard_tree_retain(node_at(made[i + 1], "data"));
    } else if (m->kind != RESHARD_TREE_PACKED) {
      made[i] = model_holds(m) ? make_container(f, m) : make_leaf(f, m);
    }
    m->node = made[i];
    for (int c = 0; c < m->n && m->kind != RESHARD_TREE_PACKED; c++)
      if (named(m))
        set(made[i], m->key[c], reshard_tree_retain(m->child[c]->node));
      else
        append(made[i], reshard_tree_retain(m->child[c]->node));
  }
  f->root = made[f->n - 1];
  for (int i = 0; i < f->n - 1; i++)
    reshard_tree_release(made[i]);
}

/* --- Paths and flattening ------------------------------------------------------------------------------------- */

typedef struct lines {
  int64_t n;
  bool once;  /* each node */
  char *text; /* TEXT */
  size_t length;
} lines;

static void add_line(lines *l, const char *path, reshard_tree leaf) {
  l->n++;
  l->length += (size_t)snprintf(l->text + l->length, TEXT - l->length, "%s=%p\n", path, (void *)leaf);
  assert_true(l->length < TEXT);
}

static void model_leaves(model *m, int depth, const char *path, lines *l) {
  char below[512];
  if (l->n > PATHS || (l->once && m->seen))
    return;
  m->seen = true;
  if (!model_holds(m))
    add_line(l, path, m->node);
  for (int i = 0; i < m->n; i++) {
    int n = snprintf(below, sizeof below, "%s%s", path, depth > 0 ? "." : "");
    if (named(m))
      snprintf(below + n, sizeof below - (size_t)n, "%s", m->key[i]);
    else
      snprintf(below + n, sizeof below - (size_t)n, "%d", i);
    model_leaves(m->child[i], depth + 1, below, l);
  }
}

static reshard_status note_leaf(void *user, const char *path, reshard_tree leaf) {
  add_line(user, path, leaf);
  return RESHARD_SUCCESS;
}

/* Returns whether there are few enough paths for looking at each. */
static bool check_paths(forest *f, char *wanted, char *got) {
  lines model = {.text = wanted}, tree = {.text = got}, once = {.text = wanted, .once = true}, flat = {.text = got};
  const reshard_tree_leaves *leaves;
  bool few;
  forest_forget(f);
  *wanted = *got = '\0';
  model_leaves(top(f), 0, "", &model);
  few = model.n <= PATHS;
  if (few) {
    GOOD(reshard_tree_visit(f->root, note_leaf, &tree));
    assert_string_equal(got, wanted);
  }
  forest_forget(f);
  *wanted = *got = '\0';
  model_leaves(top(f), 0, "", &once);
  GOOD(reshard_tree_flatten(f->root, &leaves));
  for (int64_t i = 0; i < leaves->n; i++)
    add_line(&flat, leaves->paths[i], leaves->leaves[i]);
  assert_string_equal(got, wanted);
  reshard_tree_leaves_release(leaves);
  return few;
}

/* --- Mapping and rebuilding ----------------------------------------------------------------------------------- */

static model *find_model(forest *f, reshard_tree leaf) {
  for (int i = 0; i < f->n; i++)
    if (f->nodes[i].node == leaf && f->nodes[i].seen) /* not one that was freed long ago */
      return &f->nodes[i];
  fail_msg("a leaf of another tree");
  return NULL;
}

static bool changes(const model *m) {
  bool any = m->become != NULL;
  for (int i = 0; i < m->n && !any; i++)
    any = changes(m->child[i]);
  return any;
}

/* A node that came of a model: itself, or another one of the same kind; one for each. */
static void check_node(forest *f, model *m, reshard_tree got) {
  if (m->got != NULL) {
    assert_ptr_equal(got, m->got);
    return;
  }
  m->got = got;
  if (!changes(m)) {
    assert_ptr_equal(got, m->node);
  } else if (!model_holds(m)) {
    assert_ptr_equal(got, m->become);
  } else {
    assert_ptr_not_equal(got, m->node);
    for (int i = 0; i < f->n; i++)
      if (&f->nodes[i] != m && f->nodes[i].got == got)
        fail_msg("nodes %d and %d became one", i, m->number);
    assert_int_equal(reshard_tree_get_kind(got), m->kind);
    assert_int_equal(reshard_tree_count(got), m->n);
  }
  for (int i = 0; i < m->n; i++) {
    const char *key;
    reshard_tree child;
    GOOD(reshard_tree_child(got, i, &key, &child));
    if (named(m))
      assert_string_equal(key, m->key[i]);
    check_node(f, m->child[i], child);
  }
}

static reshard_status give_become(void *user, const char *path, reshard_tree leaf, reshard_tree *mapped) {
  model *m = find_model(user, leaf);
  assert_null(m->got); /* each once */
  m->got = leaf;
  *mapped = reshard_tree_retain(m->become);
  return RESHARD_SUCCESS;
}

static void mark_seen(model *m) {
  m->seen = true;
  for (int i = 0; i < m->n; i++)
    if (!m->child[i]->seen)
      mark_seen(m->child[i]);
}

/* Some leaves become others, by a map and by rebuilding. Returns how many. */
static int check_maps(forest *f) {
  const reshard_tree_leaves *flat;
  reshard_tree mapped, leaves[NODES];
  int changed = 0, one_in = 1 + (int)rng_below(&f->random, 8);
  forest_forget(f);
  mark_seen(top(f));
  for (int i = 0; i < f->n; i++) {
    model *m = &f->nodes[i];
    m->become = NULL;
    if (!m->seen || model_holds(m) || rng_below(&f->random, one_in) != 0)
      continue;
    m->become = m->kind == RESHARD_TREE_TENSOR ? leaf_of(floats(3)) : integer(i);
    changed++;
  }
  GOOD(reshard_tree_map(f->root, give_become, f, &mapped));
  for (int i = 0; i < f->n; i++)
    f->nodes[i].got = NULL;
  check_node(f, top(f), mapped);

  GOOD(reshard_tree_flatten(f->root, &flat));
  for (int64_t i = 0; i < flat->n; i++) {
    model *m = find_model(f, flat->leaves[i]);
    leaves[i] = m->become != NULL ? m->become : m->node;
  }
  reshard_tree rebuilt;
  int equal;
  GOOD(reshard_tree_rebuild(f->root, flat->n, leaves, &rebuilt));
  for (int i = 0; i < f->n; i++)
    f->nodes[i].got = NULL;
  check_node(f, top(f), rebuilt);
  GOOD(reshard_tree_equal(mapped, rebuilt, &equal));
  assert_true(equal);
  reshard_tree_release(rebuilt);
  reshard_tree_leaves_release(flat);
  reshard_tree_release(mapped);
  for (int i = 0; i < f->n; i++) {
    reshard_tree_release(f->nodes[i].become);
    f->nodes[i].become = NULL;
  }
  return changed;
}

typedef struct changer {
  forest *f;
  reshard_tensor made[TENSORS];
  int64_t calls;
} changer;

static reshard_status change_tensor(void *user, const char *path, reshard_tensor tensor, reshard_tensor *mapped) {
  changer *c = user;
  c->calls++;
  for (int i = 1; i < TENSORS; i++) /* number 0 stays */
    if (c->f->tensors[i] == tensor)
      *mapped = c->made[i] = floats(3);
  return RESHARD_SUCCESS;
}

/* A walk tells which tensors are there; what each became must be the same everywhere. */
static void check_tensors(forest *f) {
  changer c = {.f = f};
  reshard_tree mapped;
  bool there[TENSORS] = {0};
  int64_t distinct = 0;
  forest_forget(f);
  mark_seen(top(f));
  for (int i = 0; i < f->n; i++)
    if (f->nodes[i].seen && f->nodes[i].kind == RESHARD_TREE_TENSOR)
      there[f->nodes[i].value] = true;
  for (int i = 0; i < TENSORS; i++)
    distinct += there[i];
  GOOD(reshard_tree_map_tensors(f->root, change_tensor, &c, &mapped));
  assert_int_equal(c.calls, distinct);
  const reshard_tree_leaves *before, *after;
  GOOD(reshard_tree_flatten(f->root, &before));
  GOOD(reshard_tree_flatten(mapped, &after));
  assert_int_equal(before->n, after->n); /* what is shared still is */
  for (int64_t i = 0; i < before->n; i++) {
    model *m = find_model(f, before->leaves[i]);
    reshard_tensor tensor;
    assert_string_equal(before->paths[i], after->paths[i]);
    if (m->kind != RESHARD_TREE_TENSOR || m->value == 0) {
      assert_ptr_equal(after->leaves[i], m->node);
      continue;
    }
    GOOD(reshard_tree_get_tensor(after->leaves[i], &tensor));
    assert_ptr_equal(tensor, c.made[m->value]);
  }
  reshard_tree_leaves_release(before);
  reshard_tree_leaves_release(after);
  reshard_tree_release(mapped);
}

/* --- Equality ------------------------------------------------------------------------------------------------- */

/* A tree of the same values without shared nodes; the `other`-th leaf is another one. */
static reshard_tree unfold(const forest *f, const model *m, int64_t *other) {
  if (!model_holds(m))
    return (*other)-- == 0 ? text("another") : make_leaf(f, m);
  reshard_tree made = make_container(f, m);
  if (m->kind == RESHARD_TREE_PACKED) {
    --*other; /* its data is the tensor that it was */
    return made;
  }
  for (int i = 0; i < m->n; i++)
    if (named(m))
      set(made, m->key[i], unfold(f, m->child[i], other));
    else
      append(made, unfold(f, m->child[i], other));
  return made;
}

static bool is_data(const model *m, int64_t *leaf) {
  if (!model_holds(m))
    return (*leaf)-- == 0 && false;
  if (m->kind == RESHARD_TREE_PACKED)
    return (*leaf)-- == 0;
  for (int i = 0; i < m->n; i++)
    if (is_data(m->child[i], leaf))
      return true;
  return false;
}

static void check_equal(forest *f, int64_t paths) {
  int64_t other = -1, at = rng_below(&f->random, paths > 0 ? paths : 1), count = at;
  bool same = paths == 0 || is_data(top(f), &count);
  reshard_tree copy = unfold(f, top(f), &other);
  int equal;
  GOOD(reshard_tree_equal(f->root, copy, &equal));
  assert_int_equal(equal, 1);
  reshard_tree_release(copy);
  copy = unfold(f, top(f), &at);
  GOOD(reshard_tree_equal(copy, f->root, &equal));
  assert_int_equal(equal, same);
  reshard_tree_release(copy);
}

/* --- Drawing -------------------------------------------------------------------------------------------------- */

static bool has_place(const model *m) {
  return model_holds(m) || m->kind == RESHARD_TREE_TENSOR || m->kind == RESHARD_TREE_OPAQUE;
}

static void count_drawn(model *m) {
  if (m->drawn++ == 0)
    for (int i = 0; i < m->n; i++)
      count_drawn(m->child[i]);
}

typedef struct drawing {
  char *text;
  size_t length;
  int numbers;
} drawing;

static void drawing_put(drawing *d, const char *text) {
  d->length += (size_t)snprintf(d->text + d->length, TEXT - d->length, "%s", text);
  assert_true(d->length < TEXT);
}

/* drawn: 1 or more times; -number where it has one */
static void draw_node(model *m, int depth, const char *rails, drawing *d) {
  static const char *const kinds[] = {"", "dict", "list", "tuple", "struct S", "packed sequence, batch sizes 2 1"};
  char word[64] = "null", below[512];
  if (has_place(m) && m->drawn < 0) {
    snprintf(word, sizeof word, "*%d\n", -m->drawn);
    drawing_put(d, word);
    return;
  }
  if (has_place(m) && m->drawn > 1) {
    m->drawn = -++d->numbers;
    snprintf(word, sizeof word, "&%d ", -m->drawn);
    drawing_put(d, word);
    strcpy(word, "null");
  }
  int64_t v = m->value;
  switch (m->kind) {
  case RESHARD_TREE_TENSOR: strcpy(word, "tensor f32 3"); break;
  case RESHARD_TREE_OPAQUE: strcpy(word, "<thing>"); break;
  case RESHARD_TREE_BYTES: snprintf(word, sizeof word, "\"b%d\"", (int)v); break;
  case RESHARD_TREE_INT: snprintf(word, sizeof word, "%d", (int)v); break;
  case RESHARD_TREE_FLOAT: snprintf(word, sizeof word, "%.1f", (double)v / 2); break;
  case RESHARD_TREE_BOOL: strcpy(word, v % 2 ? "true" : "false"); break;
  case RESHARD_TREE_NULL: break;
  default: snprintf(word, sizeof word, "%s%s", kinds[m->kind], m->n == 0 ? ", empty" : "");
  }
  drawing_put(d, word);
  drawing_put(d, "\n");
  for (int i = 0; i < m->n; i++) {
    bool last = i == m->n - 1;
    drawing_put(d, rails);
    drawing_put(d, last ? "└── " : "├── ");
    snprintf(word, sizeof word, "(level %d) ", depth + 1);
    drawing_put(d, depth + 1 > 32 ? word : "");
    snprintf(word, sizeof word, "%d", i);
    drawing_put(d, named(m) ? m->key[i] : word);
    drawing_put(d, ": ");
    strcat(strcpy(below, rails), depth + 1 >= 32 ? "" : last ? "    " : "│   ");
    draw_node(m->child[i], depth + 1, below, d);
  }
}

static void check_drawing(forest *f, char *wanted, char *got) {
  drawing d = {.text = wanted};
  forest_forget(f);
  count_drawn(top(f));
  draw_node(top(f), 0, "", &d);
  GOOD(reshard_tree_print(f->root, got, TEXT, NULL));
  assert_string_equal(got, wanted);
}

/* -------------------------------------------------------------------------------------------------------------- */

static int64_t path_count(const model *m) {
  int64_t n = !model_holds(m);
  for (int i = 0; i < m->n && n <= PATHS; i++)
    n += path_count(m->child[i]);
  return n;
}

CASE(random_trees_match_a_plain_model) {
  forest *f = cli_alloc(1, sizeof *f);
  char *texts[2] = {cli_alloc(TEXT, 1), cli_alloc(TEXT, 1)};
  int64_t few = 0, many = 0, changed = 0, same = 0;
  for (int i = 0; i < TENSORS; i++)
    f->tensors[i] = floats(3);
  for (int64_t seed = 0; seed < test_scaled(2000, 1); seed++) {
    rng_seed(&f->random, (uint64_t)seed);
    grow(f);
    build_forest(f);
    bool all = check_paths(f, texts[0], texts[1]);
    int leaves = check_maps(f);
    check_tensors(f);
    if (all)
      check_equal(f, path_count(top(f)));
    check_drawing(f, texts[0], texts[1]);
    few += all;
    many += !all;
    changed += leaves > 0;
    same += leaves == 0;
    reshard_tree_release(f->root);
  }
  for (int i = 0; i < TENSORS; i++)
    reshard_tensor_release(f->tensors[i]);
  print_message("%d trees: %d with few paths, %d with many; %d mapped to another, %d to themselves\n",
                (int)(few + many), (int)few, (int)many, (int)changed, (int)same);
  assert_true(test_scale() < 1 || (few > 0 && many > 0 && changed > 0 && same > 0));
  free(texts[0]);
  free(texts[1]);
  free(f);
}

RUN_CASES
