/* The exchange of shards. Each rank sends those that it has of each tensor. So the metadata are complete, and no rank
 * relies on what an outer tensor says of others.
 *
 * One exchange carries all tensors. A rank's string is sealed, and has the number of tensors. Then come for each tensor
 * its path (length, characters) and the metadata of this rank's shards. Every rank reads all strings side by side,
 * tensor by tensor, and adds the others' shards to its own. */
#include "state/checkpoint.h"

#include "base/text.h"
#include "comm/gather.h"
#include "exec/record.h"
#include "metadata/group.h"
#include "metadata/serialize.h"
#include "state/state.h"

#include <stdlib.h>
#include <string.h>

#define MAGIC "RSFL"

typedef struct shard_exchange {
  reshard_sharder sharder;
  int64_t n;
  rs_exchanged_tensor *all;
  int64_t nranks;
  rs_reader *readers;           /* [nranks] */
  rs_head *heads;               /* [nranks], of one tensor */
  RS_VEC(reshard_shard) shards; /* scratch */
} shard_exchange;

static void free_tensors(int64_t n, rs_exchanged_tensor *tensors) {
  for (int64_t i = 0; i < n; i++) {
    free(tensors[i].path);
    rs_shard_list_free(&tensors[i].flat);
    reshard_metadata_release(tensors[i].mine);
    reshard_sharded_tensor_release(tensors[i].made);
  }
  free(tensors);
}

/* Drops all shards from a tensor's list but this rank's own. */
static reshard_status select_local(const shard_exchange *x, rs_exchanged_tensor *m) {
  rs_shard_list *flat = &m->flat;
  reshard_properties properties = flat->properties;
  int64_t n = 0, rank = rs_group_at(&x->sharder->group, x->sharder->comm->rank);
  if (flat->rank != rank)
    return rs_error(RESHARD_ERROR_INVALID, "a tensor of global rank %lld, the sharder is rank %lld's",
                    (long long)flat->rank, (long long)rank);
  for (int64_t i = 0; i < flat->shards.n; i++)
    if (flat->shards.at[i].mine)
      flat->shards.at[n++] = flat->shards.at[i];
  flat->shards.n = n;
  if (flat->any_flags)
    properties.requires_grad = properties.pin_memory = 0;
  RS_TRY(rs_metadata_new(&properties, flat->ndim, flat->shape, n, &m->mine));
  for (int64_t i = 0; i < n; i++)
    m->mine->shards[i] = flat->shards.at[i].shard;
  return RESHARD_SUCCESS;
}

static reshard_status pack_shards(const shard_exchange *x, char **string, int64_t *size) {
  int64_t body = rs_put_size((uint64_t)x->n);
  for (int64_t i = 0; i < x->n; i++) {
    int64_t length = (int64_t)strlen(x->all[i].path);
    body += rs_put_size((uint64_t)length) + length + rs_metadata_size(x->all[i].mine);
  }
  RS_TRY(rs_alloc(string, body + RS_SEAL, 1));
  char *at = rs_put(*string + RS_SEAL, (uint64_t)x->n);
  for (int64_t i = 0; i < x->n; i++) {
    size_t length = strlen(x->all[i].path);
    at = rs_put(at, (uint64_t)length);
    memcpy(at, x->all[i].path, length);
    at = rs_metadata_put(x->all[i].mine, at + length);
  }
  rs_seal(MAGIC, *string, body);
  *size = body + RS_SEAL;
  return RESHARD_SUCCESS;
}

static long long global_rank(const shard_exchange *x, int64_t rank) {
  return (long long)rs_group_at(&x->sharder->group, rank);
}

/* Reads the next path of a rank and compares it with rank 0's. */
static reshard_status read_path(shard_exchange *x, int64_t r, const char **first, int64_t *nfirst) {
  rs_reader *reader = &x->readers[r];
  char a[RS_QUOTE], b[RS_QUOTE], copy[2][RS_QUOTE];
  int64_t length;
  RS_TRY(rs_take(reader, "length of a path", (uint64_t)(reader->end - reader->at), &length));
  const char *path = (const char *)reader->at;
  reader->at += length;
  if (r == 0) {
    *first = path;
    *nfirst = length;
  }
  if (length == *nfirst && memcmp(path, *first, (size_t)length) == 0)
    return RESHARD_SUCCESS;
  rs_text_add(&(rs_text){.at = copy[0], .size = RS_QUOTE}, "%.*s", (int)rs_min(*nfirst, RS_QUOTE), *first);
  rs_text_add(&(rs_text){.at = copy[1], .size = RS_QUOTE}, "%.*s", (int)rs_min(length, RS_QUOTE), path);
  return rs_error(RESHARD_ERROR_MISMATCH, "ranks %lld and %lld differ in the paths of nested tensors: '%s' and '%s'",
                  global_rank(x, 0), global_rank(x, r), rs_quote(a, sizeof a, copy[0]), rs_quote(b, sizeof b, copy[1]));
}

/* Compares two ranks' tensors, as PyTorch's _raise_if_mismatch. Flags are those of shards. */
static reshard_status compare_heads(const shard_exchange *x, int64_t i, int64_t j) {
  const rs_head *heads[2] = {&x->heads[i], &x->heads[j]};
  char text[2][RS_SHAPE_TEXT + 64], shape[RS_SHAPE_TEXT];
  for (int k = 0; k < 2; k++) {
    const reshard_properties *p = &heads[k]->properties;
    rs_text out = {.at = text[k], .size = sizeof text[k]};
    rs_text_add(&out, "%s of shape %s", reshard_dtype_string(p->dtype),
                rs_shape_text(shape, heads[k]->ndim, heads[k]->shape));
    if (heads[0]->n > 0 && heads[1]->n > 0)
      rs_text_add(&out, ", requires_grad %d, pin_memory %d", p->requires_grad, p->pin_memory);
  }
  return strcmp(text[0], text[1]) == 0 ? RESHARD_SUCCESS
                                       : rs_error(RESHARD_ERROR_MISMATCH, "ranks %lld and %lld differ: %s, and %s",
                                                  global_rank(x, i), global_rank(x, j), text[0], text[1]);
}

/* Reads the next tensor of all strings, into the list that has this rank's shards. */
static reshard_status read_tensor(shard_exchange *x, rs_exchanged_tensor *m) {
  const char *first = NULL;
  int64_t nfirst = 0, first_holder = -1; /* the lowest rank that has shards */
  for (int64_t r = 0; r < x->nranks; r++) {
    RS_TRY(read_path(x, r, &first, &nfirst));
    RS_TRY(rs_take_head(&x->readers[r], &x->heads[r]));
    RS_TRY(rs_vec_reserve(&x->shards, x->heads[r].n));
    if (x->heads[r].n > 0) /* unused dims are 0: boxes are compared as bytes */
      memset(x->shards.at, 0, (size_t)x->heads[r].n * sizeof *x->shards.at);
    RS_TRY(rs_take_shards(&x->readers[r], x->heads[r].ndim, x->heads[r].n, x->shards.at));
    if (first_holder < 0 && x->heads[r].n > 0)
      first_holder = r;
    if (r == x->sharder->comm->rank)
      continue;
    RS_TRY(rs_vec_reserve(&m->flat.shards, m->flat.shards.n + x->heads[r].n));
    for (int64_t i = 0; i < x->heads[r].n; i++)
      m->flat.shards.at[m->flat.shards.n++] = (rs_listed_shard){.shard = x->shards.at[i]};
  }
  for (int64_t r = 0; r < x->nranks; r++)
    RS_TRY(compare_heads(x, rs_max(first_holder, 0), r));
  m->flat.properties = x->heads[rs_max(first_holder, 0)].properties;
  return RESHARD_SUCCESS;
}

static reshard_status read_tensors(shard_exchange *x, const rs_strings *strings) {
  x->nranks = strings->n;
  RS_TRY(rs_alloc(&x->readers, x->nranks, sizeof *x->readers));
  RS_TRY(rs_alloc_zero(&x->heads, x->nranks, sizeof *x->heads));
  int64_t first = 0, n;
  for (int64_t r = 0; r < x->nranks; r++) {
    RS_TRY(rs_unseal(MAGIC, strings->bytes + strings->first[r], strings->first[r + 1] - strings->first[r],
                     &x->readers[r]));
    RS_TRY(rs_take(&x->readers[r], "number of nested tensors", INT64_MAX, &n));
    first = r == 0 ? n : first;
    if (n != first)
      return rs_error(RESHARD_ERROR_MISMATCH,
                      "ranks %lld and %lld differ in the number of nested tensors: %lld and %lld", global_rank(x, 0),
                      global_rank(x, r), (long long)first, (long long)n);
  }
  for (int64_t i = 0; i < x->n; i++) {
    rs_exchanged_tensor *m = &x->all[i];
    reshard_status status = read_tensor(x, m);
    RS_THEN(status, rs_shard_list_build(&m->flat, true, x->sharder, &m->made));
    if (status != RESHARD_SUCCESS)
      return rs_path_error(m->path, status);
  }
  return RESHARD_SUCCESS;
}

static reshard_status pack_tensors(shard_exchange *x, char **string, int64_t *size) {
  for (int64_t i = 0; i < x->n; i++) {
    reshard_status status = select_local(x, &x->all[i]);
    if (status != RESHARD_SUCCESS)
      return rs_path_error(x->all[i].path, status);
  }
  return pack_shards(x, string, size);
}

/* Collective over the sharder's communicator, one exchange: n tensors, whose paths, dtypes and shapes are compared. A
 * rank without shards of one has an empty list with its dtype and shape. status: as in rs_comm_gather_bytes. */
static reshard_status exchange_shards(reshard_sharder sharder, reshard_status status, int64_t n,
                                      rs_exchanged_tensor *tensors) {
  shard_exchange x = {.sharder = sharder, .n = n, .all = tensors};
  rs_strings *strings = NULL;
  char *string = NULL;
  int64_t size = 0;
  RS_THEN(status, pack_tensors(&x, &string, &size));
  RS_TRY_GOTO(status, rs_comm_gather_bytes(sharder->comm, status, string, size, &strings), done);
  status = rs_agree(sharder->comm, read_tensors(&x, strings));
done:
  rs_strings_release(strings);
  free(string);
  free(x.readers);
  free(x.heads);
  free(x.shards.at);
  return status;
}

/* --- Of a whole tree ---------------------------------------------------------------------------------------------- */

typedef struct nested_flattening {
  RS_VEC(rs_exchanged_tensor) all; /* in the order of the tree */
  int64_t next;                    /* whose plain form is put into the tree next */
} nested_flattening;

/* Lists the nested tensors of the tree. It is mapped twice, and each time every nested tensor comes once, in the same
 * order. */
static reshard_status list_leaf(void *user, const char *path, reshard_tree leaf, reshard_tree *same) {
  nested_flattening *f = user;
  const rs_nested *nested = rs_leaf_nested(leaf);
  (void)same;
  if (nested == NULL)
    return RESHARD_SUCCESS;
  RS_TRY(rs_vec_reserve(&f->all, f->all.n + 1));
  rs_exchanged_tensor *m = &f->all.at[f->all.n++];
  *m = (rs_exchanged_tensor){0};
  RS_TRY(rs_alloc_copy(&m->path, path, (int64_t)strlen(path) + 1, 1));
  reshard_status status = rs_shard_list_nested(nested, &m->flat);
  return status == RESHARD_SUCCESS ? status : rs_path_error(path, status);
}

/* Puts the plain forms in their places. */
static reshard_status replace_leaf(void *user, const char *path, reshard_tree leaf, reshard_tree *flat) {
  nested_flattening *f = user;
  (void)path;
  return rs_leaf_nested(leaf) != NULL ? reshard_state_sharded(f->all.at[f->next++].made, flat) : RESHARD_SUCCESS;
}

reshard_status reshard_state_flatten_sharded_tensors_global(reshard_sharder sharder, reshard_tree state,
                                                            reshard_tree *flat) {
  static const char call[] = "reshard_state_flatten_sharded_tensors_global";
  RS_TRY(RS_GIVEN(call, sharder));
  RS_CALL(sharder->comm, 0);
  nested_flattening f = {0};
  reshard_tree made = NULL, same = NULL;
  reshard_status status = RESHARD_SUCCESS;
  if (state == NULL || flat == NULL)
    status = rs_error_null(call, state == NULL ? "state" : "flat");
  RS_THEN(status, reshard_tree_map(state, list_leaf, &f, &same));
  reshard_tree_release(same);
  status = exchange_shards(sharder, status, f.all.n, f.all.at);
  RS_THEN(status, rs_agree(sharder->comm, reshard_tree_map(state, replace_leaf, &f, &made)));
  if (status == RESHARD_SUCCESS)
    *flat = made;
  else
    reshard_tree_release(made);
  free_tensors(f.all.n, f.all.at);
  return status;
}

/* --- Tensors of a state ------------------------------------------------------------------------------------------- */
/* Those whose shards the ranks exchange, since no layout of the communicator describes them: those of smaller groups,
 * nested ones, or of paths that some ranks lack. Each rank sends its own boxes with its global rank; equal boxes are
 * replicas. The result is one layout over all ranks for each path. */

void rs_exchanged_leaves_free(rs_exchanged_leaves *exchanged) {
  free_tensors(exchanged->n, exchanged->tensors);
  *exchanged = (rs_exchanged_leaves){0};
}

static reshard_status alloc_tensors(int64_t n, rs_exchanged_leaves *exchanged) {
  *exchanged = (rs_exchanged_leaves){0};
  RS_TRY(rs_alloc_zero(&exchanged->tensors, n, sizeof *exchanged->tensors));
  exchanged->n = n;
  return RESHARD_SUCCESS;
}

reshard_status rs_exchanged_leaves_list(const rs_state_paths *paths, rs_exchanged_leaves *exchanged) {
  RS_TRY(alloc_tensors(paths->exchanged, exchanged));
  rs_exchanged_tensor *m = exchanged->tensors;
  for (int64_t i = 0; i < paths->all.n; i++) {
    const rs_state_leaf *leaf = paths->all.at[i].leaf;
    if (!paths->all.at[i].exchanged)
      continue;
    m->flat = (rs_shard_list){.ndim = rs_state_leaf_ndim(leaf), .properties = {.dtype = rs_state_leaf_dtype(leaf)}};
    memcpy(m->flat.shape, rs_state_leaf_shape(leaf), (size_t)m->flat.ndim * sizeof *m->flat.shape);
    RS_TRY(rs_alloc_copy(&m->path, leaf->path, (int64_t)strlen(leaf->path) + 1, 1));
    m++;
  }
  return RESHARD_SUCCESS;
}

/* Lists this rank's shards of a tensor; flags of shards are not saved, and need not agree. */
static reshard_status list_local_shards(reshard_sharder sharder, const rs_state_leaves *leaves,
                                        const rs_exchanged_tensor *wanted, rs_exchanged_tensor *m) {
  RS_TRY(rs_alloc_copy(&m->path, wanted->path, (int64_t)strlen(wanted->path) + 1, 1));
  const rs_state_leaf *leaf = rs_state_leaves_find(leaves, m->path);
  reshard_status status = RESHARD_SUCCESS;
  if (leaf == NULL || !rs_state_leaf_is_sharded(leaf)) { /* a null, which has no shards */
    m->flat = wanted->flat;
    m->flat.rank = rs_group_at(&sharder->group, sharder->comm->rank);
  } else if (leaf->nested != NULL) {
    status = rs_shard_list_nested(leaf->nested, &m->flat);
  } else {
    status = rs_shard_list_plain(leaf->sharded, &m->flat);
  }
  m->flat.any_flags = true;
  return status == RESHARD_SUCCESS ? status : rs_path_error(m->path, status);
}

static void replace_leaves(rs_state_leaves *leaves, const rs_exchanged_leaves *made) {
  for (int64_t i = 0; i < made->n; i++) {
    int64_t number = rs_names_find(&leaves->names, made->tensors[i].path, strlen(made->tensors[i].path));
    rs_state_leaf *leaf = number >= 0 ? &leaves->all.at[number] : NULL;
    if (leaf == NULL || !rs_state_leaf_is_sharded(leaf))
      continue;
    reshard_sharded_tensor_release(leaf->sharded);
    leaf->sharded = reshard_sharded_tensor_retain(made->tensors[i].made);
    leaf->nested = NULL;
    leaf->exchanged = true;
  }
}

reshard_status rs_exchange_leaves(reshard_sharder sharder, rs_state_leaves *leaves, const rs_exchanged_leaves *list,
                                  rs_exchanged_leaves *made) {
  reshard_status status = alloc_tensors(list->n, made);
  for (int64_t i = 0; i < made->n && status == RESHARD_SUCCESS; i++)
    status = list_local_shards(sharder, leaves, &list->tensors[i], &made->tensors[i]);
  RS_TRY(exchange_shards(sharder, status, made->n, made->tensors));
  replace_leaves(leaves, made);
  return RESHARD_SUCCESS;
}
