/* The stable ABI of Python 3.11 (PEP 384): one library for 3.11 and all later versions. */
#ifndef IOPROF_SPANS_PYTHON_API_H
#define IOPROF_SPANS_PYTHON_API_H

#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>

#include <structmember.h>

/* In the stable ABI from 3.12 on; 3.11 exports the same functions, without declaring them for it.
 */
typedef PyObject *(*ioprof_vectorcall)(PyObject *callable, PyObject *const *args, size_t num_args,
                                       PyObject *names);
PyAPI_FUNC(PyObject *) PyObject_Vectorcall(PyObject *callable, PyObject *const *args,
                                           size_t num_args, PyObject *names);
PyAPI_FUNC(PyObject *) PyVectorcall_Call(PyObject *callable, PyObject *args, PyObject *keywords);
#define IOPROF_HAVE_VECTORCALL (1UL << 11)
#define IOPROF_VECTORCALL_NARGS(num_args) \
    ((Py_ssize_t)((num_args) & ~((size_t)1 << (8 * sizeof(size_t) - 1))))

/* Deprecated since 3.13, and in the stable ABI for good: the object of a weak reference, without a
 * reference; NULL: it is gone. */
PyAPI_FUNC(PyObject *) PyWeakref_GetObject(PyObject *reference);
static inline PyObject *ioprof_referent(PyObject *reference)
{
    _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wdeprecated-declarations\"")
        PyObject *object =
            reference == NULL || reference == Py_None ? Py_None : PyWeakref_GetObject(reference);
    _Pragma("GCC diagnostic pop") return object == Py_None ? NULL : object;
}

#define IOPROF_SET_REFERENCE(place, value)       \
    do {                                         \
        PyObject *before_ = (PyObject *)(place); \
        (place) = (value);                       \
        Py_XDECREF(before_);                     \
    } while (0)

#endif
