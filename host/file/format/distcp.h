/* The .metadata of a .distcp directory: tensors, their chunks, and the places of these. */
#ifndef RS_FILE_DISTCP_METADATA_H
#define RS_FILE_DISTCP_METADATA_H

#include "file/format/pickle.h"
#include "file/ground/names.h"
#include "file/model/model.h"

/* Bytes of a file in which a chunk was saved. */
typedef struct rs_distcp_place {
  int64_t path; /* in rs_distcp.paths */
  int64_t offset, length;
} rs_distcp_place;

/* A box of a tensor. */
typedef struct rs_distcp_chunk {
  int64_t tensor, place; /* place -1: of a chunk without elements */
  reshard_box box;
  bool empty;
} rs_distcp_chunk;

/* Leaves that are no tensors, in an archive of torch.save. */
typedef struct rs_distcp_leaves {
  int64_t name, place; /* the name is a value of the pickle; place -1: of none */
} rs_distcp_leaves;

typedef struct rs_distcp {
  const char *where; /* "file 'dir/.metadata'" */
  char *text;        /* owned */
  rs_pickle pickle;
  reshard_model model;            /* names, dtypes and shapes of tensors, in the order of the metadata */
  RS_VEC(rs_distcp_chunk) chunks; /* tensor by tensor */
  RS_VEC(rs_distcp_place) places;
  rs_names paths; /* of files: texts in the pickle, without a NUL behind them */
  RS_VEC(rs_distcp_leaves) leaves;
} rs_distcp;

/* Reads the text of .metadata. The caller frees it, also after an error.
 * Errors: RESHARD_ERROR_INVALID: those of rs_pickle_read; what is no metadata of a checkpoint; names of more than 4096
 * bytes, and of files of more than 255; chunks beyond their tensor or without a place.
 * RESHARD_ERROR_UNSUPPORTED: data that was transformed. */
reshard_status rs_distcp_read(rs_distcp *distcp, int64_t size);
/* PyTorch writes each chunk behind the one before, shared tensors and equal ones too. So all chunks together take no
 * more than the files have. Errors: RESHARD_ERROR_INVALID naming the file of two places that overlap. */
reshard_status rs_distcp_check_overlap(const rs_distcp *distcp);
void rs_distcp_free(rs_distcp *distcp);

#endif
