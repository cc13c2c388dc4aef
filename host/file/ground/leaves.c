#include "file/ground/leaves.h"

#include "base/json.h"
#include "base/text.h"
#include "file/ground/digest.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static reshard_status append_bytes(rs_leaves *l, const char *from, int64_t n, int64_t *at) {
  *at = l->text.n;
  return rs_vec_append(&l->text, from, n);
}

reshard_status rs_leaves_add(rs_leaves *l, const char *path, const rs_leaf *leaf, const char *bytes) {
  rs_leaf added = *leaf;
  RS_TRY(append_bytes(l, path, (int64_t)strlen(path) + 1, &added.name));
  if (leaf->kind == RS_LEAF_BYTES)
    RS_TRY(append_bytes(l, bytes, leaf->size, &added.integer));
  return rs_vec_push(&l->all, added);
}

reshard_status rs_leaves_settle(rs_leaves *l, const rs_names *taken, int64_t *dropped) {
  rs_names paths = {0};
  reshard_status status = rs_names_reserve(&paths, l->all.n);
  int64_t before = l->all.n, kept = 0;
  for (int64_t i = 0; i < before && status == RESHARD_SUCCESS; i++) {
    const char *path = l->text.at + l->all.at[i].name;
    int64_t number = 0;
    if (rs_names_find(taken, path, strlen(path)) >= 0)
      continue;
    status = rs_names_put(&paths, path, strlen(path), &number);
    if (status != RESHARD_SUCCESS)
      break;
    l->all.at[number] = l->all.at[i];
    kept = paths.all.n;
  }
  rs_names_free(&paths);
  RS_TRY(status);
  l->all.n = kept;
  *dropped += before - kept;
  return RESHARD_SUCCESS;
}

void rs_leaves_free(rs_leaves *l) {
  free(l->all.at);
  free(l->text.at);
  *l = (rs_leaves){0};
}

/* --- state.json -------------------------------------------------------------------------------------------------- */

static void add_base64(rs_text *text, const unsigned char *at, size_t n) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  char group[4];
  for (; n >= 3; at += 3, n -= 3) {
    group[0] = digits[at[0] >> 2];
    group[1] = digits[(at[0] & 3) << 4 | at[1] >> 4];
    group[2] = digits[(at[1] & 15) << 2 | at[2] >> 6];
    group[3] = digits[at[2] & 63];
    rs_text_bytes(text, group, 4);
  }
  if (n == 0)
    return;
  unsigned second = n > 1 ? at[1] : 0;
  group[0] = digits[at[0] >> 2];
  group[1] = digits[(at[0] & 3) << 4 | second >> 4];
  group[2] = n > 1 ? digits[(second & 15) << 2] : '=';
  group[3] = '=';
  rs_text_bytes(text, group, 4);
}

void rs_leaf_json(rs_text *text, const rs_leaf *leaf, const char *bytes) {
  char number[RS_FLOAT_TEXT];
  switch (leaf->kind) {
  case RS_LEAF_BYTES:
    rs_text_string(text, "{\"bytes\": \"");
    add_base64(text, (const unsigned char *)bytes, (size_t)leaf->size);
    rs_text_string(text, "\"}");
    break;
  case RS_LEAF_INT: rs_text_number(text, leaf->integer); break;
  case RS_LEAF_FLOAT:
    rs_text_add(text, isfinite(leaf->real) ? "%s" : "{\"float\": \"%s\"}", rs_float_text(number, leaf->real));
    break;
  case RS_LEAF_BOOL: rs_text_string(text, leaf->integer != 0 ? "true" : "false"); break;
  default: rs_text_string(text, "null");
  }
}

void rs_leaves_json_key(rs_json *j, const char *path) {
  if (j->text.length == 0) {
    *j = (rs_json){.text.grows = true, .spaced = true};
    rs_json_open(j, NULL, '{');
    rs_json_int(j, "version", 1);
    rs_json_open(j, "leaves", '{');
  }
  rs_json_line(j, 2);
  rs_json_key(j, path);
}

void rs_leaves_json_end(rs_json *j, bool digest) {
  digest = digest && rs_digest_built();
  rs_text_string(&j->text, digest ? "\n},\n" RS_DIGEST_SEAL : "\n}}\n");
  if (digest && j->text.status == RESHARD_SUCCESS)
    rs_digest_seal(j->text.at, (int64_t)j->text.length);
}

reshard_status rs_leaves_json(const rs_leaves *l, bool digest, rs_json *j) {
  for (int64_t i = 0; i < l->all.n; i++) {
    const rs_leaf *leaf = &l->all.at[i];
    rs_leaves_json_key(j, l->text.at + leaf->name);
    rs_leaf_json(&j->text, leaf, leaf->kind == RS_LEAF_BYTES ? l->text.at + leaf->integer : NULL);
  }
  rs_leaves_json_end(j, digest);
  return j->text.status;
}
