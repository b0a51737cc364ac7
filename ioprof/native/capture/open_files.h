/* What is known of each open descriptor, so that a read can be recorded with its file, its offset
 * and the source of its bytes. */
#ifndef IOPROF_OPEN_FILES_H
#define IOPROF_OPEN_FILES_H

#include "file_systems.h"
#include "guard.h"
#include "process.h"
#include "tables.h"

#include <fcntl.h>
#include <sys/stat.h>

enum {
    FILE_IDENTIFIED = 1, /* fstat was called: the other flags, file system and size are known */
    FILE_REGULAR = 2,    /* a regular file or a block device */
    FILE_SHARED = 4,  /* others may move its position: a copy of the descriptor, another process */
    FILE_TRACKED = 8, /* `position` is right as long as it is not shared */
    FILE_DIRECT = 16, /* O_DIRECT */
    FILE_BUSY = 32,   /* its owner is between the two halves of one read */
    FILE_CONTENDED =
        64, /* another thread than the owner has used its position: no more reads in halves */
    FILE_SOCKET = 128, /* see receiving.h, as for the next */
    FILE_PIPE = 256,
    FILE_CREATED = 512,  /* opened with O_CREAT to be written, see received_files.h */
    FILE_EVENT = 1024,   /* an eventfd */
    FILE_LOCKED = 2048,  /* locked by flock, lockf or fcntl: closing it may end somebody's wait */
    FILE_HTTP = 4096,    /* a socket on which this process sent a request, see exchanges.h */
    FILE_NO_HTTP = 8192, /* one on which it sent something else */
    FILE_BELOW_HTTP = 16384, /* one whose encrypted bytes are of requests */
};

/* The position and what follows are changed without a lock: where two threads read one descriptor
 * at a time, each offset is right, but the two may be interchanged. */
struct open_file {
    _Atomic uint32_t generation; /* of the recording in which it is known; 0: unknown */
    _Atomic uint32_t flags;
    _Atomic int32_t path;   /* number of a string; -1: none */
    _Atomic uint32_t forks; /* num_forks() when the process opened the file */
    _Atomic uint32_t owner; /* the thread that opened it */
    _Atomic(struct file_system *) system;
    _Atomic int64_t position, size; /* size: by the last fstat of the process; -1: unknown */
    _Atomic uint64_t key; /* of the file among those with readahead (readahead.h), of a socket below
                             TLS that of its connection (exchanges.h); 0: unknown */
    _Atomic int64_t readahead; /* READAHEAD_USED_UP, or 0 */
    _Atomic int64_t
        next; /* where the last read ended; `readahead` holds for a read that begins there.
               * Of a socket or pipe: the serial number of its receiver, see receiving.c */
    _Atomic uint64_t receives,
        sends; /* objects of what can be received and sent, see channels.h; 0: unknown */
};

/* Fields are atomic so that no thread sees half a value; what order they need, `generation` gives
 * them. */
#define GET(object, field) atomic_load_explicit(&(object)->field, memory_order_relaxed)
#define SET(object, field, value) \
    atomic_store_explicit(&(object)->field, value, memory_order_relaxed)

/* Reads of descriptors beyond are counted and have no spans. */
#define MAX_DESCRIPTORS (1 << 20)
#define WINDOW_DESCRIPTORS 1024 /* 88 KiB: all that most processes use */

#pragma GCC visibility push(hidden)

/* Each a table of WINDOW_DESCRIPTORS entries. */
extern table_pages open_files[MAX_DESCRIPTORS / WINDOW_DESCRIPTORS];

void forget_files(unsigned first, unsigned last);

/* `to` is a copy of `from`: both have one position. What is not known is found out at its first
 * read. */
void copy_file(int from, int to);

/* The job has called fstat with this result, whichever variant: the library need not call it. */
void set_file_status(int descriptor, const struct stat *status);

/* Calls fstat, of a descriptor whose file is not known or not identified yet. */
void identify_file(int descriptor, struct open_file *file);

#pragma GCC visibility pop

static inline uint32_t this_thread(void)
{
    return (uint32_t)((uintptr_t)&writer >> 4);
}

/* The entry of a descriptor, of which nothing need be known; NULL: it has none. */
static inline struct open_file *file_entry(int descriptor)
{
    if ((unsigned)descriptor >= MAX_DESCRIPTORS)
        return NULL;
    struct open_file *window = mapped_table(&open_files[descriptor / WINDOW_DESCRIPTORS]);
    return __builtin_expect(window != NULL, 1) ? &window[descriptor % WINDOW_DESCRIPTORS] : NULL;
}

/* The same, for something to be entered; NULL: there is no room for it, and the descriptor stays
 * unknown. */
static inline struct open_file *new_file_entry(int descriptor)
{
    struct open_file *file = file_entry(descriptor);
    if (__builtin_expect(file != NULL, 1) || (unsigned)descriptor >= MAX_DESCRIPTORS)
        return file;
    struct open_file *window = map_table(&open_files[descriptor / WINDOW_DESCRIPTORS],
                                         WINDOW_DESCRIPTORS * sizeof(struct open_file));
    return window == NULL ? NULL : &window[descriptor % WINDOW_DESCRIPTORS];
}

static inline bool is_known(const struct open_file *file)
{
    return atomic_load_explicit(&file->generation, memory_order_acquire) ==
           GET(process, generation);
}

/* The entry of a descriptor; NULL where there is none, or nothing is known of it. */
static inline struct open_file *known_file(int descriptor)
{
    struct open_file *file = file_entry(descriptor);
    return file != NULL && is_known(file) ? file : NULL;
}

static inline uint32_t flags_of(const struct open_file *file)
{
    return GET(file, flags);
}

static inline void set_flags(struct open_file *file, uint32_t flags)
{
    atomic_fetch_or_explicit(
        &file->flags, flags,
        memory_order_release); /* after the file system that FILE_IDENTIFIED implies */
}

static inline void clear_flags(struct open_file *file, uint32_t flags)
{
    atomic_fetch_and(&file->flags, ~flags);
}

static inline bool is_shared(const struct open_file *file)
{
    return (flags_of(file) & FILE_SHARED) || GET(file, forks) != num_forks();
}

/* The number of a descriptor's path, -1: unknown. */
static inline int32_t known_path(int descriptor)
{
    struct open_file *file = known_file(descriptor);
    return file != NULL ? GET(file, path) : -1;
}

/* Called before a descriptor is closed: afterwards its number may be that of another thread's new
 * file. */
static inline void forget_file(int descriptor)
{
    struct open_file *file = file_entry(descriptor);
    if (file != NULL && GET(file, generation) != 0)
        atomic_store_explicit(&file->generation, 0, memory_order_release);
}

static inline void reset_file(struct open_file *file, uint32_t flags, int32_t path)
{
    SET(file, generation, 0);
    SET(file, flags, flags);
    SET(file, path, path);
    SET(file, forks, num_forks());
    SET(file, owner, this_thread());
    SET(file, system, &unlisted_file_system);
    SET(file, position, 0);
    SET(file, size, -1);
    SET(file, key, 0);
    SET(file, readahead, 0);
    SET(file, next, 0);
    SET(file, receives, 0);
    SET(file, sends, 0);
}

static inline void publish_file(struct open_file *file)
{
    atomic_store_explicit(&file->generation, GET(process, generation), memory_order_release);
}

/* A descriptor that this process has just opened. */
static inline void add_file(int descriptor, int flags, int32_t path)
{
    struct open_file *file = new_file_entry(descriptor);
    if (file == NULL)
        return;
    uint32_t tracked = (flags & O_ACCMODE) == O_RDONLY
                           ? FILE_TRACKED
                           : 0; /* writes move the position, which is not followed */
    reset_file(file, tracked | (flags & O_DIRECT ? FILE_DIRECT : 0), path);
    publish_file(file);
}

/* The file of a descriptor if it is a regular one (or a disk), whose reads are recorded; NULL: they
 * are only counted. */
static inline struct open_file *regular_file(int descriptor)
{
    struct open_file *file = new_file_entry(descriptor);
    if (file == NULL)
        return NULL;
    if (!is_known(file) ||
        !(atomic_load_explicit(&file->flags, memory_order_acquire) & FILE_IDENTIFIED))
        identify_file(descriptor, file);
    return is_known(file) && (flags_of(file) & FILE_REGULAR) ? file : NULL;
}

#endif
