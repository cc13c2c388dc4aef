/* Steps of work go to a tracer, and with the ranges of all rooms to NVTX: domain `reshard`, registered names, and a
 * payload of bytes, peers, round and tensors.
 *
 * NVTX is headers alone. The first range looks whether the environment names a tool, and loads it. Without one there
 * are no ranges from then on; without the headers there are none at all. */
#include "device/trace.h"

void rs_trace_begin_work(rs_device *device, void *stream, const rs_trace_step *step) {
  if (device->tracer != NULL)
    device->tracer->begin(device->tracer, device, stream, step);
  (void)rs_range_begin(step->name, step->bytes, step->peers, step->round, -1);
}

void rs_trace_end_work(rs_device *device, void *stream) {
  rs_range_end(atomic_load_explicit(&rs_ranges, memory_order_acquire) != NULL);
  if (device->tracer != NULL)
    device->tracer->end(device->tracer, device, stream);
}

#ifdef RS_HAVE_NVTX
#include <nvtx3/nvToolsExt.h>
#ifdef RS_HAVE_NVTX_PAYLOAD
#include <nvtx3/nvToolsExtPayload.h>
#endif

#include <pthread.h>
#include <string.h>

enum { NAMES = 64 }; /* that are registered; a later one goes as a text */

typedef struct nvtx_name {
  _Atomic(const char *) ours;
  nvtxStringHandle_t handle;
} nvtx_name;

/* Set by the first range, of whichever thread. */
static _Atomic(nvtxDomainHandle_t) nvtx_domain;
static _Atomic uint64_t nvtx_schema; /* of rs_range_of; 0: the tool takes one number alone */
static nvtx_name nvtx_names[NAMES];
static atomic_int nvtx_named;

/* Names of calls and of a tracer's steps, as ranges have them. Other calls go without their prefix. */
static const char *shown_name(const char *ours) {
  static const char *const names[][2] = {{"reshard_transfer_create", "create"},
                                         {"reshard_transfer_rebind", "rebind"},
                                         {"reshard_execute_all", "execute"},
                                         {"reshard_state_save", "save"},
                                         {"reshard_state_load", "load"},
                                         {"move", "exchange"},
                                         {"round", "exchange"}};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strcmp(ours, names[i][0]) == 0)
      return names[i][1];
  return strncmp(ours, "reshard_", 8) == 0 ? ours + 8 : ours;
}

/* Finds a name by its address. Two threads may register one at once, which is the same handle twice. */
static nvtxStringHandle_t find_name(nvtxDomainHandle_t domain, const char *ours) {
  int n = atomic_load(&nvtx_named);
  for (int i = 0; i < n && i < NAMES; i++)
    if (atomic_load_explicit(&nvtx_names[i].ours, memory_order_acquire) == ours)
      return nvtx_names[i].handle;
  if (n >= NAMES || (n = atomic_fetch_add(&nvtx_named, 1)) >= NAMES)
    return NULL;
  nvtxStringHandle_t handle = nvtxDomainRegisterStringA(domain, shown_name(ours));
  nvtx_names[n].handle = handle;
  atomic_store_explicit(&nvtx_names[n].ours, ours, memory_order_release);
  return handle;
}

static bool nvtx_begin(const char *name, const rs_range_of *of) {
  nvtxDomainHandle_t domain = atomic_load(&nvtx_domain);
  nvtxEventAttributes_t event = {.version = NVTX_VERSION, .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE};
  nvtxStringHandle_t handle = find_name(domain, name);
  event.messageType = handle != NULL ? NVTX_MESSAGE_TYPE_REGISTERED : NVTX_MESSAGE_TYPE_ASCII;
  if (handle != NULL)
    event.message.registered = handle;
  else
    event.message.ascii = shown_name(name);
  event.payloadType = NVTX_PAYLOAD_TYPE_INT64;
  event.payload.llValue = of->bytes;
#ifdef RS_HAVE_NVTX_PAYLOAD
  nvtxPayloadData_t payload = {atomic_load(&nvtx_schema), sizeof *of, of};
  if (payload.schemaId != 0) {
    event.payloadType = NVTX_PAYLOAD_TYPE_EXT;
    event.payload.ullValue = (uint64_t)(uintptr_t)&payload;
    event.reserved0 = 1; /* payloads */
  }
#endif
  (void)nvtxDomainRangePushEx(domain, &event);
  return true;
}

static void nvtx_end(void) { (void)nvtxDomainRangePop(atomic_load(&nvtx_domain)); }
static const rs_range_tool nvtx_tool = {nvtx_begin, nvtx_end};

static uint64_t register_schema(nvtxDomainHandle_t domain) {
#ifdef RS_HAVE_NVTX_PAYLOAD
  static const nvtxPayloadSchemaEntry_t entries[] = {{.type = NVTX_PAYLOAD_ENTRY_TYPE_INT64, .name = "bytes"},
                                                     {.type = NVTX_PAYLOAD_ENTRY_TYPE_INT64, .name = "peers"},
                                                     {.type = NVTX_PAYLOAD_ENTRY_TYPE_INT64, .name = "round"},
                                                     {.type = NVTX_PAYLOAD_ENTRY_TYPE_INT64, .name = "tensors"}};
  nvtxPayloadSchemaAttr_t schema = {.name = "reshard",
                                    .type = NVTX_PAYLOAD_SCHEMA_TYPE_STATIC,
                                    .entries = entries,
                                    .numEntries = sizeof entries / sizeof *entries,
                                    .payloadStaticSize = sizeof(rs_range_of)};
  schema.fieldMask = NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_NAME | NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_TYPE |
                     NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_ENTRIES | NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_NUM_ENTRIES |
                     NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_STATIC_SIZE;
  return nvtxPayloadSchemaRegister(domain, &schema);
#else
  (void)domain;
  return 0;
#endif
}

/* NVTX looks for a tool. A domain is NULL where there is none. */
static void open_nvtx(void) {
  nvtxDomainHandle_t domain = nvtxDomainCreateA("reshard");
  if (domain != NULL) {
    atomic_store(&nvtx_schema, register_schema(domain));
    atomic_store(&nvtx_domain, domain);
  }
  atomic_store(&rs_ranges, domain != NULL ? &nvtx_tool : NULL);
}

/* The first range of any thread, and those of others at the same time. */
static bool nvtx_start(const char *name, const rs_range_of *of) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  (void)pthread_once(&once, open_nvtx);
  return atomic_load(&nvtx_domain) != NULL && nvtx_begin(name, of);
}

static const rs_range_tool nvtx_first = {nvtx_start, nvtx_end};
__attribute__((constructor)) static void offer_nvtx(void) { atomic_store(&rs_ranges, &nvtx_first); }
#endif
