/* Sums over reads: what `ioprof.analysis.reads.read_sums` computes with NumPy where this library
 * was not built. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#include "sorted_table.h"

enum { IS_READ = 1, IS_OPEN = 2, IS_CALL = 4 }; /* bits of FLAGS: what a row counts as */

enum {
    STARTS,
    ENDS,
    SIZES,
    FILES,
    OFFSETS,
    RANKS,
    BATCHES,
    SOURCES,
    FLAGS, /* columns of the spans */
    LIMITS,
    KEYS,
    EPOCHS, /* tables */
    GROUPS,
    OF_FILES,
    SMALL,
    OF_EPOCHS, /* sums */
    NUM_BUFFERS
};

static const Py_ssize_t ITEM_BYTES[NUM_BUFFERS] = {8, 8, 8, 8, 8, 8, 8, 1, 1, 8, 8, 8, 8, 8, 8, 8};

enum { NUM_SIZES = 32, FEW_BYTES = 8192, PAGE_BYTES = 4096, BITS_OF_BATCH = 40 };

enum { ACCESSES, BYTES, TOOK, LONGEST, NUM_OF_GROUP };
enum { PLACE_OF_LONGEST = NUM_OF_GROUP, OPENS, OPEN_TOOK, END, NUM_OF_FILE };
enum { NUM_OF_SMALL = 3, NUM_OF_EPOCH = 2 };

/* Sums of damaged records may overflow. */
static void add(int64_t *sum, int64_t value)
{
    *sum = (int64_t)((uint64_t)*sum + (uint64_t)value);
}

static int64_t size_class(int64_t size)
{
    return size < 1 ? 0 : (63 - __builtin_clzll((uint64_t)size)) / 2;
}

static void add_access(int64_t *sums, int64_t size, int64_t took_ns)
{
    sums[ACCESSES]++;
    add(&sums[BYTES], size);
    add(&sums[TOOK], took_ns);
}

static void add_to_file(int64_t *sums, int64_t size, int64_t took_ns, int64_t offset)
{
    if (!sums[ACCESSES] || took_ns > sums[LONGEST] ||
        (took_ns == sums[LONGEST] && offset < sums[PLACE_OF_LONGEST])) {
        sums[LONGEST] = took_ns;
        sums[PLACE_OF_LONGEST] = offset;
    }
    int has_end = offset >= 0 && size >= 0 && offset <= INT64_MAX - size;
    if (!has_end)
        sums[END] = INT64_MAX; /* not known where it read */
    else if (offset + size > sums[END])
        sums[END] = offset + size;
    add_access(sums, size, took_ns);
}

/* Whether all lengths fit, and the tables hold places of the sums alone. */
static int are_sound(const Py_buffer *v, int64_t num_sources, int64_t num_epochs)
{
    Py_ssize_t counts[NUM_BUFFERS];
    for (int i = 0; i < NUM_BUFFERS; i++) {
        counts[i] = v[i].len / ITEM_BYTES[i];
        if (v[i].len % ITEM_BYTES[i] != 0)
            return 0;
    }
    for (int i = ENDS; i <= FLAGS; i++) {
        if (counts[i] != counts[STARTS])
            return 0;
    }
    if (num_sources < 1 || num_sources > 256 || num_epochs < 0 || num_epochs > counts[OF_EPOCHS] ||
        counts[LIMITS] < 1)
        return 0;
    if (counts[GROUPS] != num_sources * NUM_SIZES * counts[LIMITS] * NUM_OF_GROUP)
        return 0;
    if (counts[OF_FILES] % NUM_OF_FILE != 0 || counts[SMALL] != 2 * NUM_OF_SMALL ||
        counts[KEYS] != counts[EPOCHS])
        return 0;
    if (counts[OF_EPOCHS] != num_epochs * num_sources * NUM_OF_EPOCH)
        return 0;
    const int64_t *epochs = v[EPOCHS].buf;
    for (Py_ssize_t i = 0; i < counts[EPOCHS]; i++) {
        if (epochs[i] < 0 || epochs[i] >= num_epochs)
            return 0;
    }
    const uint8_t *sources = v[SOURCES].buf;
    for (Py_ssize_t i = 0; i < counts[SOURCES]; i++) {
        if (sources[i] >= num_sources)
            return 0;
    }
    return 1;
}

static void add_all(Py_buffer *v, int64_t num_sources)
{
    const int64_t *starts = v[STARTS].buf, *ends = v[ENDS].buf, *sizes = v[SIZES].buf,
                  *files = v[FILES].buf;
    const int64_t *offsets = v[OFFSETS].buf, *ranks = v[RANKS].buf, *batches = v[BATCHES].buf,
                  *epochs = v[EPOCHS].buf;
    const uint8_t *sources = v[SOURCES].buf, *flags = v[FLAGS].buf;
    int64_t *groups = v[GROUPS].buf, *of_files = v[OF_FILES].buf, *small = v[SMALL].buf,
            *of_epochs = v[OF_EPOCHS].buf;
    Table limits = table_of(v[LIMITS].buf, v[LIMITS].len),
          keys = table_of(v[KEYS].buf, v[KEYS].len);
    int64_t num_files = v[OF_FILES].len / ITEM_BYTES[OF_FILES] / NUM_OF_FILE, last_key = -1,
            epoch = -1;
    for (Py_ssize_t i = 0; i < v[FLAGS].len; i++) {
        if (!flags[i])
            continue;
        int64_t took_ns = (int64_t)((uint64_t)ends[i] - (uint64_t)starts[i]), size = sizes[i];
        int64_t *of_file =
            files[i] >= 0 && files[i] < num_files ? of_files + files[i] * NUM_OF_FILE : NULL;
        if (flags[i] & IS_OPEN) {
            if (of_file != NULL) {
                of_file[OPENS]++;
                add(&of_file[OPEN_TOOK], took_ns);
            }
            continue;
        }
        if (!(flags[i] & IS_READ))
            continue;
        int64_t class = num_up_to(&limits, took_ns) - 1;
        if (class < 0)
            class = 0;
        int64_t *group =
            groups +
            ((sources[i] * NUM_SIZES + size_class(size)) * limits.count + class) * NUM_OF_GROUP;
        add_access(group, size, took_ns);
        if (took_ns > group[LONGEST])
            group[LONGEST] = took_ns;
        if (flags[i] & IS_CALL && size <= FEW_BYTES)
            add_access(small + (size < PAGE_BYTES) * NUM_OF_SMALL, size, took_ns);
        if (of_file != NULL)
            add_to_file(of_file, size, took_ns, offsets[i]);
        if (ranks[i] < 0 || ranks[i] >> (62 - BITS_OF_BATCH) || batches[i] < 0 ||
            batches[i] >> BITS_OF_BATCH)
            continue;
        int64_t key = ranks[i] << BITS_OF_BATCH | batches[i];
        if (key != last_key) { /* reads of one batch follow each other */
            int64_t place = num_up_to(&keys, key) - 1;
            epoch = place >= 0 && keys.values[place] == key ? epochs[place] : -1;
            last_key = key;
        }
        if (epoch >= 0) {
            int64_t *of_epoch = of_epochs + (epoch * num_sources + sources[i]) * NUM_OF_EPOCH;
            of_epoch[ACCESSES]++;
            add(&of_epoch[BYTES], size);
        }
    }
}

static PyObject *add_reads(PyObject *module, PyObject *arguments)
{
    (void)module;
    Py_buffer v[NUM_BUFFERS];
    Py_ssize_t num_sources, num_epochs;
    if (!PyArg_ParseTuple(arguments, "y*y*y*y*y*y*y*y*y*y*y*y*w*w*w*w*nn", &v[0], &v[1], &v[2],
                          &v[3], &v[4], &v[5], &v[6], &v[7], &v[8], &v[9], &v[10], &v[11], &v[12],
                          &v[13], &v[14], &v[15], &num_sources, &num_epochs))
        return NULL;
    int is_sound;
    Py_BEGIN_ALLOW_THREADS is_sound = are_sound(v, num_sources, num_epochs);
    if (is_sound)
        add_all(v, num_sources);
    Py_END_ALLOW_THREADS for (int i = 0; i < NUM_BUFFERS; i++) PyBuffer_Release(&v[i]);
    if (is_sound)
        Py_RETURN_NONE;
    PyErr_SetString(PyExc_ValueError,
                    "the buffers do not fit together, or a source or an epoch is not known");
    return NULL;
}

static PyMethodDef methods[] = {
    {"add_reads", add_reads, METH_VARARGS,
     "Add reads and opens to the sums by source, size and time, by file, of small calls, and by "
     "epoch."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_read_sums", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__read_sums(void)
{
    return PyModule_Create(&definition);
}
