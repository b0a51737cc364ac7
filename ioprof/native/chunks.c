/* The spans of some chunks of a capture file, for `ioprof.ingest.chunks`.
 *
 * The chunks may hold any bytes: a slot is what it is by the rules of FORMAT.md, or is counted as
 * damage. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "ring/wire_format.h"

enum { CHUNKS, STALE, WANTED, RECORDS, TIDS, STRINGS, NUM_BUFFERS };
enum { NUM_VALUES_OF_KIND = 256 };

struct found {
    int64_t spans, strings;
    int64_t few_slots, no_span, unknown_kind, impossible_times, unknown_source; /* damage */
};

struct limits {
    int64_t kinds, sources, objects, latest_ns;
};

static struct ioprof_record record_at(const unsigned char *chunk, int64_t slot)
{
    struct ioprof_record record;
    memcpy(&record, chunk + IOPROF_CHUNK_HEADER_BYTES + slot * IOPROF_RECORD_BYTES, sizeof record);
    return record;
}

/* Fields that strings and owners do not use have fixed values. A slot of zeros, for example, is not
 * a string. */
static int has_no_fields(const struct ioprof_record *r)
{
    return r->start_ns == 0 && r->end_ns == 0 && r->source == 0 && r->offset == -1 &&
           r->step == -1 && r->name == -1 && r->stream == -1;
}

static int64_t num_slots_of(int64_t length)
{
    return (length + IOPROF_RECORD_BYTES - 1) / IOPROF_RECORD_BYTES;
}

static int is_string(const struct ioprof_record *r, int64_t slot, int64_t count)
{
    return r->file >= 0 && r->batch == -1 && r->bytes >= 0 && r->bytes <= IOPROF_STRING_BYTES &&
           slot + 1 + num_slots_of(r->bytes) <= count;
}

static int is_of_wait(const struct ioprof_record *r)
{
    return r->kind == KIND_BLOCK || r->kind == KIND_WAKE;
}

static int is_valid(const struct ioprof_record *r, const struct limits *limits, struct found *found)
{
    if (r->kind > limits->kinds && !is_of_wait(r)) {
        found->unknown_kind++;
        return 0;
    }
    if (r->start_ns < 0 || r->end_ns < r->start_ns || r->end_ns >= limits->latest_ns) {
        found->impossible_times++;
        return 0;
    }
    if (r->source > (is_of_wait(r) ? limits->objects : limits->sources))
        found->unknown_source++;
    return 1;
}

/* Adds what the first `count` slots of a chunk hold. `place` is where its slots begin, counted in
 * bytes of all chunks. */
static void add_chunk(const unsigned char *chunk, int64_t count, int64_t place,
                      const struct limits *limits, Py_buffer *v, struct found *found)
{
    const unsigned char *wanted = v[WANTED].buf;
    unsigned char *records = v[RECORDS].buf;
    int64_t *tids = v[TIDS].buf, *strings = v[STRINGS].len ? v[STRINGS].buf : NULL;
    uint32_t first_owner;
    memcpy(&first_owner, chunk + offsetof(struct ioprof_chunk, tid), sizeof first_owner);
    int64_t tid = first_owner;
    for (int64_t slot = 0; slot < count; slot++) {
        struct ioprof_record record = record_at(chunk, slot);
        if (record.kind == KIND_STRING) {
            int is_other = has_no_fields(&record);
            if (is_other && is_string(&record, slot, count)) {
                if (strings != NULL)
                    strings[found->strings++] = place + slot * IOPROF_RECORD_BYTES;
                slot += num_slots_of(record.bytes);
            } else if (is_other && record.file == -1 && record.bytes == -1 && record.batch > 0) {
                tid = record.batch;
            } else {
                found->no_span++;
            }
        } else if (is_valid(&record, limits, found) && wanted[record.kind]) {
            memcpy(records + found->spans * IOPROF_RECORD_BYTES, &record, sizeof record);
            tids[found->spans++] = tid;
        }
    }
}

static int are_sound(const Py_buffer *v, Py_ssize_t num_bytes)
{
    Py_ssize_t num_chunks = v[CHUNKS].len / IOPROF_CHUNK_BYTES,
               num_slots = num_chunks * IOPROF_SLOTS;
    return v[CHUNKS].len % IOPROF_CHUNK_BYTES == 0 && num_bytes >= 0 &&
           num_bytes <= v[CHUNKS].len && v[CHUNKS].len - num_bytes < IOPROF_CHUNK_BYTES &&
           v[WANTED].len == NUM_VALUES_OF_KIND &&
           v[RECORDS].len / IOPROF_RECORD_BYTES >= num_slots && v[TIDS].len / 8 >= num_slots &&
           (!v[STRINGS].len || v[STRINGS].len / 8 >= num_slots);
}

static void add_all(Py_buffer *v, Py_ssize_t num_bytes, const struct limits *limits,
                    struct found *found)
{
    const unsigned char *chunks = v[CHUNKS].buf, *is_stale = v[STALE].buf;
    for (Py_ssize_t i = 0; i < v[CHUNKS].len / IOPROF_CHUNK_BYTES; i++) {
        const unsigned char *chunk = chunks + i * IOPROF_CHUNK_BYTES;
        int64_t there = num_bytes - i * IOPROF_CHUNK_BYTES -
                        IOPROF_CHUNK_HEADER_BYTES; /* the last one may be incomplete */
        int64_t room = there < 0 ? 0 : there / IOPROF_RECORD_BYTES;
        if (room > IOPROF_SLOTS)
            room = IOPROF_SLOTS;
        uint64_t state;
        memcpy(&state, chunk + offsetof(struct ioprof_chunk, state), sizeof state);
        int64_t count = i < v[STALE].len && is_stale[i] ? 0 : (int64_t)(state & 0xFFFFFFFF);
        if (count > room) {
            found->few_slots++;
            count = room;
        }
        add_chunk(chunk, count, i * IOPROF_CHUNK_BYTES + IOPROF_CHUNK_HEADER_BYTES, limits, v,
                  found);
    }
}

/* The numbers and bytes of the strings whose records begin at these places. */
static PyObject *strings_at(const unsigned char *chunks, const int64_t *places, int64_t count)
{
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (int64_t i = 0; list != NULL && i < count; i++) {
        struct ioprof_record record;
        memcpy(&record, chunks + places[i], sizeof record);
        const char *bytes = (const char *)chunks + places[i] + sizeof record;
        PyObject *pair = Py_BuildValue("iy#", (int)record.file, bytes, (Py_ssize_t)record.bytes);
        if (pair == NULL || PyList_SetItem(list, (Py_ssize_t)i, pair) < 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *find_spans(PyObject *module, PyObject *arguments)
{
    (void)module;
    Py_buffer v[NUM_BUFFERS];
    Py_ssize_t num_bytes;
    long long kinds, sources, objects, latest_ns;
    if (!PyArg_ParseTuple(arguments, "y*ny*y*LLLLw*w*w*", &v[CHUNKS], &num_bytes, &v[STALE],
                          &v[WANTED], &kinds, &sources, &objects, &latest_ns, &v[RECORDS], &v[TIDS],
                          &v[STRINGS]))
        return NULL;
    struct limits limits = {kinds, sources, objects, latest_ns};
    struct found found = {0};
    int is_sound;
    Py_BEGIN_ALLOW_THREADS is_sound = are_sound(v, num_bytes);
    if (is_sound)
        add_all(v, num_bytes, &limits, &found);
    Py_END_ALLOW_THREADS PyObject *result = NULL;
    if (is_sound) {
        PyObject *strings = strings_at(v[CHUNKS].buf, v[STRINGS].buf, found.strings);
        if (strings != NULL)
            result = Py_BuildValue("LN(LLLLL)", (long long)found.spans, strings,
                                   (long long)found.few_slots, (long long)found.no_span,
                                   (long long)found.unknown_kind, (long long)found.impossible_times,
                                   (long long)found.unknown_source);
    } else {
        PyErr_SetString(PyExc_ValueError,
                        "these are no whole chunks, or the buffers are too small for their slots");
    }
    for (int i = 0; i < NUM_BUFFERS; i++)
        PyBuffer_Release(&v[i]);
    return result;
}

static PyMethodDef methods[] = {
    {"find_spans", find_spans, METH_VARARGS,
     "Copy the valid spans of some chunks, with their threads and the places of strings."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_chunks", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__chunks(void)
{
    return PyModule_Create(&definition);
}
