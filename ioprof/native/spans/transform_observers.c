#include "clock.h"
#include "observing.h"

PyObject *call_transform(PyObject *self, PyObject *const *args, size_t num_args, PyObject *names)
{
    struct thread_state *state = get_thread_state();
    if (state->transforming || state->decoding || observing.mode == NOT_OBSERVING)
        return call_original(self, args, num_args, names);
    if (observing.mode == STARTS_RECORDING)
        wake_up();
    if (state->num_held > 0) {
        write_held(state);
        drop_exception();
    }
    const uint32_t generation = state->generation;
    state->transforming = true;
    state->name = ((Observer *)self)->name;
    state->begin_ns = clock_now();
    PyObject *result = call_original(self, args, num_args, names);
    if (!is_valid(state, generation))
        return result;
    const int64_t end_ns = clock_now();
    struct raised raised = save_exception(result);
    write_held(state);
    state->transforming = false;
    if (state->begin_ns < end_ns)
        write_span(&transform_kind, state->begin_ns, end_ns, ((Observer *)self)->name,
                   state->batch);
    restore_exception(result, raised);
    return result;
}

/* Shorter time between two operations of a pipeline belongs to the second. */
#define GAP_NS 2000

/* An operation of a pipeline, named for the class of its first argument: the span of the transform
 * around it ends where this begins, and continues after it. */
PyObject *call_operation(PyObject *self, PyObject *const *args, size_t num_args, PyObject *names)
{
    struct thread_state *state = get_thread_state();
    if (state->operating || state->decoding || observing.mode == NOT_OBSERVING ||
        IOPROF_VECTORCALL_NARGS(num_args) < 1)
        return call_original(self, args, num_args, names);
    if (observing.mode == STARTS_RECORDING)
        wake_up();
    if (state->num_held > 0) {
        write_held(state);
        drop_exception();
    }
    PyObject *name = PyType_GetName(Py_TYPE(args[0])), *outer = state->name;
    drop_exception();
    const uint32_t generation = state->generation;
    const bool is_outermost = !state->transforming;
    const int64_t start_ns = clock_now();
    if (is_outermost)
        state->begin_ns = start_ns;
    else if (start_ns - state->begin_ns >= GAP_NS) {
        split_transform(state, start_ns, start_ns);
        drop_exception();
    }
    state->transforming = state->operating = true;
    state->name = name;
    PyObject *result = call_original(self, args, num_args, names);
    if (is_valid(state, generation)) {
        const int64_t end_ns = clock_now();
        struct raised raised = save_exception(result);
        write_held(state);
        split_transform(state, end_ns, end_ns);
        state->operating = false;
        state->transforming = !is_outermost;
        state->name = outer;
        restore_exception(result, raised);
    }
    Py_XDECREF(name);
    return result;
}

/* The same of a class that may be used for something else too: outside of a pipeline it is not
 * observed. */
PyObject *call_inner_operation(PyObject *self, PyObject *const *args, size_t num_args,
                               PyObject *names)
{
    const bool is_inside = observing.mode != NOT_OBSERVING && get_thread_state()->transforming;
    return is_inside ? call_operation(self, args, num_args, names)
                     : call_original(self, args, num_args, names);
}
