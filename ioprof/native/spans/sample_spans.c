#include "sample_spans.h"

#include "state.h"

/* A span of 56 bytes and 0.1 us for each call of a decoder that takes less than SHORT_NS would cost
 * too much: such calls of a thread are added up by name for HELD_NS at most, and written as one
 * span per name, of their exact sum, before the end of the last one. */
enum { SHORT_NS = 5000, HELD_NS = 1000000 };

static bool is_written(const struct kind *kind)
{
    return kind->number != 0 && ring_is_open(current_ring());
}

static void redirect_span(const struct kind *kind, int64_t start_ns, int64_t end_ns, PyObject *name,
                          int64_t step, const char *field, int64_t value)
{
    PyObject *shown = name == NULL ? Py_None : name;
    PyObject *arguments =
        Py_BuildValue("(sLLO)", kind->text, (long long)start_ns, (long long)end_ns, shown);
    PyObject *keywords = Py_BuildValue("{sLsL}", "step", (long long)step, field, (long long)value);
    PyObject *result = arguments == NULL || keywords == NULL
                           ? NULL
                           : PyObject_Call(redirection.emit, arguments, keywords);
    Py_XDECREF(arguments);
    Py_XDECREF(keywords);
    Py_XDECREF(result);
}

static void write_record(const struct kind *kind, int64_t start_ns, int64_t end_ns, int32_t name,
                         int64_t step, int64_t batch, int64_t bytes)
{
    struct ioprof_record record = IOPROF_EMPTY_RECORD;
    record.kind = (uint8_t)kind->number;
    record.start_ns = start_ns;
    record.end_ns = end_ns;
    record.name = name;
    record.step = (int32_t)step;
    record.batch = batch;
    record.bytes = bytes;
    ring_write(current_ring(), &writer, &record);
}

static int32_t id_of(PyObject *name)
{
    int32_t id = -1;
    return name != NULL && PyUnicode_Check(name) && name_id(name, &id) < 0 ? -1 : id;
}

void write_span(const struct kind *kind, int64_t start_ns, int64_t end_ns, PyObject *name,
                int64_t batch)
{
    if (mode & REDIRECTED)
        redirect_span(kind, start_ns, end_ns, name, -1, "batch", batch);
    else if (is_written(kind))
        write_record(kind, start_ns, end_ns, id_of(name), -1, batch, -1);
}

void write_step_span(const struct kind *kind, int64_t start_ns, int64_t end_ns, struct label *name,
                     int64_t step, int64_t batch)
{
    if (mode & REDIRECTED)
        redirect_span(kind, start_ns, end_ns, name == NULL ? NULL : name->text, step, "batch",
                      batch);
    else if (is_written(kind))
        write_record(kind, start_ns, end_ns, name == NULL ? -1 : label_id(name), step, batch, -1);
}

void write_comm_span(int64_t start_ns, int64_t end_ns, PyObject *name, int64_t step, int64_t bytes)
{
    if (mode & REDIRECTED)
        redirect_span(&comm_kind, start_ns, end_ns, name, step, "bytes", bytes);
    else if (is_written(&comm_kind))
        write_record(&comm_kind, start_ns, end_ns, id_of(name), step, -1, bytes);
}

void split_transform(struct thread_state *state, int64_t start_ns, int64_t end_ns)
{
    if (!state->transforming)
        return;
    if (state->begin_ns < start_ns)
        write_span(&transform_kind, state->begin_ns, start_ns, state->name, state->batch);
    state->begin_ns = end_ns;
}

void write_held(struct thread_state *state)
{
    int64_t end_ns = state->held_end_ns, start_ns = end_ns;
    for (int place = 0; place < state->num_held; place++)
        start_ns -= state->held[place].sum_ns;
    if (state->num_held > 0)
        split_transform(state, start_ns, end_ns);
    while (state->num_held > 0) {
        const struct short_calls calls = state->held[--state->num_held];
        write_span(&decode_kind, end_ns - calls.sum_ns, end_ns, calls.name, state->batch);
        end_ns -= calls.sum_ns;
    }
}

static void hold(struct thread_state *state, int64_t start_ns, int64_t end_ns, PyObject *name)
{
    int place = 0;
    while (place < state->num_held && state->held[place].name != name)
        place++;
    if (place == MAX_HELD || (state->num_held > 0 && end_ns - state->held_start_ns > HELD_NS)) {
        write_held(state);
        place = 0;
    }
    if (place == state->num_held) {
        if (place == 0)
            state->held_start_ns = start_ns;
        state->held[state->num_held++] = (struct short_calls){name, 0};
    }
    state->held[place].sum_ns += end_ns - start_ns;
    state->held_end_ns = end_ns;
}

void write_decode(struct thread_state *state, int64_t start_ns, int64_t end_ns, PyObject *name)
{
    write_held(state);
    split_transform(state, start_ns, end_ns);
    write_span(&decode_kind, start_ns, end_ns, name, state->batch);
}

void add_decode(struct thread_state *state, int64_t start_ns, int64_t end_ns, PyObject *name)
{
    if (end_ns - start_ns < SHORT_NS)
        hold(state, start_ns, end_ns, name);
    else
        write_decode(state, start_ns, end_ns, name);
}
