/* One rank's module to all: its tensors, by name, as a list. */
#include "module/module.h"

#include <stdlib.h>
#include <string.h>

typedef struct states {
  RS_VEC(reshard_tensor) tensors; /* borrowed from the module */
  RS_VEC(int64_t) first;          /* of each tensor's name in text */
  RS_VEC(char) text;              /* names, NUL-terminated, one after the other */
  const char **names;             /* once all are known: the text may move before that */
} states;

static reshard_status add_tensor(void *user, const char *name, reshard_tensor tensor) {
  states *s = user;
  RS_TRY(rs_vec_push(&s->first, s->text.n));
  RS_TRY(rs_vec_append(&s->text, name, strlen(name) + 1));
  return rs_vec_push(&s->tensors, tensor);
}

static reshard_status collect_tensors(reshard_module module, const reshard_module_selection *selection, states *s) {
  RS_TRY(reshard_module_visit_states(module, selection, add_tensor, s));
  RS_TRY(rs_alloc((void *)&s->names, s->tensors.n, sizeof *s->names));
  for (int64_t i = 0; i < s->tensors.n; i++)
    s->names[i] = s->text.at + s->first.at[i];
  return RESHARD_SUCCESS;
}

reshard_status reshard_sync_module_states(reshard_comm comm, int64_t src, reshard_module module,
                                          const reshard_module_selection *selection,
                                          const reshard_sync_options *options, void *stream,
                                          reshard_sync_report *report) {
  static const char call[] = "reshard_sync_module_states";
  RS_TRY(RS_GIVEN(call, comm));
  RS_CALL(comm, 0);
  states s = {0};
  reshard_status mine = module == NULL ? rs_error_null(call, "module") : collect_tensors(module, selection, &s);
  const rs_listed listed = {.call = call, .n = s.tensors.n, .tensors = s.tensors.at, .names = s.names, .src = src};
  reshard_status status = rs_sync(comm, &listed, mine, options, stream, report);
  free(s.tensors.at);
  free(s.first.at);
  free(s.text.at);
  free(s.names);
  return status;
}
