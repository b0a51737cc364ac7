/* Numbers of what a thread called without training, which hooks/pytorch/evaluations.py extends and
 * describes. */
#ifndef IOPROF_SPANS_PASSES_H
#define IOPROF_SPANS_PASSES_H

#include "python_api.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    PyObject_HEAD int64_t num_passes, num_sizes, begin_ns, end_ns, ended_at;
    char in_pass, was_fed, is_apart, is_like_training;
    PyObject *trained, *evaluated; /* weak references to models, or None */
} Passes;

#pragma GCC visibility push(hidden)

extern PyObject *passes_type;

/* Once per process. */
int prepare_passes(void);

/* Whether Evaluation.train() would do nothing. */
bool passes_know(const Passes *passes, PyObject *model);

/* Evaluation.train(); false: it has to be called, since it does not know the sizes of batches. */
bool passes_train(Passes *passes, PyObject *model);

/* Evaluation.begin_pass(); true: it has to look() at this one. */
bool passes_begin(Passes *passes, PyObject *model, int64_t now_ns, int64_t step);

/* Evaluation.is_known */
bool passes_are_known(const Passes *passes);

/* Evaluation.end() of passes that are not known. */
void passes_end(Passes *passes, int64_t step);

#pragma GCC visibility pop

#endif
