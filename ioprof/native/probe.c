/* ioprof._probe: clients that read in a closed loop, each the next place as soon as it has the last
 * one, and time every read.
 *
 * In C, because Python's threads wait for the interpreter between two reads: with sixteen of them a
 * p99 of 2.4 ms was seen, and a third fewer reads, where fio did as here. Each client is a thread
 * with a buffer of its own; what it found of a place goes into that place's row of an array that
 * Python made, so nothing is counted or rounded here. The pure-Python version is
 * ioprof/storage/probe/threads.py. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum kind { RANGES, FILES, OPENS };
enum reason { STOPPED = 1, TIME = 2, BYTES = 3, PLACES = 4 };

#ifndef SYS_cachestat
#define SYS_cachestat 451 /* on every architecture; Linux 6.5 */
#endif

#define MAX_CLIENTS 256
#define MAX_BYTES (1LL << 60)
#define PAGE 4096
#define BUFFER_BYTES (4L << 20) /* a longer place is read piece by piece */
#define STACK_BYTES (256 << 10)
#define WAKE_NS 50000000L

/* Mirrored by PLACE and OUTCOME in ioprof/storage/probe/outcomes.py. */
struct place {
    int64_t target, offset, length;
};

struct outcome {
    int64_t start_ns;  /* 0: never begun */
    int64_t opened_ns; /* after open and fstat; start_ns where nothing is opened */
    int64_t begin_ns;  /* of the read; later than opened_ns by the question about the cache */
    int64_t end_ns;
    int64_t bytes;        /* read, or -errno */
    int64_t device_bytes; /* that the kernel charged to this thread meanwhile */
    int64_t cached_bytes; /* of the place's pages that were in the page cache before; -1: cannot be
                             asked */
    int32_t waits;        /* how often the thread gave up the processor while it read */
    int32_t client;
};

struct job {
    enum kind kind;
    int direct, ask, in_order, clients;
    int64_t num_places, limit_ns, limit_bytes;
    const struct place *places;
    struct outcome *outcomes;
    Py_ssize_t num_targets;
    const char **paths;
    int *descriptors;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int go, working;
    int64_t start_ns, idle_ns;
    enum reason reason;
    _Atomic int64_t next, claimed, device_bytes;
    _Atomic int stop;
};

struct client {
    pthread_t thread;
    struct job *job;
    int number;
    char *buffer;
};

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

/* What the kernel has counted for this thread. */
struct counts {
    int64_t blocks, waits;
};

static struct counts counts_now(void)
{
    struct rusage used;
    getrusage(RUSAGE_THREAD, &used);
    return (struct counts){used.ru_inblock, used.ru_nvcsw};
}

/* man 2 cachestat. Not RWF_NOWAIT: on Linux 6.18 it begins to fetch what is not there, and the read
 * that follows finds it under way. Refused (EPERM) to those who neither own the file nor may write
 * it. */
static int64_t cached_bytes_of(int descriptor, int64_t offset, int64_t length)
{
    struct {
        uint64_t offset, length;
    } range = {(uint64_t)offset, (uint64_t)length};
    struct {
        uint64_t cache, dirty, writeback, evicted, recently_evicted;
    } pages;
    if (length == 0 || syscall(SYS_cachestat, descriptor, &range, &pages, 0) != 0)
        return -1;
    return (int64_t)pages.cache * sysconf(_SC_PAGESIZE);
}

/* Bytes read, fewer only at the end of the file; or -errno. */
static int64_t read_all(int descriptor, char *buffer, int64_t offset, int64_t length)
{
    int64_t done = 0;
    while (done < length) {
        int64_t piece = length - done < BUFFER_BYTES ? length - done : BUFFER_BYTES;
        ssize_t got = pread(descriptor, buffer, (size_t)piece, offset + done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -errno;
        if (got == 0)
            break;
        done += got;
    }
    return done;
}

static int open_target(const struct job *job, int64_t target)
{
    /* Without waiting, since a FIFO would be waited for; of files that are read it was seen before
     * that they are regular. */
    int flags =
        O_RDONLY | O_CLOEXEC | (job->kind == OPENS ? O_NONBLOCK : 0) | (job->direct ? O_DIRECT : 0);
    struct stat status;
    int descriptor = open(job->paths[target], flags);
    if (descriptor < 0)
        return -errno;
    int failed = fstat(descriptor, &status) < 0 ? errno : S_ISREG(status.st_mode) ? 0 : ESPIPE;
    if (failed) {
        close(descriptor);
        return -failed;
    }
    return descriptor;
}

static void visit(struct job *job, struct client *client, int64_t number, struct counts *before)
{
    const struct place *place = &job->places[number];
    struct outcome *out = &job->outcomes[number];
    int64_t waits = before->waits;
    int descriptor;

    out->client = client->number;
    out->cached_bytes = -1;
    if (job->kind == RANGES) {
        descriptor = job->descriptors[place->target];
    } else {
        out->start_ns = now();
        descriptor = open_target(job, place->target);
        out->opened_ns = out->begin_ns = out->end_ns = now();
        if (descriptor < 0) {
            out->bytes = descriptor;
            return;
        }
    }
    if (job->kind != OPENS) {
        if (job->ask)
            out->cached_bytes = cached_bytes_of(descriptor, place->offset, place->length);
        if (job->kind == FILES)
            waits = counts_now().waits; /* those of the opening are not the read's */
        out->begin_ns = now();
        out->bytes = read_all(descriptor, client->buffer, place->offset, place->length);
        out->end_ns = now();
    }
    if (job->kind == RANGES)
        out->start_ns = out->opened_ns = out->begin_ns;
    else
        close(descriptor);
    struct counts after = counts_now();
    out->device_bytes = (after.blocks - before->blocks) * 512;
    out->waits = (int32_t)(after.waits - waits);
    *before = after;
    atomic_fetch_add(&job->device_bytes, out->device_bytes);
}

/* The number of the next place, or -1 and why there is none. */
static int64_t claim(struct job *job, int64_t *own, int64_t own_end, enum reason *reason)
{
    if (atomic_load(&job->stop)) {
        *reason = STOPPED;
        return -1;
    }
    int64_t number = job->in_order ? (*own)++ : atomic_fetch_add(&job->next, 1);
    *reason = PLACES;
    if (number >= own_end)
        return -1;
    int64_t length = job->kind == OPENS ? 0 : job->places[number].length;
    *reason = BYTES;
    if (atomic_fetch_add(&job->claimed, length) + length > job->limit_bytes ||
        atomic_load(&job->device_bytes) > job->limit_bytes)
        return -1;
    return number;
}

static void *work(void *argument)
{
    struct client *client = argument;
    struct job *job = client->job;
    enum reason reason = STOPPED;
    int64_t ended;

    pthread_mutex_lock(&job->mutex);
    while (!job->go)
        pthread_cond_wait(&job->changed, &job->mutex);
    pthread_mutex_unlock(&job->mutex);

    int64_t own = job->in_order ? job->num_places * client->number / job->clients : 0;
    int64_t own_end =
        job->in_order ? job->num_places * (client->number + 1) / job->clients : job->num_places;
    int64_t deadline = job->start_ns + job->limit_ns, number;
    struct counts before = counts_now();
    ended = now();
    for (;;) {
        if (ended >= deadline) {
            reason = TIME;
            break;
        }
        if ((number = claim(job, &own, own_end, &reason)) < 0)
            break;
        visit(job, client, number, &before);
        ended = job->outcomes[number].end_ns;
    }

    pthread_mutex_lock(&job->mutex);
    ended = now();
    if (!job->idle_ns || ended < job->idle_ns) {
        job->idle_ns = ended;
        job->reason = reason;
    }
    job->working--;
    pthread_cond_broadcast(&job->changed);
    pthread_mutex_unlock(&job->mutex);
    return NULL;
}

/* Waits for the clients, and looks now and then whether a signal asks for the end; 0, or -1 with
 * Python's exception set. */
static int wait_for_all(struct job *job)
{
    int failed = 0, left;
    do {
        Py_BEGIN_ALLOW_THREADS pthread_mutex_lock(&job->mutex);
        if (job->working > 0) {
            struct timespec until;
            clock_gettime(CLOCK_MONOTONIC, &until);
            until.tv_nsec += WAKE_NS;
            until.tv_sec += until.tv_nsec / 1000000000L;
            until.tv_nsec %= 1000000000L;
            pthread_cond_timedwait(&job->changed, &job->mutex, &until);
        }
        left = job->working;
        pthread_mutex_unlock(&job->mutex);
        Py_END_ALLOW_THREADS if (!failed && PyErr_CheckSignals() < 0)
        {
            failed = -1;
            atomic_store(&job->stop, 1);
        }
    } while (left > 0);
    return failed;
}

static int start_clients(struct job *job, struct client *clients)
{
    pthread_attr_t attributes;
    int failed = 0, started = 0;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    for (; started < job->clients && !failed; started += !failed) {
        clients[started].job = job;
        clients[started].number = started;
        failed = pthread_create(&clients[started].thread, &attributes, work, &clients[started]);
    }
    pthread_attr_destroy(&attributes);
    pthread_mutex_lock(&job->mutex);
    job->working = started;
    job->go = 1;
    atomic_store(&job->stop, failed != 0);
    job->start_ns = now();
    pthread_cond_broadcast(&job->changed);
    pthread_mutex_unlock(&job->mutex);
    errno = failed;
    return started;
}

static int run(struct job *job)
{
    struct client *clients = calloc((size_t)job->clients, sizeof *clients);
    int64_t longest = PAGE;
    int failed = -1, started = 0;

    for (int64_t place = 0; place < job->num_places; place++)
        longest = job->places[place].length > longest ? job->places[place].length : longest;
    size_t size =
        (size_t)((longest < BUFFER_BYTES ? longest : BUFFER_BYTES) + PAGE - 1) / PAGE * PAGE;
    if (!clients) {
        PyErr_NoMemory();
        return -1;
    }
    for (int i = 0; i < job->clients; i++) {
        if (posix_memalign((void **)&clients[i].buffer, PAGE, size) != 0) {
            clients[i].buffer = NULL;
            PyErr_NoMemory();
            goto end;
        }
        memset(clients[i].buffer, 1, size); /* else the first read would pay for its pages */
    }
    started = start_clients(job, clients);
    int error = errno;
    failed = wait_for_all(job);
    for (int i = 0; i < started; i++)
        pthread_join(clients[i].thread, NULL);
    if (!failed && error) {
        errno = error;
        PyErr_SetFromErrno(PyExc_OSError);
        failed = -1;
    }
end:
    for (int i = 0; i < job->clients; i++)
        free(clients[i].buffer);
    free(clients);
    return failed;
}

/* The targets: paths of files, or open descriptors. */
static int take_targets(struct job *job, PyObject *targets)
{
    job->num_targets = PyTuple_Size(targets);
    job->paths = calloc((size_t)job->num_targets + 1, sizeof *job->paths);
    job->descriptors = calloc((size_t)job->num_targets + 1, sizeof *job->descriptors);
    if (!job->paths || !job->descriptors) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < job->num_targets; i++) {
        PyObject *target = PyTuple_GetItem(targets, i);
        if (job->kind == RANGES)
            job->descriptors[i] = (int)PyLong_AsLong(target);
        else if (PyBytes_Check(target))
            job->paths[i] = PyBytes_AsString(target);
        else
            PyErr_SetString(PyExc_TypeError, "a path is bytes");
        if (PyErr_Occurred())
            return -1;
    }
    return 0;
}

static int check_places(struct job *job, const Py_buffer *places, const Py_buffer *outcomes)
{
    job->num_places = places->len / (Py_ssize_t)sizeof *job->places;
    job->places = places->buf;
    job->outcomes = outcomes->buf;
    int sizes = places->len % (Py_ssize_t)sizeof *job->places == 0 &&
                outcomes->len == job->num_places * (Py_ssize_t)sizeof *job->outcomes;
    for (int64_t i = 0; sizes && i < job->num_places; i++) {
        const struct place *place = &job->places[i];
        sizes = place->target >= 0 && place->target < job->num_targets && place->offset >= 0 &&
                place->length >= 0 && place->offset <= MAX_BYTES && place->length <= MAX_BYTES;
    }
    if (!sizes || job->clients < 1 || job->clients > MAX_CLIENTS || job->kind > OPENS) {
        PyErr_SetString(PyExc_ValueError,
                        "no such place, outcomes of another size, or no such number of clients");
        return -1;
    }
    return 0;
}

static PyObject *visit_all(PyObject *module, PyObject *args)
{
    struct job job = {0};
    Py_buffer places, outcomes;
    PyObject *targets, *result = NULL;
    int kind;
    long long limit_ns, limit_bytes;
    pthread_condattr_t monotonic;

    (void)module;
    if (!PyArg_ParseTuple(args, "iO!y*w*ipppLL:visit", &kind, &PyTuple_Type, &targets, &places,
                          &outcomes, &job.clients, &job.direct, &job.ask, &job.in_order, &limit_ns,
                          &limit_bytes))
        return NULL;
    job.kind = (enum kind)kind;
    job.limit_ns = limit_ns;
    job.limit_bytes = limit_bytes;
    pthread_mutex_init(&job.mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&job.changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (take_targets(&job, targets) == 0 && check_places(&job, &places, &outcomes) == 0 &&
        run(&job) == 0)
        result =
            Py_BuildValue("LLi", (long long)job.start_ns, (long long)job.idle_ns, (int)job.reason);
    pthread_cond_destroy(&job.changed);
    pthread_mutex_destroy(&job.mutex);
    free(job.paths);
    free(job.descriptors);
    PyBuffer_Release(&places);
    PyBuffer_Release(&outcomes);
    return result;
}

static PyMethodDef methods[] = {
    {"visit", visit_all, METH_VARARGS,
     "visit(kind, targets, places, outcomes, clients, direct, ask, in_order, limit_ns, "
     "limit_bytes) -> (start_ns, idle_ns, reason)"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "ioprof._probe", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__probe(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddIntConstant(module, "OUTCOME_BYTES", sizeof(struct outcome)) < 0)
        Py_CLEAR(module);
    return module;
}
