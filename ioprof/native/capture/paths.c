#include "paths.h"

#include "decimal.h"
#include "real.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

__thread uintptr_t text_pages[TEXT_PAGES];

/* ----------------------------------------------------------------------- the working directory */

/* Cached, because asking for it costs as much as a read. The version is odd while a thread writes;
 * chdir makes the length 0. */
static struct {
    _Atomic uint32_t version;
    _Atomic uint32_t length; /* 0: unknown */
    _Atomic char text[PATH_MAX];
} working_directory;

void forget_working_directory(void)
{
    atomic_store(&working_directory.length, 0);
    atomic_fetch_add(&working_directory.version, 2);
}

static void store_working_directory(const char *text, size_t length, uint32_t version)
{
    if (version % 2 != 0 ||
        !atomic_compare_exchange_strong(&working_directory.version, &version, version + 1))
        return;
    for (size_t place = 0; place < length; place++)
        atomic_store_explicit(&working_directory.text[place], text[place], memory_order_relaxed);
    atomic_store(&working_directory.length, (uint32_t)length);
    atomic_fetch_add(&working_directory.version, 1);
}

/* Its length, the text in `into`, which has PATH_MAX bytes; 0: it has no path, or a longer one. */
static size_t read_working_directory(char *into)
{
    uint32_t version = atomic_load(&working_directory.version);
    size_t length = atomic_load(&working_directory.length);
    for (size_t place = 0; place < length;
         place++) /* acquire: before the version is loaded again */
        into[place] = atomic_load_explicit(&working_directory.text[place], memory_order_acquire);
    if (length > 0 && version % 2 == 0 && atomic_load(&working_directory.version) == version)
        return length;
    long kept =
        real_system_call(SYS_getcwd, (long)into, PATH_MAX, 0, 0, 0, 0); /* with its final zero */
    if (kept <= 1 || into[0] != '/')
        return 0;
    store_working_directory(into, (size_t)kept - 1, version);
    return (size_t)kept - 1;
}

/* ------------------------------------------------------------------------------ absolute paths */

size_t descriptor_path(int descriptor, char *into)
{
    char link[32] = "/proc/self/fd/";
    *append_decimal(link + sizeof "/proc/self/fd/" - 1, (uint64_t)descriptor) = '\0';
    ssize_t length = readlink(link, into, PATH_MAX);
    return length > 0 && into[0] == '/' ? (size_t)length : 0;
}

/* A function of its own, because a signal handler that opens a file by its absolute path may have a
 * small stack. A thread may have one of 16 KiB (PTHREAD_STACK_MIN), a third of it in use already,
 * so that a path longer than PATH_MAX has no number. */
static __attribute__((noinline)) int32_t relative_number(int folder, const char *path,
                                                         size_t length)
{
    char absolute[PATH_MAX];
    int saved_errno = errno;
    while (length > 2 && path[0] == '.' && path[1] == '/') {
        path += 2;
        length -= 2;
    }
    size_t above =
        folder == AT_FDCWD ? read_working_directory(absolute) : descriptor_path(folder, absolute);
    errno = saved_errno;
    if (above == 0 || above + 1 + length > sizeof absolute)
        return -1;
    if (absolute[above - 1] != '/')
        absolute[above++] = '/';
    memcpy(absolute + above, path, length);
    return text_number(absolute, above + length);
}

int32_t path_number(int folder, const char *path)
{
    size_t length = strnlen(path, PATH_MAX);
    return path[0] == '/' ? text_number(path, length) : relative_number(folder, path, length);
}

__attribute__((noinline)) int32_t descriptor_path_number(int descriptor)
{
    char path[PATH_MAX];
    size_t length = descriptor_path(descriptor, path);
    return length > 0 ? text_number(path, length) : -1;
}
