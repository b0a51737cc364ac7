#include "steps.h"

#include "exceptions.h"
#include "sample_spans.h"

#include <stddef.h>

PyObject *steps_type;

int64_t steps_expected_number(const Steps *steps)
{
    return steps->has_optimizer || steps->known_number >= 0 ? steps->number : -1;
}

static bool is_empty(PyObject *list)
{
    return list != NULL && PyList_Check(list) && PyList_Size(list) == 0;
}

bool steps_end(Steps *steps, PyObject *optimizer, int64_t end_ns)
{
    if (!steps->begun || steps->by_marks || steps->by_batches || !is_empty(steps->others) ||
        !is_empty(steps->waits) || (steps->emit != NULL && steps->emit != Py_None) ||
        ioprof_referent(steps->counted) != optimizer)
        return false;
    end_ns = end_ns > steps->begin_ns ? end_ns : steps->begin_ns;
    write_step_span(&step_kind, steps->begin_ns, end_ns, NULL, steps->number, steps->batch);
    steps->begin_ns = end_ns;
    steps->known_number = ++steps->number;
    if (steps->use != NULL && steps->use != Py_None && !steps->has_stepped) {
        steps->has_stepped = true;
        Py_XDECREF(PyObject_CallMethod(steps->use, "add", "s", "step"));
    }
    if (steps->ended != NULL && steps->ended != Py_None && end_ns >= steps->quiet_until_ns) {
        PyObject *until = PyObject_CallFunction(steps->ended, "L", (long long)steps->number - 1);
        steps->quiet_until_ns = until == NULL ? 0 : PyLong_AsLongLong(until);
        Py_XDECREF(until);
    }
    drop_exception();
    return true;
}

static PyMemberDef steps_members[] = {
    {"number", T_LONGLONG, offsetof(Steps, number), 0, NULL},
    {"known_number", T_LONGLONG, offsetof(Steps, known_number), 0, NULL},
    {"begun", T_BOOL, offsetof(Steps, begun), 0, NULL},
    {"trains", T_BOOL, offsetof(Steps, trains), 0, NULL},
    {"ended", T_OBJECT, offsetof(Steps, ended), 0, NULL},
    {"_begin_ns", T_LONGLONG, offsetof(Steps, begin_ns), 0, NULL},
    {"_batch", T_LONGLONG, offsetof(Steps, batch), 0, NULL},
    {"_has_optimizer", T_BOOL, offsetof(Steps, has_optimizer), 0, NULL},
    {"_has_stepped", T_BOOL, offsetof(Steps, has_stepped), 0, NULL},
    {"_by_marks", T_BOOL, offsetof(Steps, by_marks), 0, NULL},
    {"_by_batches", T_BOOL, offsetof(Steps, by_batches), 0, NULL},
    {"_counted", T_OBJECT, offsetof(Steps, counted), 0, NULL},
    {"_others", T_OBJECT, offsetof(Steps, others), 0, NULL},
    {"_waits", T_OBJECT, offsetof(Steps, waits), 0, NULL},
    {"_use", T_OBJECT, offsetof(Steps, use), 0, NULL},
    {"_emit_elsewhere", T_OBJECT, offsetof(Steps, emit), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

#define OBJECTS(each) each(counted) each(others) each(waits) each(use) each(ended) each(emit)

static int steps_traverse(PyObject *self, visitproc visit, void *arg)
{
    Steps *steps = (Steps *)self;
#define VISIT(name) Py_VISIT(steps->name);
    OBJECTS(VISIT)
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int steps_clear(PyObject *self)
{
    Steps *steps = (Steps *)self;
#define CLEAR(name) Py_CLEAR(steps->name);
    OBJECTS(CLEAR)
    return 0;
}

static void steps_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    steps_clear(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyType_Slot steps_slots[] = {
    {Py_tp_traverse, steps_traverse},
    {Py_tp_clear, steps_clear},
    {Py_tp_dealloc, steps_dealloc},
    {Py_tp_members, steps_members},
    {0, NULL},
};

static PyType_Spec steps_specification = {
    .name = "ioprof._native.StepNumbers",
    .basicsize = sizeof(Steps),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = steps_slots,
};

int prepare_steps(void)
{
    steps_type = PyType_FromSpec(&steps_specification);
    return steps_type == NULL ? -1 : 0;
}
