/* Hooks of what a training loop calls in each of its steps: modules, backward passes, optimizers.
 * In Python: ioprof/instrument/hooks/pytorch/python_step_hooks.py. */
#ifndef IOPROF_SPANS_STEP_HOOKS_H
#define IOPROF_SPANS_STEP_HOOKS_H

#include "loop.h"
#include "observing.h"

enum place { NOWHERE, ON_CPU, ELSEWHERE };

#pragma GCC visibility push(hidden)

/* Once per process. */
int prepare_step_hooks(void);

/* The loop of this thread, without a reference; NULL: an exception is set. The thread's state in
 * Python makes it. */
Loop *current_loop(struct thread_state *state);

/* Where a tensor is. */
enum place place_of(PyObject *tensor);

/* Calls of torch's modules and of torch.autograd.backward. */
PyObject *call_module(PyObject *self, PyObject *const *args, size_t num_args, PyObject *names);
PyObject *call_backward(PyObject *self, PyObject *const *args, size_t num_args, PyObject *names);

PyObject *native_begin_step(PyObject *module, PyObject *optimizer);
PyObject *native_end_step(PyObject *module, PyObject *optimizer);

#pragma GCC visibility pop

#endif
