/* libnccl, loaded at run time: the library neither links it nor needs it, and a caller's communicator is served by the
 * very libnccl that made it. */
#ifndef RS_COMM_NCCL_LOAD_H
#define RS_COMM_NCCL_LOAD_H

#include "base/base.h"

#include <nccl.h>

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 18, 0)
#error "nccl.h of NCCL 2.18 or later is needed, for ncclCommSplit; RESHARD_NCCL=OFF builds without it"
#endif

/* Constants of calls that came later than a header may be. */
#ifndef NCCL_SHRINK_ABORT
#define NCCL_SHRINK_DEFAULT 0x00
#define NCCL_SHRINK_ABORT   0x01
#endif
#ifndef NCCL_REVOKE_DEFAULT
#define NCCL_REVOKE_DEFAULT 0x00
#endif

/* Calls that NCCL has since 2.18. */
#define RS_NCCL_CALLS(X) \
  X(ncclGetVersion) \
  X(ncclGetErrorString) \
  X(ncclGetLastError) \
  X(ncclGetUniqueId) \
  X(ncclCommInitRankConfig) \
  X(ncclCommSplit) \
  X(ncclCommFinalize) \
  X(ncclCommDestroy) \
  X(ncclCommAbort) \
  X(ncclCommGetAsyncError) \
  X(ncclCommCount) \
  X(ncclCommUserRank) \
  X(ncclCommCuDevice) \
  X(ncclGroupStart) \
  X(ncclGroupEnd) \
  X(ncclSend) \
  X(ncclRecv) \
  X(ncclAllGather) \
  X(ncclBroadcast)

/* Calls of one libnccl, which stays loaded until the process ends: NCCL has threads of its own. */
typedef struct rs_nccl_api {
#define RS_NCCL_CALL(name) __typeof__(name) *name;
  RS_NCCL_CALLS(RS_NCCL_CALL)
#undef RS_NCCL_CALL
  /* Later ones; NULL where it is older. */
  ncclResult_t (*ncclCommShrink)(ncclComm_t, int *, int, ncclComm_t *, ncclConfig_t *, int);            /* 2.27 */
  ncclResult_t (*ncclCommRevoke)(ncclComm_t, int);                                                      /* 2.28 */
  ncclResult_t (*ncclAlltoAll)(const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t); /* 2.28 */
  int version; /* 22809 is 2.28.9 */
} rs_nccl_api;

/* Finds the libnccl that has the function `of`, its ncclGetVersion. NULL: the one that the program's own calls go to,
 * else one that is loaded, else libnccl.so.2 by its name. RESHARD_ERROR_UNSUPPORTED: there is none, or it is older than
 * 2.18. */
reshard_status rs_nccl_load(void (*of)(void), rs_nccl_api *api);

#endif
