/* Digests in the header of a safetensors file.
 *
 * The entry is looked for in the bytes of the header, not in its JSON: a flipped bit in the entry's own words is then
 * no file without digests. Two of its words are looked for, of which such a bit leaves one. */
#define _GNU_SOURCE /* memmem */
#include "file/format/safetensors.h"

#include "base/order.h"
#include "base/text.h"
#include "file/ground/digest.h"

#include <stdlib.h>
#include <string.h>

/* Place of a text in the header; -1: it is not there. */
static int64_t find_text(const char *header, int64_t n, const char *text) {
  const char *at = memmem(header, (size_t)n, text, strlen(text));
  return at != NULL ? at - header : -1;
}

/* Without a branch: there are 16 for a MiB of the file. */
static bool are_digits(const char *text, int64_t n) {
  uint8_t others = 0;
  for (int64_t i = 0; i < n; i++)
    others |= ((uint8_t)(text[i] - '0') > 9) & ((uint8_t)(text[i] - 'a') > 5);
  return others == 0;
}

int64_t rs_safetensors_cut_digits(char *text, int64_t n) {
  static const char before[] = RS_DIGEST_BEFORE, between[] = RS_DIGEST_BETWEEN;
  int64_t at = find_text(text, n, before);
  int64_t first = at + (int64_t)sizeof before - 1 + RS_DIGEST_DIGITS + (int64_t)sizeof between - 1;
  if (at < 0 || first > n || memcmp(text + first - sizeof between + 1, between, sizeof between - 1) != 0)
    return n;
  const char *behind = memchr(text + first, '\\', (size_t)(n - first)); /* of the quote, in a text of a text */
  int64_t end = behind != NULL && are_digits(text + first, behind - text - first) ? behind - text : first;
  while (end < n && are_digits(text + end, 1))
    end++;
  memmove(text + first, text + end, (size_t)(n - end));
  return n - (end - first);
}

/* "tensor 'a', box [0,4)x[8,12)": the box where the file says where it begins. saved: NULL where it does not. */
static reshard_status add_name(const rs_safetensors *header, int64_t tensor, const int64_t *saved, rs_digests *d) {
  const rs_model_tensor *t = &header->model->tensors.at[tensor];
  char quoted[RS_QUOTE], box[RS_BOX_TEXT], name[RS_QUOTE + RS_BOX_TEXT + 32];
  rs_text text = {.at = name, .size = sizeof name};
  rs_text_add(&text, "tensor '%s'", rs_quote(quoted, sizeof quoted, rs_model_name(header->model, tensor)));
  if (saved != NULL)
    rs_text_add(&text, ", box %s", rs_box_text(box, t->ndim, saved, t->shape));
  d->boxes.at[d->boxes.n - 1].name = d->names.n;
  return rs_vec_append(&d->names, name, strlen(name) + 1);
}

/* A tensor of the header; where its saved offsets begin, or -1. */
typedef struct stored_box {
  int64_t begin, bytes, tensor, saved;
} stored_box;

RS_ORDER_BY(by_begin, stored_box, begin)

static reshard_status misfit(const char *where, int64_t pieces, int64_t boxes) {
  return rs_error(RESHARD_ERROR_CORRUPT,
                  "%s: the digests in its header are not as they were written, for %lld pieces of %lld boxes", where,
                  (long long)pieces, (long long)boxes);
}

/* The boxes in the order in which they lie in the file; none are made for more pieces than the header has room for. */
static reshard_status add_boxes(const char *where, const rs_safetensors *header, rs_digests *d) {
  int64_t n = header->model->tensors.n, kept = 0, pieces = 0, saved = header->saved.n > 0 ? 0 : -1;
  stored_box *boxes;
  RS_TRY(rs_alloc(&boxes, n, sizeof *boxes));
  for (int64_t i = 0; i < n; i++) {
    const rs_model_tensor *t = &header->model->tensors.at[i];
    int64_t bytes = (int64_t)reshard_dtype_size(t->dtype);
    for (int k = 0; k < t->ndim; k++)
      bytes *= t->shape[k];
    pieces += rs_digest_pieces(bytes);
    if (bytes > 0)
      boxes[kept++] = (stored_box){header->offsets.at[i], bytes, i, saved};
    saved += saved < 0 ? 0 : t->ndim;
  }
  if (kept > 1)
    qsort(boxes, (size_t)kept, sizeof *boxes, by_begin);
  bool fits = pieces <= header->start / RS_DIGEST_DIGITS;
  reshard_status status = fits ? RESHARD_SUCCESS : misfit(where, pieces, kept);
  for (int64_t i = 0; i < kept && status == RESHARD_SUCCESS; i++) {
    status = rs_digests_add(d, boxes[i].begin, boxes[i].bytes);
    RS_THEN(status,
            add_name(header, boxes[i].tensor, boxes[i].saved < 0 ? NULL : header->saved.at + boxes[i].saved, d));
  }
  free(boxes);
  return status;
}

/* Reads the digits at `at` (-1: there are none) of a header of n bytes, and checks those of the header. */
static reshard_status read_digits(const char *where, char *text, int64_t n, int64_t at, rs_digests *d) {
  static const char between[] = RS_DIGEST_BETWEEN, behind[] = RS_DIGEST_BEHIND;
  int64_t pieces = at + RS_DIGEST_DIGITS + (int64_t)sizeof between - 1, room = n - pieces - (int64_t)sizeof behind + 1;
  uint64_t stored = 0;
  bool fits = at >= 0 && room >= 0 && room / RS_DIGEST_DIGITS >= d->pieces.n && rs_digest_parse(text + at, &stored) &&
              memcmp(text + at + RS_DIGEST_DIGITS, between, sizeof between - 1) == 0 &&
              memcmp(text + pieces + d->pieces.n * RS_DIGEST_DIGITS, behind, sizeof behind - 1) == 0;
  for (int64_t p = 0; p < d->pieces.n && fits; p++)
    fits = rs_digest_parse(text + pieces + p * RS_DIGEST_DIGITS, &d->pieces.at[p].value);
  if (!fits)
    return misfit(where, d->pieces.n, d->boxes.n);
  memset(text + at, '0', RS_DIGEST_DIGITS);
  uint64_t value = rs_digest_bytes(text, n);
  if (value != stored)
    return rs_error(RESHARD_ERROR_CORRUPT,
                    "%s: its header, bytes 0 to %lld, is not the one that was written: its digest is %016llx, %016llx "
                    "is stored",
                    where, (long long)n - 1, (unsigned long long)value, (unsigned long long)stored);
  return RESHARD_SUCCESS;
}

reshard_status rs_safetensors_read_digests(const char *where, const rs_safetensors *header, rs_file *file) {
  static const char before[] = RS_DIGEST_BEFORE;
  char *text = NULL;
  int64_t n = header->start;
  rs_digests *d = NULL;
  RS_TRY(rs_alloc(&text, n, 1));
  reshard_status status;
  RS_TRY_GOTO(status, rs_file_read_plain(file, 0, text, n), done);
  if (find_text(text, n, RS_DIGEST_KEY) < 0 && find_text(text, n, RS_DIGEST_HASH) < 0)
    goto done;
  if (!rs_digest_built()) {
    status = rs_error(RESHARD_ERROR_UNSUPPORTED, "%s: has digests, this build checks none, it was made without xxhash",
                      where);
    goto done;
  }
  RS_TRY_GOTO(status, rs_alloc_zero(&d, 1, sizeof *d), done);
  d->reading = true;
  d->header = n;
  int64_t at = find_text(text, n, before);
  RS_TRY_GOTO(status, add_boxes(where, header, d), done);
  RS_TRY_GOTO(status, read_digits(where, text, n, at < 0 ? -1 : at + (int64_t)sizeof before - 1, d), done);
  rs_digests_free(file->digests);
  file->digests = d;
  d = NULL;
done:
  rs_digests_free(d);
  free(text);
  return status;
}
