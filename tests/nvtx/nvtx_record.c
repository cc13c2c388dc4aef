/* The part of a tool for NVTX that ranges of a domain need: create it, register a name, push, pop; and, of the payload
 * extension, register a schema. */
#define _GNU_SOURCE
#define NVTX_NO_IMPL
#include "nvtx_record.h"

#include <nvtx3/nvToolsExt.h>
#ifdef RS_HAVE_NVTX_PAYLOAD
#include <nvtx3/nvToolsExtPayload.h>
#endif

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RANGES = 1 << 18, DEPTH = 32, NAMES = 256, DOMAINS = 16, SCHEMA = 77 };

static pthread_mutex_t record_lock = PTHREAD_MUTEX_INITIALIZER;
static nvtx_range ranges[RANGES];
static int range_domain[RANGES];
static int64_t nranges, nunbegun, clock_ticks;
static char domains[DOMAINS][48], names[NAMES][48];
static int64_t ndomains, nnames;
static _Thread_local int64_t stack[DEPTH];
static _Thread_local int depth;

/* Handles are places in the tables, from 1. */
static int64_t find_text(char (*texts)[48], int64_t *n, int64_t most, const char *text) {
  int64_t i = 0;
  pthread_mutex_lock(&record_lock);
  while (i < *n && strcmp(texts[i], text) != 0)
    i++;
  if (i == *n && *n < most)
    snprintf(texts[(*n)++], sizeof *texts, "%s", text);
  pthread_mutex_unlock(&record_lock);
  return i + 1;
}

static nvtxDomainHandle_t NVTX_API create_domain(const char *name) {
  return (nvtxDomainHandle_t)(intptr_t)find_text(domains, &ndomains, DOMAINS, name);
}

static nvtxStringHandle_t NVTX_API register_name(nvtxDomainHandle_t domain, const char *name) {
  (void)domain;
  return (nvtxStringHandle_t)(intptr_t)find_text(names, &nnames, NAMES, name);
}

static void read_payload(nvtx_range *r, const nvtxEventAttributes_t *event) {
  r->bytes = r->peers = r->round = r->tensors = -1;
  if (event->payloadType == NVTX_PAYLOAD_TYPE_INT64)
    r->bytes = event->payload.llValue;
#ifdef RS_HAVE_NVTX_PAYLOAD
  const nvtxPayloadData_t *data = (const nvtxPayloadData_t *)(uintptr_t)event->payload.ullValue;
  if (event->payloadType == NVTX_PAYLOAD_TYPE_EXT && event->reserved0 == 1 && data->schemaId == SCHEMA &&
      data->size == 4 * sizeof(int64_t)) {
    const int64_t *of = data->payload;
    r->schema = true;
    r->bytes = of[0], r->peers = of[1], r->round = of[2], r->tensors = of[3];
  }
#endif
}

static int NVTX_API push_range(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *event) {
  nvtx_range r = {.thread = gettid(), .parent = depth > 0 && depth <= DEPTH ? stack[depth - 1] : -1};
  r.registered = event->messageType == NVTX_MESSAGE_TYPE_REGISTERED;
  read_payload(&r, event);
  pthread_mutex_lock(&record_lock);
  snprintf(r.name, sizeof r.name, "%s",
           r.registered ? names[(intptr_t)event->message.registered - 1] : event->message.ascii);
  r.begin = ++clock_ticks;
  int64_t i = nranges < RANGES ? nranges++ : RANGES - 1;
  ranges[i] = r;
  range_domain[i] = (int)(intptr_t)domain;
  pthread_mutex_unlock(&record_lock);
  if (depth < DEPTH)
    stack[depth] = i;
  return depth++;
}

static int NVTX_API pop_range(nvtxDomainHandle_t domain) {
  (void)domain;
  pthread_mutex_lock(&record_lock);
  if (depth > 0 && --depth < DEPTH)
    ranges[stack[depth]].end = ++clock_ticks;
  else
    nunbegun++;
  pthread_mutex_unlock(&record_lock);
  return depth;
}

__attribute__((visibility("default"))) const nvtx_range *nvtx_recorded(const char *domain, int64_t *n,
                                                                       int64_t *unbegun) {
  static nvtx_range found[RANGES];
  int64_t which = find_text(domains, &ndomains, DOMAINS, domain);
  int64_t *moved = calloc(RANGES, sizeof *moved);
  *n = 0;
  pthread_mutex_lock(&record_lock);
  for (int64_t i = 0; i < nranges && moved != NULL; i++)
    if (range_domain[i] == which) {
      found[*n] = ranges[i];
      found[*n].parent = ranges[i].parent >= 0 ? moved[ranges[i].parent] : -1;
      moved[i] = (*n)++;
    }
  *unbegun = nunbegun;
  pthread_mutex_unlock(&record_lock);
  free(moved);
  return found;
}

/* --- How NVTX finds all this -------------------------------------------------------------------------------------- */

__attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get) {
  const NvtxExportTableCallbacks *callbacks = get(NVTX_ETID_CALLBACKS);
  NvtxFunctionTable table;
  unsigned int size = 0;
  if (callbacks == NULL || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) ||
      size <= NVTX_CBID_CORE2_DomainCreateA)
    return 0;
  *table[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)create_domain;
  *table[NVTX_CBID_CORE2_DomainRegisterStringA] = (NvtxFunctionPointer)register_name;
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)push_range;
  *table[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)pop_range;
  return 1;
}

#ifdef RS_HAVE_NVTX_PAYLOAD
static uint64_t NVTX_API register_schema(nvtxDomainHandle_t domain, const nvtxPayloadSchemaAttr_t *schema) {
  static const char *const fields[] = {"bytes", "peers", "round", "tensors"};
  (void)domain;
  bool right = schema->numEntries == 4 && schema->payloadStaticSize == 4 * sizeof(int64_t);
  for (size_t i = 0; right && i < 4; i++)
    right = schema->entries[i].type == NVTX_PAYLOAD_ENTRY_TYPE_INT64 && strcmp(schema->entries[i].name, fields[i]) == 0;
  return right ? SCHEMA : 0;
}

__attribute__((visibility("default"))) int InitializeInjectionNvtxExtension(nvtxExtModuleInfo_t *info) {
  if (info->moduleId != NVTX_EXT_PAYLOAD_MODULEID || info->segmentsCount < 1 ||
      info->segments[0].slotCount <= NVTX3EXT_CBID_nvtxPayloadSchemaRegister)
    return 0;
  info->segments[0].functionSlots[NVTX3EXT_CBID_nvtxPayloadSchemaRegister] = (intptr_t)register_schema;
  return 1;
}
#endif
