#include "passes.h"

#include <stddef.h>

enum { MOST_SIZES = 8 }; /* of evaluations.py */

PyObject *passes_type;

bool passes_know(const Passes *passes, PyObject *model)
{
    return passes->num_sizes >= MOST_SIZES && !passes->was_fed &&
           ioprof_referent(passes->trained) == model;
}

static PyMemberDef passes_members[] = {
    {"num_passes", T_LONGLONG, offsetof(Passes, num_passes), 0, NULL},
    {"in_pass", T_BOOL, offsetof(Passes, in_pass), 0, NULL},
    {"end_ns", T_LONGLONG, offsetof(Passes, end_ns), 0, NULL},
    {"was_fed", T_BOOL, offsetof(Passes, was_fed), 0, NULL},
    {"_num_sizes", T_LONGLONG, offsetof(Passes, num_sizes), 0, NULL},
    {"_trained", T_OBJECT, offsetof(Passes, trained), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static int passes_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((Passes *)self)->trained);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int passes_clear(PyObject *self)
{
    Py_CLEAR(((Passes *)self)->trained);
    return 0;
}

static void passes_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    passes_clear(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyType_Slot passes_slots[] = {
    {Py_tp_traverse, passes_traverse},
    {Py_tp_clear, passes_clear},
    {Py_tp_dealloc, passes_dealloc},
    {Py_tp_members, passes_members},
    {0, NULL},
};

static PyType_Spec passes_specification = {
    .name = "ioprof._native.PassNumbers",
    .basicsize = sizeof(Passes),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = passes_slots,
};

int prepare_passes(void)
{
    passes_type = PyType_FromSpec(&passes_specification);
    return passes_type == NULL ? -1 : 0;
}
