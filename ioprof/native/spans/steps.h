/* The numbers of a process's steps, which hooks/steps.py extends: here is what an optimizer's step
 * does as a rule. */
#ifndef IOPROF_SPANS_STEPS_H
#define IOPROF_SPANS_STEPS_H

#include "python_api.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    PyObject_HEAD int64_t number, known_number, begin_ns, batch;
    int64_t quiet_until_ns; /* until then nobody is to be told that a step has ended */
    char begun, trains, has_optimizer, has_stepped, by_marks, by_batches;
    PyObject *counted;        /* weak reference to the optimizer whose steps count, or None */
    PyObject *others, *waits; /* lists */
    PyObject *use, *ended, *emit;
} Steps;

#pragma GCC visibility push(hidden)

extern PyObject *steps_type;

/* Once per process. */
int prepare_steps(void);

/* Number of the step in progress if an optimizer was made or the loop marks its steps; -1 if
 * batches may be counted. */
int64_t steps_expected_number(const Steps *steps);

/* The optimizer that counts has made a step, of the step in progress. False: this is not what
 * happened, and nothing is done. */
bool steps_end(Steps *steps, PyObject *optimizer, int64_t end_ns);

#pragma GCC visibility pop

#endif
