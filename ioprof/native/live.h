/* Whether this process is recorded, where to, and what it has told so far.
 *
 * What belongs to one process alone is in pages that the kernel wipes in a child (MADV_WIPEONFORK): so every fork is noticed, also
 * one that bypassed the C library, without asking for the process id. A child starts its own file with the first thing it does. */
#ifndef IOPROF_LIVE_H
#define IOPROF_LIVE_H

#include "clock.h"
#include "real.h"
#include "vfork.h"
#include "watch.h"

#include <stdlib.h>
#include <sys/utsname.h>

/* The books are compared after an eighth of the time that the recording has lasted, within these bounds: so what a killed
 * process leaves is neither old for a short life nor dear for a long one. */
#define SHORTEST_INTERVAL_NS 1000000
#define LONGEST_INTERVAL_NS 1000000000
#define LONG_LIFE_NS 1000000000
#define MOST_YIELDS 10000
#define MOST_LOOKS 8
#define WRITER_IS_CAPTURE 1
#define ROLE_OTHER 2

enum noted { NOTED_IO_URING = 1, NOTED_LIBAIO = 2, NOTED_SYSCALL = 4, NOTED_EXEC = 8, NOTED_STDIO = 16 };

/* The generation of a recording that could not begin: nothing is tried again. */
#define HOPELESS UINT32_MAX

struct books {
    int64_t rchar, syscr, read_bytes;
    int64_t children; /* grows whenever the kernel adds a child's books to these */
};

struct live {
    _Atomic uint32_t generation; /* 0: nothing began in this process yet */
    _Atomic uint32_t beginning;  /* a thread is at it */
    _Atomic uint32_t comparing;
    _Atomic int64_t compare_at_ns;
    _Atomic int64_t own_calls; /* reads by the library itself, to be taken off the kernel's books */
    _Atomic int64_t own_bytes;
    /* The rest is for whoever holds `comparing`. */
    struct books before; /* the kernel's books when recording began: the loader's reads, or those before an exec */
    struct books unseen; /* what the last comparison found in the kernel's books and not in ours */
    struct books reaped; /* what the kernel added to this process's books when it waited for its children */
};

enum mode { UNDECIDED, OFF, ON };

static struct live nothing_lives;
static struct live *live = &nothing_lives;
static _Atomic int mode;
static struct ioprof_ring ring;
static __thread struct ioprof_writer writer;
static struct ioprof_file_header header; /* of this process's file and of its children's */
static char spool[3072];
static size_t spool_length;
static bool nowait_wanted = true;

/* While it is raised, calls of this thread pass through: they are the library's own. */
static inline void hands_off(void)
{
    ioprof_hands_off++;
    atomic_signal_fence(memory_order_seq_cst);
}

static inline void hands_on(void)
{
    atomic_signal_fence(memory_order_seq_cst);
    ioprof_hands_off--;
}

/* ---------------------------------------------------------------------------------------- once per program */

/* The rank by whom it is known best. A launcher that a scheduler numbered, such as torchrun, is no rank: the reader sorts that
 * out. */
static const struct {
    const char *variable;
    uint32_t source;
} rank_variables[] = {
    {"RANK", 1},      {"OMPI_COMM_WORLD_RANK", 2}, {"MV2_COMM_WORLD_RANK", 2},
    {"PMIX_RANK", 3}, {"PMI_RANK", 3},             {"SLURM_PROCID", 4},
};

static bool one_task_of_many(void)
{
    const char *tasks = getenv("SLURM_NTASKS");
    return tasks != NULL && atol(tasks) > 1;
}

static void find_rank(void)
{
    header.rank = -1;
    for (size_t place = 0; place < sizeof rank_variables / sizeof *rank_variables; place++) {
        const char *text = getenv(rank_variables[place].variable);
        char *end;
        long rank = text == NULL ? -1 : strtol(text, &end, 10);
        if (text == NULL || end == text || *end != '\0' || rank < 0 || rank > INT32_MAX)
            continue;
        if (rank_variables[place].source == 4 && !one_task_of_many())
            continue;
        header.rank = (int32_t)rank;
        header.rank_source = rank_variables[place].source;
        return;
    }
}

static bool map_live(void)
{
    struct live *pages = mmap(NULL, sizeof *pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
        return false;
    madvise(pages, sizeof *pages, MADV_WIPEONFORK); /* Linux 4.14; before, wipe_live has to do */
    live = pages;
    return true;
}

static void forget_usage(void);

/* In a forked child. */
static void wipe_live(void)
{
    memset((void *)live, 0, sizeof *live);
    forget_usage();
}

/* A parent that forks shares all its open files from then on. */
static void before_fork(void)
{
    __atomic_fetch_add(&ioprof_forks, 1, __ATOMIC_RELAXED);
}

static bool is_wanted(const char *variable)
{
    const char *text = getenv(variable);
    return text == NULL || strcmp(text, "off") != 0;
}

/* The environment is read here and never again: another thread of the job may be changing it later. */
static enum mode decide(void)
{
    const char *folder = getenv("IOPROF_SPOOL");
    struct utsname system;
    if (folder == NULL || folder[0] != '/' || strlen(folder) >= sizeof spool || uname(&system) != 0)
        return OFF;
    spool_length = strlen(folder);
    memcpy(spool, folder, spool_length + 1);
    nowait_wanted = is_wanted("IOPROF_CAPTURE_NOWAIT");
    header = (struct ioprof_file_header){.magic = IOPROF_MAGIC_BYTES,
                                         .version = IOPROF_FORMAT_VERSION,
                                         .record_bytes = IOPROF_RECORD_BYTES,
                                         .chunk_bytes = IOPROF_CHUNK_BYTES,
                                         .header_bytes = IOPROF_HEADER_BYTES,
                                         .worker = -1,
                                         .role = ROLE_OTHER,
                                         .writer = WRITER_IS_CAPTURE};
    memcpy(header.host, system.nodename, strnlen(system.nodename, sizeof header.host));
    find_rank();
    if (ring_setup() != 0 || !map_live() || pthread_atfork(before_fork, NULL, wipe_live) != 0)
        return OFF;
    return ON;
}

/* Only the constructor decides: before it, the C library may not know the environment yet. */
static __attribute__((constructor)) void begin_program(void)
{
    int saved_errno = errno;
    hands_off();
    atomic_store(&mode, decide());
    if (atomic_load(&mode) == ON) {
        clock_setup();
        if (is_wanted("IOPROF_CAPTURE_WATCH"))
            watch_setup();
    }
    for (int function = 0; atomic_load(&mode) == ON && function < NUM_REAL; function++)
        real_address(function); /* dlsym may allocate, which is better done now than inside somebody's read */
    hands_on();
    errno = saved_errno;
}

/* ---------------------------------------------------------------------------------------- the kernel's books */

static uint64_t take_number(const char **text, const char *end)
{
    uint64_t number = 0;
    while (*text < end && (**text < '0' || **text > '9'))
        ++*text;
    for (; *text < end && **text >= '0' && **text <= '9'; ++*text)
        number = number * 10 + (uint64_t)(**text - '0');
    return number;
}

/* What waited-for children had fetched is in the process's own read_bytes, too. */
static void read_children(struct books *books)
{
    struct rusage usage = {0};
    getrusage(RUSAGE_CHILDREN, &usage);
    books->read_bytes = -(int64_t)usage.ru_inblock * 512;
    books->children = (int64_t)usage.ru_minflt + usage.ru_majflt + usage.ru_nvcsw + usage.ru_nivcsw;
}

/* /proc/self/io: rchar, wchar, syscr, syscw, read_bytes, ... in this order. May be called in a signal handler. */
static bool read_books(struct books *books)
{
    char text[512];
    long descriptor = real_call(SYS_openat, AT_FDCWD, (long)"/proc/self/io", O_RDONLY | O_CLOEXEC, 0, 0, 0);
    if (descriptor < 0)
        return false;
    long length = real_call(SYS_read, descriptor, (long)text, sizeof text, 0, 0, 0);
    read_children(books);
    real_call(SYS_close, descriptor, 0, 0, 0, 0, 0);
    if (length <= 0)
        return false;
    const char *place = text, *end = text + length;
    books->rchar = (int64_t)take_number(&place, end);
    take_number(&place, end);
    books->syscr = (int64_t)take_number(&place, end);
    take_number(&place, end);
    books->read_bytes += (int64_t)take_number(&place, end);
    books->rchar -= atomic_fetch_add(&live->own_bytes, length);
    books->syscr -= atomic_fetch_add(&live->own_calls, 1);
    return true;
}

static struct books seen_now(void)
{
    uint64_t calls = 0, bytes = 0;
    ring_seen(&ring, &calls, &bytes);
    struct books seen = {.rchar = (int64_t)bytes, .syscr = (int64_t)calls};
    read_children(&seen);
    return seen;
}

/* The kernel's books of this process alone since recording began, and beside them what was seen by then. Other threads may read or
 * wait for children between the two looks, which is long if this thread loses its core meanwhile: of some attempts the one is taken
 * in which they read least, and waited for none. */
static bool open_books(struct books *books, struct books *seen)
{
    int64_t least = INT64_MAX;
    *books = *seen = (struct books){0};
    if (!ring_is_open(&ring))
        return false;
    for (int look = 0; look < MOST_LOOKS && least > 0; look++) {
        struct books before = seen_now(), kernel;
        if (!read_books(&kernel))
            return false;
        struct books after = is_single_threaded() ? before : seen_now();
        int64_t meanwhile = after.rchar - before.rchar + (after.children == before.children ? 0 : INT64_MAX / 2);
        if (meanwhile >= least)
            continue;
        least = meanwhile;
        *seen = before;
        *books = kernel;
    }
    books->rchar -= live->before.rchar + live->reaped.rchar;
    books->syscr -= live->before.syscr + live->reaped.syscr;
    books->read_bytes -= live->before.read_bytes;
    return true;
}

static void enter_books(const struct books *books, const struct books *seen, int64_t now)
{
    struct ioprof_file_header *file = ring.header;
    file->io_time_ns = now;
    file->io_rchar = (uint64_t)books->rchar;
    file->io_syscr = (uint64_t)books->syscr;
    file->io_read_bytes = (uint64_t)books->read_bytes;
    file->seen_bytes = (uint64_t)seen->rchar;
    file->seen_calls = (uint64_t)seen->syscr;
    live->unseen = (struct books){.rchar = books->rchar - seen->rchar, .syscr = books->syscr - seen->syscr};
}

/* When a process has waited for a child, the kernel adds the child's books to its own (wait_task_zombie in kernel/exit.c), which
 * would count every worker's reads twice. What the books have grown by unseen since they were last compared is taken to be the
 * child's. Usage of children grows in the same moment, and says so to a thread that comes before the one that waited. */
static void strike_out(struct books *books, const struct books *seen)
{
    int64_t bytes = books->rchar - seen->rchar - live->unseen.rchar, calls = books->syscr - seen->syscr - live->unseen.syscr;
    live->reaped.rchar += bytes;
    live->reaped.syscr += calls;
    live->reaped.children = books->children;
    books->rchar -= bytes;
    books->syscr -= calls;
}

/* Compare what the kernel counted with what was seen, at one moment, and leave it in the file: a process that is killed later has
 * told how much of its reading is in its spans. Of two threads that come together one does it; but one that has waited for a child
 * waits for its turn, because the other may have looked before that child's books were added. */
static void compare_books(int64_t now, bool after_child)
{
    struct books books, seen;
    for (int attempt = 0; atomic_exchange(&live->comparing, 1); attempt++) {
        if (!after_child || attempt == MOST_YIELDS)
            return;
        sched_yield();
    }
    if (open_books(&books, &seen)) {
        if (after_child || books.children != live->reaped.children)
            strike_out(&books, &seen);
        enter_books(&books, &seen, now);
    }
    int64_t interval = (now - header.anchor_after_ns) / 8;
    interval = interval < SHORTEST_INTERVAL_NS ? SHORTEST_INTERVAL_NS : interval;
    atomic_store(&live->compare_at_ns, now + (interval > LONGEST_INTERVAL_NS ? LONGEST_INTERVAL_NS : interval));
    atomic_store(&live->comparing, 0);
}

static inline bool is_live(void)
{
    return atomic_load_explicit(&live->generation, memory_order_acquire) + 1 > 1; /* neither 0 nor HOPELESS */
}

/* Before and after a call that may wait for a child. */
static void compare_around_child(bool after)
{
    if (ioprof_hands_off != 0 || !is_live())
        return;
    int saved_errno = errno;
    hands_off();
    compare_books(ring_now(), after);
    hands_on();
    errno = saved_errno;
}

static inline void note(enum noted what)
{
    if (is_live() && !(atomic_load_explicit(&ring.header->noted, memory_order_relaxed) & what))
        atomic_fetch_or(&ring.header->noted, what);
}

static char *put_number(char *place, uint64_t number)
{
    char digits[20];
    int count = 0;
    do
        digits[count++] = (char)('0' + number % 10);
    while ((number /= 10) != 0);
    while (count > 0)
        *place++ = digits[--count];
    return place;
}

/* liburing enters the kernel by itself, past every hook, and the kernel's books do not have what it reads; but its descriptors
 * show. They are looked for where that costs little: at the end of a process that lasted, among its first descriptors (0.1 ms). */
static void look_for_io_uring(void)
{
    static const char uring[] = "anon_inode:[io_uring]";
    char link[32] = "/proc/self/fd/", target[32];
    for (uint64_t descriptor = 3; descriptor < 256; descriptor++) {
        *put_number(link + sizeof "/proc/self/fd/" - 1, descriptor) = '\0';
        long length = real_call(SYS_readlinkat, AT_FDCWD, (long)link, (long)target, sizeof target, 0, 0);
        if (length == sizeof uring - 1 && memcmp(target, uring, sizeof uring - 1) == 0)
            note(NOTED_IO_URING);
    }
}

/* The process is about to end or to become another program; it may be in a signal handler. `closed`: it ends by itself. */
static void compare_last(bool closed)
{
    if (ioprof_hands_off >= HANDS_OFF_VFORK || !is_live())
        return;
    int saved_errno = errno;
    hands_off();
    int64_t now = ring_now();
    compare_books(now, false);
    if (now - header.anchor_after_ns >= LONG_LIFE_NS)
        look_for_io_uring();
    ring.header->closed = closed;
    hands_on();
    errno = saved_errno;
}

/* Other destructors may still read: what they read is recorded all the same. */
static __attribute__((destructor)) void end_program(void)
{
    compare_last(true);
}

/* ---------------------------------------------------------------------------------------- once per process */

/* The wall clock between two readings of the monotonic one, the closest of five. */
static void take_anchor(void)
{
    int64_t closest = INT64_MAX;
    for (int attempt = 0; attempt < 5; attempt++) {
        struct timespec wall;
        int64_t before = ring_now();
        clock_gettime(CLOCK_REALTIME, &wall);
        int64_t after = ring_now();
        if (after - before >= closest)
            continue;
        closest = after - before;
        header.anchor_before_ns = before;
        header.anchor_wall_ns = (int64_t)wall.tv_sec * 1000000000 + wall.tv_nsec;
        header.anchor_after_ns = after;
    }
}

/* SPOOL/HOST-PID-NS.ring, without snprintf, which may allocate. */
static void make_path(char *path)
{
    memcpy(path, spool, spool_length);
    path += spool_length;
    *path++ = '/';
    size_t host = strnlen(header.host, sizeof header.host);
    memcpy(path, header.host, host);
    path += host;
    *path++ = '-';
    path = put_number(path, header.pid);
    *path++ = '-';
    path = put_number(path, (uint64_t)header.anchor_before_ns);
    memcpy(path, ".ring", sizeof ".ring");
}

static uint32_t begin_file(void)
{
    char path[sizeof spool + 128];
    if (ring_is_open(&ring))
        ring_forget(&ring); /* the parent's */
    forget_usage(); /* where the child was not made by fork */
    header.pid = (uint32_t)real_call(SYS_getpid, 0, 0, 0, 0, 0, 0);
    header.parent_pid = (uint32_t)real_call(SYS_getppid, 0, 0, 0, 0, 0, 0);
    take_anchor();
    make_path(path);
    if (ring_open(&ring, path, &header) != 0)
        return HOPELESS;
    if (read_books(&live->before))
        live->reaped.children = live->before.children;
    return atomic_load(&ring.generation);
}

/* Other threads wait for the one that begins, some milliseconds at most: what they did meanwhile would not be seen. */
static void begin_process(void)
{
    if (atomic_exchange(&live->beginning, 1) == 0) {
        uint32_t generation = begin_file();
        atomic_store(&live->generation, generation);
        if (generation != HOPELESS)
            compare_books(ring_now(), false);
        return;
    }
    for (int attempt = 0; attempt < 10000 && atomic_load(&live->generation) == 0; attempt++)
        sched_yield();
}

static __attribute__((noinline)) bool begin(void)
{
    if (atomic_load(&mode) != ON || atomic_load(&live->generation) == HOPELESS)
        return false;
    int saved_errno = errno;
    hands_off();
    begin_process();
    hands_on();
    errno = saved_errno;
    return is_live();
}

/* Whether this call is the job's and goes into a file: the first thing that every hook asks. */
static inline bool recording(void)
{
    return ioprof_hands_off == 0 && (__builtin_expect(is_live(), 1) || begin());
}

/* The same for calls that are not worth a file of their own, as those between fork and exec: nothing is begun. */
static inline bool recording_already(void)
{
    return ioprof_hands_off == 0 && is_live();
}

/* ---------------------------------------------------------------------------------------- what is told */

enum kind { KIND_OPEN = 4, KIND_READ = 5 };
enum source { SOURCE_NONE, SOURCE_STORAGE, SOURCE_PAGE_CACHE, SOURCE_UNKNOWN };

struct told {
    int64_t start_ns, end_ns, bytes, offset;
    int32_t path, name;
    enum kind kind;
    enum source source;
};

static inline void tell(const struct told *span)
{
    struct ioprof_record *record = ring_reserve(&ring, &writer, 1);
    if (record == NULL)
        return;
    *record = (struct ioprof_record){.start_ns = span->start_ns,
                                     .end_ns = span->end_ns,
                                     .bytes = span->bytes,
                                     .offset = span->offset,
                                     .batch = -1,
                                     .step = -1,
                                     .file = span->path,
                                     .name = span->name,
                                     .stream = -1,
                                     .kind = (uint8_t)span->kind,
                                     .source = (uint8_t)span->source};
    ring_publish(&writer, 1);
}

static inline void tally_read(uint64_t bytes)
{
    struct ioprof_chunk *tallies = ring_tallies(&ring, &writer);
    if (tallies == NULL)
        return;
    ring_add(&tallies->calls, 1);
    ring_add(&tallies->bytes, bytes);
}

static inline void tally_short(int64_t duration_ns)
{
    struct ioprof_chunk *tallies = ring_tallies(&ring, &writer);
    if (tallies == NULL)
        return;
    ring_add(&tallies->short_calls, 1);
    ring_add(&tallies->short_ns, (uint64_t)duration_ns);
}

static __attribute__((noinline, cold)) void compare_now(int64_t now)
{
    int saved_errno = errno;
    compare_books(now, false);
    errno = saved_errno;
}

/* Of all that is done after a call that went as expected, this and a home that is full are what may touch errno, and both put it
 * back. */
static inline void compare_when_due(int64_t now)
{
    if (__builtin_expect(now >= atomic_load_explicit(&live->compare_at_ns, memory_order_relaxed), 0))
        compare_now(now);
}

#endif
