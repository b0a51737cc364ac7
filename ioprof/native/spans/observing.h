/* What the observers of observers.c and transform_observers.c share: a thread's state, and the
 * callable. */
#ifndef IOPROF_SPANS_OBSERVING_H
#define IOPROF_SPANS_OBSERVING_H

#include "python_api.h"

#include "exceptions.h"
#include "sample_spans.h"

#include <stdbool.h>
#include <stdint.h>

enum { NOT_OBSERVING, OBSERVING, STARTS_RECORDING };

#pragma GCC visibility push(hidden)

struct observing {
    int mode; /* of the above */
    uint32_t generation;
    PyObject *wake; /* begins the recording of this process */
    PyObject *tile, *format;
    PyObject *hooks, *steps; /* the HookState of this process and its Steps, or NULL */
};

extern struct observing observing;
extern __thread struct thread_state thread_state;

typedef struct {
    PyObject_HEAD PyObject *original;
    PyObject *weak_references;
    ioprof_vectorcall call;
    PyObject *name; /* of its spans, or NULL; never freed, because threads hold it */
} Observer;

/* Calls of an observed function that transforms a sample, and of a method that is an operation of a
 * pipeline. */
PyObject *call_transform(PyObject *self, PyObject *const *args, size_t num_args, PyObject *names);
PyObject *call_operation(PyObject *self, PyObject *const *args, size_t num_args, PyObject *names);
PyObject *call_inner_operation(PyObject *self, PyObject *const *args, size_t num_args,
                               PyObject *names);

#pragma GCC visibility pop

static inline struct thread_state *get_thread_state(void)
{
    struct thread_state *state = &thread_state;
    if (state->generation != observing.generation)
        *state = (struct thread_state){.generation = observing.generation, .batch = -1};
    return state;
}

static inline void wake_up(void)
{
    PyObject *result = observing.wake == NULL ? NULL : PyObject_CallNoArgs(observing.wake);
    if (result == NULL)
        drop_exception();
    Py_XDECREF(result);
}

static inline PyObject *call_original(PyObject *self, PyObject *const *args, size_t num_args,
                                      PyObject *names)
{
    return PyObject_Vectorcall(((Observer *)self)->original, args, num_args, names);
}

/* Whether the state in which a call began is still valid: not of another recording by now, or of a
 * parent process. */
static inline bool is_valid(const struct thread_state *state, uint32_t generation)
{
    return state->generation == generation && observing.generation == generation;
}

#endif
