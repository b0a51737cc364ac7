/* What is known of each open descriptor, so that a read can say which file, from where, and where its bytes came from. */
#ifndef IOPROF_FILES_H
#define IOPROF_FILES_H

#include "paths.h"

#include <sys/statfs.h>

/* ---------------------------------------------------------------------------------------- file systems */

enum medium {
    MEDIUM_OTHER,   /* neither of the following: a wait without blocks is not explained */
    MEDIUM_BLOCKS,  /* counts the blocks that a thread has fetched, so that a wait without is for those that another fetches */
    MEDIUM_MEMORY,  /* has no storage below it */
    MEDIUM_UNKNOWN, /* does not count, or counts hits, too */
};

enum nowait { NOWAIT_NEVER, NOWAIT_UNTRIED, NOWAIT_WORKS };

struct file_system {
    ioprof_counter key; /* device + 1; 0: free; BEING_MADE */
    _Atomic int medium; /* one of the words above */
    _Atomic int nowait; /* whether reads may ask for what is cached only: RWF_NOWAIT */
};

#define FILE_SYSTEMS 64
#define BEING_MADE UINT64_MAX

static struct file_system file_systems[FILE_SYSTEMS];

/* Magic numbers of statfs(2) and the kernel's sources. BeeGFS, ZFS and others count a read as fetched when it was cached, FUSE
 * never counts, GPFS has a cache of its own. */
static const struct {
    unsigned long magic;
    enum medium medium;
    enum nowait nowait;
} media[] = {
    {0xef53, MEDIUM_BLOCKS, NOWAIT_UNTRIED},     /* ext4, and ext2 and ext3 */
    {0x58465342, MEDIUM_BLOCKS, NOWAIT_UNTRIED}, /* xfs */
    {0x9123683e, MEDIUM_BLOCKS, NOWAIT_UNTRIED}, /* btrfs */
    {0x0bd00bd0, MEDIUM_BLOCKS, NOWAIT_NEVER},   /* Lustre */
    {0x6969, MEDIUM_BLOCKS, NOWAIT_NEVER},       /* NFS */
    {0xf2f52010, MEDIUM_BLOCKS, NOWAIT_NEVER},   /* f2fs */
    {0x73717368, MEDIUM_BLOCKS, NOWAIT_NEVER},   /* squashfs */
    {0x01021994, MEDIUM_MEMORY, NOWAIT_NEVER},   /* tmpfs */
    {0x858458f6, MEDIUM_MEMORY, NOWAIT_NEVER},   /* ramfs */
    {0x958458f6, MEDIUM_MEMORY, NOWAIT_NEVER},   /* hugetlbfs */
    {0x9fa0, MEDIUM_MEMORY, NOWAIT_NEVER},       /* proc */
    {0x62656572, MEDIUM_MEMORY, NOWAIT_NEVER},   /* sysfs */
    {0x64626720, MEDIUM_MEMORY, NOWAIT_NEVER},   /* debugfs */
    {0x74726163, MEDIUM_MEMORY, NOWAIT_NEVER},   /* tracefs */
    {0x27e0eb, MEDIUM_MEMORY, NOWAIT_NEVER},     /* cgroup */
    {0x63677270, MEDIUM_MEMORY, NOWAIT_NEVER},   /* cgroup2 */
    {0x65735546, MEDIUM_UNKNOWN, NOWAIT_NEVER},  /* FUSE */
    {0x47504653, MEDIUM_UNKNOWN, NOWAIT_NEVER},  /* GPFS */
    {0x19830326, MEDIUM_UNKNOWN, NOWAIT_NEVER},  /* BeeGFS */
    {0x2fc12fc1, MEDIUM_UNKNOWN, NOWAIT_NEVER},  /* ZFS */
};

/* Stands for any device beyond the table's room. */
static struct file_system unlisted = {.medium = MEDIUM_OTHER};

static void examine(int descriptor, struct file_system *system)
{
    struct statfs status;
    atomic_store_explicit(&system->medium, MEDIUM_OTHER, memory_order_relaxed);
    if (fstatfs(descriptor, &status) != 0)
        return;
    for (size_t place = 0; place < sizeof media / sizeof *media; place++)
        if ((unsigned long)status.f_type == media[place].magic) {
            atomic_store_explicit(&system->medium, (int)media[place].medium, memory_order_relaxed);
            atomic_store_explicit(&system->nowait, nowait_wanted ? (int)media[place].nowait : NOWAIT_NEVER, memory_order_relaxed);
        }
}

static inline enum medium medium_of(struct file_system *system)
{
    return (enum medium)atomic_load_explicit(&system->medium, memory_order_relaxed);
}

static struct file_system *file_system_of(int descriptor, dev_t device)
{
    for (int place = 0; place < FILE_SYSTEMS; place++) {
        struct file_system *system = &file_systems[place];
        uint64_t key = atomic_load_explicit(&system->key, memory_order_acquire);
        if (key == (uint64_t)device + 1)
            return system;
        if (key == 0 && atomic_compare_exchange_strong(&system->key, &key, BEING_MADE)) {
            examine(descriptor, system);
            atomic_store_explicit(&system->key, (uint64_t)device + 1, memory_order_release);
            return system;
        }
    }
    return &unlisted;
}

/* ---------------------------------------------------------------------------------------- descriptors */

enum {
    FILE_IDENTIFIED = 1, /* fstat was asked: the other flags, file system and size are known */
    FILE_REGULAR = 2,
    FILE_SHARED = 4,     /* others may move its position: a copy of the descriptor, another process */
    FILE_TRACKED = 8,    /* `position` is right as long as it is not shared */
    FILE_DIRECT = 16,    /* O_DIRECT */
    FILE_BUSY = 32,      /* its owner is between the two halves of one read */
    FILE_FOREIGN = 64,   /* another thread than the owner has used its position: no more reads in halves */
};

/* The position and what follows are changed without a lock: where two threads read one descriptor at a time, each offset is
 * right, but the two may be interchanged. */
struct file {
    _Atomic uint32_t generation; /* of the recording that knows it; 0: unknown */
    _Atomic uint32_t flags;
    _Atomic int32_t path;
    _Atomic uint32_t forks; /* so many this process had made when it opened the file */
    _Atomic uint32_t owner;
    _Atomic(struct file_system *) system;
    _Atomic int64_t position, size; /* size: as the process was last told, -1 */
    _Atomic int64_t credit;         /* bytes that were fetched for this file's reads and not yet read */
    _Atomic int64_t next;           /* where the last read ended: credit is good from there */
};

/* Fields are atomic so that no thread sees half a value; what order they need, `generation` gives them. */
#define GET(object, field) atomic_load_explicit(&(object)->field, memory_order_relaxed)
#define SET(object, field, value) atomic_store_explicit(&(object)->field, value, memory_order_relaxed)

#define FILES (1 << 20)

/* In pages that are touched as descriptors are used. Those beyond are counted but not told. */
static struct file files[FILES];

static inline uint32_t forks_made(void)
{
    return __atomic_load_n(&ioprof_forks, __ATOMIC_RELAXED);
}

static inline uint32_t this_thread(void)
{
    return (uint32_t)((uintptr_t)&writer >> 4);
}

static inline bool is_known(const struct file *file)
{
    return atomic_load_explicit(&file->generation, memory_order_acquire) ==
           GET(live, generation);
}

static inline uint32_t flags_of(const struct file *file)
{
    return GET(file, flags);
}

static inline void set_flags(struct file *file, uint32_t flags)
{
    atomic_fetch_or_explicit(&file->flags, flags, memory_order_release); /* after the file system that a flag vouches for */
}

static inline bool is_shared(const struct file *file)
{
    return (flags_of(file) & FILE_SHARED) || GET(file, forks) != forks_made();
}

/* What will be known of a number once it is in use again; called before it is given back, so that no other thread's new file is
 * hit. */
static inline void forget_file(int descriptor)
{
    if ((unsigned)descriptor < FILES && atomic_load_explicit(&files[descriptor].generation, memory_order_relaxed) != 0)
        atomic_store_explicit(&files[descriptor].generation, 0, memory_order_release);
}

static void forget_files(unsigned first, unsigned last)
{
    for (unsigned descriptor = first; descriptor <= last && descriptor < FILES; descriptor++)
        forget_file((int)descriptor);
}

static inline void reset_file(struct file *file, uint32_t flags, int32_t path)
{
    SET(file, generation, 0);
    SET(file, flags, flags);
    SET(file, path, path);
    SET(file, forks, forks_made());
    SET(file, owner, this_thread());
    SET(file, system, &unlisted);
    SET(file, position, 0);
    SET(file, size, -1);
    SET(file, credit, 0);
    SET(file, next, 0);
}

static inline void publish_file(struct file *file)
{
    atomic_store_explicit(&file->generation, GET(live, generation), memory_order_release);
}

/* A descriptor that this process has just opened. */
static inline void add_file(int descriptor, int flags, int32_t path)
{
    if ((unsigned)descriptor >= FILES)
        return;
    struct file *file = &files[descriptor];
    uint32_t tracked = (flags & O_ACCMODE) == O_RDONLY ? FILE_TRACKED : 0; /* a write would move it unseen */
    reset_file(file, tracked | (flags & O_DIRECT ? FILE_DIRECT : 0), path);
    publish_file(file);
}

/* What fstat said of it, whoever asked. */
static void learn(int descriptor, struct file *file, const struct stat *status)
{
    SET(file, size, S_ISREG(status->st_mode) ? (int64_t)status->st_size : -1);
    if (flags_of(file) & FILE_IDENTIFIED)
        return;
    bool regular = S_ISREG(status->st_mode) || S_ISBLK(status->st_mode);
    if (regular)
        SET(file, system, file_system_of(descriptor, status->st_dev));
    set_flags(file, FILE_IDENTIFIED | (regular ? FILE_REGULAR : 0));
}

/* A descriptor that came to this process by another way: inherited, received, or opened by the C library within itself. */
static void add_stranger(int descriptor, struct file *file, const struct stat *status)
{
    int flags = S_ISREG(status->st_mode) ? REAL(fcntl)(descriptor, F_GETFL, 0L) : 0;
    int32_t path = S_ISREG(status->st_mode) || S_ISBLK(status->st_mode) ? descriptor_number(descriptor) : -1;
    reset_file(file, FILE_SHARED | (flags > 0 && flags & O_DIRECT ? FILE_DIRECT : 0), path);
}

static __attribute__((noinline)) void identify(int descriptor, struct file *file)
{
    struct stat status;
    int saved_errno = errno;
    hands_off();
    if (fstat(descriptor, &status) == 0) {
        if (!is_known(file))
            add_stranger(descriptor, file, &status);
        learn(descriptor, file, &status);
        publish_file(file);
    }
    hands_on();
    errno = saved_errno;
}

/* The file behind a descriptor if it is a regular one (or a disk), whose reads are told; NULL: they are only counted. */
static inline struct file *regular_file(int descriptor)
{
    if ((unsigned)descriptor >= FILES)
        return NULL;
    struct file *file = &files[descriptor];
    if (!is_known(file) || !(atomic_load_explicit(&file->flags, memory_order_acquire) & FILE_IDENTIFIED))
        identify(descriptor, file);
    return is_known(file) && (flags_of(file) & FILE_REGULAR) ? file : NULL;
}

/* ---------------------------------------------------------------------------------------- whose turn it is */

/* A plain read in two halves must not be seen by others between them: they would read from the middle of it. The owner of a file,
 * the thread that opened it, marks it busy; the first other thread that uses its position says so, for good, and waits for the owner
 * as it would wait for the kernel's lock on the position. An owner that was cancelled meanwhile will never be done. */
static __attribute__((noinline, cold)) void await_owner(struct file *file)
{
    const struct timespec pause = {0, 100000};
    atomic_fetch_or(&file->flags, FILE_FOREIGN);
    for (int attempt = 0; atomic_load(&file->flags) & FILE_BUSY; attempt++) {
        if (attempt < 1000)
            sched_yield();
        else if (attempt < 100000)
            real_call(SYS_nanosleep, (long)&pause, 0, 0, 0, 0, 0);
        else
            atomic_fetch_and(&file->flags, ~(uint32_t)FILE_BUSY);
    }
}

/* Before this thread uses a file's position. */
static inline void await_turn(struct file *file)
{
    if (GET(file, owner) != this_thread() && (flags_of(file) & (FILE_FOREIGN | FILE_BUSY)) != FILE_FOREIGN)
        await_owner(file);
}

/* Whether this thread may make a plain read in two halves. */
static inline bool take_position(struct file *file)
{
    if (is_shared(file) || GET(file, owner) != this_thread())
        return false;
    if (is_single_threaded())
        return true;
    if (!(atomic_fetch_or(&file->flags, FILE_BUSY) & FILE_FOREIGN))
        return true;
    atomic_fetch_and(&file->flags, ~(uint32_t)FILE_BUSY);
    return false;
}

static inline void give_position(struct file *file)
{
    if (flags_of(file) & FILE_BUSY)
        atomic_fetch_and(&file->flags, ~(uint32_t)FILE_BUSY);
}

/* `to` is a copy of `from`: one position for both. What is not known is found out when it is read. */
static void copy_file(int from, int to)
{
    if ((unsigned)from >= FILES || (unsigned)to >= FILES)
        return;
    struct file *original = &files[from], *copy = &files[to];
    if (!is_known(original))
        return;
    await_turn(original);
    set_flags(original, FILE_SHARED);
    reset_file(copy, flags_of(original) & ~(uint32_t)(FILE_TRACKED | FILE_BUSY), GET(original, path));
    SET(copy, system, GET(original, system));
    SET(copy, size, GET(original, size));
    publish_file(copy);
}

/* Where a plain read would begin, which this thread is about to make. */
static inline int64_t position_of(int descriptor, struct file *file)
{
    await_turn(file);
    if ((flags_of(file) & FILE_TRACKED) && !is_shared(file))
        return GET(file, position);
    int saved_errno = errno;
    int64_t position = REAL(lseek64)(descriptor, 0, SEEK_CUR);
    errno = saved_errno;
    return position;
}

#endif
