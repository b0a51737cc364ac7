/* Observers: callables that take the place of a library's functions and record their calls. The
 * pure-Python version is ioprof/instrument/hooks/python_observers.py.
 *
 * What they observe is called for every sample of a job, right after a decoder has evicted
 * everything else from the processor's caches: written in Python, such a call costs several times
 * what it does in a loop. So a thread's state is a few bytes of its own, and a call that is
 * observed touches little else.
 *
 * Every attribute of an observer, except those by which it is called, is that of the observed
 * function, its class included, so that inspect, copy, pickle and a user's isinstance treat it as
 * that function, and no traceback shows it. */
#ifndef IOPROF_SPANS_OBSERVERS_H
#define IOPROF_SPANS_OBSERVERS_H

#include "python_api.h"

#include <stdbool.h>
#include <stdint.h>

/* A decode that is under way. */
struct decode {
    uint32_t generation; /* of the observers' state */
    int64_t start_ns;
};

#pragma GCC visibility push(hidden)

/* Once per process. */
int prepare_observers(void);

/* In a forked child, perhaps without the GIL: what the parent's threads had under way is forgotten.
 */
void forget_observations(void);

PyObject *native_transforming(PyObject *module, PyObject *args);
PyObject *native_operating(PyObject *module, PyObject *args);
PyObject *native_loading(PyObject *module, PyObject *original);
PyObject *native_calling(PyObject *module, PyObject *original);
PyObject *native_propagating(PyObject *module, PyObject *original);
PyObject *native_exchanging(PyObject *module, PyObject *args);
PyObject *native_awaiting(PyObject *module, PyObject *original);
PyObject *native_follow(PyObject *module, PyObject *args);
PyObject *native_fetches(PyObject *module, PyObject *is_fetching);
/* A decode of this thread begins; false: decodes are not observed, or it lies within another one,
 * which is. */
bool begin_decode(struct decode *decode);

/* It has ended with that result, NULL if an exception is set, which is kept. */
void end_decode(const struct decode *decode, PyObject *result, PyObject *name);

PyObject *native_decoding(PyObject *module, PyObject *args);
PyObject *native_decoding_items(PyObject *module, PyObject *args);
PyObject *native_type_modified(PyObject *module, PyObject *type);
PyObject *native_watch(PyObject *module, PyObject *args);
PyObject *native_forget(PyObject *module, PyObject *ignored);
PyObject *native_hooks_ns(PyObject *module, PyObject *ignored);
PyObject *native_makes(PyObject *module, PyObject *number);
PyObject *native_decoded(PyObject *module, PyObject *args);
PyObject *native_interrupted(PyObject *module, PyObject *args);

#pragma GCC visibility pop

#endif
