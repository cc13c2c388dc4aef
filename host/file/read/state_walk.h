/* The values of an archive of torch.save, by the names that PyTorch's distributed checkpoint gives them: the keys on
 * the way, with dots between. Tensors and leaves are reached from the root by dicts, lists and tuples. What has another
 * class is left out, and no tensor may be lost with it (hidden_tensors.c). */
#ifndef RS_FILE_STATE_WALK_H
#define RS_FILE_STATE_WALK_H

#include "file/format/torch.h"
#include "file/read/open.h"

/* A value that is not looked into: an object, attributes of a dict or of a tensor, what a key without a name has. */
typedef struct rs_left_value {
  int64_t value, name; /* its name begins there in rs_state_walk.left_names */
  bool by_key;         /* left for its key */
} rs_left_value;

typedef struct rs_state_walk {
  rs_opening *opening;
  const rs_torch *torch;
  /* Takes a tensor of that name; behind the name of one of an unknown dtype stands the error of whoever moves it. */
  reshard_status (*add)(void *user, const char *name, const rs_torch_tensor *tensor);
  void *user;
  rs_pickle_text name; /* of the value that is looked at */
  int64_t visits;
  int64_t before; /* memory of what was read before */
  uint8_t *read;  /* bit per word of the pickle: the tensor there was read */
  RS_VEC(rs_left_value) left;
  RS_VEC(char) left_names;
} rs_state_walk;

/* Walks all values of the archive, whose root has that name, which may be empty. Leaves go to the checkpoint, and
 * counts of what is left out to its info.
 *
 * Errors: those of rs_torch_tensor_read and of add. RESHARD_ERROR_INVALID: dicts that are too deep or stand at too many
 * places; tensors that would be lost, where they are not to be left out. */
reshard_status rs_state_walk_all(rs_opening *opening, const rs_torch *torch, const char *name,
                                 reshard_status (*add)(void *user, const char *name, const rs_torch_tensor *tensor),
                                 void *user);
/* Memory that the walk takes, beside the pickle. */
reshard_status rs_state_walk_check(const rs_state_walk *walk, int64_t more);

/* Finds tensors that were not read below values that were left: an error, or counted (hidden_tensors.c). */
reshard_status rs_hidden_tensors(rs_state_walk *walk);

#endif
