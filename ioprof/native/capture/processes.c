#include "processes.h"

#include "decimal.h"
#include "process.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_DEPTH 6
#define MAX_PROCESSES 256 /* that are searched for one pipe */
#define MAX_ENTRIES 1024  /* of a folder, about 0.4 ms */
#define PATH_BYTES 96
#define COMMAND_BYTES 4096

/* Of the one thread that searches: the threads of a job may have stacks of 16 KiB. By depth of the
 * search. */
static struct {
    char entries[MAX_DEPTH + 1][2048] __attribute__((aligned(8)));
    char children[MAX_DEPTH + 1][2048];
    char own[COMMAND_BYTES], other[COMMAND_BYTES];
} scratch;

struct linux_entry { /* of getdents64 */
    uint64_t inode;
    int64_t offset;
    uint16_t length;
    uint8_t type;
    char name[];
};

/* /proc/PID followed by `rest`. */
static void proc_path(char into[PATH_BYTES], pid_t pid, const char *rest)
{
    memcpy(into, "/proc/", 6);
    char *end = append_decimal(into + 6, (uint64_t)pid);
    memcpy(end, rest, strlen(rest) + 1);
}

/* The beginning of a file of /proc. The kernel counts this read for the job's process, and it is
 * subtracted. */
static size_t read_file(const char *path, char *into, size_t room)
{
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return 0;
    ssize_t length = read(descriptor, into, room);
    close(descriptor);
    atomic_fetch_add(&process->own_calls, 1);
    if (length > 0)
        atomic_fetch_add(&process->own_bytes, length);
    return length > 0 ? (size_t)length : 0;
}

/* --------------------------------------------------------------------------- what a process is */

/* The address of its stack; 0: it may not be known (proc_pid_stat(5), startstack is the 28th
 * field). */
static uint64_t stack_address(pid_t pid)
{
    char path[PATH_BYTES], text[1024];
    proc_path(path, pid, "/stat");
    size_t length = read_file(path, text, sizeof text);
    const char *place = length > 0 ? memrchr(text, ')', length) : NULL, *end = text + length;
    for (int field = 2; place != NULL && place < end; place++)
        if (*place == ' ' && ++field == 28)
            return next_decimal(&place, end);
    return 0;
}

static size_t read_command(pid_t pid, char into[COMMAND_BYTES])
{
    char path[PATH_BYTES];
    proc_path(path, pid, "/cmdline");
    return read_file(path, into, COMMAND_BYTES);
}

static bool contains(const char *text, size_t length, const char *words)
{
    return memmem(text, length, words, strlen(words)) != NULL;
}

/* Children that multiprocessing starts by spawn or forkserver, its trackers, and the processes that
 * compile for torch. */
static bool serves_multiprocessing(const char *command, size_t length)
{
    return contains(command, length, "multiprocessing") ||
           contains(command, length, "compile_worker");
}

bool is_internal_process(pid_t pid)
{
    char *own = scratch.own, *other = scratch.other;
    pid_t self = getpid();
    if (pid == self)
        return true;
    size_t own_length = read_command(self, own), length = read_command(pid, other);
    if (length > 0 && (serves_multiprocessing(other, length) ||
                       (length == own_length && memcmp(own, other, length) == 0)))
        return true;
    uint64_t address = stack_address(pid);
    return address != 0 && address == stack_address(self);
}

static bool is_multiprocessing_child(void)
{
    return serves_multiprocessing(scratch.own, read_command(getpid(), scratch.own));
}

size_t program_name(pid_t pid, char into[PROGRAM_BYTES])
{
    char path[PATH_BYTES];
    proc_path(path, pid, "/comm");
    size_t length = read_file(path, into, PROGRAM_BYTES);
    if (length > 0 && into[length - 1] == '\n')
        length--;
    if (length > 0)
        return length;
    into[0] = '?';
    return 1;
}

/* ---------------------------------------------------------------------------------- open files */

/* Runs `body` for each entry of a folder whose name is a number, of the first entries; `entries_`
 * is room for some of them. */
#define FOR_EACH_NUMBER(folder, entries_, number, body)                                        \
    do {                                                                                       \
        long filled_;                                                                          \
        int left_ = MAX_ENTRIES;                                                               \
        while (left_ > 0 &&                                                                    \
               (filled_ = syscall(SYS_getdents64, folder, entries_, sizeof(entries_))) > 0)    \
            for (long place_ = 0; place_ < filled_;) {                                         \
                const struct linux_entry *entry_ =                                             \
                    (const struct linux_entry *)(const void *)(entries_ + place_);             \
                const char *digits_ = entry_->name;                                            \
                place_ += entry_->length;                                                      \
                left_--;                                                                       \
                if (*digits_ < '0' || *digits_ > '9')                                          \
                    continue;                                                                  \
                const pid_t number = (pid_t)next_decimal(&digits_, digits_ + strlen(digits_)); \
                body                                                                           \
            }                                                                                  \
    } while (0)

/* The permissions of a link in /proc/PID/fd are those of the open file. */
bool has_open_file(pid_t pid, const char *link, bool is_writable, bool (*is_known)(int descriptor))
{
    char path[PATH_BYTES], name[16], target[40], entries[2048] __attribute__((aligned(8)));
    size_t wanted = strlen(link);
    struct stat status;
    bool found = false;
    proc_path(path, pid, "/fd");
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return false;
    FOR_EACH_NUMBER(folder, entries, descriptor, {
        *append_decimal(name, (uint64_t)descriptor) = '\0';
        ssize_t length = readlinkat(folder, name, target, sizeof target);
        if (length == (ssize_t)wanted && memcmp(target, link, wanted) == 0 &&
            (is_known == NULL || !is_known(descriptor)) &&
            (!is_writable || (fstatat(folder, name, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
                              status.st_mode & S_IWUSR)))
            found = true;
    });
    close(folder);
    return found;
}

/* ------------------------------------------------------------------------ who writes to a pipe */

struct search {
    char link[40]; /* pipe:[INODE] */
    int num_left;
    int depth; /* of the process found */
    pid_t pid;
    pid_t searched; /* a process whose descendants were searched already */
};

static void search_descendants(struct search *search, pid_t pid, int depth);

/* The kernel lists children by the thread that made them (CONFIG_PROC_CHILDREN). */
static void search_children(struct search *search, const char *path, int depth)
{
    char *text = scratch.children[depth];
    size_t length = read_file(path, text, sizeof scratch.children[depth]);
    const char *place = text, *end = text + length;
    while (place < end && search->num_left > 0) {
        pid_t child = (pid_t)next_decimal(&place, end);
        if (child <= 0)
            break;
        if (child == search->searched)
            continue;
        search->num_left--;
        if (depth > search->depth && has_open_file(child, search->link, true, NULL)) {
            search->pid = child;
            search->depth = depth;
        }
        search_descendants(search, child, depth);
    }
}

static void search_descendants(struct search *search, pid_t pid, int depth)
{
    char path[PATH_BYTES];
    if (depth >= MAX_DEPTH)
        return;
    proc_path(path, pid, "/task");
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return;
    size_t length = strlen(path);
    FOR_EACH_NUMBER(folder, scratch.entries[depth], thread, {
        path[length] = '/';
        memcpy(append_decimal(path + length + 1, (uint64_t)thread), "/children",
               sizeof "/children");
        search_children(search, path, depth + 1);
    });
    close(folder);
}

static pid_t parent_of(pid_t pid)
{
    char path[PATH_BYTES], text[1024];
    proc_path(path, pid, "/stat");
    size_t length = read_file(path, text, sizeof text);
    const char *place = length > 0 ? memrchr(text, ')', length) : NULL, *end = text + length;
    if (place == NULL || end - place < 5)
        return 0;
    place += 4; /* ") S " */
    return (pid_t)next_decimal(&place, end);
}

struct pipe_writer find_pipe_writer(uint64_t inode)
{
    struct search search = {.link = "pipe:[", .num_left = MAX_PROCESSES, .depth = 0};
    pid_t self = getpid(), above = self;
    char *end = append_decimal(search.link + 6, inode);
    *end = ']';
    if (has_open_file(self, search.link, true, NULL))
        return (struct pipe_writer){self, true};
    search_descendants(&search, self, 0);
    if (search.pid != 0)
        return (struct pipe_writer){search.pid, is_internal_process(search.pid)};
    for (int level = 0; level < 2 && search.pid == 0; level++) {
        search.searched = above;
        above = parent_of(above);
        if (above <= 1)
            break;
        if (has_open_file(above, search.link, true, NULL))
            search.pid = above;
        search_descendants(&search, above, 0);
    }
    bool is_internal =
        search.pid != 0 && (is_multiprocessing_child() || is_internal_process(search.pid));
    return (struct pipe_writer){search.pid, is_internal};
}
