#define _GNU_SOURCE
#include "memory.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>

#define ADDRESS_BITS                                                                               \
    47 /* of user space on x86-64 and, with 4 KiB pages and three or four levels, at least as many \
          on arm64 */

int copy_memory(pid_t pid, uint64_t address, void *to, size_t bytes)
{
    struct iovec local = {to, bytes}, remote = {(void *)(uintptr_t)address, bytes};
    ssize_t copied = process_vm_readv(pid, &local, 1, &remote, 1, 0);
    if (copied < 0)
        return errno;
    return (size_t)copied == bytes ? 0 : EFAULT;
}

/* Adds pages to the view, as far as they can be copied: the kernel stops at the first that is not
 * mapped. */
static void add_pages(struct view *view, const uint64_t *addresses, unsigned count)
{
    struct iovec local[MOST_PAGES], remote[MOST_PAGES];
    for (unsigned i = 0; i < count; i++) {
        local[i] = (struct iovec){view->pages[view->count + i], PAGE_BYTES};
        remote[i] = (struct iovec){(void *)(uintptr_t)addresses[i], PAGE_BYTES};
    }
    ssize_t copied = process_vm_readv(view->pid, local, count, remote, count, 0);
    if (copied < (ssize_t)(count * PAGE_BYTES) && !view->error)
        view->error = copied < 0 ? errno : EFAULT;
    for (unsigned i = 0; copied >= (ssize_t)((i + 1) * PAGE_BYTES); i++) {
        view->addresses[view->count] = addresses[i];
        view->used[view->count++] = false;
    }
}

void begin_view(struct view *view, pid_t pid, const uint64_t *addresses, unsigned count)
{
    view->pid = pid;
    view->error = 0;
    view->count = view->last = 0;
    if (count)
        add_pages(view, addresses, count);
    view->error = 0; /* a page of the last sample may be gone */
}

static bool find_page(struct view *view, uint64_t page)
{
    if (view->last < view->count && view->addresses[view->last] == page)
        return true;
    for (unsigned i = 0; i < view->count; i++) {
        if (view->addresses[i] == page) {
            view->last = i;
            return true;
        }
    }
    if (view->count == MOST_PAGES)
        return false;
    unsigned before = view->count;
    add_pages(view, &page, 1);
    view->last = before;
    return view->count > before;
}

bool load(struct view *view, uint64_t address, uint64_t *value)
{
    if (address % 8 || address < PAGE_BYTES || address >> ADDRESS_BITS ||
        !find_page(view, address & ~(uint64_t)(PAGE_BYTES - 1)))
        return false;
    view->used[view->last] = true;
    memcpy(value, view->pages[view->last] + address % PAGE_BYTES, sizeof *value);
    return true;
}

unsigned used_pages(const struct view *view, uint64_t *addresses)
{
    unsigned count = 0;
    for (unsigned i = 0; i < view->count; i++) {
        if (view->used[i])
            addresses[count++] = view->addresses[i];
    }
    return count;
}
