/* Finds the tensor in which two ranks' plans differ. At first ranks compare a hash per field. If one differs, the first
 * tensor is found by halving: the ranks exchange hashes of ever better prefixes of their lists. At last they exchange
 * the two values. Each record has a fixed size. All ranks look at the same records and so come to the same text. */
#include "exec/differ.h"

#include "plan/scaled.h"
#include "plan/topology.h"

#include <stdio.h>
#include <string.h>

/* A tensor of one rank, or the options of its plan, as far as the field goes. */
typedef struct tensor_record {
  int64_t there; /* 0: the rank has none of this number */
  int64_t named;
  enum { NO_DOMAINS, NODE_MAP, TOPOLOGY } domains; /* of options: what gives each rank a node */
  char name[88], values[2][200];
} tensor_record;
_Static_assert(sizeof(tensor_record) <= RS_COMM_RECORD, "a tensor fits the communicator's buffer");

/* Names of the two values of each field. */
static const char *const value_names[RS_FIELDS][2] = {[RS_FIELD_TENSORS] = {"shape", "shape of the destination"},
                                                      [RS_FIELD_LAYOUTS] = {"source layout", "destination layout"},
                                                      [RS_FIELD_DTYPES] = {"dtype", "dst_dtype"},
                                                      [RS_FIELD_REGIONS] = {"source region", "destination region"},
                                                      [RS_FIELD_OPTIONS] = {"workspace_limit", "nodes"}};

/* The hash tells apart what is too long. */
static void print_layout(char *text, size_t size, reshard_layout layout) {
  if (reshard_layout_print(layout, text, size, NULL) == RESHARD_SUCCESS)
    return;
  char end[24];
  int n = snprintf(end, sizeof end, "...#%08x", (unsigned)rs_layout_hash(layout));
  memcpy(text + size - (size_t)n - 1, end, (size_t)n + 1);
}

/* "[0,4)x[8,12)" of the source, of the destination with the source's dims in its order. */
static void print_region(char *text, size_t size, const rs_space *space, bool source) {
  char box[RS_BOX_TEXT];
  rs_text out = {.at = text, .size = size};
  int64_t offset[RS_MAX_AXES] = {0}, extent[RS_MAX_AXES] = {0};
  int ndim = 0, dims[RS_MAX_AXES] = {0};
  for (int a = 0; a < space->naxes; a++) {
    int d = source ? space->src_dim[a] : space->dst_dim[a];
    if (d < 0)
      continue;
    offset[d] = source ? space->src_offset[a] : space->dst_offset[a];
    extent[d] = space->extent[a];
    dims[d] = space->src_dim[a];
    ndim = d >= ndim ? d + 1 : ndim;
  }
  rs_text_add(&out, "%s", rs_box_text(box, ndim, offset, extent));
  for (int d = 0; d < ndim && !source; d++)
    rs_text_add(&out, "%s%d", d > 0 ? "," : " of dims ", dims[d]);
}

static void describe_tensor(const struct reshard_plan_s *plan, int field, int64_t i, tensor_record *out) {
  const rs_entry *e = &plan->entries[i];
  const rs_class *c = &plan->classes.at[e->class_];
  reshard_layout src = rs_class_layout(c, true), dst = rs_class_layout(c, false);
  char(*values)[sizeof out->values[0]] = out->values;
  out->there = 1;
  out->named = strcmp(e->name, "tensor") != 0;
  snprintf(out->name, sizeof out->name, "%s", e->name);
  switch (field) {
  case RS_FIELD_TENSORS:
    rs_list_text(values[0], sizeof values[0], src->ndim, src->shape);
    rs_list_text(values[1], sizeof values[1], dst->ndim, dst->shape);
    break;
  case RS_FIELD_LAYOUTS:
    print_layout(values[0], sizeof values[0], src);
    print_layout(values[1], sizeof values[1], dst);
    break;
  case RS_FIELD_DTYPES:
    for (int side = 0; side < 2; side++)
      rs_class_dtype_text(values[side], sizeof values[side], c, side == 0, side == 0 ? e->dtype : e->dst_dtype);
    break;
  default:
    print_region(values[0], sizeof values[0], rs_class_space(c), true);
    print_region(values[1], sizeof values[1], rs_class_space(c), false);
  }
}

static void describe_options(const struct reshard_plan_s *plan, tensor_record *out) {
  const rs_topology *t = plan->topology;
  if (plan->limit > 0)
    snprintf(out->values[0], sizeof out->values[0], "%lld", (long long)plan->limit);
  else
    snprintf(out->values[0], sizeof out->values[0], plan->limit == RESHARD_NO_LIMIT ? "none" : "default");
  out->domains = t != NULL ? TOPOLOGY : plan->nodes != NULL ? NODE_MAP : NO_DOMAINS;
  if (t != NULL)
    snprintf(out->values[1], sizeof out->values[1],
             "of %lld bytes/s between, %lld within, %lld ns a round, chains %lld", (long long)t->between,
             (long long)t->within, (long long)t->round_ns, (long long)t->asked);
  else if (plan->nodes != NULL)
    rs_list_text(out->values[1], sizeof out->values[1], plan->world, plan->nodes);
  else
    snprintf(out->values[1], sizeof out->values[1], "none");
}

reshard_status rs_find_difference(reshard_comm comm, int64_t n, int64_t rank, rs_range_hash hash_range,
                                  const void *user, int64_t *found) {
  int64_t equal = 0, differs = n + 1; /* prefixes of so many tensors */
  uint64_t hash = 0;
  while (differs - equal > 1) {
    int64_t middle = differs > n ? n : equal + (differs - equal) / 2;
    uint64_t mine = hash_range(user, equal, middle, hash);
    const void *gathered;
    RS_TRY(rs_comm_allgather(comm, &mine, sizeof mine, &gathered));
    const uint64_t *all = gathered;
    if (all[rank] == all[0]) {
      equal = middle;
      hash = mine;
    } else {
      differs = middle;
    }
  }
  *found = equal;
  return RESHARD_SUCCESS;
}

typedef struct plan_field {
  const struct reshard_plan_s *plan;
  int field;
} plan_field;

static uint64_t hash_field(const void *user, int64_t first, int64_t end, uint64_t hash) {
  const plan_field *f = user;
  for (int64_t i = first; i < rs_min(end, f->plan->ngiven); i++)
    hash = rs_plan_field(f->plan, f->field, i, hash);
  return hash;
}

/* "'layers.3.wq': shape [8,6] on rank 0, [8,7] on rank 2". */
static reshard_status report_value(int field, int64_t number, int64_t n, int64_t rank, const tensor_record *a,
                                   const tensor_record *b) {
  char label[128], other[128] = "";
  int v = strcmp(a->values[0], b->values[0]) == 0; /* the first value that differs */
  const char *what = value_names[field][v], *value[2] = {a->values[v], b->values[v]};
  if (field == RS_FIELD_OPTIONS && v == 1 && (a->domains == TOPOLOGY || b->domains == TOPOLOGY)) {
    what = "topology";
    value[0] = a->domains == TOPOLOGY ? value[0] : "none";
    value[1] = b->domains == TOPOLOGY ? value[1] : "none";
  }
  if (field == RS_FIELD_OPTIONS)
    return rs_error(RESHARD_ERROR_MISMATCH, "%s %s on rank 0, %s on rank %lld", what, value[0], value[1],
                    (long long)rank);
  if (n == 1 || a->named)
    snprintf(label, sizeof label, "'%s'", a->name);
  else
    snprintf(label, sizeof label, "tensor %lld", (long long)number);
  if (strcmp(a->name, b->name) != 0)
    snprintf(other, sizeof other, "'%s' with ", b->name);
  return rs_error(RESHARD_ERROR_MISMATCH, "%s: %s %s on rank 0, %s%s on rank %lld", label, what, a->values[v], other,
                  b->values[v], (long long)rank);
}

static reshard_status report_count(int64_t number, int64_t rank, int64_t n0, int64_t n, const tensor_record *a,
                                   const tensor_record *b) {
  const tensor_record *more = a->there ? a : b;
  char label[128];
  if (more->named)
    snprintf(label, sizeof label, "'%s'", more->name);
  else
    snprintf(label, sizeof label, "tensor %lld", (long long)number);
  return rs_error(RESHARD_ERROR_MISMATCH,
                  "%s is on rank %lld, and not on rank %lld (%lld tensors on rank 0, %lld on rank %lld)", label,
                  a->there ? 0LL : (long long)rank, a->there ? (long long)rank : 0LL, (long long)n0, (long long)n,
                  (long long)rank);
}

static uint64_t hash_nodes(const void *user, int64_t first, int64_t end, uint64_t hash) {
  const struct reshard_plan_s *plan = user;
  int64_t n = plan->nodes != NULL ? rs_min(end, plan->world) - first : 0;
  return n > 0 ? rs_hash(hash, plan->nodes + first, (size_t)n * sizeof *plan->nodes) : hash;
}

static reshard_status report_node(const char *what, int64_t at, int64_t rank, int64_t first, int64_t other) {
  return rs_error(RESHARD_ERROR_MISMATCH, "%s of rank %lld: %lld on rank 0, %lld on rank %lld", what, (long long)at,
                  (long long)first, (long long)other, (long long)rank);
}

static int64_t node_of(const struct reshard_plan_s *plan, int64_t rank) {
  return plan->nodes != NULL && rank < plan->world ? plan->nodes[rank] : -1;
}

/* Node maps, or domains of topologies, differ alone: names the first rank that is on another. */
static reshard_status report_nodes(reshard_comm comm, const struct reshard_plan_s *plan, int64_t rank,
                                   const char *what) {
  int64_t at;
  const void *gathered;
  RS_TRY(rs_find_difference(comm, reshard_comm_size(comm), rank, hash_nodes, plan, &at));
  const int64_t mine = node_of(plan, at);
  RS_TRY(rs_comm_allgather(comm, &mine, sizeof mine, &gathered));
  const int64_t *all = gathered;
  return report_node(what, at, rank, all[0], all[rank]);
}

/* The options differ in the node of a rank alone. */
static bool nodes_differ(const tensor_record *a, const tensor_record *b) {
  return strcmp(a->values[0], b->values[0]) == 0 &&
         ((a->domains == NODE_MAP && b->domains == NODE_MAP) || strcmp(a->values[1], b->values[1]) == 0);
}

static const char *node_word(const tensor_record *a) { return a->domains == TOPOLOGY ? "topology: domain" : "node"; }

reshard_status rs_plans_differ(reshard_comm comm, const struct reshard_plan_s *plan, int field, int64_t rank,
                               int64_t n0, int64_t n) {
  int64_t number = 0;
  tensor_record mine = {0};
  const void *gathered;
  if (field == RS_FIELD_OPTIONS) {
    describe_options(plan, &mine);
  } else {
    RS_TRY(rs_find_difference(comm, rs_min(n0, n), rank, hash_field, &(plan_field){plan, field}, &number));
    if (number < plan->ngiven)
      describe_tensor(plan, field, number, &mine);
  }
  RS_TRY(rs_comm_allgather(comm, &mine, sizeof mine, &gathered));
  const tensor_record *all = gathered;
  if (field == RS_FIELD_OPTIONS && nodes_differ(&all[0], &all[rank]))
    return report_nodes(comm, plan, rank, node_word(&all[0]));
  return all[0].there == all[rank].there ? report_value(field, number, n0, rank, &all[0], &all[rank])
                                         : report_count(number, rank, n0, n, &all[0], &all[rank]);
}

reshard_status rs_plans_here_differ(const struct reshard_plan_s *first, const struct reshard_plan_s *plan, int field,
                                    int64_t rank) {
  int64_t number = 0, n0 = first->ngiven, n = plan->ngiven;
  tensor_record a = {0}, b = {0};
  if (field != RS_FIELD_OPTIONS) {
    while (number < rs_min(n0, n) && rs_plan_field(first, field, number, 0) == rs_plan_field(plan, field, number, 0))
      number++;
    if (number < n0)
      describe_tensor(first, field, number, &a);
    if (number < n)
      describe_tensor(plan, field, number, &b);
    return a.there == b.there ? report_value(field, number, n0, rank, &a, &b)
                              : report_count(number, rank, n0, n, &a, &b);
  }
  describe_options(first, &a);
  describe_options(plan, &b);
  if (!nodes_differ(&a, &b))
    return report_value(field, 0, n0, rank, &a, &b);
  while (number < first->world && node_of(first, number) == node_of(plan, number))
    number++;
  return report_node(node_word(&a), number, rank, node_of(first, number), node_of(plan, number));
}
