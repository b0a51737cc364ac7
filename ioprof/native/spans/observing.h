/* What the observers of observers.c and transform_observers.c share: a thread's state, and the
 * callable. */
#ifndef IOPROF_SPANS_OBSERVING_H
#define IOPROF_SPANS_OBSERVING_H

#include "python_api.h"

#include "clock.h"
#include "exceptions.h"
#include "sample_spans.h"

#include <stdbool.h>
#include <stdint.h>

enum { NOT_OBSERVING, OBSERVING, STARTS_RECORDING };

/* Of so many times that hooks of training steps do something, one is timed: not a divisor of how
 * often they do in a step. What takes longer than the other time has lost its core, or starts the
 * recording. */
enum { TIMED_SELDOM = 17, LOST_CORE_NS = 1000000 };

#pragma GCC visibility push(hidden)

struct observing {
    int mode; /* of the above */
    uint32_t generation;
    PyObject *wake; /* begins the recording of this process */
    PyObject *tile, *format;
    PyObject *hooks, *steps; /* the HookState of this process and its Steps, or NULL */
};

extern struct observing observing;

/* What hooks of training steps have taken in this process. */
struct hook_times {
    int64_t num, num_timed, timed_ns;
};

extern struct hook_times hook_times;
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

/* 0: this one is not timed. */
static inline int64_t begin_hook(void)
{
    return ++hook_times.num % TIMED_SELDOM == 0 ? clock_now() : 0;
}

static inline void end_hook(int64_t begin_ns)
{
    const int64_t took_ns = begin_ns == 0 ? LOST_CORE_NS : clock_now() - begin_ns;
    if (took_ns < LOST_CORE_NS) {
        hook_times.num_timed++;
        hook_times.timed_ns += took_ns;
    }
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
