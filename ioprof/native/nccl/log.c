#include "log.h"

#include "ring_file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#define WINDOWS 4096 /* 268 million records, 5 GiB */
#define RETRY_EVERY                                                               \
    1024 /* a window that could not be mapped is tried again after so many losses \
          */
#define WINDOW_BYTES ((size_t)WINDOW_RECORDS * sizeof(struct ioprof_collective_record))

static struct {
    _Atomic(struct ioprof_collective_header *) header; /* NULL: closed */
    _Atomic(struct ioprof_collective_record *) windows[WINDOWS];
    _Atomic bool is_mapping;
    int64_t base_ns;
    dev_t device; /* which file the path must still name when it is extended */
    ino_t inode;
    char path[4096];
} file;

static pthread_mutex_t opening =
    PTHREAD_MUTEX_INITIALIZER; /* communicators are made by several threads */

/* ------------------------------------------------------------------------------------ the file */

static int reopen(void)
{
    struct stat status;
    int descriptor = open(file.path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (descriptor < 0)
        return -1;
    if (fstat(descriptor, &status) == 0 && status.st_dev == file.device &&
        status.st_ino == file.inode)
        return descriptor;
    close(descriptor);
    return -1;
}

/* Only one thread maps at a time: where the file system has no fallocate, blocks are allocated by
 * writing zeros, which must not meet records. What another thread claims of the same window
 * meanwhile is lost; windows are mapped half a window early. */
static struct ioprof_collective_record *map_window(uint64_t window)
{
    struct ioprof_collective_record *records = NULL;
    if (atomic_exchange(&file.is_mapping, true))
        return NULL;
    if (window < WINDOWS && (records = atomic_load(&file.windows[window])) == NULL) {
        int saved_errno = errno, descriptor = reopen();
        if (descriptor >= 0) {
            records = ring_map_blocks(descriptor, (off_t)(FIRST_RECORD + window * WINDOW_BYTES),
                                      WINDOW_BYTES);
            close(descriptor);
        }
        atomic_store(&file.windows[window], records);
        errno = saved_errno;
    }
    atomic_store(&file.is_mapping, false);
    return records;
}

static void forget(void)
{
    struct ioprof_collective_header *header = atomic_exchange(&file.header, NULL);
    for (uint64_t window = 0; window < WINDOWS; window++) {
        void *records = atomic_exchange(&file.windows[window], NULL);
        if (records != NULL)
            munmap(records, WINDOW_BYTES);
    }
    if (header != NULL)
        munmap(header, FIRST_RECORD);
    atomic_store(&file.is_mapping, false);
}

static void in_child(void)
{
    if (atomic_load(&file.header) != NULL)
        forget();
    pthread_mutex_init(&opening, NULL);
}

static void fill_header(struct ioprof_collective_header *header, const char *host, uint32_t api)
{
    *header = (struct ioprof_collective_header){
        .magic = COLLECTIVE_MAGIC_BYTES,
        .version = COLLECTIVE_VERSION,
        .record_bytes = sizeof(struct ioprof_collective_record),
        .communicator_bytes = sizeof(struct ioprof_communicator),
        .num_communicators = NUM_COMMUNICATORS,
        .first_record = FIRST_RECORD,
        .pid = (uint32_t)getpid(),
        .base_ns = file.base_ns,
        .api = api,
    };
    memcpy(header->host, host, strnlen(host, sizeof header->host));
}

static bool create(uint32_t api)
{
    const char *folder = getenv("IOPROF_SPOOL");
    struct utsname system;
    struct stat status;
    if (folder == NULL || folder[0] != '/' || uname(&system) != 0)
        return false;
    file.base_ns = ring_now();
    int length = snprintf(file.path, sizeof file.path, "%s/%.64s-%d-%lld" COLLECTIVE_SUFFIX, folder,
                          system.nodename, (int)getpid(), (long long)file.base_ns);
    if (length < 0 || (size_t)length >= sizeof file.path)
        return false;
    int descriptor = open(file.path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (descriptor < 0)
        return false;
    struct ioprof_collective_header *header =
        fstat(descriptor, &status) == 0 ? ring_map_blocks(descriptor, 0, FIRST_RECORD) : NULL;
    close(descriptor);
    if (header == NULL) {
        unlink(file.path);
        return false;
    }
    file.device = status.st_dev;
    file.inode = status.st_ino;
    fill_header(header, system.nodename, api);
    atomic_store(&file.header, header);
    if (map_window(0) != NULL)
        return true;
    forget();
    unlink(file.path);
    return false;
}

bool log_open(uint32_t api)
{
    static bool is_registered;
    int saved_errno = errno;
    pthread_mutex_lock(&opening);
    if (!is_registered)
        is_registered = pthread_atfork(NULL, NULL, in_child) == 0;
    bool is_open = atomic_load(&file.header) != NULL || (is_registered && create(api));
    pthread_mutex_unlock(&opening);
    errno = saved_errno;
    return is_open;
}

bool log_is_open(void)
{
    return atomic_load_explicit(&file.header, memory_order_acquire) != NULL;
}

/* ---------------------------------------------------------------------------- header and table */

uint32_t log_pid(void)
{
    struct ioprof_collective_header *header =
        atomic_load_explicit(&file.header, memory_order_acquire);
    return header == NULL ? 0 : header->pid;
}

uint64_t log_add_communicator(void)
{
    struct ioprof_collective_header *header = atomic_load(&file.header);
    return header == NULL ? NUM_COMMUNICATORS : atomic_fetch_add(&header->communicators, 1);
}

struct ioprof_communicator *log_communicator(uint64_t index)
{
    struct ioprof_collective_header *header =
        atomic_load_explicit(&file.header, memory_order_acquire);
    return header == NULL || index >= NUM_COMMUNICATORS
               ? NULL
               : (struct ioprof_communicator *)(header + 1) + index;
}

void log_count_untracked(void)
{
    struct ioprof_collective_header *header = atomic_load(&file.header);
    if (header != NULL)
        atomic_fetch_add_explicit(&header->untracked, 1, memory_order_relaxed);
}

int64_t log_gpu_time(uint64_t timer)
{
    struct ioprof_collective_header *header =
        atomic_load_explicit(&file.header, memory_order_acquire);
    uint64_t base = 0;
    if (header == NULL)
        return 0;
    if ((base = atomic_load_explicit(&header->timer_base_ns, memory_order_relaxed)) == 0 &&
        atomic_compare_exchange_strong(&header->timer_base_ns, &base, timer))
        base = timer;
    return (int64_t)(timer - base);
}

/* ------------------------------------------------------------------------------------- records */

static struct ioprof_collective_record *place_of(struct ioprof_collective_header *header,
                                                 uint64_t record)
{
    uint64_t window = record / WINDOW_RECORDS, place = record % WINDOW_RECORDS;
    if (place == WINDOW_RECORDS / 2)
        map_window(window + 1);
    if (window >= WINDOWS)
        return NULL;
    struct ioprof_collective_record *records =
        atomic_load_explicit(&file.windows[window], memory_order_acquire);
    if (records == NULL && (place == 0 || atomic_load(&header->lost) % RETRY_EVERY == 0))
        records = map_window(window);
    return records == NULL ? NULL : records + place;
}

void log_write(uint32_t operation, enum ioprof_collective_record_kind kind, uint8_t detail,
               int64_t time, int64_t value)
{
    struct ioprof_collective_header *header =
        atomic_load_explicit(&file.header, memory_order_acquire);
    if (header == NULL)
        return;
    uint64_t number = atomic_fetch_add_explicit(&header->records, 1, memory_order_relaxed);
    struct ioprof_collective_record *record = place_of(header, number);
    if (record == NULL) {
        atomic_fetch_add_explicit(&header->lost, 1, memory_order_relaxed);
        return;
    }
    record->operation = operation;
    record->time_low = (uint32_t)time;
    record->value_low = (uint32_t)value;
    record->value_high = ((uint32_t)((uint64_t)value >> 32) & 0xffffff) | (uint32_t)detail << 24;
    uint32_t last = ((uint32_t)((uint64_t)time >> 32) & 0xffffff) | (uint32_t)kind << 24;
    __atomic_store_n(&record->time_high, last, __ATOMIC_RELEASE);
}

int64_t log_now(void)
{
    return ring_now() - file.base_ns;
}

int64_t log_absolute(int64_t time_ns)
{
    return time_ns + file.base_ns;
}
