/* Finding libnccl. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* dladdr, RTLD_DEFAULT */
#endif
#include "comm/nccl/load.h"

#include <dlfcn.h>
#include <string.h>

#define LIBNCCL "libnccl.so.2"

enum { STAY = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE };

static const char *last_dl_error(void) {
  const char *text = dlerror();
  return text != NULL ? text : "no reason is given";
}

/* The object that has the code at an address. A program that is linked at fixed addresses has an entry of its own for a
 * function of a library: that program, and what it was linked with, are searched then. */
static void *open_object(const void *code) {
  Dl_info info;
  void *handle = NULL;
  if (dladdr(code, &info) != 0 && info.dli_fname != NULL)
    handle = dlopen(info.dli_fname, STAY | RTLD_NOLOAD);
  return handle != NULL ? handle : dlopen(NULL, STAY);
}

static void *open_library(void (*of)(void)) {
  void *code = NULL, *handle;
  if (of != NULL)
    memcpy(&code, &of, sizeof code);
  else
    code = dlsym(RTLD_DEFAULT, "ncclGetVersion");
  if (code != NULL)
    return open_object(code);
  handle = dlopen(LIBNCCL, STAY | RTLD_NOLOAD);
  return handle != NULL ? handle : dlopen(LIBNCCL, STAY);
}

/* The result of dlsym is a pointer to data, which C does not convert. */
static bool find_call(void *handle, const char *name, void *call) {
  void *at = dlsym(handle, name);
  memcpy(call, &at, sizeof at);
  return at != NULL;
}

static reshard_status find_calls(void *handle, rs_nccl_api *api) {
  if (!find_call(handle, "ncclGetVersion", &api->ncclGetVersion))
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "NCCL cannot be used: %s", last_dl_error());
  if (api->ncclGetVersion(&api->version) != ncclSuccess || api->version < NCCL_VERSION(2, 18, 0))
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "the NCCL that is loaded has version code %d; 2.18 (%d) is needed",
                    api->version, NCCL_VERSION(2, 18, 0));
#define RS_NCCL_CALL(name) \
  if (!find_call(handle, #name, &api->name)) \
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "NCCL of version code %d cannot be used: %s", api->version, \
                    last_dl_error());
  RS_NCCL_CALLS(RS_NCCL_CALL)
#undef RS_NCCL_CALL
  (void)find_call(handle, "ncclCommShrink", &api->ncclCommShrink);
  (void)find_call(handle, "ncclCommRevoke", &api->ncclCommRevoke);
  (void)find_call(handle, "ncclAlltoAll", &api->ncclAlltoAll);
  return RESHARD_SUCCESS;
}

reshard_status rs_nccl_load(void (*of)(void), rs_nccl_api *api) {
  rs_nccl_api found = {.version = 0};
  void *handle = open_library(of);
  if (handle == NULL)
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "NCCL cannot be loaded: %s", last_dl_error());
  reshard_status status = find_calls(handle, &found);
  (void)dlclose(handle); /* it stays */
  if (status == RESHARD_SUCCESS)
    *api = found;
  return status;
}
