/* Hooks of calls that map files, and that have the kernel fetch mapped pages.
 *
 * What is then read is read by page faults, which only the kernel sees. But madvise(MADV_WILLNEED)
 * names no file and has the pages fetched before any thread touches them: DALI reads so by default.
 * So does MAP_POPULATE. What they fetched is recorded here. */
#include "io_counters.h"
#include "open_files.h"
#include "real.h"
#include "short_calls.h"
#include "uring.h"
#include "usage.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define READAHEAD "/readahead" /* in the spool, see format/perf.py */
#define TELL_AGAIN_NS 200000000

#define MAPPINGS 8 /* the mapping that madvise names has mostly just been made */

/* A part of a file that this thread has mapped. */
struct mapping {
    uintptr_t start, length;
    int64_t offset;
    int32_t path;
    uint32_t generation; /* of the recording in which `path` is valid; 0: none */
};

static __thread struct mapping mappings[MAPPINGS];
static __thread unsigned mappings_made;

/* A mapping is recorded as an `open` span; one whose pages were fetched meanwhile, as a read from
 * storage. */
static void end_mmap(void *mapped, int descriptor, int64_t start, size_t length, off_t offset,
                     int64_t blocks)
{
    int64_t end = clock_now();
    struct open_file *file = regular_file(descriptor);
    if (file == NULL) {
        map_uring(descriptor, (uint64_t)offset, mapped);
        return;
    }
    int saved_errno = begin_own_work();
    int32_t path = GET(file, path);
    mappings[mappings_made++ % MAPPINGS] =
        (struct mapping){(uintptr_t)mapped, length, offset, path, GET(process, generation)};
    emit_event(&(struct event){start, end, (int64_t)length, offset, path, NAME("mmap"), KIND_OPEN,
                               SOURCE_NONE});
    if (blocks > 0) {
        emit_event(&(struct event){start, end, blocks * 512, offset, path, NAME("mmap"), KIND_READ,
                                   SOURCE_STORAGE});
        tally_fetched(blocks * 512);
    }
    end_own_work(saved_errno);
}

/* The last mapping of this thread that contains the address; NULL: another thread made it, or it
 * was too long ago. */
static const struct mapping *mapping_of(uintptr_t address)
{
    for (unsigned back = 1; back <= MAPPINGS; back++) {
        const struct mapping *mapping = &mappings[(mappings_made - back) % MAPPINGS];
        if (mapping->generation == GET(process, generation) &&
            address - mapping->start < mapping->length)
            return mapping;
    }
    return NULL;
}

static inline bool fetches(int advice)
{
    const int populate_read = 22; /* MADV_POPULATE_READ, Linux 5.14 */
    return advice == MADV_WILLNEED || advice == populate_read;
}

static int32_t mapped_path(const struct mapping *mapping)
{
    return mapping == NULL ? -1 : mapping->path;
}

/* Threads that touch the pages before they are there wait in minor faults. Their recorder, which
 * records these only while it knows of such waits, looks at the time of a file. */
static void tell_of_readahead(int64_t now)
{
    static _Atomic int64_t told;
    if (now - atomic_load(&told) < TELL_AGAIN_NS)
        return;
    atomic_store(&told, now);
    char path[sizeof spool + sizeof READAHEAD];
    memcpy(path, spool, spool_length);
    memcpy(path + spool_length, READAHEAD, sizeof READAHEAD);
    if (real_system_call(SYS_utimensat, AT_FDCWD, (long)path, 0, 0, 0, 0) != 0)
        real_system_call(SYS_mknodat, AT_FDCWD, (long)path, S_IFREG | 0600, 0, 0, 0);
}

/* Bytes that were fetched during the call are a read from storage, whichever thread touches them
 * later. The proc io counters do not include it, and so the tallies do not either. */
static void end_advice(void *address, int64_t start, int64_t blocks)
{
    const struct mapping *mapping = mapping_of((uintptr_t)address);
    if (blocks <= 0) {
        END_SHORT_CALL(start, "madvise", mapped_path(mapping));
        return;
    }
    int64_t end = clock_now();
    int64_t offset =
        mapping == NULL ? -1 : mapping->offset + (int64_t)((uintptr_t)address - mapping->start);
    int saved_errno = begin_own_work();
    emit_event(&(struct event){start, end, blocks * 512, offset, mapped_path(mapping),
                               NAME("madvise"), KIND_READ, SOURCE_STORAGE});
    tally_fetched(blocks * 512);
    tell_of_readahead(end);
    compare_when_due(end);
    end_own_work(saved_errno);
}

/* Leaves errno as it is: the calls succeeded. */
static int64_t blocks_since(int64_t before)
{
    int saved_errno = errno;
    int64_t blocks = read_usage().blocks - before;
    errno = saved_errno;
    return blocks;
}

/* --------------------------------------------------------------------------------------- hooks */

#define MMAP(name)                                                                             \
    void *hook_##name(void *address, size_t length, int protection, int flags, int descriptor, \
                      off_t offset)                                                            \
    {                                                                                          \
        if (descriptor < 0 || (flags & MAP_ANONYMOUS) || !is_recording())                      \
            return REAL(name)(address, length, protection, flags, descriptor, offset);         \
        int saved_errno = errno;                                                               \
        int64_t before = flags & MAP_POPULATE ? read_usage().blocks : 0, start = clock_now();  \
        errno = saved_errno;                                                                   \
        void *mapped = REAL(name)(address, length, protection, flags, descriptor, offset);     \
        if (mapped != MAP_FAILED)                                                              \
            end_mmap(mapped, descriptor, start, length, offset,                                \
                     flags & MAP_POPULATE ? blocks_since(before) : 0);                         \
        return mapped;                                                                         \
    }

MMAP(mmap)
MMAP(mmap64)

#define ADVISE(name)                                               \
    int hook_##name(void *address, size_t length, int advice)      \
    {                                                              \
        if (!fetches(advice) || !is_recording())                   \
            return REAL(name)(address, length, advice);            \
        int saved_errno = errno;                                   \
        int64_t before = read_usage().blocks, start = clock_now(); \
        errno = saved_errno;                                       \
        int result = REAL(name)(address, length, advice);          \
        end_advice(address, start, blocks_since(before));          \
        return result;                                             \
    }

ADVISE(madvise)
ADVISE(posix_madvise)
