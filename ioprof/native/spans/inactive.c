#include "inactive.h"

#include "fields.h"

PyObject *inactive_span;

static PyObject *inactive_enter(PyObject *Py_UNUSED(module), PyObject *const *Py_UNUSED(args),
                                Py_ssize_t Py_UNUSED(num_args))
{
    return Py_NewRef(inactive_span);
}

static PyObject *inactive_exit(PyObject *Py_UNUSED(module), PyObject *const *Py_UNUSED(args),
                               Py_ssize_t Py_UNUSED(num_args))
{
    Py_RETURN_NONE;
}

static int inactive_set(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(name),
                        PyObject *Py_UNUSED(value))
{
    return 0;
}

static PyObject *inactive_get(PyObject *Py_UNUSED(self), void *field)
{
    struct ioprof_record empty = IOPROF_EMPTY_RECORD;
    return PyLong_FromLongLong(load_field(&empty, field));
}

static PyObject *inactive_get_name(PyObject *Py_UNUSED(self), void *Py_UNUSED(closure))
{
    Py_RETURN_NONE;
}

/* Not methods but functions in the type's dict, which need not be bound to the only instance: that
 * saves an allocation each. */
static PyMethodDef inactive_functions[] = {
    {"__enter__", (PyCFunction)(void (*)(void))inactive_enter, METH_FASTCALL, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))inactive_exit, METH_FASTCALL, NULL},
};

static PyGetSetDef inactive_attributes[NUM_FIELDS + 2];

static PyType_Slot inactive_slots[] = {
    {Py_tp_doc, (void *)"What span() returns while nothing is recorded: attributes can be set, and "
                        "are forgotten."},
    {Py_tp_getset, inactive_attributes},
    {Py_tp_setattro, inactive_set},
    {0, NULL},
};

static PyType_Spec inactive_type = {
    .name = "ioprof._native.Nothing",
    .basicsize = sizeof(PyObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = inactive_slots,
};

static int add_functions(PyObject *type)
{
    for (int place = 0; place < 2; place++) {
        PyObject *function = PyCFunction_New(&inactive_functions[place], NULL);
        if (function == NULL ||
            PyObject_SetAttrString(type, inactive_functions[place].ml_name, function) < 0)
            return -1;
        Py_DECREF(function);
    }
    return 0;
}

int prepare_inactive_span(void)
{
    for (int place = 0; place < NUM_FIELDS; place++)
        inactive_attributes[place] =
            (PyGetSetDef){fields[place].name, inactive_get, NULL, NULL, &fields[place]};
    inactive_attributes[NUM_FIELDS] = (PyGetSetDef){"name", inactive_get_name, NULL, NULL, NULL};
    PyObject *type = PyType_FromSpec(&inactive_type);
    if (type == NULL || add_functions(type) < 0)
        return -1;
    inactive_span = PyObject_New(PyObject, (PyTypeObject *)type);
    return inactive_span == NULL ? -1 : 0;
}
