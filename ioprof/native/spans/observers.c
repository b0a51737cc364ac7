#include "observers.h"

#include "clock.h"
#include "collectives.h"
#include "iterators.h"
#include "loop.h"
#include "passes.h"
#include "observing.h"
#include "state.h"
#include "step_hooks.h"
#include "steps.h"

struct observing observing = {.generation = 1};
__thread struct thread_state thread_state;
struct hook_times hook_times;

/* An attribute of an image; NULL, and no exception, where it has none. */
static PyObject *attribute_of(PyObject *image, PyObject *name)
{
    PyObject *value = PyObject_GetAttr(image, name);
    if (value == NULL)
        drop_exception();
    return value;
}

static bool is_true(PyObject *image, PyObject *name)
{
    PyObject *value = attribute_of(image, name);
    int result = value == NULL ? 0 : PyObject_IsTrue(value);
    if (result < 0)
        drop_exception();
    Py_XDECREF(value);
    return result > 0;
}

/* ------------------------------------------------------------------------------- the callables */

static PyTypeObject *observer_type, *unbound_observer_type;
static PyObject *method_type; /* types.MethodType */

static PyObject *call_load(PyObject *self, PyObject *const *args, size_t num_args, PyObject *names)
{
    if (observing.mode == NOT_OBSERVING)
        return call_original(self, args, num_args, names);
    struct thread_state *state = get_thread_state();
    if (state->decoding)
        return call_original(self, args, num_args, names);
    PyObject *image = IOPROF_VECTORCALL_NARGS(num_args) < 1 ? Py_None : args[0];
    const bool has_tiles = is_true(image, observing.tile);
    if (state->loading) { /* a format's own load, which calls the common one */
        state->decodes |= has_tiles;
        return call_original(self, args, num_args, names);
    }
    const uint32_t generation = state->generation;
    state->loading = true;
    state->decodes = has_tiles;
    const int64_t start_ns = clock_now();
    PyObject *result = call_original(self, args, num_args, names);
    if (!is_valid(state, generation))
        return result;
    state->loading = false;
    if (!state->decodes)
        return result;
    const int64_t end_ns = clock_now();
    struct raised raised = save_exception(result);
    if (observing.mode == STARTS_RECORDING)
        wake_up();
    PyObject *format = attribute_of(image, observing.format);
    write_decode(state, start_ns, end_ns, format);
    Py_XDECREF(format);
    restore_exception(result, raised);
    return result;
}

bool begin_decode(struct decode *decode)
{
    if (observing.mode == NOT_OBSERVING)
        return false;
    struct thread_state *state = get_thread_state();
    if (state->decoding || state->loading)
        return false;
    if (observing.mode == STARTS_RECORDING)
        wake_up();
    state->decoding = true;
    decode->generation = state->generation;
    decode->start_ns = clock_now();
    return true;
}

void end_decode(const struct decode *decode, PyObject *result, PyObject *name)
{
    struct thread_state *state = &thread_state;
    if (!is_valid(state, decode->generation))
        return;
    const int64_t end_ns = clock_now();
    state->decoding = false;
    struct raised raised = save_exception(result);
    add_decode(state, decode->start_ns, end_ns, name);
    restore_exception(result, raised);
}

static PyObject *call_decode(PyObject *self, PyObject *const *args, size_t num_args,
                             PyObject *names)
{
    struct decode decode;
    if (!begin_decode(&decode))
        return call_original(self, args, num_args, names);
    PyObject *result = call_original(self, args, num_args, names);
    end_decode(&decode, result, ((Observer *)self)->name);
    return result;
}

/* What returns an iterator, whose items it decodes. */
static PyObject *call_decoding_items(PyObject *self, PyObject *const *args, size_t num_args,
                                     PyObject *names)
{
    PyObject *result = call_decode(self, args, num_args, names);
    const bool is_observed = observing.mode != NOT_OBSERVING && !get_thread_state()->decoding;
    return result != NULL && is_observed ? observe_iterator(result, ((Observer *)self)->name)
                                         : result;
}

/* ---------------------------------------------------------------------------------- attributes */

/* By these it is called, bound, pickled and found again; all others, the class included, are those
 * of the original. */
static bool is_own(PyObject *name)
{
    static const char *const own[] = {"__call__",   "__get__",       "__wrapped__",
                                      "__reduce__", "__reduce_ex__", "_ioprof_observes"};
    for (size_t place = 0; PyUnicode_Check(name) && place < sizeof own / sizeof *own; place++)
        if (PyUnicode_CompareWithASCIIString(name, own[place]) == 0)
            return true;
    return false;
}

static PyObject *observer_get_attribute(PyObject *self, PyObject *name)
{
    return is_own(name) ? PyObject_GenericGetAttr(self, name)
                        : PyObject_GetAttr(((Observer *)self)->original, name);
}

static int observer_set_attribute(PyObject *self, PyObject *name, PyObject *value)
{
    return is_own(name) ? PyObject_GenericSetAttr(self, name, value)
                        : PyObject_SetAttr(((Observer *)self)->original, name, value);
}

static PyObject *observer_repr(PyObject *self)
{
    return PyObject_Repr(((Observer *)self)->original);
}

static PyObject *observer_bind(PyObject *self, PyObject *object, PyObject *Py_UNUSED(type))
{
    if (object == NULL || object == Py_None)
        return Py_NewRef(self);
    PyObject *arguments[] = {self, object};
    return PyObject_Vectorcall(method_type, arguments, 2, NULL);
}

static PyObject *observer_return_itself(PyObject *self, PyObject *Py_UNUSED(object),
                                        PyObject *Py_UNUSED(type))
{
    return Py_NewRef(self);
}

/* Its qualified name: a process without ioprof finds the original there. */
static PyObject *observer_reduce(PyObject *self, PyObject *Py_UNUSED(protocol))
{
    return PyObject_GetAttrString(((Observer *)self)->original, "__qualname__");
}

static int observer_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((Observer *)self)->original);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int observer_clear(PyObject *self)
{
    Py_CLEAR(((Observer *)self)->original);
    return 0;
}

static void observer_dealloc(PyObject *self)
{
    PyObject *type = (PyObject *)Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    PyObject_ClearWeakRefs(self);
    observer_clear(self);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyMethodDef observer_methods[] = {
    {"__reduce__", observer_reduce, METH_NOARGS, NULL},
    {"__reduce_ex__", observer_reduce, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef observer_members[] = {
    {"__wrapped__", T_OBJECT, offsetof(Observer, original), READONLY, NULL},
    {"_ioprof_observes", T_OBJECT, offsetof(Observer, original), READONLY, NULL},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Observer, call), READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Observer, weak_references), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

#define OBSERVER_SLOTS(bind)                                                                \
    {Py_tp_call, PyVectorcall_Call}, {Py_tp_descr_get, bind},                               \
        {Py_tp_getattro, observer_get_attribute}, {Py_tp_setattro, observer_set_attribute}, \
        {Py_tp_repr, observer_repr}, {Py_tp_traverse, observer_traverse},                   \
        {Py_tp_clear, observer_clear}, {Py_tp_dealloc, observer_dealloc},                   \
        {Py_tp_methods, observer_methods}, {Py_tp_members, observer_members},               \
    {                                                                                       \
        0, NULL                                                                             \
    }

static PyType_Slot observer_slots[] = {OBSERVER_SLOTS(observer_bind)};

static PyType_Spec observer_specification = {
    .name = "ioprof._native.Observer",
    .basicsize = sizeof(Observer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | IOPROF_HAVE_VECTORCALL |
             Py_TPFLAGS_METHOD_DESCRIPTOR | Py_TPFLAGS_DISALLOW_INSTANTIATION |
             Py_TPFLAGS_IMMUTABLETYPE,
    .slots = observer_slots,
};

/* Of what is no descriptor, such as a built-in function: an attribute of a class with such a value
 * is not bound to its objects. */
static PyType_Slot unbound_observer_slots[] = {OBSERVER_SLOTS(observer_return_itself)};

static PyType_Spec unbound_observer_specification = {
    .name = "ioprof._native.UnboundObserver",
    .basicsize = sizeof(Observer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | IOPROF_HAVE_VECTORCALL |
             Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = unbound_observer_slots,
};

static PyObject *new_observer(PyObject *original, ioprof_vectorcall call, PyObject *name)
{
    const bool is_bound = PyType_GetSlot(Py_TYPE(original), Py_tp_descr_get) != NULL;
    Observer *observer =
        PyObject_GC_New(Observer, is_bound ? observer_type : unbound_observer_type);
    if (observer == NULL)
        return NULL;
    observer->original = Py_NewRef(original);
    observer->weak_references = NULL;
    observer->call = call;
    observer->name = Py_XNewRef(name);
    PyObject_GC_Track(observer);
    return (PyObject *)observer;
}

/* ---------------------------------------------------------------------------- module functions */

PyObject *native_transforming(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *original, *name = NULL;
    if (!PyArg_ParseTuple(args, "O|U", &original, &name))
        return NULL;
    return new_observer(original, call_transform, name);
}

PyObject *native_operating(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *original;
    int is_alone;
    if (!PyArg_ParseTuple(args, "Op", &original, &is_alone))
        return NULL;
    return new_observer(original, is_alone ? call_operation : call_inner_operation, NULL);
}

PyObject *native_loading(PyObject *Py_UNUSED(module), PyObject *original)
{
    return new_observer(original, call_load, NULL);
}

static PyObject *new_named_observer(PyObject *args, ioprof_vectorcall call)
{
    PyObject *original, *name;
    if (!PyArg_ParseTuple(args, "OU", &original, &name))
        return NULL;
    return new_observer(original, call, name);
}

PyObject *native_decoding(PyObject *Py_UNUSED(module), PyObject *args)
{
    return new_named_observer(args, call_decode);
}

PyObject *native_decoding_items(PyObject *Py_UNUSED(module), PyObject *args)
{
    return new_named_observer(args, call_decoding_items);
}

PyObject *native_calling(PyObject *Py_UNUSED(module), PyObject *original)
{
    return new_observer(original, call_module, NULL);
}

PyObject *native_propagating(PyObject *Py_UNUSED(module), PyObject *original)
{
    return new_observer(original, call_backward, NULL);
}

PyObject *native_exchanging(PyObject *Py_UNUSED(module), PyObject *args)
{
    return new_named_observer(args, call_collective);
}

PyObject *native_awaiting(PyObject *Py_UNUSED(module), PyObject *original)
{
    return new_observer(original, call_wait, NULL);
}

PyObject *native_follow(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *hooks, *steps;
    if (!PyArg_ParseTuple(args, "OO!", &hooks, steps_type, &steps))
        return NULL;
    IOPROF_SET_REFERENCE(observing.steps, Py_NewRef(steps));
    IOPROF_SET_REFERENCE(observing.hooks, Py_NewRef(hooks));
    forget_collectives();
    Py_RETURN_NONE;
}

PyObject *native_fetches(PyObject *Py_UNUSED(module), PyObject *is_fetching)
{
    const int fetching = PyObject_IsTrue(is_fetching);
    if (fetching < 0)
        return NULL;
    get_thread_state()->fetching = fetching;
    Py_RETURN_NONE;
}

/* PyType_Modified, for who has changed a type's dictionary. */
PyObject *native_type_modified(PyObject *Py_UNUSED(module), PyObject *type)
{
    if (!PyType_Check(type)) {
        PyErr_SetString(PyExc_TypeError, "type_modified() takes a type");
        return NULL;
    }
    PyType_Modified((PyTypeObject *)type);
    Py_RETURN_NONE;
}

PyObject *native_watch(PyObject *Py_UNUSED(module), PyObject *args)
{
    int is_on, is_asleep;
    PyObject *wake;
    if (!PyArg_ParseTuple(args, "ppO", &is_on, &is_asleep, &wake))
        return NULL;
    observing.mode = !is_on ? NOT_OBSERVING : is_asleep ? STARTS_RECORDING : OBSERVING;
    IOPROF_SET_REFERENCE(observing.wake, Py_NewRef(wake));
    Py_RETURN_NONE;
}

void forget_observations(void)
{
    observing.generation++;
    hook_times = (struct hook_times){0};
}

PyObject *native_forget(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    forget_observations();
    Py_RETURN_NONE;
}

PyObject *native_hooks_ns(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    const double each_ns =
        hook_times.num_timed == 0 ? 0 : (double)hook_times.timed_ns / (double)hook_times.num_timed;
    return PyLong_FromDouble((double)hook_times.num * each_ns);
}

PyObject *native_makes(PyObject *Py_UNUSED(module), PyObject *number)
{
    int overflow;
    long long batch = PyLong_AsLongLongAndOverflow(number, &overflow);
    if (batch == -1 && PyErr_Occurred())
        return NULL;
    struct thread_state *state = get_thread_state();
    write_held(state);
    drop_exception();
    state->batch = overflow ? -1 : batch;
    if (ring_is_open(&recording)) /* for a reader of the file of a process that is killed */
        __atomic_store_n(&recording.header->making, overflow || batch < 0 ? 0 : (uint64_t)batch + 1,
                         __ATOMIC_RELAXED);
    Py_RETURN_NONE;
}

PyObject *native_decoded(PyObject *Py_UNUSED(module), PyObject *args)
{
    long long start_ns, end_ns;
    PyObject *name;
    if (!PyArg_ParseTuple(args, "LLO", &start_ns, &end_ns, &name))
        return NULL;
    write_decode(get_thread_state(), start_ns, end_ns, name);
    drop_exception();
    Py_RETURN_NONE;
}

PyObject *native_interrupted(PyObject *Py_UNUSED(module), PyObject *args)
{
    long long start_ns, end_ns;
    if (!PyArg_ParseTuple(args, "LL", &start_ns, &end_ns))
        return NULL;
    split_transform(get_thread_state(), start_ns, end_ns);
    drop_exception();
    Py_RETURN_NONE;
}

int prepare_observers(void)
{
    observing.tile = PyUnicode_InternFromString("tile");
    observing.format = PyUnicode_InternFromString("format");
    observer_type = (PyTypeObject *)PyType_FromSpec(&observer_specification);
    unbound_observer_type = (PyTypeObject *)PyType_FromSpec(&unbound_observer_specification);
    PyObject *types = PyImport_ImportModule("types");
    method_type = types == NULL ? NULL : PyObject_GetAttrString(types, "MethodType");
    Py_XDECREF(types);
    if (observing.tile == NULL || observing.format == NULL || observer_type == NULL ||
        unbound_observer_type == NULL || method_type == NULL)
        return -1;
    return prepare_loops() < 0 || prepare_steps() < 0 || prepare_passes() < 0 ||
                   prepare_step_hooks() < 0 || prepare_collectives() < 0
               ? -1
               : prepare_iterators();
}
