/* Arguments of a call, moved together: a tensor that is in both is moved once. */
#include "tree/tree.h"

#include <reshard/move.h>

/* Retains the tree, or makes an empty container. */
static reshard_status or_empty(reshard_tree tree, reshard_status (*make)(reshard_tree *tree), reshard_tree *out) {
  if (tree == NULL)
    return make(out);
  *out = reshard_tree_retain(tree);
  return RESHARD_SUCCESS;
}

/* Makes a list of a child of a container. */
static reshard_status wrap_list(reshard_tree container, int64_t child, reshard_tree *list) {
  RS_TRY(reshard_tree_list(list));
  return container == NULL ? RESHARD_SUCCESS : reshard_tree_append(*list, container->children.at[child]);
}

reshard_status reshard_tree_to_kwargs(reshard_tree args, reshard_tree kwargs, reshard_device device, void *stream,
                                      const reshard_move_options *options, reshard_tree *args_list,
                                      reshard_tree *kwargs_list) {
  reshard_tree positional = NULL, named = NULL, both = NULL, moved = NULL, lists[2] = {NULL, NULL};
  reshard_status status;
  RS_TRY(RS_GIVEN("reshard_tree_to_kwargs", args_list, kwargs_list));
  RS_TRY(rs_tree_check_arguments("reshard_tree_to_kwargs", args, kwargs));
  bool some = reshard_tree_count(args) > 0 || reshard_tree_count(kwargs) > 0;
  RS_TRY_GOTO(status, or_empty(args, reshard_tree_tuple, &positional), done);
  RS_TRY_GOTO(status, or_empty(kwargs, reshard_tree_dict, &named), done);
  RS_TRY_GOTO(status, reshard_tree_tuple(&both), done);
  RS_TRY_GOTO(status, reshard_tree_append(both, positional), done);
  RS_TRY_GOTO(status, reshard_tree_append(both, named), done);
  RS_TRY_GOTO(status, reshard_tree_to(both, device, stream, options, &moved), done);
  for (int i = 0; i < 2; i++)
    RS_TRY_GOTO(status, wrap_list(some ? moved : NULL, i, &lists[i]), done);
  *args_list = reshard_tree_retain(lists[0]);
  *kwargs_list = reshard_tree_retain(lists[1]);
done:
  reshard_tree_release(lists[0]);
  reshard_tree_release(lists[1]);
  reshard_tree_release(moved);
  reshard_tree_release(both);
  reshard_tree_release(named);
  reshard_tree_release(positional);
  return status;
}
