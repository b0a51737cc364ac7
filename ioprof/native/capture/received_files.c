#include "received_files.h"

#include "clock.h"
#include "events.h"
#include "paths.h"

#define LEAST_BYTES 65536
#define NUM_CREATED 1024
#define NUM_RECEIVED 32

/* Of the process, since it began or was forked. */
static _Atomic int64_t received_bytes;
static _Atomic int32_t last_peer;

/* By descriptor; two with one place take it from each other. */
static struct {
    _Atomic int32_t descriptor;
    _Atomic int64_t received; /* when the file was created */
} created[NUM_CREATED];

/* The last files that were received, which may be renamed. */
static struct {
    _Atomic uint32_t generation;
    _Atomic int32_t path, peer;
    _Atomic int64_t bytes;
} received[NUM_RECEIVED];

_Atomic uint32_t num_received_files;

void count_received(int32_t peer, int64_t bytes)
{
    atomic_store_explicit(&last_peer, peer, memory_order_relaxed);
    atomic_fetch_add_explicit(&received_bytes, bytes, memory_order_relaxed);
}

void begin_created(int descriptor)
{
    struct open_file *file = known_file(descriptor);
    if (file == NULL)
        return;
    __auto_type entry = &created[descriptor % NUM_CREATED];
    SET(entry, descriptor, descriptor);
    SET(entry, received, atomic_load(&received_bytes));
    set_flags(file, FILE_CREATED);
}

static void emit_received(int32_t path, int32_t peer, int64_t bytes)
{
    int64_t now = clock_now();
    emit_event(&(struct event){now, now, bytes, -1, path, peer, KIND_OPEN, SOURCE_SOCKET});
}

static void add_received(int32_t path, int32_t peer, int64_t bytes)
{
    __auto_type entry = &received[atomic_fetch_add(&num_received_files, 1) % NUM_RECEIVED];
    SET(entry, generation, 0);
    SET(entry, path, path);
    SET(entry, peer, peer);
    SET(entry, bytes, bytes);
    atomic_store(&entry->generation, GET(process, generation));
    emit_received(path, peer, bytes);
}

void end_created(int descriptor, struct open_file *file)
{
    struct stat status;
    __auto_type entry = &created[descriptor % NUM_CREATED];
    int64_t bytes = atomic_load(&received_bytes) - GET(entry, received);
    if (GET(entry, descriptor) != descriptor || bytes < LEAST_BYTES)
        return;
    int saved_errno = begin_own_work();
    if (fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) &&
        status.st_size >= LEAST_BYTES && bytes >= status.st_size / 2)
        add_received(GET(file, path), atomic_load(&last_peer), bytes);
    end_own_work(saved_errno);
}

void rename_received_file(int from_folder, const char *from, int to_folder, const char *to)
{
    int saved_errno = begin_own_work();
    int32_t path = path_number(from_folder, from);
    for (int place = 0; path >= 0 && place < NUM_RECEIVED; place++) {
        __auto_type entry = &received[place];
        if (atomic_load(&entry->generation) != GET(process, generation) || GET(entry, path) != path)
            continue;
        int32_t renamed = path_number(to_folder, to);
        SET(entry, path, renamed);
        emit_received(renamed, GET(entry, peer), GET(entry, bytes));
        break;
    }
    end_own_work(saved_errno);
}
