/* Numbers of what a thread called without training, which hooks/pytorch/evaluations.py extends and
 * describes. */
#ifndef IOPROF_SPANS_PASSES_H
#define IOPROF_SPANS_PASSES_H

#include "python_api.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    PyObject_HEAD int64_t num_passes, num_sizes, end_ns;
    char in_pass, was_fed;
    PyObject *trained; /* weak reference to the model that was trained, or None */
} Passes;

#pragma GCC visibility push(hidden)

extern PyObject *passes_type;

/* Once per process. */
int prepare_passes(void);

/* Whether Evaluation.train() would do nothing: it knows the model, and the sizes of its batches. */
bool passes_know(const Passes *passes, PyObject *model);

#pragma GCC visibility pop

#endif
