#include "iterators.h"

#include "observers.h"

#include <stddef.h>

typedef struct {
    PyObject_HEAD PyObject *original;
    PyObject *name; /* of its spans */
    PyObject *weak_references;
} Iterator;

static PyTypeObject *iterator_type;

static PyObject *iterator_next(PyObject *self)
{
    Iterator *iterator = (Iterator *)self;
    const iternextfunc next =
        (iternextfunc)PyType_GetSlot(Py_TYPE(iterator->original), Py_tp_iternext);
    struct decode decode;
    if (!begin_decode(&decode))
        return next(iterator->original);
    PyObject *item = next(iterator->original);
    end_decode(&decode, item, iterator->name);
    return item;
}

static bool is_own(PyObject *name)
{
    return PyUnicode_Check(name) && (PyUnicode_CompareWithASCIIString(name, "__next__") == 0 ||
                                     PyUnicode_CompareWithASCIIString(name, "__iter__") == 0);
}

static PyObject *iterator_get_attribute(PyObject *self, PyObject *name)
{
    return is_own(name) ? PyObject_GenericGetAttr(self, name)
                        : PyObject_GetAttr(((Iterator *)self)->original, name);
}

static int iterator_set_attribute(PyObject *self, PyObject *name, PyObject *value)
{
    return PyObject_SetAttr(((Iterator *)self)->original, name, value);
}

static PyObject *iterator_repr(PyObject *self)
{
    return PyObject_Repr(((Iterator *)self)->original);
}

static int iterator_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((Iterator *)self)->original);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int iterator_clear(PyObject *self)
{
    Py_CLEAR(((Iterator *)self)->original);
    return 0;
}

static void iterator_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    PyObject_ClearWeakRefs(self);
    iterator_clear(self);
    PyObject_GC_Del(self);
    Py_DECREF(iterator_type);
}

static PyMemberDef iterator_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Iterator, weak_references), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot iterator_slots[] = {
    {Py_tp_getattro, iterator_get_attribute},
    {Py_tp_setattro, iterator_set_attribute},
    {Py_tp_repr, iterator_repr},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, iterator_next},
    {Py_tp_traverse, iterator_traverse},
    {Py_tp_clear, iterator_clear},
    {Py_tp_dealloc, iterator_dealloc},
    {Py_tp_members, iterator_members},
    {0, NULL},
};

static PyType_Spec iterator_specification = {
    .name = "ioprof._native.Iterator",
    .basicsize = sizeof(Iterator),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION |
             Py_TPFLAGS_IMMUTABLETYPE,
    .slots = iterator_slots,
};

int prepare_iterators(void)
{
    iterator_type = (PyTypeObject *)PyType_FromSpec(&iterator_specification);
    return iterator_type == NULL ? -1 : 0;
}

PyObject *observe_iterator(PyObject *original, PyObject *name)
{
    if (!PyIter_Check(original))
        return original;
    Iterator *iterator = PyObject_GC_New(Iterator, iterator_type);
    if (iterator == NULL) {
        PyErr_Clear();
        return original;
    }
    iterator->original = original;
    iterator->name = name;
    iterator->weak_references = NULL;
    PyObject_GC_Track(iterator);
    return (PyObject *)iterator;
}
