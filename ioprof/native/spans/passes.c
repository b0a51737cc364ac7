#include "passes.h"

#include "exceptions.h"

#include <stddef.h>

enum { MOST_SIZES = 8, FEWEST_STEPS = 2 }; /* of evaluations.py */

PyObject *passes_type;

/* A model that cannot be referred to is not known. */
static void refer(PyObject **place, PyObject *model)
{
    if (ioprof_referent(*place) == model)
        return;
    PyObject *reference = PyWeakref_NewRef(model, NULL);
    if (reference == NULL)
        drop_exception();
    else
        IOPROF_SET_REFERENCE(*place, reference);
}

bool passes_know(const Passes *passes, PyObject *model)
{
    return passes->num_sizes >= MOST_SIZES && !passes->was_fed &&
           ioprof_referent(passes->trained) == model;
}

bool passes_train(Passes *passes, PyObject *model)
{
    if (passes->num_sizes < MOST_SIZES)
        return false;
    passes->was_fed = false;
    refer(&passes->trained, model);
    return true;
}

bool passes_begin(Passes *passes, PyObject *model, int64_t now_ns, int64_t step)
{
    if (passes->num_passes == 0) {
        passes->begin_ns = now_ns;
        passes->is_apart = step - passes->ended_at >= FEWEST_STEPS;
        refer(&passes->evaluated, model);
    }
    passes->num_passes++;
    passes->in_pass = true;
    return passes->is_apart && (passes->num_passes & (passes->num_passes - 1)) == 0;
}

bool passes_are_known(const Passes *passes)
{
    return passes->is_apart && passes->is_like_training && !passes->was_fed;
}

void passes_end(Passes *passes, int64_t step)
{
    passes->num_passes = 0;
    passes->was_fed = false;
    passes->ended_at = step;
}

static PyMemberDef passes_members[] = {
    {"num_passes", T_LONGLONG, offsetof(Passes, num_passes), 0, NULL},
    {"in_pass", T_BOOL, offsetof(Passes, in_pass), 0, NULL},
    {"end_ns", T_LONGLONG, offsetof(Passes, end_ns), 0, NULL},
    {"was_fed", T_BOOL, offsetof(Passes, was_fed), 0, NULL},
    {"_num_sizes", T_LONGLONG, offsetof(Passes, num_sizes), 0, NULL},
    {"_begin_ns", T_LONGLONG, offsetof(Passes, begin_ns), 0, NULL},
    {"_ended_at", T_LONGLONG, offsetof(Passes, ended_at), 0, NULL},
    {"_is_apart", T_BOOL, offsetof(Passes, is_apart), 0, NULL},
    {"_is_like_training", T_BOOL, offsetof(Passes, is_like_training), 0, NULL},
    {"_trained", T_OBJECT, offsetof(Passes, trained), 0, NULL},
    {"_evaluated", T_OBJECT, offsetof(Passes, evaluated), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static int passes_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((Passes *)self)->trained);
    Py_VISIT(((Passes *)self)->evaluated);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int passes_clear(PyObject *self)
{
    Py_CLEAR(((Passes *)self)->trained);
    Py_CLEAR(((Passes *)self)->evaluated);
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
