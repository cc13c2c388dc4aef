#include "fault_local.h"
#include "support/fixtures/case.h"

#include <string.h>

#define UNTOUCHED INT64_C(0x7ead7ead7ead7ead)

reshard_status fault_status(fault_kind kind) {
  return kind == FAULT_THREAD   ? RESHARD_ERROR_SYSTEM
         : kind == FAULT_MEMORY ? RESHARD_ERROR_OUT_OF_MEMORY
                                : RESHARD_SUCCESS;
}

/* A call without a fault. */
static void call_well(const fault_local *p, int64_t k) {
  int64_t live = fault_live();
  fault_output out = {.number = UNTOUCHED};
  reshard_status status = p->call(&out, p->with);
  if (status != RESHARD_SUCCESS)
    fail_msg("%s, after allocation %lld failed: %s", p->name, (long long)k, reshard_last_error());
  if (!p->good(&out, p->with))
    fail_msg("%s, after allocation %lld failed: wrong", p->name, (long long)k);
  if (p->drop != NULL)
    p->drop(&out);
  if (fault_live() != live)
    fail_msg("%s: %lld blocks leak", p->name, (long long)(fault_live() - live));
}

int64_t fault_local_run(const fault_local *p) {
  for (int64_t k = 0;; k++) {
    int64_t live = fault_live();
    fault_output out = {.number = UNTOUCHED};
    fault_mark(true);
    fault_arm(k);
    reshard_status status = p->call(&out, p->with);
    int64_t made = fault_disarm();
    fault_mark(false);
    fault_kind kind = fault_fired();
    if (status != fault_status(kind))
      fail_msg("%s, allocation %lld fails: %s: %s", p->name, (long long)k, reshard_status_string(status),
               reshard_last_error());
    if (kind == FAULT_NONE) {
      if (!p->good(&out, p->with))
        fail_msg("%s: wrong", p->name);
      if (p->drop != NULL)
        p->drop(&out);
    } else {
      if (out.number != UNTOUCHED)
        fail_msg("%s, allocation %lld fails: the output was written to", p->name, (long long)k);
      if (strlen(reshard_last_error()) == 0)
        fail_msg("%s, allocation %lld fails: no text", p->name, (long long)k);
    }
    if (fault_live() != live)
      fail_msg("%s, allocation %lld fails: %lld blocks leak", p->name, (long long)k, (long long)(fault_live() - live));
    if (kind == FAULT_NONE)
      return made;
    call_well(p, k);
  }
}

bool fault_any_output(const fault_output *out, const void *with) {
  (void)out, (void)with;
  return true;
}
