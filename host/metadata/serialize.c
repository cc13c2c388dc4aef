/* Metadata as a byte string.
 *
 * A sealed string is a header of 24 bytes and a sequence of numbers. The header is magic (4), version (4), and of what
 * follows length (8) and checksum (8), the numbers low byte first. The sequence has 7 bits a byte, low bits first, the
 * top bit set on all bytes but the last. A number has one spelling (no leading zero bytes). So equal metadata are equal
 * strings, and reading and writing again gives the same. Most numbers of a shard take one to three bytes.
 *
 * Metadata are: ndim, dtype, memory format, flags (1: requires_grad, 2: pin_memory), the shape, the number of shards,
 * and per shard its offsets, its sizes, rank + 1, device type, device index + 1. */
#include "metadata/serialize.h"

#include <limits.h>
#include <string.h>

#define VERSION 1

/* --- Numbers ---------------------------------------------------------------------------------------------------- */

int64_t rs_put_size(uint64_t number) { return (rs_bits(number | 1) + 6) / 7; }

char *rs_put(char *at, uint64_t number) {
  for (; number >= 128; number >>= 7)
    *at++ = (char)(number | 128);
  *at++ = (char)number;
  return at;
}

static reshard_status error_damaged(const rs_reader *r, const char *what, const char *why) {
  return rs_error(RESHARD_ERROR_INVALID, "metadata string: byte %lld: %s %s", (long long)(r->at - r->begin), what, why);
}

reshard_status rs_take(rs_reader *r, const char *what, uint64_t most, int64_t *number) {
  const unsigned char *at = r->at;
  uint64_t n = 0;
  int shift = 0;
  for (; at < r->end && *at >= 128 && shift < 63; at++, shift += 7)
    n |= (uint64_t)(*at & 127) << shift;
  if (at == r->end)
    return error_damaged(r, what, "is cut off");
  if (*at >= 128 || (shift == 63 && *at > 1))
    return error_damaged(r, what, "does not fit in 64 bits");
  if (*at == 0 && shift > 0)
    return error_damaged(r, what, "is longer than it need be");
  n |= (uint64_t)*at << shift;
  if (n > most)
    return error_damaged(r, what, "is too large");
  r->at = at + 1;
  *number = (int64_t)n;
  return RESHARD_SUCCESS;
}

/* --- Header ----------------------------------------------------------------------------------------------------- */

static uint64_t low_first(const unsigned char *at, int n) {
  uint64_t word = 0;
  for (int i = 0; i < n; i++)
    word |= (uint64_t)at[i] << (8 * i);
  return word;
}

static void put_low_first(char *at, uint64_t word, int n) {
  for (int i = 0; i < n; i++)
    at[i] = (char)(word >> (8 * i));
}

/* Like rs_hash, but for the order of bytes, which is the same on all machines. */
static uint64_t checksum(const unsigned char *at, int64_t n) {
  uint64_t h = 0xcbf29ce484222325u ^ (uint64_t)n;
  for (; n >= 8; at += 8, n -= 8) {
    h = (h ^ low_first(at, 8)) * 0xd6e8feb86659fd93u;
    h ^= h >> 32;
  }
  h = (h ^ low_first(at, (int)n)) * 0xd6e8feb86659fd93u;
  return h ^ (h >> 32);
}

void rs_seal(const char *magic, char *string, int64_t body) {
  memcpy(string, magic, 4);
  put_low_first(string + 4, VERSION, 4);
  put_low_first(string + 8, (uint64_t)body, 8);
  put_low_first(string + 16, checksum((unsigned char *)string + RS_SEAL, body), 8);
}

reshard_status rs_unseal(const char *magic, const void *string, int64_t size, rs_reader *reader) {
  const unsigned char *at = string;
  if (size < RS_SEAL)
    return rs_error(RESHARD_ERROR_INVALID, "metadata string: %lld bytes, its header alone has %d", (long long)size,
                    RS_SEAL);
  if (memcmp(at, magic, 4) != 0)
    return rs_error(RESHARD_ERROR_INVALID, "metadata string: it does not begin with \"%s\"", magic);
  if (low_first(at + 4, 4) != VERSION)
    return rs_error(RESHARD_ERROR_INVALID, "metadata string: version %llu, this library reads version %d",
                    (unsigned long long)low_first(at + 4, 4), VERSION);
  if (low_first(at + 8, 8) != (uint64_t)(size - RS_SEAL))
    return rs_error(RESHARD_ERROR_INVALID, "metadata string: %lld bytes follow the header, which says %llu",
                    (long long)(size - RS_SEAL), (unsigned long long)low_first(at + 8, 8));
  if (low_first(at + 16, 8) != checksum(at + RS_SEAL, size - RS_SEAL))
    return rs_error(RESHARD_ERROR_INVALID, "metadata string: its checksum is not that of its %lld bytes",
                    (long long)(size - RS_SEAL));
  *reader = (rs_reader){at, at + RS_SEAL, at + size};
  return RESHARD_SUCCESS;
}

/* --- Metadata --------------------------------------------------------------------------------------------------- */

enum { HEAD_MOST = RESHARD_MAX_DIMS + 5, SHARD_MOST = 2 * RESHARD_MAX_DIMS + 3 };

static int head_numbers(const struct reshard_metadata_s *m, uint64_t out[HEAD_MOST]) {
  int n = 0;
  out[n++] = (uint64_t)m->ndim;
  out[n++] = (uint64_t)m->properties.dtype;
  out[n++] = (uint64_t)m->properties.memory_format;
  out[n++] = (uint64_t)m->properties.requires_grad | (uint64_t)m->properties.pin_memory << 1;
  for (int d = 0; d < m->ndim; d++)
    out[n++] = (uint64_t)m->shape[d];
  out[n++] = (uint64_t)m->n;
  return n;
}

static inline int shard_numbers(int ndim, const reshard_shard *s, uint64_t out[SHARD_MOST]) {
  for (int d = 0; d < ndim; d++) {
    out[d] = (uint64_t)s->box.offset[d];
    out[ndim + d] = (uint64_t)s->box.extent[d];
  }
  out[2 * ndim] = (uint64_t)s->placement.rank + 1;
  out[2 * ndim + 1] = (uint64_t)s->placement.type;
  out[2 * ndim + 2] = (uint64_t)((int64_t)s->placement.index + 1);
  return 2 * ndim + 3;
}

int64_t rs_metadata_size(const struct reshard_metadata_s *m) {
  uint64_t numbers[HEAD_MOST > SHARD_MOST ? HEAD_MOST : SHARD_MOST];
  int64_t size = 0;
  for (int i = 0, n = head_numbers(m, numbers); i < n; i++)
    size += rs_put_size(numbers[i]);
  for (int64_t s = 0; s < m->n; s++)
    for (int i = 0, n = shard_numbers(m->ndim, &m->shards[s], numbers); i < n; i++)
      size += rs_put_size(numbers[i]);
  return size;
}

char *rs_metadata_put(const struct reshard_metadata_s *m, char *at) {
  uint64_t numbers[HEAD_MOST > SHARD_MOST ? HEAD_MOST : SHARD_MOST];
  for (int i = 0, n = head_numbers(m, numbers); i < n; i++)
    at = rs_put(at, numbers[i]);
  for (int64_t s = 0; s < m->n; s++)
    for (int i = 0, n = shard_numbers(m->ndim, &m->shards[s], numbers); i < n; i++)
      at = rs_put(at, numbers[i]);
  return at;
}

reshard_status rs_take_head(rs_reader *r, rs_head *head) {
  int64_t ndim, dtype, format, flags;
  rs_head h = {0};
  RS_TRY(rs_take(r, "ndim", RESHARD_MAX_DIMS, &ndim));
  RS_TRY(rs_take(r, "dtype", RESHARD_DTYPE_COUNT - 1, &dtype));
  RS_TRY(rs_take(r, "memory format", RESHARD_MEMORY_PRESERVE, &format));
  RS_TRY(rs_take(r, "flags", 3, &flags));
  h.ndim = (int)ndim;
  h.properties = (reshard_properties){(reshard_dtype)dtype, (reshard_memory_format)format, flags & 1, (int)flags >> 1};
  for (int d = 0; d < h.ndim; d++)
    RS_TRY(rs_take(r, "shape", INT64_MAX, &h.shape[d]));
  uint64_t most = (uint64_t)((r->end - r->at) / (2 * ndim + 3)); /* room for so many; they are allocated */
  RS_TRY(rs_take(r, "number of shards", most, &h.n));
  *head = h;
  return RESHARD_SUCCESS;
}

reshard_status rs_take_shards(rs_reader *r, int ndim, int64_t n, reshard_shard *shards) {
  for (int64_t i = 0; i < n; i++) {
    reshard_shard *s = &shards[i];
    int64_t rank, type, index;
    for (int d = 0; d < ndim; d++)
      RS_TRY(rs_take(r, "offset", INT64_MAX, &s->box.offset[d]));
    for (int d = 0; d < ndim; d++)
      RS_TRY(rs_take(r, "size", INT64_MAX, &s->box.extent[d]));
    RS_TRY(rs_take(r, "rank", (uint64_t)INT64_MAX + 1, &rank));
    RS_TRY(rs_take(r, "device type", RESHARD_DEVICE_CUDA, &type));
    RS_TRY(rs_take(r, "device index", (uint64_t)INT_MAX + 1, &index));
    s->placement = (reshard_remote_device){(int64_t)((uint64_t)rank - 1), (reshard_device_type)type, (int)(index - 1)};
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_take_end(const rs_reader *r) {
  return r->at == r->end ? RESHARD_SUCCESS : error_damaged(r, "the end", "is expected here");
}

reshard_status reshard_metadata_serialize(reshard_metadata metadata, void *bytes, size_t size, size_t *needed) {
  if (metadata == NULL || (bytes == NULL && (size > 0 || needed == NULL)))
    return rs_error_null("reshard_metadata_serialize", metadata == NULL ? "metadata" : "bytes");
  int64_t body = rs_metadata_size(metadata);
  if (needed != NULL)
    *needed = (size_t)body + RS_SEAL;
  if (bytes == NULL)
    return RESHARD_SUCCESS;
  if (size < (size_t)body + RS_SEAL)
    return rs_error(RESHARD_ERROR_INVALID, "the metadata need %lld bytes, the buffer has %zu",
                    (long long)body + RS_SEAL, size);
  rs_metadata_put(metadata, (char *)bytes + RS_SEAL);
  rs_seal(RS_MAGIC_METADATA, bytes, body);
  return RESHARD_SUCCESS;
}

reshard_status reshard_metadata_deserialize(const void *bytes, size_t size, reshard_metadata *metadata) {
  RS_TRY(RS_GIVEN("reshard_metadata_deserialize", bytes, metadata));
  if (size > INT64_MAX)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_metadata_deserialize: %zu bytes", size);
  rs_reader reader;
  rs_head head;
  reshard_metadata made = NULL;
  RS_TRY(rs_unseal(RS_MAGIC_METADATA, bytes, (int64_t)size, &reader));
  RS_TRY(rs_take_head(&reader, &head));
  RS_TRY(rs_metadata_new(&head.properties, head.ndim, head.shape, head.n, &made));
  reshard_status status;
  RS_TRY_GOTO(status, rs_take_shards(&reader, head.ndim, head.n, made->shards), fail);
  RS_TRY_GOTO(status, rs_take_end(&reader), fail);
  RS_TRY_GOTO(status, rs_metadata_check_shards(made), fail);
  *metadata = made;
  return RESHARD_SUCCESS;
fail:
  reshard_metadata_release(made);
  return status;
}
