/* Archives of torch.save: a zip of a pickle, data.pkl, and of the storages that its tensors name, data/KEY. */
#ifndef RS_FILE_TORCH_H
#define RS_FILE_TORCH_H

#include "file/format/pickle.h"
#include "file/format/zip.h"
#include "file/model/model.h"

typedef struct rs_torch {
  rs_zip zip;
  char *text; /* of data.pkl */
  rs_pickle pickle;
} rs_torch;

typedef struct rs_torch_tensor {
  reshard_dtype dtype;        /* NONE: one that this library does not know; one dim of the bytes of its storage */
  uint8_t packed;             /* as in rs_model_tensor */
  char unknown[RS_QUOTE / 2]; /* name of that dtype; of interest where dtype is NONE */
  int ndim;
  int64_t shape[RESHARD_MAX_DIMS];
  int64_t offset; /* of its first element, in the file */
  bool reversed;  /* Fortran order; else row-major. Tensors of at most one element, and empty ones, are row-major */
} rs_torch_tensor;

/* First bytes of what torch.save writes, and of what it wrote before it wrote zips. */
#define RS_ZIP_MAGIC       "PK\3\4"
#define RS_TORCH_OLD_MAGIC "\x80\x02\x8a\x0al\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"

/* Reads directory and pickle of an archive in bytes [offset, offset + length) of a file. What is a file with a header
 * of safetensors there is refused by name. where and file must live as long as it does. The caller frees it, also after
 * an error. limit: bytes of the directory, and of data.pkl.
 * Errors: those of rs_zip_open and rs_pickle_read; RESHARD_ERROR_INVALID when data.pkl is missing or longer than limit;
 * RESHARD_ERROR_UNSUPPORTED for a TorchScript program, and for big-endian data. */
reshard_status rs_torch_open(const char *where, const rs_file *file, int64_t offset, int64_t length, int64_t limit,
                             rs_torch *torch);
void rs_torch_free(rs_torch *torch);

/* True for a tensor or a parameter, also of a kind that is not read. */
bool rs_torch_is_tensor(const rs_torch *torch, int64_t value);
/* State of a tensor beside its values, such as attributes of its own; -1: none. */
int64_t rs_torch_attributes(const rs_torch *torch, int64_t value);
/* Finds a tensor's bytes. name: of the tensor, for errors, quoted already. Errors: RESHARD_ERROR_INVALID when it does
 * not fit its storage. RESHARD_ERROR_UNSUPPORTED for tensors that are sparse, quantized, of a subclass, conjugated, or
 * strided otherwise than row-major and Fortran; the text says what makes them plain in Python. */
reshard_status rs_torch_tensor_read(const rs_torch *torch, const char *name, int64_t value, rs_torch_tensor *tensor);

/* Sets dtype, packed and unknown of a tensor, whose ndim is there, from a dtype of torch; false: the value is none. */
bool rs_torch_dtype(const rs_pickle *pickle, int64_t value, rs_torch_tensor *tensor);

/* Python that makes safetensors of a file of torch.save or of a .distcp directory: two lines, behind an error. The
 * first has a method of the tensors in it that makes them plain. */
#define RS_TORCH_PYTHON_BY(method) \
  "in Python: t = torch.load(PATH, map_location='cpu'); " \
  "safetensors.torch.save_file({k: v." method "().clone() for k, v in t.items()}, OUT)"
#define RS_TORCH_PYTHON RS_TORCH_PYTHON_BY("contiguous")
#define RS_DISTCP_PYTHON \
  "in Python: torch.distributed.checkpoint.format_utils.dcp_to_torch_save(PATH, 'x.pt'); " \
  "safetensors.torch.save_file({k: v.contiguous() for k, v in torch.load('x.pt').items()}, OUT)"

#endif
