/* Pickles of PyTorch, read as data: values, and calls that are recorded and never made. A name that is in no list is a
 * class without a meaning: it takes any arguments, state and items, and is a value that no reader needs. Source:
 * Python's pickletools, protocols 2 to 5; torch.serialization; torch.distributed.checkpoint.metadata. */
#ifndef RS_FILE_PICKLE_H
#define RS_FILE_PICKLE_H

#include "base/text.h"

#include <reshard/dtype.h>

typedef enum rs_pickle_kind {
  RS_PICKLE_NONE,
  RS_PICKLE_BOOL,
  RS_PICKLE_INT,   /* of 64 bits */
  RS_PICKLE_FLOAT, /* of 64 bits */
  RS_PICKLE_OTHER, /* a longer integer, bytes: a value that no reader needs */
  RS_PICKLE_TEXT,
  RS_PICKLE_TUPLE, /* torch.Size too */
  RS_PICKLE_LIST,  /* a set too */
  RS_PICKLE_DICT,  /* an OrderedDict, defaultdict, Counter too */
  RS_PICKLE_GLOBAL,
  RS_PICKLE_OBJECT,    /* a class or function and its arguments */
  RS_PICKLE_PERSISTENT /* a storage of a tensor: its description */
} rs_pickle_kind;

/* Meaning of a name to the readers. */
typedef enum rs_pickle_role {
  RS_ROLE_UNKNOWN, /* of a name in no list */
  RS_ROLE_DICT,
  RS_ROLE_SET,
  RS_ROLE_SIZE,
  RS_ROLE_DTYPE,
  RS_ROLE_STORAGE,     /* of a dtype, or untyped */
  RS_ROLE_TENSOR,      /* _rebuild_tensor, _v2, _v3 */
  RS_ROLE_PARAMETER,   /* its first argument is a tensor */
  RS_ROLE_TYPED,       /* _rebuild_from_type_v2: a function, a type, the function's arguments */
  RS_ROLE_TENSOR_TYPE, /* of a plain tensor: Tensor, Parameter */
  RS_ROLE_ODD_TENSOR,  /* sparse, quantized, on the meta device, of a subclass */
  RS_ROLE_METADATA,
  RS_ROLE_TENSOR_METADATA,
  RS_ROLE_BYTES_METADATA,
  RS_ROLE_CHUNK,
  RS_ROLE_PROPERTIES,
  RS_ROLE_INDEX,
  RS_ROLE_STORAGE_INFO
} rs_pickle_role;

typedef struct rs_pickle_name {
  const char *module, *name;
  rs_pickle_role role;
  reshard_dtype dtype; /* of a dtype or storage; NONE: untyped */
} rs_pickle_name;

/* Number of a name in the list of pickle_names.c; -1: it is not there. */
int64_t rs_pickle_find_name(const char *module, size_t module_size, const char *name, size_t name_size);
const rs_pickle_name *rs_pickle_name_at(int64_t number);

/* A value is a number: of the byte of its opcode where that says it all (numbers, texts), else of words that were made
 * of it. */
typedef struct rs_pickle {
  const char *where, *bytes; /* borrowed */
  int64_t size, file_bytes, held, root;
  RS_VEC(uint32_t) words;
} rs_pickle;

/* Reads a pickle; where and bytes must live as long as it does. The caller frees it, also after an error. file_bytes:
 * of the file that it is of, for the limit of memory; held: what the caller holds of it beside the pickle.
 * Errors: RESHARD_ERROR_INVALID with the byte: what is malformed, an opcode that only protocols 0 and 1 have.
 * RESHARD_ERROR_CORRUPT: it takes more memory than rs_budget_limit. */
reshard_status rs_pickle_read(const char *where, const char *bytes, int64_t size, int64_t file_bytes, int64_t held,
                              rs_pickle *pickle);
void rs_pickle_free(rs_pickle *pickle);

/* Values by number; a number of -1 is no value, and is none of all that is asked here. */
bool rs_pickle_is(const rs_pickle *pickle, int64_t value, rs_pickle_kind kind);
/* An object made by a class or function of that role. */
bool rs_pickle_is_object(const rs_pickle *pickle, int64_t value, rs_pickle_role role);
bool rs_pickle_is_text(const rs_pickle *pickle, int64_t value, const char *text);

/* Of a value that is there. */
rs_pickle_kind rs_pickle_kind_of(const rs_pickle *pickle, int64_t value);
/* Byte of the pickle that made it, for errors. */
int64_t rs_pickle_byte(const rs_pickle *pickle, int64_t value);
/* Items of a tuple, list; keys and values of a dict. */
int64_t rs_pickle_items(const rs_pickle *pickle, int64_t value);
/* Of a BOOL or INT; of a FLOAT. */
int64_t rs_pickle_number(const rs_pickle *pickle, int64_t value);
double rs_pickle_float(const rs_pickle *pickle, int64_t value);
/* Bytes of a TEXT, without a NUL behind them. */
const char *rs_pickle_text_of(const rs_pickle *pickle, int64_t value, int64_t *size);
/* Name of a GLOBAL, or of the class of an OBJECT; NULL: it is in no list. */
const rs_pickle_name *rs_pickle_name_of(const rs_pickle *pickle, int64_t value);

/* The parts of what is no plain value: class, arguments and state of an object, description of a storage. more: a list
 * of what it has taken beside them - items, keywords, further states - and attributes of a dict. -1: none. */
typedef struct rs_pickle_parts {
  int64_t class, arguments, state, more;
} rs_pickle_parts;
rs_pickle_parts rs_pickle_parts_of(const rs_pickle *pickle, int64_t value);

/* Items of a tuple, list or dict, where key and value follow each other; of anything else none. */
typedef struct rs_pickle_cursor {
  const rs_pickle *pickle;
  int64_t at, end;
  uint32_t next; /* chunk; none of a tuple */
} rs_pickle_cursor;
rs_pickle_cursor rs_pickle_begin(const rs_pickle *pickle, int64_t value);
bool rs_pickle_next(rs_pickle_cursor *cursor, int64_t *item);

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
/* "None", "a list", "torch.device" and so on, for errors. */
const char *rs_pickle_describe(char text[RS_QUOTE], const rs_pickle *pickle, int64_t value);

#endif
