/* Inside of modules, and of collective calls over the tensors of one. */
#ifndef RS_MODULE_MODULE_H
#define RS_MODULE_MODULE_H

#include "comm/comm.h"
#include "file/ground/names.h"
#include "tensor/tensor.h"

#include <reshard/sync.h>

typedef enum rs_member_kind { RS_MEMBER_CHILD, RS_MEMBER_PARAMETER, RS_MEMBER_BUFFER } rs_member_kind;

typedef struct rs_member {
  char *name; /* owned */
  rs_member_kind kind;
  reshard_module child;  /* retained; of a child */
  reshard_tensor tensor; /* retained; of the others */
} rs_member;

struct reshard_module_s {
  atomic_int references;
  atomic_bool contained; /* was a child once: may be inside of others */
  reshard_module next;   /* of those that are being freed */
  RS_VEC(rs_member) members;
  rs_names names; /* by the number of the member */
};

/* A list of tensors as the ranks of a collective call have it, and other arguments that have to be equal. */
typedef struct rs_listed {
  const char *call;
  int64_t n;
  const reshard_tensor *tensors;
  const char *const *names; /* NULL: none */
  bool strides;             /* compared, too */
  int64_t src, bucket, path;
  bool moved; /* what this rank keeps of its last call does not suit where its tensors are */
} rs_listed;
/* Checks that no tensor is NULL. Local. */
reshard_status rs_listed_check(const rs_listed *listed);
/* Collective. mine: status of the rank's earlier steps, its text the last error; unless it is success, the rest of
 * listed is not read. All ranks succeed or have the same error, as reshard_verify_shapes. Nothing is allocated.
 * *moved: that of any rank. */
reshard_status rs_listed_compare(reshard_comm comm, const rs_listed *listed, reshard_status mine, bool *moved);

/* As reshard_sync_tensors, for a rank that may have failed before. */
reshard_status rs_sync(reshard_comm comm, const rs_listed *listed, reshard_status mine,
                       const reshard_sync_options *options, void *stream, reshard_sync_report *report);

#endif
