/* Steps of the model of tensors that cast and move trees. */
#ifndef TESTS_TENSOR_TREES_H
#define TESTS_TENSOR_TREES_H

#include "tensor_model_storage.h"

/* True when the step did something. */
bool model_cast(model *w);
bool model_move(model *w);

#endif
