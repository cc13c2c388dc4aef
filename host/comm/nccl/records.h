/* Records of the ranks of an NCCL communicator. */
#ifndef RS_COMM_NCCL_RECORDS_H
#define RS_COMM_NCCL_RECORDS_H

#include "comm/nccl/nccl.h"

/* As rs_comm_allgather. */
reshard_status rs_nccl_allgather(reshard_comm comm, const void *mine, size_t bytes, const void **all);
/* Records the event that comes after all that the stream of records was given. */
reshard_status rs_nccl_record_gathered(rs_nccl *c);
/* As rs_nccl_end_after_error. The caller's NCCL may launch yet what it was handed: what it takes up in a moment an
 * event comes after, as ever. */
reshard_status rs_nccl_end_handed(rs_nccl *c, reshard_status status);

#endif
