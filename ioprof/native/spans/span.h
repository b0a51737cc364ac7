/* The functions span() and emit(), and the object that the first returns while something is
 * recorded. */
#ifndef IOPROF_SPANS_SPAN_H
#define IOPROF_SPANS_SPAN_H

#include "python_api.h"

#pragma GCC visibility push(hidden)

/* Once per process. */
int prepare_spans(void);

PyObject *native_span(PyObject *module, PyObject *const *args, Py_ssize_t num_args,
                      PyObject *names);
PyObject *native_emit(PyObject *module, PyObject *const *args, Py_ssize_t num_args,
                      PyObject *names);

#pragma GCC visibility pop

#endif
