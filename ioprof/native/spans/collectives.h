/* Hooks of collectives as a script calls them. In Python:
 * ioprof/instrument/hooks/pytorch/python_collectives.py. */
#ifndef IOPROF_SPANS_COLLECTIVES_H
#define IOPROF_SPANS_COLLECTIVES_H

#include "python_api.h"

#pragma GCC visibility push(hidden)

/* Once per process. */
int prepare_collectives(void);

/* No collective has a name any more: the numbers of steps begin again. */
void forget_collectives(void);

/* Calls of a function of torch.distributed in which ranks wait for one another. */
PyObject *call_collective(PyObject *self, PyObject *const *args, size_t num_args, PyObject *names);

/* Calls of the `wait` of an object that torch returns for one in progress. */
PyObject *call_wait(PyObject *self, PyObject *const *args, size_t num_args, PyObject *names);

PyObject *native_expect(PyObject *module, PyObject *args);
PyObject *native_numbered(PyObject *module, PyObject *args);

#pragma GCC visibility pop

#endif
