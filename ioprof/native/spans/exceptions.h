/* Exceptions of the job around those of an observer. */
#ifndef IOPROF_SPANS_EXCEPTIONS_H
#define IOPROF_SPANS_EXCEPTIONS_H

#include "python_api.h"

/* An exception of the observer is not the job's; but a KeyboardInterrupt that arrived meanwhile is,
 * and is raised again. */
static inline void drop_exception(void)
{
    if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_KeyboardInterrupt))
        PyErr_SetInterrupt();
    PyErr_Clear();
}

struct raised {
    PyObject *type, *value, *traceback;
};

/* The exception of the original, if any: none may be set while spans are written. */
static inline struct raised save_exception(PyObject *result)
{
    struct raised raised = {NULL, NULL, NULL};
    if (result == NULL)
        PyErr_Fetch(&raised.type, &raised.value, &raised.traceback);
    return raised;
}

/* Restores it, and clears any exception of the observer. */
static inline void restore_exception(PyObject *result, struct raised raised)
{
    if (PyErr_Occurred())
        drop_exception();
    if (result == NULL)
        PyErr_Restore(raised.type, raised.value, raised.traceback);
}

#endif
