#include "tables.h"

#include "real.h"

#include <errno.h>
#include <sys/mman.h>

/* Also called in signal handlers and by several threads at a time: the one that is second gives its
 * pages back. */
__attribute__((noinline, cold)) void *map_table(table_pages *table, size_t bytes)
{
    void *pages = mapped_table(table), *before = NULL;
    if (pages != NULL)
        return pages;
    int saved_errno = errno;
    pages = (void *)real_system_call(SYS_mmap, 0, (long)bytes, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) {
        pages = NULL;
    } else if (!atomic_compare_exchange_strong(table, &before, pages)) {
        real_system_call(SYS_munmap, (long)pages, (long)bytes, 0, 0, 0, 0);
        pages = before;
    }
    errno = saved_errno;
    return pages;
}
