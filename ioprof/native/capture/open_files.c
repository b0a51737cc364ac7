#include "open_files.h"

#include "decimal.h"
#include "paths.h"
#include "positions.h"
#include "readahead.h"
#include "real.h"

#include <unistd.h>

table_pages open_files[MAX_DESCRIPTORS / WINDOW_DESCRIPTORS];

void forget_files(unsigned first, unsigned last)
{
    for (unsigned descriptor = first; descriptor <= last && descriptor < MAX_DESCRIPTORS;
         descriptor++) {
        if (file_entry((int)descriptor) == NULL)
            descriptor |= WINDOW_DESCRIPTORS - 1; /* the last of this window */
        else
            forget_file((int)descriptor);
    }
}

static bool has_storage(const struct stat *status)
{
    return S_ISREG(status->st_mode) || S_ISBLK(status->st_mode);
}

/* Files without a name and a type: of eventfd, epoll, timers and the like. */
static bool is_event(int descriptor, const struct stat *status)
{
    static const char name[] = "anon_inode:[eventfd]";
    char link[32] = "/proc/self/fd/", target[sizeof name];
    if ((status->st_mode & S_IFMT) != 0)
        return false;
    *append_decimal(link + 14, (uint64_t)descriptor) = '\0';
    ssize_t length = readlink(link, target, sizeof target);
    return length == sizeof name - 1 && memcmp(target, name, sizeof name - 1) == 0;
}

static HOT void set_status(int descriptor, struct open_file *file, const struct stat *status)
{
    SET(file, size, S_ISREG(status->st_mode) ? (int64_t)status->st_size : -1);
    if (flags_of(file) & FILE_IDENTIFIED)
        return;
    if (has_storage(status)) {
        SET(file, key, ahead_key(status));
        SET(file, system, file_system_of(descriptor, status->st_dev));
    }
    uint32_t kind = has_storage(status)            ? FILE_REGULAR
                    : S_ISSOCK(status->st_mode)    ? FILE_SOCKET
                    : S_ISFIFO(status->st_mode)    ? FILE_PIPE
                    : is_event(descriptor, status) ? FILE_EVENT
                                                   : 0;
    set_flags(file, FILE_IDENTIFIED | kind);
}

HOT void set_file_status(int descriptor, const struct stat *status)
{
    struct open_file *file = known_file(descriptor);
    if (file == NULL)
        return;
    int saved_errno = begin_own_work();
    set_status(descriptor, file, status);
    end_own_work(saved_errno);
}

/* A descriptor that the hooks did not see being opened: inherited, received, or opened by the C
 * library internally. */
static void add_unseen_file(int descriptor, struct open_file *file, const struct stat *status)
{
    int flags = S_ISREG(status->st_mode) ? REAL(fcntl)(descriptor, F_GETFL, 0L) : 0;
    int32_t path = has_storage(status) ? descriptor_path_number(descriptor) : -1;
    reset_file(file, FILE_SHARED | (flags > 0 && flags & O_DIRECT ? FILE_DIRECT : 0), path);
}

__attribute__((noinline)) void identify_file(int descriptor, struct open_file *file)
{
    struct stat status;
    int saved_errno = begin_own_work();
    if (fstat(descriptor, &status) == 0) {
        if (!is_known(file))
            add_unseen_file(descriptor, file, &status);
        set_status(descriptor, file, &status);
        publish_file(file);
    }
    end_own_work(saved_errno);
}

void copy_file(int from, int to)
{
    struct open_file *original = known_file(from);
    struct open_file *copy = original != NULL ? new_file_entry(to) : NULL;
    if (copy == NULL)
        return;
    wait_for_position(original);
    set_flags(original, FILE_SHARED);
    reset_file(copy,
               flags_of(original) & ~(uint32_t)(FILE_TRACKED | FILE_BUSY | FILE_HTTP |
                                                FILE_NO_HTTP | FILE_BELOW_HTTP),
               GET(original, path));
    SET(copy, system, GET(original, system));
    SET(copy, key, GET(original, key));
    SET(copy, size, GET(original, size));
    SET(copy, receives, GET(original, receives));
    SET(copy, sends, GET(original, sends));
    publish_file(copy);
}
