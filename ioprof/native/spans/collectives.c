#include "collectives.h"

#include "clock.h"
#include "loop.h"
#include "step_hooks.h"
#include "steps.h"

enum { MOST_NAMES = 1000 }; /* that are told apart within a step */

/* Of a step: how often each name came. The names with a number are kept for the next steps. */
static struct {
    PyObject *counts, *labels;
    int64_t step;
} named;

/* Waits are to end what is in progress. */
static bool expects_waits;

static PyObject *name_group, *name_nbytes, *name_wait, *name_in_progress;

int prepare_collectives(void)
{
    named.counts = PyDict_New();
    named.labels = PyDict_New();
    named.step = -1;
    name_group = PyUnicode_InternFromString("group");
    name_nbytes = PyUnicode_InternFromString("nbytes");
    name_wait = PyUnicode_InternFromString("wait");
    name_in_progress = PyUnicode_InternFromString("in_progress");
    return named.counts == NULL || named.labels == NULL || name_group == NULL ||
                   name_nbytes == NULL || name_wait == NULL || name_in_progress == NULL
               ? -1
               : 0;
}

void forget_collectives(void)
{
    PyDict_Clear(named.counts);
    PyDict_Clear(named.labels);
    named.step = -1;
    expects_waits = false;
}

/* The place of a name among those of this step that are alike, from 0; -1 and an exception. */
static long count_name(PyObject *name, int64_t step)
{
    if (named.step != step) {
        PyDict_Clear(named.counts);
        named.step = step;
    }
    PyObject *before = PyDict_GetItemWithError(named.counts, name);
    const long place = before == NULL ? 0 : PyLong_AsLong(before);
    PyObject *number = PyErr_Occurred() ? NULL : PyLong_FromLong(place + 1);
    const int result = number == NULL ? -1 : PyDict_SetItem(named.counts, name, number);
    Py_XDECREF(number);
    return result < 0 ? -1 : place;
}

/* A new reference to the name, with a number if there was one of that name in this step before. */
static PyObject *numbered(PyObject *name, int64_t step)
{
    const long place = count_name(name, step);
    if (place < 0 || place >= MOST_NAMES)
        return place < 0 ? NULL : Py_NewRef(name);
    PyObject *labels = PyDict_GetItemWithError(named.labels, name);
    if (labels == NULL && !PyErr_Occurred()) {
        labels = PyList_New(0);
        if (labels != NULL && PyDict_SetItem(named.labels, name, labels) == 0)
            PyList_Append(labels, name);
        Py_XDECREF(labels); /* the dictionary has it */
    }
    if (PyErr_Occurred())
        return NULL;
    if (place < PyList_Size(labels))
        return Py_NewRef(PyList_GetItem(labels, place));
    PyObject *label = PyUnicode_FromFormat("%U %ld", name, place + 1);
    if (label != NULL && place == PyList_Size(labels))
        PyList_Append(labels, label);
    return label;
}

PyObject *native_numbered(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *name;
    long long step;
    return PyArg_ParseTuple(args, "UL", &name, &step) ? numbered(name, step) : NULL;
}

/* ----------------------------------------------------------------------------- the arguments */

/* An attribute of a module of torch that is loaded, which is never freed; NULL: it has none. */
static PyObject *class_of_torch(const char *module_name, const char *name)
{
    PyObject *module = PyDict_GetItemString(PyImport_GetModuleDict(), module_name);
    return module == NULL ? NULL : PyObject_GetAttrString(module, name);
}

static bool is_tensor(PyObject *value)
{
    static PyObject *type;
    if (type == NULL)
        type = class_of_torch("torch", "Tensor");
    return type != NULL && PyType_IsSubtype(Py_TYPE(value), (PyTypeObject *)type);
}

static bool is_group(PyObject *value)
{
    static PyObject *type;
    if (type == NULL)
        type = class_of_torch("torch.distributed.distributed_c10d", "ProcessGroup");
    return type != NULL && PyType_IsSubtype(Py_TYPE(value), (PyTypeObject *)type);
}

/* What a call is about. */
struct exchange {
    bool has_tensors, is_elsewhere; /* the first tensor is not on the CPU */
    int64_t bytes;
    PyObject *group; /* without a reference; NULL: all ranks */
};

static void add_tensor(struct exchange *exchange, PyObject *value)
{
    if (PyErr_Occurred() || exchange->is_elsewhere || !is_tensor(value))
        return;
    if (!exchange->has_tensors && place_of(value) != ON_CPU) {
        exchange->is_elsewhere = true;
        return;
    }
    exchange->has_tensors = true;
    PyObject *bytes = PyObject_GetAttr(value, name_nbytes);
    exchange->bytes += bytes == NULL ? 0 : PyLong_AsLongLong(bytes);
    Py_XDECREF(bytes);
}

static void add_argument(struct exchange *exchange, PyObject *value)
{
    if (PyList_Check(value)) /* its size is asked for again: an attribute may run Python code */
        for (Py_ssize_t place = 0; place < PyList_Size(value); place++)
            add_tensor(exchange, PyList_GetItem(value, place));
    else if (PyTuple_Check(value))
        for (Py_ssize_t place = 0; place < PyTuple_Size(value); place++)
            add_tensor(exchange, PyTuple_GetItem(value, place));
    else
        add_tensor(exchange, value);
}

static struct exchange describe(PyObject *const *args, size_t num_args, PyObject *names)
{
    const Py_ssize_t num_positional = IOPROF_VECTORCALL_NARGS(num_args),
                     num_named = names == NULL ? 0 : PyTuple_Size(names);
    struct exchange exchange = {false, false, 0, NULL};
    for (Py_ssize_t place = 0; place < num_positional + num_named; place++)
        add_argument(&exchange, args[place]);
    for (Py_ssize_t place = 0; place < num_named; place++)
        if (args[num_positional + place] != Py_None &&
            PyUnicode_Compare(PyTuple_GetItem(names, place), name_group) == 0)
            exchange.group = args[num_positional + place];
    for (Py_ssize_t place = 0; exchange.group == NULL && place < num_positional; place++)
        if (is_group(args[place]))
            exchange.group = args[place];
    return exchange;
}

/* A new reference to the operation's name, with that of a group that is not the whole job. */
static PyObject *label_of(PyObject *operation, PyObject *group)
{
    PyObject *members =
        group == NULL ? NULL : class_of_torch("torch.distributed.distributed_c10d", "GroupMember");
    PyObject *world = members == NULL ? NULL : PyObject_GetAttrString(members, "WORLD");
    Py_XDECREF(members);
    Py_XDECREF(world);
    if (group == NULL || group == world)
        return Py_NewRef(operation);
    PyErr_Clear();
    PyObject *name = PyObject_GetAttrString(group, "group_name");
    if (name == NULL)
        PyErr_Clear();
    PyObject *label = name == NULL ? PyUnicode_FromFormat("%U in group ?", operation)
                                   : PyUnicode_FromFormat("%U in group %S", operation, name);
    Py_XDECREF(name);
    return label;
}

/* ---------------------------------------------------------------------------------- the calls */

/* The end of the wait for `work` is the end of what is known of it. */
static void expect(PyObject *work, PyObject *known)
{
    PyObject *in_progress = PyObject_GetAttr(observing.hooks, name_in_progress);
    if (in_progress != NULL && PyObject_SetItem(in_progress, work, known) == 0)
        expects_waits = true;
    Py_XDECREF(in_progress);
}

PyObject *native_expect(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *work, *known;
    if (!PyArg_ParseTuple(args, "OO", &work, &known))
        return NULL;
    if (observing.hooks != NULL)
        expect(work, known);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static bool is_work(PyObject *result)
{
    PyObject *wait = result == Py_None ? NULL : PyObject_GetAttr(result, name_wait);
    Py_XDECREF(wait);
    drop_exception();
    return wait != NULL;
}

static PyObject *call_observed(Loop *loop, PyObject *self, PyObject *const *args, size_t num_args,
                               PyObject *names, const struct exchange *exchange,
                               int64_t hook_begin_ns)
{
    if (observing.mode == STARTS_RECORDING)
        wake_up();
    const Steps *steps = (Steps *)observing.steps;
    const int64_t number = steps->number, step = steps->begun ? number : -1,
                  bytes = exchange->has_tensors ? exchange->bytes : -1;
    PyObject *plain = label_of(((Observer *)self)->name, exchange->group);
    PyObject *label = plain == NULL ? NULL : numbered(plain, number);
    Py_XDECREF(plain);
    drop_exception();
    loop->in_collective = true;
    end_hook(hook_begin_ns);
    const int64_t start_ns = clock_now();
    PyObject *result = call_original(self, args, num_args, names);
    const int64_t hook_end_ns = begin_hook();
    loop->in_collective = false;
    if (result != NULL && label != NULL) {
        if (is_work(result)) {
            PyObject *known = Py_BuildValue("(LOLL)", (long long)start_ns, label, (long long)step,
                                            (long long)bytes);
            if (known != NULL)
                expect(result, known);
            Py_XDECREF(known);
        } else {
            const int64_t end_ns = clock_now();
            write_comm_span(start_ns, end_ns, label, step, bytes);
            loop_add_gap(loop, start_ns, end_ns);
        }
        drop_exception();
    }
    Py_XDECREF(label);
    end_hook(hook_end_ns);
    return result;
}

PyObject *call_collective(PyObject *self, PyObject *const *args, size_t num_args, PyObject *names)
{
    Loop *loop = observing.mode == NOT_OBSERVING || observing.hooks == NULL
                     ? NULL
                     : current_loop(get_thread_state());
    const int64_t hook_begin_ns = begin_hook();
    struct exchange exchange = {.is_elsewhere = true};
    if (loop != NULL && !loop->in_collective)
        exchange = describe(args, num_args, names);
    drop_exception();
    if (exchange.is_elsewhere) {
        end_hook(hook_begin_ns);
        return call_original(self, args, num_args, names);
    }
    Py_INCREF((PyObject *)loop);
    PyObject *result = call_observed(loop, self, args, num_args, names, &exchange, hook_begin_ns);
    Py_DECREF((PyObject *)loop);
    return result;
}

/* What is known of a call in progress, which is over when it has been waited for. */
static PyObject *take_known(PyObject *work)
{
    PyObject *in_progress = PyObject_GetAttr(observing.hooks, name_in_progress);
    PyObject *known =
        in_progress == NULL ? NULL : PyObject_CallMethod(in_progress, "pop", "OO", work, Py_None);
    Py_XDECREF(in_progress);
    drop_exception();
    return known;
}

static void end_expected(PyObject *known, int64_t wait_start_ns)
{
    const int64_t end_ns = clock_now();
    long long start_ns, step, bytes;
    PyObject *label;
    if (!PyTuple_Check(known)) {
        Py_XDECREF(PyObject_CallFunction(known, "L", (long long)wait_start_ns));
    } else if (PyArg_ParseTuple(known, "LOLL", &start_ns, &label, &step, &bytes)) {
        write_comm_span(start_ns, end_ns, label, step, bytes);
        Loop *loop = current_loop(get_thread_state());
        if (loop != NULL)
            loop_add_gap(loop, wait_start_ns, end_ns);
    }
}

PyObject *call_wait(PyObject *self, PyObject *const *args, size_t num_args, PyObject *names)
{
    if (!expects_waits || observing.hooks == NULL || IOPROF_VECTORCALL_NARGS(num_args) < 1)
        return call_original(self, args, num_args, names);
    const int64_t hook_begin_ns = begin_hook();
    PyObject *known = take_known(args[0]);
    const int64_t start_ns = clock_now();
    end_hook(hook_begin_ns);
    PyObject *result = call_original(self, args, num_args, names);
    const int64_t hook_end_ns = begin_hook();
    if (result != NULL && known != NULL && known != Py_None) {
        end_expected(known, start_ns);
        drop_exception();
    }
    Py_XDECREF(known);
    end_hook(hook_end_ns);
    return result;
}
