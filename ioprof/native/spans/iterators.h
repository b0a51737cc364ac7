/* An iterator whose items are decoded when they are asked for: the time within its next() is a
 * `decode` span, the time between two calls is not. Every other attribute, its class included, is
 * that of the observed iterator. */
#ifndef IOPROF_SPANS_ITERATORS_H
#define IOPROF_SPANS_ITERATORS_H

#include "python_api.h"

#pragma GCC visibility push(hidden)

/* Once per process. */
int prepare_iterators(void);

/* Takes the reference to `iterator`, and returns its observer, or itself where it is no iterator.
 */
PyObject *observe_iterator(PyObject *iterator, PyObject *name);

#pragma GCC visibility pop

#endif
