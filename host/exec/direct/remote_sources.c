/* A rank tells of its sources in a string: the memory that they lie in, the place of each buffer, and strides
 * where it has any. No destination is in it, for each rank writes its own alone. */
#include "exec/direct/peers.h"

#include "device/cpu/segment.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* --- Where sources are -------------------------------------------------------------------------------------------- */

typedef struct source_header {
  int64_t segments, buffers;
  int64_t strided; /* 1: lists of strides follow the buffers, RESHARD_MAX_DIMS each */
  int64_t live;    /* numbers behind them: rs_peer_list.live */
  int64_t flags;   /* 1: the first segment has the flags of a barrier of GPUs */
  int64_t inside;  /* their place in it */
} source_header;

typedef struct rs_source_buffer {
  int64_t segment; /* -1: the rank holds nothing in the buffer */
  int64_t inside;
  int64_t strided; /* 0: contiguous */
} rs_source_buffer;

static reshard_status describe_buffer(rs_device *device, bool malloced, const rs_extent *x, rs_source_buffer *buffer,
                                      bool *shared, rs_sources *s) {
  rs_source_memory found = {.place = {0, 0}};
  int64_t inside, i = s->segments.n - 1;
  if (device->processes == NULL)
    *shared = rs_shared_find(x->begin, x->end, &found.place, &inside);
  else
    RS_TRY(device->processes->find(device, x->begin, x->end, &found.exported, &inside, shared));
  bool of_malloc = *shared && device->processes != NULL && !found.exported.by_file;
  s->of_malloc |= of_malloc && malloced;
  *shared = *shared && (malloced || !of_malloc);
  if (!*shared)
    return RESHARD_SUCCESS;
  while (i >= 0 && (s->segments.at[i].place.offset != found.place.offset ||
                    s->segments.at[i].exported.number != found.exported.number))
    i--;
  if (i < 0) {
    RS_TRY(rs_vec_reserve(&s->segments, s->segments.n + 1));
    i = s->segments.n++;
    s->segments.at[i] = found;
    s->version = rs_hash(s->version, &found.exported.number, sizeof found.exported.number) | 1;
  }
  buffer->segment = i;
  buffer->inside = inside + (x->at - x->begin);
  return RESHARD_SUCCESS;
}

reshard_status rs_sources_describe(rs_device *device, const struct reshard_plan_s *plan, const rs_arrays *arrays,
                                   bool malloced, rs_sources *s) {
  rs_extents extents = {0};
  *s = (rs_sources){.private_entry = -1, .version = 1};
  reshard_status status = rs_alloc(&s->buffers, plan->nsrc, sizeof *s->buffers);
  for (int64_t i = 0; i < plan->nsrc && status == RESHARD_SUCCESS; i++)
    s->buffers[i] =
        (rs_source_buffer){.segment = -1, .strided = arrays->src_strides != NULL && arrays->src_strides[i] != NULL};
  RS_THEN(status, rs_arrays_sources(plan, arrays, &extents));
  for (int64_t i = 0; i < extents.n && status == RESHARD_SUCCESS && s->private_entry < 0; i++) {
    const rs_extent *x = &extents.at[i];
    rs_source_buffer *buffer = &s->buffers[plan->entries[x->entry].src_buffer + x->buffer];
    bool shared = true;
    if (x->begin < x->end)
      status = describe_buffer(device, malloced, x, buffer, &shared, s);
    s->private_entry = shared ? -1 : x->entry;
  }
  free(extents.at);
  if (status != RESHARD_SUCCESS)
    rs_sources_free(s);
  return status;
}

void rs_sources_free(rs_sources *s) {
  free(s->segments.at);
  free(s->buffers);
  *s = (rs_sources){.buffers = NULL};
}

reshard_status rs_sources_version(reshard_comm comm, const struct reshard_plan_s *plan, const rs_arrays *arrays,
                                  uint64_t *version) {
  rs_sources s;
  *version = 0;
  RS_TRY(rs_sources_describe(comm->device, plan, arrays, false, &s));
  *version = s.private_entry < 0 ? s.version : 0;
  rs_sources_free(&s);
  return RESHARD_SUCCESS;
}

static void put_bytes(char **at, const void *bytes, size_t size) {
  if (size > 0)
    memcpy(*at, bytes, size);
  *at += size;
}

/* A segment with the flags of a barrier is before those of the sources. */
reshard_status rs_remote_sources_write(reshard_comm comm, const struct reshard_plan_s *plan, const rs_arrays *arrays,
                                       const rs_sources *sources, const rs_shared_flags *flags, char **bytes,
                                       int64_t *size) {
  int64_t own = flags != NULL, nlive = 0;
  char *made = NULL;
  uint64_t *live = NULL;
  if (comm->device->processes != NULL)
    RS_TRY(rs_peers_prepare(comm, sources->segments.n + own, &live, &nlive));
  bool strided = arrays->src_strides != NULL;
  const source_header header = {own + sources->segments.n, plan->nsrc, strided, nlive, own, own ? flags->inside : 0};
  const size_t row = RESHARD_MAX_DIMS * sizeof(int64_t);
  *size =
      (int64_t)(sizeof header + (size_t)header.segments * sizeof(rs_source_memory) +
                (size_t)plan->nsrc * (sizeof(rs_source_buffer) + (strided ? row : 0)) + (size_t)nlive * sizeof *live);
  reshard_status status = rs_alloc_zero(&made, *size, 1);
  if (status == RESHARD_SUCCESS) {
    char *at = made;
    put_bytes(&at, &header, sizeof header);
    if (own)
      put_bytes(&at, &(rs_source_memory){.exported = flags->memory}, sizeof(rs_source_memory));
    put_bytes(&at, sources->segments.at, (size_t)sources->segments.n * sizeof(rs_source_memory));
    for (int64_t i = 0; i < plan->nsrc; i++) {
      rs_source_buffer b = sources->buffers[i];
      b.segment += b.segment >= 0 ? own : 0;
      put_bytes(&at, &b, sizeof b);
    }
    for (int64_t i = 0; i < plan->nsrc && strided; i++, at += row)
      if (sources->buffers[i].strided) /* as many as the copy has */
        memcpy(at, arrays->src_strides[i], row);
    put_bytes(&at, live, (size_t)nlive * sizeof *live);
    *bytes = made;
  }
  free(live);
  return status;
}

/* --- Mappings of a binding ---------------------------------------------------------------------------------------- */

typedef struct mapping {
  int64_t rank;
  rs_source_memory memory;
  void *opened; /* of a GPU */
} mapping;

struct rs_mappings {
  reshard_comm comm;
  RS_VEC(mapping) list;
};

reshard_status rs_mappings_create(reshard_comm comm, rs_mappings **mappings) {
  RS_TRY(rs_alloc_zero(mappings, 1, sizeof **mappings));
  (*mappings)->comm = comm;
  return RESHARD_SUCCESS;
}

static void unmap_one(reshard_comm comm, const mapping *m) {
  if (comm->device->processes == NULL)
    rs_import_unmap(comm->memory.imports[m->rank], &m->memory.place);
  else if (m->memory.exported.by_file)
    rs_peers_close(comm, m->rank, m->memory.exported.number);
  else
    comm->device->processes->close(comm->device, &m->memory.exported, m->opened);
}

void rs_mappings_free(rs_mappings *m) {
  if (m == NULL)
    return;
  for (int64_t i = 0; i < m->list.n; i++)
    unmap_one(m->comm, &m->list.at[i]);
  free(m->list.at);
  free(m);
}

bool rs_mappings_freed(const rs_mappings *m) {
  for (int64_t i = 0; m != NULL && i < m->list.n; i++)
    if (m->list.at[i].memory.exported.by_file &&
        rs_peers_is_gone(m->comm, m->list.at[i].rank, m->list.at[i].memory.exported.number))
      return true;
  return false;
}

static reshard_status map_one(rs_mappings *m, int64_t rank, const rs_source_memory *memory, const char **at) {
  rs_device *device = m->comm->device;
  void *opened = NULL;
  RS_TRY(rs_vec_reserve(&m->list, m->list.n + 1));
  if (device->processes == NULL)
    RS_TRY(rs_import_map(m->comm->memory.imports[rank], &memory->place, at));
  else if (memory->exported.by_file)
    RS_TRY(rs_peers_open(m->comm, rank, &memory->exported, &opened));
  else
    RS_TRY(device->processes->open(device, &memory->exported, -1, &opened));
  if (opened != NULL)
    *at = opened;
  m->list.at[m->list.n++] = (mapping){rank, *memory, opened};
  return RESHARD_SUCCESS;
}

/* --- Descriptors of other processes ------------------------------------------------------------------------------- */

/* A descriptor with all that it points to. */
typedef struct remote_descriptor {
  rs_descriptor descriptor;
  rs_arrays arrays;
  int64_t *first;
} remote_descriptor;

void rs_remote_sources_free(const rs_descriptor *descriptor) {
  remote_descriptor *f = (remote_descriptor *)descriptor;
  if (f == NULL)
    return;
  rs_arrays_free(&f->arrays);
  free(f->first);
  free(f);
}

/* Places of a string's parts, checked against its length. */
typedef struct source_parts {
  source_header header;
  const char *segments, *buffers, *strides, *live;
} source_parts;

static reshard_status split_string(int64_t rank, const char *bytes, int64_t size, int64_t buffers, source_parts *p) {
  int64_t row = RESHARD_MAX_DIMS * (int64_t)sizeof(int64_t), needed = (int64_t)sizeof p->header;
  if (size >= needed) {
    memcpy(&p->header, bytes, sizeof p->header);
    p->segments = bytes + sizeof p->header;
    p->buffers = p->segments + p->header.segments * (int64_t)sizeof(rs_source_memory);
    p->strides = p->buffers + p->header.buffers * (int64_t)sizeof(rs_source_buffer);
    p->live = p->strides + p->header.strided * p->header.buffers * row;
    needed = p->live - bytes + p->header.live * (int64_t)sizeof(uint64_t);
  }
  if (size == needed && p->header.buffers == buffers)
    return RESHARD_SUCCESS;
  return rs_error(RESHARD_ERROR_MISMATCH, "rank %lld tells of its sources in %lld bytes, and has %lld of them",
                  (long long)rank, (long long)size, (long long)buffers);
}

/* Source buffers of each entry on another rank. */
static void count_buffers(const struct reshard_plan_s *plan, int64_t rank, int64_t *first, int64_t *total) {
  *total = 0;
  for (int64_t e = 0; e < plan->ngiven; e++) {
    first[e] = *total;
    *total += rs_class_buffers(&plan->classes.at[plan->entries[e].class_], true, rank);
  }
  for (int64_t e = plan->ngiven; e < plan->nentries; e++)
    first[e] = first[plan->entries[e].of];
}

static rs_source_buffer read_buffer(const source_parts *p, int64_t i) {
  rs_source_buffer b;
  memcpy(&b, p->buffers + i * (int64_t)sizeof b, sizeof b);
  return b;
}

/* The error of a segment that could not be mapped, with the tensor of its first buffer; the flags of a barrier have
 * none. */
static reshard_status refuse_segment(reshard_status status, const remote_descriptor *f, const source_parts *p,
                                     int64_t segment) {
  const struct reshard_plan_s *plan = f->descriptor.plan;
  int64_t i = 0, e = plan->ngiven - 1;
  while (i < p->header.buffers && read_buffer(p, i).segment != segment)
    i++;
  if (i == p->header.buffers)
    return status;
  while (f->first[e] > i)
    e--;
  return rs_error(status, "rank %lld has a source of entry %lld '%.64s': %s", (long long)f->descriptor.rank,
                  (long long)e, plan->entries[e].name, reshard_last_error());
}

/* Maps what a rank tells of, and lists its arrays at their addresses here. */
static reshard_status fill_arrays(const source_parts *p, rs_mappings *m, const char **segments, remote_descriptor *f) {
  rs_arrays *arrays = &f->arrays;
  int64_t n = p->header.buffers;
  for (int64_t i = 0; i < p->header.segments; i++) {
    rs_source_memory memory;
    memcpy(&memory, p->segments + i * (int64_t)sizeof memory, sizeof memory);
    reshard_status status = map_one(m, f->descriptor.rank, &memory, &segments[i]);
    if (status != RESHARD_SUCCESS)
      return refuse_segment(status, f, p, i);
  }
  RS_TRY(rs_alloc_zero(&arrays->src, n, sizeof *arrays->src));
  if (p->header.strided) {
    RS_TRY(rs_alloc_zero((void *)&arrays->src_strides, n, sizeof *arrays->src_strides));
    RS_TRY(rs_alloc(&arrays->stride_values, n * RESHARD_MAX_DIMS, sizeof(int64_t)));
    memcpy(arrays->stride_values, p->strides, (size_t)n * RESHARD_MAX_DIMS * sizeof(int64_t));
  }
  for (int64_t i = 0; i < n; i++) {
    const rs_source_buffer b = read_buffer(p, i);
    if (b.segment < 0)
      continue;
    arrays->src[i] = (char *)segments[b.segment] + b.inside; /* read only */
    if (b.strided)
      arrays->src_strides[i] = arrays->stride_values + i * RESHARD_MAX_DIMS;
  }
  return RESHARD_SUCCESS;
}

bool rs_remote_sources_list(const char *bytes, int64_t size, rs_peer_list *list) {
  source_header header;
  *list = (rs_peer_list){.stride = sizeof(rs_source_memory)};
  if (size < (int64_t)sizeof header)
    return false;
  memcpy(&header, bytes, sizeof header);
  list->memory = bytes + sizeof header + offsetof(rs_source_memory, exported);
  list->n = header.segments;
  list->live = bytes + size - header.live * (int64_t)sizeof(uint64_t);
  list->nlive = header.live;
  list->nflags = header.flags;
  return true;
}

reshard_status rs_remote_sources_read(const struct reshard_plan_s *plan, int64_t rank, const char *bytes, int64_t size,
                                      rs_mappings *m, const rs_descriptor **descriptor) {
  remote_descriptor *f;
  source_parts parts = {.segments = NULL};
  int64_t buffers;
  const char **segments = NULL;
  RS_TRY(rs_alloc_zero(&f, 1, sizeof *f));
  *descriptor = &f->descriptor; /* from here on the caller frees it */
  RS_TRY(rs_alloc(&f->first, plan->nentries, sizeof *f->first));
  f->descriptor = (rs_descriptor){rank, plan, &f->arrays, f->first};
  count_buffers(plan, rank, f->first, &buffers);
  RS_TRY(split_string(rank, bytes, size, buffers, &parts));
  RS_TRY(rs_alloc((void *)&segments, parts.header.segments, sizeof *segments));
  reshard_status status = fill_arrays(&parts, m, segments, f);
  free(segments);
  return status;
}

reshard_status rs_remote_flags_open(int64_t rank, const char *bytes, rs_mappings *m, void **flags) {
  source_header header;
  rs_source_memory memory;
  const char *at;
  memcpy(&header, bytes, sizeof header);
  if (header.flags == 0)
    return rs_error(RESHARD_ERROR_MISMATCH, "rank %lld tells of no flags to meet by", (long long)rank);
  memcpy(&memory, bytes + sizeof header, sizeof memory);
  RS_TRY(map_one(m, rank, &memory, &at));
  *flags = (char *)at + header.inside;
  return RESHARD_SUCCESS;
}
