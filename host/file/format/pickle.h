/* Pickles of PyTorch, read as data: values, and calls that are recorded and never made. A name outside of a list of
 * classes is an error, so that nothing of a file decides what is run. Source: Python's pickletools, protocols 2 to 5;
 * torch.serialization; torch.distributed.checkpoint.metadata. */
#ifndef RS_FILE_PICKLE_H
#define RS_FILE_PICKLE_H

#include "base/text.h"

#include <reshard/dtype.h>

typedef enum rs_pickle_kind {
  RS_PICKLE_NONE,
  RS_PICKLE_BOOL,
  RS_PICKLE_INT,   /* of 64 bits */
  RS_PICKLE_OTHER, /* a number of another kind, bytes: a value that no reader needs */
  RS_PICKLE_TEXT,
  RS_PICKLE_TUPLE,
  RS_PICKLE_LIST, /* a set too */
  RS_PICKLE_DICT, /* an OrderedDict too */
  RS_PICKLE_GLOBAL,
  RS_PICKLE_OBJECT,    /* a class or function and its arguments */
  RS_PICKLE_PERSISTENT /* a storage of a tensor: its description */
} rs_pickle_kind;

/* Meaning of a name to the readers. */
typedef enum rs_pickle_role {
  RS_ROLE_INERT, /* nothing that a reader needs */
  RS_ROLE_DICT,
  RS_ROLE_SIZE,
  RS_ROLE_DTYPE,
  RS_ROLE_STORAGE, /* of a dtype, or untyped */
  RS_ROLE_TENSOR,  /* _rebuild_tensor_v2, _v3 */
  RS_ROLE_PARAMETER,
  RS_ROLE_ODD_TENSOR, /* sparse, quantized, on the meta device, of a subclass */
  RS_ROLE_METADATA,
  RS_ROLE_TENSOR_METADATA,
  RS_ROLE_BYTES_METADATA,
  RS_ROLE_CHUNK,
  RS_ROLE_PROPERTIES,
  RS_ROLE_INDEX,
  RS_ROLE_STORAGE_INFO
} rs_pickle_role;

/* The pickles in which a name may be. */
#define RS_IN_METADATA 1 /* .metadata */
#define RS_IN_TENSORS  2 /* data.pkl of torch.save */

typedef struct rs_pickle_name {
  const char *module, *name;
  unsigned in;
  rs_pickle_role role;
  reshard_dtype dtype; /* of a dtype or storage; NONE: untyped, or one that this library lacks */
} rs_pickle_name;

/* Finds a name in the list of pickle_names.c; NULL: it is not there. */
const rs_pickle_name *rs_pickle_find_name(unsigned in, const char *module, size_t module_size, const char *name,
                                          size_t name_size);

typedef struct rs_pickle_value {
  rs_pickle_kind kind;
  const rs_pickle_name *name; /* GLOBAL, OBJECT */
  int64_t at;                 /* byte of the pickle that made it, for errors */
  int64_t number;             /* INT, BOOL; TEXT: its first byte */
  int64_t count;              /* TUPLE, LIST: items; DICT: keys and values; TEXT: bytes */
  int64_t first, last;        /* TUPLE, LIST, DICT: cells, -1: none; OBJECT, PERSISTENT: first is the arguments' value,
                                 last that of the state, -1: none */
} rs_pickle_value;

typedef struct rs_pickle_cell {
  int64_t value, next; /* -1: the last */
} rs_pickle_cell;

typedef struct rs_pickle {
  const char *where, *bytes; /* borrowed */
  int64_t size, root;
  RS_VEC(rs_pickle_value) values;
  RS_VEC(rs_pickle_cell) cells;
} rs_pickle;

/* Reads a pickle; where and bytes must live as long as it does. The caller frees it, also after an error.
 * Errors: RESHARD_ERROR_INVALID with the byte: what is malformed, a name outside of the list, an opcode that only
 * protocols 0 and 1 have. */
reshard_status rs_pickle_read(const char *where, const char *bytes, int64_t size, unsigned in, rs_pickle *pickle);
void rs_pickle_free(rs_pickle *pickle);

/* Values by number; a number of -1 is no value, and is none of all that is asked here. */
const rs_pickle_value *rs_pickle_get(const rs_pickle *pickle, int64_t value);
bool rs_pickle_is(const rs_pickle *pickle, int64_t value, rs_pickle_kind kind);
/* An object made by a class or function of that role. */
bool rs_pickle_is_object(const rs_pickle *pickle, int64_t value, rs_pickle_role role);
bool rs_pickle_is_text(const rs_pickle *pickle, int64_t value, const char *text);
/* Item i of a tuple or list; -1: it has none. */
int64_t rs_pickle_item(const rs_pickle *pickle, int64_t value, int64_t i);
/* Value that a dict of a few keys has under a text, or an object in its state; -1: none. */
int64_t rs_pickle_under(const rs_pickle *pickle, int64_t value, const char *key);
/* A tuple, list or torch.Size of integers of 0 or more; false where it is none, or of more than most. */
bool rs_pickle_extents(const rs_pickle *pickle, int64_t value, int most, int *n, int64_t *extents);
/* An integer of 0 or more. */
bool rs_pickle_count(const rs_pickle *pickle, int64_t value, int64_t *count);
/* Appends a text, or an integer in digits, and a NUL that is not counted. *added: false, and nothing is appended, where
 * it is neither, or no UTF-8, or has a NUL in it. */
typedef RS_VEC(char) rs_pickle_text;
reshard_status rs_pickle_add_text(const rs_pickle *pickle, int64_t value, rs_pickle_text *to, bool *added);
/* "None", "a list", "torch.Size" and so on, for errors. */
const char *rs_pickle_describe(char text[RS_QUOTE], const rs_pickle *pickle, int64_t value);

#endif
